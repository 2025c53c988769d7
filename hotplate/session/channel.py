"""The protocol of a session: one JSON message each way, with descriptors.

The owner listens on the unix socket ``control`` in the session's directory, ``SOCK_SEQPACKET``;
descriptors are passed as ``SCM_RIGHTS``.  A request is ``{"ask": word, ...}``, an answer
``{"ok": value}`` or ``{"error": sentence, "hint": text, "outcome": whose fault}``.  Both ends check
that the other belongs to the same user (``SO_PEERCRED``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from hotplate.errors import HostError

MESSAGE_BYTES = 1 << 16
MAX_DESCRIPTORS = 2
CONTROL = "control"
"""The socket's name in the session's directory."""


def connect(directory: Path) -> socket.socket:
    """Connect to the session in a directory.

    :raises OSError: when there is none.
    """
    with contextlib.ExitStack() as owned:
        channel = owned.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with _short(directory) as name:
            channel.connect(f"{name}/{CONTROL}")
        owned.pop_all()
        return channel


def listen(directory: Path) -> socket.socket:
    """Listen in a claimed directory: the process that bound the socket before is gone."""
    with contextlib.ExitStack() as owned:
        listener = owned.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        (directory / CONTROL).unlink(missing_ok=True)
        with _short(directory) as name:
            listener.bind(f"{name}/{CONTROL}")
        (directory / CONTROL).chmod(0o600)
        listener.listen(16)
        owned.pop_all()
        return listener


def receive(channel: socket.socket, owned: contextlib.ExitStack) -> tuple[bytes, list[int]]:
    """Read one message, empty when the other end is gone, and the descriptors with it.

    :param owned: closes the descriptors.
    """
    message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, MAX_DESCRIPTORS)
    for descriptor in descriptors:
        owned.callback(os.close, descriptor)
    return message, descriptors


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """Give a directory a short name: a unix socket's address has at most 108 bytes (unix(7))."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def check_peer(channel: socket.socket) -> None:
    """Refuse any other user but root."""
    size = struct.calcsize("3i")
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, uid, _ = struct.unpack("3i", credentials)
    if uid not in (os.geteuid(), 0):
        raise PermissionError(f"the other end of the session's socket belongs to user {uid}")


def in_memory(data: bytes) -> int:
    """Return a descriptor to read ``data`` from."""
    descriptor = os.memfd_create("output", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def pass_on(descriptor: int, output: int) -> None:
    """Hand a connection to ``ssh``, for its option ProxyUseFdpass.

    :param output: our standard output, which ssh makes a socket.
    :raises HostError: when it is not one.
    """
    try:
        with socket.socket(fileno=os.dup(output)) as channel:
            socket.send_fds(channel, [b"\0"], [descriptor])
    except OSError as error:
        raise HostError(
            "--connect is for the ProxyCommand of ssh, with ProxyUseFdpass", hint="see ssh-config"
        ) from error
