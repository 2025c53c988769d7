"""Connections to port 22 of a server in a cloud: direct, by a jump host, or by an ssh config."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

import paramiko

from hotplate import host_tools
from hotplate.elsewhere.os_cloud import one_line
from hotplate.errors import HostError, SubjectError, UsageError
from hotplate.guest.base import CommandResult
from hotplate.guest.ssh import ROOT, Ssh
from hotplate.timing.deadline import Deadline, DeadlineExceeded

CONNECT_SECONDS = 10.0
#: Time limit for a ProxyCommand to hand a connection over.
HANDED_SECONDS = 60.0

SSH_PORT = 22
#: The environment variables passed to programs of ssh.
KEPT = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK", "LANG", "LC_ALL", "PYTHONPATH")

#: The message that cloud-init makes root's ``authorized_keys`` print (``disable_root_opts``).
_NOT_ROOT = 'Please login as the user "'


@dataclass(frozen=True)
class WayOptions:
    """The options for connections to servers, as on the command line.

    :param jump: a jump host for ssh, ``[USER@]HOST[:PORT]``, or several with commas between them;
        "" for none.
    :param config: a file for ``ssh -F``, which may name a ``ProxyJump``, a ``ProxyCommand``, a
        ``User`` and an ``IdentityFile`` for a server's address.
    :param user: the user to log in as; "" for the config's, root, or the one that cloud-init names.
    :param environment: of this process.
    """

    jump: str = ""
    config: Path | None = None
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class Ways:
    """Makes connections to servers; a context manager, which ends the programs that carry them.

    :param options: for the connections.
    :param key: of the session's key pair.
    :raises UsageError: when the ssh config cannot be read.
    """

    def __init__(self, options: WayOptions, *, key: paramiko.PKey) -> None:
        self._options = options
        self._key = key
        self._config = _read(options.config)
        self._environment = {
            name: value for name, value in options.environment.items() if name in KEPT
        }
        self._programs: list[WayProgram] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.end()

    def log_in(self, address: str, deadline: Deadline) -> tuple[Ssh, bool]:
        """Log in to a server, and become root.

        :param deadline: how long to wait for its ssh server.
        :return: the connection, and whether the session's own key was accepted.
        :raises DeadlineExceeded: when no ssh server answers in time.
        :raises SubjectError: when it refuses the login.
        :raises HostError: when a jump host refuses the connection; quotes ssh.
        """
        # The failure of an earlier program is no reason any more.
        self._programs = [each for each in self._programs if not each.has_ended]
        config = self._lookup(address)
        user = self._options.user or str(config.get("user", ROOT))
        keys = [self._key, *_identities(config)]
        way = self._attach(address, user, keys, deadline)
        if (named := _named_instead(way)) is None:
            return way, way.key is self._key
        if len(keys) > 1:
            # A root key of the config is preferred. It is tried only once: a server that has let
            # one user in will not accept another key later.
            once = Deadline(0, deadline.what)
            with contextlib.suppress(SubjectError, DeadlineExceeded):
                other = self._attach(address, user, keys[1:], once)
                if _named_instead(other) is None:
                    way.close()
                    return other, False
                other.close()
        way.close()
        return self._attach(address, named, keys, deadline), True

    def connect(self, address: str) -> socket.socket:
        """Return a connection to a server's ssh.

        :raises OSError: when there is none at present.
        :raises HostError: when a jump host has refused, and would refuse again.
        """
        if (last := self._last_ended()) is not None and last.is_refused_for_good:
            raise _refused(last, address)
        config = self._lookup(address)
        host, port = str(config.get("hostname", address)), int(config.get("port", SSH_PORT))
        jump = self._options.jump or config.get("proxyjump", "none")
        if jump != "none":
            return self._through(self._jump_command(jump, host=host, port=port), jump=jump)
        if command := _proxy_command(address, config):
            return self._through(command, by_descriptor=config.get("proxyusefdpass") == "yes")
        return socket.create_connection((host, port), CONNECT_SECONDS)

    # -- inside ----------------------------------------------------------------------------------

    def _attach(
        self, address: str, user: str, keys: Sequence[paramiko.PKey], deadline: Deadline
    ) -> Ssh:
        way = Ssh(lambda: self.connect(address), keys=keys, user=user)
        try:
            way.attach(deadline)
        except DeadlineExceeded as error:
            last = self._last_ended()
            if last is None or not last.complaint:
                raise
            if last.is_refused:
                raise _refused(last, address) from error
            raise DeadlineExceeded(f"{error}: {one_line(last.complaint)}") from error
        return way

    def _last_ended(self) -> WayProgram | None:
        """Return the program that ended last, and drop those that ended before it."""
        ended = [each for each in self._programs if each.has_ended]
        self._programs = [each for each in self._programs if each not in ended[:-1]]
        return ended[-1] if ended else None

    def _lookup(self, address: str) -> dict[str, str]:
        return dict(self._config.lookup(address)) if self._config is not None else {}

    def _jump_command(self, jump: str, *, host: str, port: int) -> str:
        """Return the command whose input and output reach a server by jump hosts.

        :param jump: the jump hosts, separated by commas, as for ``ssh -J``.
        """
        *others, last = jump.split(",")
        words = [host_tools.find_tool("ssh"), "-o", "BatchMode=yes"]
        words += ["-o", f"ConnectTimeout={CONNECT_SECONDS:.0f}"]
        if self._options.config is not None and not self._options.jump:
            words += ["-F", str(self._options.config)]
        if others:
            words += ["-J", ",".join(others)]
        url = last if last.startswith("ssh://") else f"ssh://{last}"
        return shlex.join([*words, "-W", f"[{host}]:{port}", url])

    def _through(
        self, command: str, *, by_descriptor: bool = False, jump: str = ""
    ) -> socket.socket:
        """Start a program that carries a connection, and return our end of it.

        :param by_descriptor: the program hands the connection over, and ends (ProxyUseFdpass).
        :param jump: the jump hosts that it uses.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._programs.append(
                WayProgram(command, theirs, environment=self._environment, jump=jump)
            )
        if not by_descriptor:
            return ours
        ours.settimeout(HANDED_SECONDS)
        with ours:
            _, handed, _, _ = socket.recv_fds(ours, 1, 1)
            if not handed:
                raise ConnectionError("the ProxyCommand handed no connection over")
            return socket.socket(fileno=handed[0])


def check(options: WayOptions) -> None:
    """Check the options before any resource is made.

    :raises UsageError: when the ssh config cannot be read.
    """
    _read(options.config)


def _proxy_command(address: str, config: Mapping[str, str]) -> str:
    """Return the program that an ssh config names for a server, "" for none."""
    command = config.get("proxycommand", "none")
    # paramiko fills in %h, %p and %r only (ssh_config(5), TOKENS).
    return "" if command == "none" else command.replace("%n", address).replace("%%", "%")


def _refused(program: WayProgram, address: str) -> HostError:
    """Return the error of a jump host's refusal, for which no image is to blame."""
    return HostError(
        f'the jump host "{program.jump}" gives no way to {address}: {one_line(program.complaint)}',
        hint=f"ssh -J {program.jump} {address}",
    )


def _read(path: Path | None) -> paramiko.SSHConfig | None:
    if path is None:
        return None
    try:
        return paramiko.SSHConfig.from_path(str(path))
    except (OSError, paramiko.SSHException, UnicodeDecodeError) as error:
        raise UsageError(f'the ssh config "{path}" cannot be read: {one_line(error)}') from error


def _identities(config: Mapping[str, object]) -> list[paramiko.PKey]:
    """Return the keys named in an ssh config that can be read without a passphrase."""
    named = config.get("identityfile")
    keys = []
    for path in named if isinstance(named, list) else ():
        with contextlib.suppress(OSError, ValueError, paramiko.SSHException):
            keys.append(paramiko.PKey.from_path(os.path.expanduser(str(path).strip('"'))))  # noqa: PTH111
    return keys


def _named_instead(way: Ssh) -> str | None:
    """Return the user that cloud-init wants instead of root, None when root is accepted."""
    if way.user != ROOT:
        return None
    answer: CommandResult = way.run("true")
    text = answer.stdout.decode(errors="replace")
    _, sign, rest = text.partition(_NOT_ROOT)
    return rest.partition('"')[0] if answer.rc and sign else None


#: The size of the kept end of a program's messages.
COMPLAINT_BYTES = 4096

#: The number of quoted lines.
QUOTED_LINES = 4

#: How long to wait for the rest of the messages, when the program has ended but its children have
#: not.
END_SECONDS = 1.0

#: The message of ssh when a jump host accepted it but could not reach the server (OpenSSH's
#: ``channel_input_open_failure``).
OF_THE_SERVER = re.compile(r"open failed: connect failed: ")

#: The name that ssh gives a jump host behind another one, when it loses the connection.
OF_A_JUMP = "UNKNOWN port 65535"

#: Messages of a jump host, or this host's ssh, that a retry will not change.
FOR_GOOD = re.compile(
    r"Permission denied|Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|"
    r"administratively prohibited|Bad configuration option|Bad owner or permissions"
)


class WayProgram:
    """One program, whose input and output are one end of a socket.

    :param command: for a shell.
    :param end: its end.
    :param environment: its whole environment.
    :param jump: the jump host that it uses; "" for a ``ProxyCommand``.
    """

    def __init__(
        self, command: str, end: socket.socket, *, environment: Mapping[str, str], jump: str
    ) -> None:
        self.jump = jump
        self._tail = bytearray()
        self._process = subprocess.Popen(  # noqa: S602 - a ProxyCommand is a shell's.
            f"exec {command}",
            shell=True,
            stdin=end.fileno(),
            stdout=end.fileno(),
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stderr is not None
        # Read continuously: a full pipe would stop the program.
        self._reader = threading.Thread(
            target=self._keep_tail, args=(self._process.stderr,), daemon=True
        )
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended by itself."""
        return self._process.poll() is not None

    @property
    def complaint(self) -> str:
        """Return the last lines of its standard error, as one line."""
        if self.has_ended:
            self._reader.join(END_SECONDS)
        lines = bytes(self._tail).decode(errors="replace").splitlines()
        return "; ".join([" ".join(each.split()) for each in lines if each.strip()][-QUOTED_LINES:])

    @property
    def is_refused(self) -> bool:
        """Return whether it ended before it reached the server, because of the jump host."""
        if not self.jump or not self.has_ended or not self._process.returncode:
            return False
        text = self.complaint
        return bool(text) and (OF_A_JUMP in text or not OF_THE_SERVER.search(text))

    @property
    def is_refused_for_good(self) -> bool:
        """Return whether a retry would end in the same way."""
        return self.is_refused and bool(FOR_GOOD.search(self.complaint))

    def end(self) -> None:
        """End it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(END_SECONDS)

    def _keep_tail(self, stream: IO[bytes]) -> None:
        with stream:
            while data := os.read(stream.fileno(), COMPLAINT_BYTES):
                self._tail += data
                del self._tail[:-COMPLAINT_BYTES]
