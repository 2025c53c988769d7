"""A session's directory: one owner, a control socket, and the files to reach it.

The owner (``hotplate up``) holds a lock on the directory as long as it lives, so that no file in
it is ever stale.  Others speak to it over its control socket (:mod:`hotplate.session.channel`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotplate import locks
from hotplate.errors import (
    HostError,
    HotplateError,
    Outcome,
    UsageError,
    error_of,
)
from hotplate.guest.base import new_key
from hotplate.session import channel as channels
from hotplate.session.channel import CONTROL, DOWN, MESSAGE_BYTES
from hotplate.settings import Settings
from hotplate.timing.deadline import Deadline, retry

ABOUT = "session.json"
#: The folder of the boot from which a warm state is made.
FIRST_BOOT = "first-boot"
#: All names ever made in a session's directory; no others are removed.
OURS = (
    *("cloud", "servers", "networks", "clouds.yaml", "ssh-key", "ssh-key.pub", "ssh-config"),
    *("environment", CONTROL, ABOUT, FIRST_BOOT),
)


@dataclass(frozen=True)
class SessionDirectory:
    """The directory of a session, seen by its owner or by others.

    :param path: the directory; need not exist yet.
    """

    path: Path

    @property
    def clouds_yaml(self) -> Path:
        """Return the file for the ``openstack`` command: ``OS_CLIENT_CONFIG_FILE``."""
        return self.path / "clouds.yaml"

    @property
    def environment(self) -> Path:
        """Return the file to source: the ``openstack`` command's settings, and the proxy."""
        return self.path / "environment"

    @property
    def ssh_key(self) -> Path:
        """Return the private key that every server of the session accepts."""
        return self.path / "ssh-key"

    @property
    def ssh_config(self) -> Path:
        """Return the file for ``ssh -F``, with every server by the name of its folder."""
        return self.path / "ssh-config"

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Become the one owner of the directory, which is made when it does not exist.

        :raises UsageError: when a session runs in it, or it has other content.
        :raises HostError: when it is not writable.
        """
        try:
            if self.path.is_dir() and not (self.path / ABOUT).exists():
                others = sorted(each.name for each in self.path.iterdir())
                if others:
                    raise UsageError(
                        f'"{self.path}" is not the directory of a session: it holds "{others[0]}"',
                        hint="name an empty or a new one: --directory DIR",
                    )
            self._check_owner()
            held = contextlib.ExitStack()
            # The directory itself is locked: it is removed at the end, and a lock file would be
            # too.
            held.enter_context(locks.exclusive(self.path, wait=False, make=True))
        except locks.InUse:
            raise UsageError(
                f'a session already runs in "{self.path}"', hint=self.command("down")
            ) from None
        except OSError as error:
            raise HostError(
                f'the session\'s directory "{self.path}" cannot be used: {error.strerror}',
                hint=f"ls -ld {shlex.quote(str(self.path.parent))}",
            ) from error
        with held:
            yield

    def _check_owner(self) -> None:
        """Refuse a directory in which others can put a key or a disk of their choice.

        :raises UsageError: when another user owns it, or others may write to it.
        """
        if not self.path.is_dir():
            return
        status = self.path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise UsageError(
                f'the directory "{self.path}" is not yours alone: others may write to it',
                hint=f"name a new one with --directory DIR, or: "
                f"chmod go-w {shlex.quote(str(self.path))}",
            )

    def is_claimed(self) -> bool:
        """Return True when a session runs in the directory."""
        return locks.is_held(self.path)

    def about(self) -> dict[str, object]:
        """Return the description that an earlier session left; empty when there was none."""
        try:
            document: dict[str, object] = json.loads((self.path / ABOUT).read_text())
            return document
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(
                f'"{self.path / ABOUT}" cannot be read: {error}', hint="name another --directory"
            ) from error

    def write(self, name: str, text: str) -> Path:
        """Write a file that only its owner can read, atomically."""
        path = self.path / name
        temporary = path.with_name(f".{name}.new")
        temporary.unlink(missing_ok=True)
        # Private before it has contents.
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        return temporary.rename(path)

    def public_key(self) -> str:
        """Return the session's public key; make the pair when there is none."""
        public = self.ssh_key.with_suffix(".pub")
        if not public.exists():
            self.write(self.ssh_key.name, new_key())
        from paramiko import Ed25519Key

        key = Ed25519Key.from_private_key_file(str(self.ssh_key))
        line = f"{key.get_name()} {key.get_base64()} hotplate"
        self.write(public.name, line + "\n")
        return line

    def write_ssh_config(self) -> None:
        """Write the config with which ``ssh -F FILE`` reaches every server of the session."""
        # -P: Python must not import modules from the current directory.
        words = [sys.executable, "-P", "-m", "hotplate", "ssh", "--directory", str(self.path)]
        # ssh replaces tokens such as "%h" in both values (ssh_config(5)).
        command = " ".join(shlex.quote(word) for word in words).replace("%", "%%")
        key = str(self.ssh_key).replace("%", "%%")
        self.write(
            self.ssh_config.name,
            "# The connection comes from the session and leads to one machine and no other:\n"
            "# there is no host key to check.\n"
            "Host *\n"
            "    User root\n"
            f'    IdentityFile "{key}"\n'
            # The agent's keys would be tried first, and a server takes a few attempts only.
            "    IdentitiesOnly yes\n"
            "    StrictHostKeyChecking no\n"
            "    UserKnownHostsFile /dev/null\n"
            "    LogLevel ERROR\n"
            f"    ProxyCommand {command} --connect %n\n"
            "    ProxyUseFdpass yes\n",
        )

    def write_environment(self, proxy: str) -> None:
        """Write the settings with which a shell and its programs reach the cloud.

        :param proxy: the address of the proxy to the cloud's addresses as guests see them.
        """
        settings = {
            "OS_CLIENT_CONFIG_FILE": str(self.clouds_yaml),
            "OS_CLOUD": "hotplate",
            "http_proxy": proxy,
            "no_proxy": "127.0.0.1,localhost",
        }
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
        self.write(self.environment.name, "".join(lines))

    def remove(self) -> None:
        """Remove the session's files; the directory too when it is empty then."""
        self.clear()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def clear(self) -> None:
        """Remove the session's files."""
        for name in OURS:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def command(self, *words: str) -> str:
        """Return a hotplate command line for this session, to paste."""
        verb, *rest = words
        return shlex.join(["hotplate", verb, "--directory", str(self.path), *rest])

    def require(self) -> None:
        """Check that a session runs.

        :raises UsageError: when no session runs here.
        """
        if not self.is_claimed():
            raise self._nobody()

    def _nobody(self) -> UsageError:
        return UsageError(
            f'no session runs in "{self.path}"',
            hint=shlex.join(["hotplate", "up", "--directory", str(self.path), "IMAGE"]),
        )

    # -- the client's side -----------------------------------------------------------------------

    @contextlib.contextmanager
    def asked(
        self, ask: str, *, descriptors: Sequence[int] = (), **details: object
    ) -> Iterator[tuple[Any, list[int], socket.socket]]:
        """Ask the session; yield its answer, the descriptors passed along, and the connection.

        :param descriptors: passed along with the request.
        :raises UsageError: when no session runs here.
        :raises HotplateError: the session's error, of the same kind.
        """
        with contextlib.ExitStack() as owned:
            try:
                channel = owned.enter_context(channels.connect(self.path))
            except OSError as error:
                raise self._nobody() from error
            # Before anything is sent: another user's process must not get our descriptors.
            channels.check_peer(channel)
            request = json.dumps({"ask": ask, **details}).encode()
            if len(request) > MESSAGE_BYTES:
                raise UsageError(
                    f"the request has {len(request)} bytes; expected {MESSAGE_BYTES} at most",
                    hint="pass what is long on standard input",
                )
            socket.send_fds(channel, [request], descriptors)
            message, handed = channels.receive(channel, owned)
            if not message:
                raise HotplateError(f'the session in "{self.path}" ended before it answered')
            answer = json.loads(message)
            if "error" in answer:
                outcome = Outcome(answer.get("outcome", Outcome.USAGE))
                raise error_of(outcome, str(answer["error"]), hint=str(answer.get("hint", "")))
            yield answer["ok"], handed, channel

    def end(self, deadline: Deadline, *, keep: bool) -> bool:
        """Ask the session to end, and wait until it has.

        :param keep: keep its state, regardless of its own option.
        :return: whether its state was kept.
        :raises DeadlineExceeded: when it still runs then.
        """
        with self.asked(DOWN, keep=keep) as (kept, _, channel):
            poller = select.poll()
            # Nothing is ever sent on it again; the session's end closes it.
            poller.register(channel, select.POLLIN | select.POLLHUP)
            poller.poll(deadline.left * 1000)
        # The session releases its lock after it has closed its connections.
        retry(lambda _: None if self.is_claimed() else True, deadline)
        return bool(kept)


def find(path: Path | None, settings: Settings) -> SessionDirectory:
    """Return the named directory, or the one in the artifacts."""
    return SessionDirectory((path or settings.artifacts / "up").absolute())
