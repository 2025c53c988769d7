"""The protocol of a session, and its owner's end: one JSON message each way, with descriptors.

The owner listens on the unix socket ``control`` in the session's directory, ``SOCK_SEQPACKET``;
descriptors are passed as ``SCM_RIGHTS``.  A request is ``{"ask": word, ...}``, an answer
``{"ok": value}`` or ``{"error": sentence, "hint": text, "outcome": whose fault}``.  Both ends check
that the other belongs to the same user (``SO_PEERCRED``).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from hotplate.errors import HostError, HotplateError, outcome_of, sentence_of

MESSAGE_BYTES = 1 << 16
#: A command's answer passes its output and its error output.
MAX_DESCRIPTORS = 2
#: The socket's name in the session's directory.
CONTROL = "control"
#: The request that ends the session.
DOWN = "down"


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
        # bind() refuses a path that exists.
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
    # struct ucred: process, user and group (unix(7)).
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


def content_of(descriptor: int) -> bytes:
    """Return the whole content of :func:`in_memory`, whoever has read of it; it stays open."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        return stream.read()


def pass_on(descriptor: int, output: int) -> None:
    """Hand a connection to ``ssh``, for its option ProxyUseFdpass.

    :param output: our standard output, which ssh makes a socket.
    :raises HostError: when it is not one.
    """
    try:
        with socket.socket(fileno=os.dup(output)) as channel:
            # OpenSSH's mm_receive_fd() expects one byte with the descriptor.
            socket.send_fds(channel, [b"\0"], [descriptor])
    except OSError as error:
        raise HostError(
            "--connect is for the ProxyCommand of ssh, with ProxyUseFdpass", hint="see ssh-config"
        ) from error


#: Takes a request; its ``descriptors`` are those passed along, and are closed afterwards. Returns
#: the answer, and descriptors to pass along and close.
Handler = Callable[[dict[str, object]], tuple[object, list[int]]]


class Control:
    """The owner's end of the control socket; a context manager.

    The caller of :meth:`run` handles signals that mean "end" and accepts requests; each request is
    answered in a thread of its own.  The answer to :data:`DOWN` makes :meth:`run` return.

    :param directory: of the session, claimed.
    :param handle: answers a request; a :class:`HotplateError` becomes the answer's error.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, directory: Path, handle: Handler) -> None:
        self._directory = directory
        self._handle = handle
        self._owned = contextlib.ExitStack()

    def __enter__(self) -> Control:
        with contextlib.ExitStack() as owned:
            self._listener = owned.enter_context(listen(self._directory))
            self._woken, self._waker = (owned.enter_context(each) for each in socket.socketpair())
            # signal.set_wakeup_fd() demands it.
            self._waker.setblocking(False)
            owned.callback((self._directory / CONTROL).unlink, missing_ok=True)
            # A signal delivered to another thread would not end the main thread's select().
            owned.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._waker.fileno()))
            for number in self.SIGNALS:
                # nohup and background jobs set it to be ignored, and it stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    owned.callback(signal.signal, number, signal.signal(number, self._on_signal))
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def end(self) -> None:
        """Make :meth:`run` return."""
        with contextlib.suppress(OSError):
            self._waker.send(b"e")

    def run(self) -> None:
        """Answer requests until a signal or a call of :meth:`end`."""
        while True:
            ready, _, _ = select.select([self._woken, self._listener], [], [])
            if self._woken in ready:
                return
            channel, _ = self._listener.accept()
            threading.Thread(
                target=self._answer, args=(channel,), name="control", daemon=True
            ).start()

    def _on_signal(self, number: int, _frame: object) -> None:  # noqa: ARG002
        self.end()

    def _answer(self, channel: socket.socket) -> None:
        descriptors: list[int] = []
        with contextlib.ExitStack() as owned, contextlib.suppress(OSError):
            owned.callback(channel.close)
            # A client that goes away before its answer is no error (OSError above).
            check_peer(channel)
            ends = False
            try:
                message, handed = receive(channel, owned)
                request = json.loads(message or b"{}") | {"descriptors": handed}
                if request["ask"] == DOWN:
                    # Kept open to the end: its closing shows the other end that we are gone.
                    self._owned.callback(owned.pop_all().close)
                value, descriptors = self._handle(request)
                answer = {"ok": value}
                ends = request["ask"] == DOWN
            except HotplateError as error:
                answer = {
                    "error": error.message,
                    "hint": error.hint,
                    "outcome": str(outcome_of(error)),
                }
            except (ValueError, KeyError, TypeError) as error:
                answer = {"error": f"the request was not understood: {error}"}
            except Exception as error:  # the caller must always get an answer
                traceback.print_exception(error)
                answer = {"error": sentence_of(error), "outcome": str(outcome_of(error))}
            try:
                socket.send_fds(channel, [json.dumps(answer).encode()], descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
                if ends:
                    # After the answer: the end closes the connection.
                    self.end()
