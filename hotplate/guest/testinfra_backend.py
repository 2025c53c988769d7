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

from hotplate.guest.base import COMMAND_SECONDS, Guest

FIRST = "uname -s"
"""The first question of testinfra about the system."""

KERNEL_AND_RELEASE = "uname -sm && cat /etc/os-release"
"""That question and the next one in one command, as each takes an emulated guest long."""


class GuestBackend(BaseBackend):  # type: ignore[misc]
    """Runs testinfra's commands over a :class:`~hotplate.guest.base.Guest`.

    :param connect: returns an attached connection; called before each command, so it should reuse
        a working one, and make another after a reboot or a power cut.
    :param name: the host's name in reports.
    """

    NAME = "hotplate"

    def __init__(
        self,
        connect: Callable[[], Guest],
        *,
        name: str = "guest",
        timeout: float = COMMAND_SECONDS,
    ) -> None:
        super().__init__(name)
        self._connect = connect
        self._timeout = timeout
        self._ahead: dict[str, str] = {}

    def run(self, command: str, *args: str, **_: object) -> TestinfraResult:
        """Run a command for testinfra."""
        text = self.get_command(command, *args)
        if text == FIRST:
            self._ahead = self._system()
        output = self._ahead.pop(text, None)
        if output is not None:
            return self.result(0, text.encode(), output.encode(), b"")
        # The answer to a later question may have changed by then.
        self._ahead.clear()
        return self._run(text)

    def _system(self) -> dict[str, str]:
        """Return the answers to testinfra's questions about a Linux system; else {}."""
        answer = self._run(KERNEL_AND_RELEASE)
        first, _, release = answer.stdout.partition("\n")
        words = first.split()
        if answer.rc != 0 or len(words) != 2 or words[0] != "Linux":
            return {}
        name, machine = (f"{word}\n" for word in words)
        return {FIRST: name, "cat /etc/os-release": release, "uname -m": machine}

    def _run(self, text: str) -> TestinfraResult:
        # An interrupted command may have run, so it is not run again.
        result = self._connect().run(text, timeout=self._timeout)
        return self.result(result.rc, text.encode(), result.stdout, result.stderr)

    def get_encoding(self) -> str:
        """Return the encoding of command output, without running Python in the guest."""
        return "utf-8"


def testinfra_host(
    connect: Callable[[], Guest], *, name: str = "guest", timeout: float = COMMAND_SECONDS
) -> Host:
    """Return a testinfra host; it connects at the first command.

    :param connect: see :class:`GuestBackend`.
    :param timeout: limit of one command in seconds.
    """
    backend = GuestBackend(connect, name=name, timeout=timeout)
    host = Host(backend)
    backend.set_host(host)
    return host
