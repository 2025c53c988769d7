"""A testinfra host over any connection to a guest.

>>> host = testinfra_host(lambda: server.shell())  # doctest: +SKIP
>>> host.file("/etc/motd").contains("hello")  # doctest: +SKIP
True
"""

from __future__ import annotations

from collections.abc import Callable

from testinfra.backend.base import BaseBackend
from testinfra.backend.base import CommandResult as TestinfraResult
from testinfra.host import Host

from hotplate.guest.base import Guest


class GuestBackend(BaseBackend):  # type: ignore[misc]
    """Runs testinfra's commands over a :class:`~hotplate.guest.base.Guest`.

    :param connect: returns an attached connection; called before each command, so it should reuse
        a working one, and make another after a reboot or a power cut.
    :param name: the host's name in reports.
    """

    NAME = "hotplate"

    def __init__(self, connect: Callable[[], Guest], name: str) -> None:
        super().__init__(name)
        self._connect = connect

    def run(self, command: str, *args: str, **_: object) -> TestinfraResult:
        """Run a command for testinfra."""
        text = self.get_command(command, *args)
        # An interrupted command may have run, so it is not run again.
        result = self._connect().run(text)
        return self.result(result.rc, text.encode(), result.stdout, result.stderr)

    def get_encoding(self) -> str:
        """Return the encoding of command output, without running Python in the guest."""
        return "utf-8"


def testinfra_host(connect: Callable[[], Guest], *, name: str = "guest") -> Host:
    """Return a testinfra host, which connects at the first command; see :class:`GuestBackend`."""
    backend = GuestBackend(connect, name)
    host = Host(backend)
    backend.set_host(host)
    return host
