"""A server in a cloud: its console as the cloud shows it, a shell by ssh, a reboot by Nova."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hotplate.elsewhere.following import Followed
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.elsewhere.ways import Ways
from hotplate.errors import UsageError
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.guest.base import BOOT_ID, GuestGoneError
from hotplate.guest.ssh import Ssh
from hotplate.machine.machine import Capability
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline, retry

SSH_SECONDS = 300.0
#: Time for an answer of a guest that may be about to reboot.
REPLY_SECONDS = 15.0


class CloudConsole:
    """The console of a server in a cloud, as far as it has been read.

    :param server: Nova's id.
    """

    def __init__(self, events: EventLog, server: str) -> None:
        self._events = events
        self._server = server

    @property
    def lines(self) -> list[str]:
        """Return the lines so far, without terminal control sequences."""
        return [*self._texts(self._events)]

    def text(self) -> str:
        """Return the whole text so far."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, deadline: Deadline) -> re.Match[str]:
        """Wait until a line matches, and return the match.

        :param pattern: a regular expression.
        :raises DeadlineExceeded: when none does in time.
        """
        wanted = re.compile(pattern)

        def matches(event: Event) -> bool:
            return any(map(wanted.search, self._texts([event])))

        # The deadline may be stretched for a slow host when it would pass.
        while (found := self._events.wait(matches, seconds=deadline.left)) is None:
            if deadline.passed:
                last = (self.lines or [""])[-1]
                raise DeadlineExceeded(
                    f'gave up waiting for {deadline.what}; the last line is "{last}"'
                )
        return next(match for text in self._texts([found]) if (match := wanted.search(text)))

    def _texts(self, events: Iterable[Event]) -> Iterator[str]:
        for event in events:
            text = classify.console_text(event) if event.server == self._server else None
            if text is not None:
                yield text


class CloudServer:
    """One running server in a cloud.

    :param followed: its state, kept up to date by the following of its stack.
    :param directory: for its artifacts; it is made.
    :cvar capabilities: the guest has a kernel and a disk of its own; the cloud gives no access to
        power, cables, memory, screen and monitor.
    """

    capabilities = frozenset({Capability.KERNEL, Capability.DISK})

    def __init__(self, cloud: OsCloud, followed: Followed, ways: Ways, directory: Path) -> None:
        self.id, self.name = followed.id, followed.name
        self.kind = kind_in(cloud.name)
        self.directory = directory
        self.console = CloudConsole(cloud.events, followed.id)
        self._cloud = cloud
        self._followed = followed
        self._ways = ways
        self._way: Ssh | None = None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def shell(self, *, seconds: float = SSH_SECONDS) -> Ssh:
        """Return a connection to its ssh server that runs commands as root; see :class:`Ways`.

        A new one when the last was lost.

        :param seconds: how long to wait for the ssh server.
        """
        return self._attached(GuestDeadline(seconds, f'ssh of the server "{self.name}"'))

    ssh = shell

    def _attached(self, deadline: Deadline) -> Ssh:
        if self._way is None or not self._way.is_alive:
            self._way = self._ways.log_in(self.address(), deadline)[0]
        return self._way

    def address(self, network: str = "") -> str:
        """Return the address by which it is reached, on any network.

        :raises UsageError: when it has none.
        """
        del network
        if not self._followed.addresses:
            raise UsageError(f'the server "{self.name}" has no address')
        return self._followed.addresses[0]

    def reboot(self, deadline: Deadline) -> None:
        """Reboot it gracefully by Nova, and wait until it answers again."""
        before = self.shell().run(BOOT_ID).check().text
        with self._cloud.translated("a reboot"):
            # SOFT asks the guest to reboot; HARD would cut the power.
            self._cloud.sdk.compute.reboot_server(self.id, "SOFT")

        def rebooted(_: bool) -> bool:
            try:
                way = self._attached(deadline)
                # The boot's id, and not the answer alone, tells the new boot from the old one.
                return way.run(BOOT_ID, timeout=REPLY_SECONDS).text not in ("", before)
            except (GuestGoneError, DeadlineExceeded):
                # On the same connection, paramiko would wait for ever for the lost answer.
                self.close()
                return False

        retry(rebooted, deadline, every=2.0)

    def close(self) -> None:
        """Close the connection."""
        if self._way is not None:
            self._way.close()


def kind_in(cloud: str) -> str:
    """Return words that complete "this server is ..." for a server in a cloud of that name."""
    return f"in the cloud {cloud}"
