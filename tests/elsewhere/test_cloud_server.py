"""hotplate.elsewhere.server: rare cases of clouds, beside test_cloud_plugin.py."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hotplate.elsewhere import server as cloud_server
from hotplate.elsewhere.following import Followed
from hotplate.elsewhere.server import REPLY_SECONDS, CloudServer
from hotplate.events.log import EventLog
from hotplate.guest.base import BOOT_ID, COMMAND_SECONDS, CommandResult
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline


class Way:
    """A connection over ssh: an answer for each command, or None for silence."""

    def __init__(self, *answers: str | None) -> None:
        self._answers = [*answers]
        self.is_alive = True
        self.waited: list[float] = []

    def run(self, command: str, *, timeout: float = COMMAND_SECONDS) -> CommandResult:
        assert command == BOOT_ID
        self.waited.append(timeout)
        answer = self._answers.pop(0)
        if answer is None:
            raise DeadlineExceeded(f"gave up waiting for {command}")
        return CommandResult(command, 0, answer.encode(), b"")

    def close(self) -> None:
        self.is_alive = False


def test_guest_that_goes_down_within_a_command_is_asked_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """By another connection: on the old one, paramiko would wait for ever for the lost answer."""
    monkeypatch.setattr(cloud_server, "retry", _without_pauses)
    before, going, after = Way("one"), Way("one", None), Way("two")
    ways = iter((before, going, after))
    rebooted: list[tuple[str, str]] = []

    def reboot(*which: str) -> None:
        rebooted.append(which)
        before.close()

    compute = SimpleNamespace(reboot_server=reboot)
    cloud = SimpleNamespace(
        events=EventLog(),
        name="a cloud",
        sdk=SimpleNamespace(compute=compute),
        translated=lambda _: contextlib.nullcontext(),
    )
    server: Any = CloudServer(
        cloud,  # type: ignore[arg-type]
        Followed("7", "web", addresses=("192.0.2.1",)),
        SimpleNamespace(log_in=lambda *_: (next(ways), None)),  # type: ignore[arg-type]
        tmp_path,
    )
    server.reboot(GuestDeadline(60, "the reboot of web"))
    assert rebooted == [("7", "SOFT")]
    assert going.waited == [REPLY_SECONDS, REPLY_SECONDS]
    assert not going.is_alive
    assert server.shell() is after


def _without_pauses(attempt: Any, *_: Any, **__: Any) -> None:
    while not attempt(False):
        pass
