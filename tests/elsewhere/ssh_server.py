"""An ssh server on loopback that runs a guest's commands on this host, for read-only checks."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko

NOT_ROOT = 'Please login as the user "debian" rather than the user "root".\n\n'
SUDO = "sudo -n -- "


class Session(paramiko.ServerInterface):
    """The login and the command of one session."""

    def __init__(
        self, keys: Callable[[], set[str]], *, root: bool, instead: Callable[[str], str]
    ) -> None:
        self._keys = keys
        self._instead = instead
        self._root = root
        self._user = ""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._user = username
        good = key.get_base64() in self._keys()
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._answer, args=(channel, command.decode())).start()
        return True

    def _answer(self, channel: paramiko.Channel, command: str) -> None:
        with contextlib.suppress(OSError, EOFError):
            # The client ends its input after the answer to "exec", which paramiko sends after this
            # thread has begun; a channel closed before that had no command.
            while channel.recv(1 << 16):
                pass
            if self._user == "root" and not self._root:
                channel.sendall(NOT_ROOT.encode())
                channel.send_exit_status(142)
            else:
                command = self._instead(command.removeprefix("" if self._user == "root" else SUDO))
                done = subprocess.run(
                    ["sh", "-c", command], capture_output=True, stdin=subprocess.DEVNULL
                )
                channel.sendall(done.stdout)
                channel.sendall_stderr(done.stderr)
                channel.send_exit_status(done.returncode)
            channel.close()


@contextlib.contextmanager
def ssh_server(
    keys: Callable[[], set[str]], *, root: bool, instead: Callable[[str], str] = str
) -> Iterator[int]:
    """Serve on loopback; yield the port.

    :param instead: returns the command to run in place of a given one.

    :param keys: the accepted public keys, in base64.
    :param root: accept root, instead of only another user with ``sudo``.
    """
    host_key = paramiko.ECDSAKey.generate()
    transports: list[paramiko.Transport] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    transport = paramiko.Transport(connection)
                    transport.add_server_key(host_key)
                    transports.append(transport)
                    with contextlib.suppress(paramiko.SSHException, EOFError):
                        transport.start_server(server=Session(keys, root=root, instead=instead))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for transport in transports:
                transport.close()


def ssh_config(path: Path, port: int, *more: str) -> Path:
    """Write a file for ``ssh -F`` in which every server is at that port of loopback."""
    lines = ["Host *", "HostName 127.0.0.1", f"Port {port}", *more]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
