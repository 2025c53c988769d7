"""Words of the NixOS test driver, for tests over any connection to a guest.

They mean the same as in its ``Machine`` class (nixos/lib/test-driver): ``succeed`` and ``fail``
return the commands' output, a ``wait_...`` ends with an error that quotes the last try.
"""

from __future__ import annotations

import re
import shlex
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from hotplate.errors import SubjectError
from hotplate.guest.base import COMMAND_SECONDS, CommandError, CommandResult, shell_text
from hotplate.timing.deadline import GuestDeadline
from hotplate.timing.deadline import retry as retry_until

#: Default limit of a ``wait_...``, on a host of normal speed.
WAIT_SECONDS = 120.0

#: Pause between two tries in a guest, each of which is a command of some 10 ms.
EVERY_SECONDS = 0.5

MAX_QUOTE = 400


class ExpectationError(SubjectError):
    """A test's expectation of a guest was not met; the text shows the last try."""


class Driver(Protocol):
    """The words; a class that inherits them provides :meth:`run`.

    A command is text for the guest's ``/bin/sh``, or a list of words that are quoted for it.
    Seconds are those of a host of normal speed; on a slow one they are stretched
    (:class:`~hotplate.timing.deadline.GuestDeadline`).
    """

    @abstractmethod
    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command as root; see :meth:`hotplate.guest.base.Guest.run`."""

    def execute(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> tuple[int, str]:
        """Run a command and return its exit status and its standard output.

        >>> server.execute("echo hello; exit 3")
        (3, 'hello')

        :param timeout: seconds, after which the command is killed in the guest.
        :raises DeadlineExceeded: when it took longer.
        """
        result = self.run(command, timeout=timeout)
        return result.rc, result.text

    def succeed(self, *commands: str | Sequence[str], timeout: float = COMMAND_SECONDS) -> str:
        """Run commands, each of which must exit with 0, and return their standard output.

        >>> server.succeed("test -d /etc", "cat /proc/sys/kernel/ostype")
        'Linux'

        :raises CommandError: for the first that does not; quotes its stderr.
        """
        return "".join(self.run(each, timeout=timeout).check().text for each in commands)

    def fail(self, *commands: str | Sequence[str], timeout: float = COMMAND_SECONDS) -> str:
        """Run commands, all of which must fail, and return their standard output.

        >>> server.fail("test -e /no/such/file")
        ''

        :raises ExpectationError: for the first that exits with 0.
        """
        printed = ""
        for each in commands:
            result = self.run(each, timeout=timeout)
            if result.rc == 0:
                raise ExpectationError(
                    f'the command "{result.command}" was expected to fail and ended with status 0'
                )
            printed += result.text
        return printed

    def retry(
        self, attempt: Callable[[bool], bool], what: str, *, seconds: float = WAIT_SECONDS
    ) -> None:
        """Call ``attempt(last_try)`` twice a second until it returns True.

        >>> server.retry(lambda last_try: server.execute("true")[0] == 0, "a command")

        :param attempt: gets True at the last call, so that it can raise with the details.
        :param what: the awaited event, as it reads after "waiting for".
        :param seconds: the limit.
        :raises DeadlineExceeded: when the last call returned False too.
        """
        deadline = GuestDeadline(seconds, what)
        retry_until(attempt, deadline, every=EVERY_SECONDS)

    def wait_until_succeeds(
        self, command: str | Sequence[str], *, seconds: float = WAIT_SECONDS
    ) -> str:
        """Repeat a command until it exits with 0; return its standard output.

        >>> server.wait_until_succeeds("echo ready")
        'ready'

        :raises CommandError: when it still fails after ``seconds``; quotes its stderr.
        """
        return self._until(command, seconds, lambda result: result.rc == 0, CommandError).text

    def wait_until_fails(
        self, command: str | Sequence[str], *, seconds: float = WAIT_SECONDS
    ) -> str:
        """Repeat a command until it fails; return its standard output.

        >>> server.wait_until_fails("test -e /run/reboot-required")
        ''

        :raises ExpectationError: when it still exits with 0 after ``seconds``.
        """
        unmet = f'the command "{shell_text(command)}" still ends with status 0'
        return self._until(command, seconds, lambda result: result.rc != 0, unmet).text

    def wait_for_file(self, path: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a path exists, as a file or of any other type.

        >>> server.wait_for_file("/etc/os-release")

        :raises ExpectationError: when it does not after ``seconds``.
        """
        unmet = f'there is no "{path}"'
        self._until(["test", "-e", path], seconds, lambda result: result.rc == 0, unmet)

    def wait_for_unit(self, unit: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a systemd unit is active.

        >>> server.wait_for_unit("os-collect-config.service")

        :raises ExpectationError: at once when it has failed, is masked or does not exist; after
            ``seconds`` when it is in any other state. Quotes its state and the end of its journal.
        """
        ask = [
            # "show" succeeds for an unknown unit too, and names its LoadState.
            *("systemctl", "show", unit),
            *("--property", "LoadState,ActiveState,SubState"),
        ]

        def settled(result: CommandResult) -> bool:
            state = _properties(result)
            if state.get("LoadState") in ("not-found", "masked"):
                raise ExpectationError(f'the unit "{unit}" is {state["LoadState"]}')
            if state.get("ActiveState") == "failed":
                raise self._unit_error(unit, "has failed")
            return state.get("ActiveState") == "active"

        def error(result: CommandResult) -> ExpectationError:
            state = _properties(result)
            words = f"{state.get('ActiveState', 'unknown')} ({state.get('SubState', '')})"
            return self._unit_error(unit, f"is {words} after {seconds:.0f} s")

        self._until(ask, seconds, settled, error)

    def wait_for_open_port(
        self, port: int, *, address: str = "localhost", seconds: float = WAIT_SECONDS
    ) -> None:
        """Wait until the guest can connect to a TCP port; needs bash in the guest.

        >>> _ = server.succeed("systemd-run --unit=web python3 -m http.server 8080")
        >>> server.wait_for_open_port(8080)

        :raises ExpectationError: when nothing accepts connections after ``seconds``.
        """
        # bash itself connects for a redirection from /dev/tcp, so that the image needs no nc.
        connect = ["bash", "-c", f"exec 3<>/dev/tcp/{shlex.quote(address)}/{port:d}"]
        unmet = f"nothing listens on port {port} of {address}"
        self._until(connect, seconds, lambda result: result.rc == 0, unmet)

    # -- inside ----------------------------------------------------------------------------------

    def _until(
        self,
        command: str | Sequence[str],
        seconds: float,
        content: Callable[[CommandResult], bool],
        error: str | Callable[[CommandResult], SubjectError],
    ) -> CommandResult:
        """Run a command until its result is accepted.

        :param error: makes the error from the last result, or is its sentence, without the time.
        """

        def attempt(last_try: bool) -> CommandResult | None:
            result = self.run(command)
            if content(result):
                return result
            if not last_try:
                return None
            if isinstance(error, str):
                raise ExpectationError(f"{error} after {seconds:.0f} s")
            raise error(result)

        deadline = GuestDeadline(seconds, f'"{shell_text(command)}"')
        return retry_until(attempt, deadline, every=EVERY_SECONDS)

    def _unit_error(self, unit: str, state: str) -> ExpectationError:
        journal = self.run(
            ["journalctl", "--boot", "--no-pager", "--output", "cat", "--lines", "10", "-u", unit]
        )
        quote = re.sub(r"\s+", " ", journal.text)[-MAX_QUOTE:].strip() or "(empty)"
        return ExpectationError(f'the unit "{unit}" {state}; its journal ends: {quote}')


def _properties(result: CommandResult) -> dict[str, str]:
    """Return the ``Name=value`` lines of ``systemctl show``."""
    pairs = (line.partition("=") for line in result.text.splitlines())
    return {name: value for name, _, value in pairs}
