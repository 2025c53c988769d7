"""The connections of checks: a server's shell, and ssh in a cloud."""

from __future__ import annotations

import contextlib

import pytest

from hotplate.checks.check import CheckStatus, UserCheck, UserChecks
from hotplate.checks.runner import CheckRunner
from hotplate.errors import HostError, MachineLostError, SubjectError
from hotplate.events.kinds import MachineExit
from hotplate.events.log import EventLog
from hotplate.guest.base import GuestGoneError
from hotplate.settings import Settings
from hotplate.trial.base import BaseTrial
from hotplate.trial.cloud_trial import _SshAccess
from hotplate.trial.user_checks import CheckedGuest, ServerAccess


class Gone:
    running = False

    def connect(self, seconds: float):
        raise MachineLostError("the machine is off")

    def drop(self) -> None:
        pass


class PlayedSsh:
    def __init__(self) -> None:
        self.is_alive = True

    def close(self) -> None:
        self.is_alive = False


def test_ssh_is_kept_until_it_is_dropped_or_lost():
    made: list[PlayedSsh] = []

    def log_in(seconds: float) -> PlayedSsh:
        made.append(PlayedSsh())
        return made[-1]

    with contextlib.closing(_SshAccess(log_in)) as access:  # type: ignore[arg-type]
        assert access.connect(5) is access.connect(5) is made[0]
        access.drop()
        assert not made[0].is_alive
        assert access.connect(5) is made[1]
        made[1].is_alive = False
        assert access.connect(5) is made[2]
    assert not made[2].is_alive


def test_refused_channel_of_a_restarting_container_is_a_guest_that_has_gone():
    class Server:
        def guest(self, *, seconds: float) -> None:
            raise ConnectionRefusedError

    with pytest.raises(GuestGoneError):
        ServerAccess(Server()).connect(5)  # type: ignore[arg-type]


def test_jump_host_that_refuses_is_no_failed_check(guest):
    class Refusing:
        running = True

        def connect(self, seconds: float) -> None:
            raise HostError("the jump host refuses")

    with pytest.raises(HostError):
        CheckRunner(Refusing()).run(UserCheck("a", "a", b""))  # type: ignore[arg-type]


@pytest.mark.root
def test_ssh_server_of_a_booting_guest_may_refuse_a_login(guest, monkeypatch):
    """pam_nologin does, until systemd-user-sessions.service runs."""
    refusals = []
    connect = guest.connect

    def refuse_twice(seconds: float):
        if guest.boots == 1 and guest._init is None and len(refusals) < 2:
            refusals.append(seconds)
            raise SubjectError("System is booting up")
        return connect(seconds)

    monkeypatch.setattr(guest, "connect", refuse_twice)
    program = b'#!/bin/sh\n[ -n "$AUTOPKGTEST_REBOOT_MARK" ] || /tmp/autopkgtest-reboot one\n'
    result = CheckRunner(guest).run(UserCheck("a", "a", program))
    assert result.status is CheckStatus.PASSED, result
    assert len(refusals) == 2


def test_machine_lost_while_checks_ran_is_no_failed_check(passed, tmp_path):
    events = EventLog()
    trial = BaseTrial(
        None,  # type: ignore[arg-type]
        settings=Settings(patience=1),
        folder=tmp_path,
        events=events,
        say=print,
        on_reached=lambda mark, name: None,
        checks=UserChecks((UserCheck("a", "a", b""),)),
    )
    verdict = passed.result("CREATE_COMPLETE")
    assert not trial._with_checks(verdict, [CheckedGuest(Gone())]).passed
    events.add(MachineExit(reason="lost"), server="web")
    with pytest.raises(MachineLostError, match="was lost while the checks ran"):
        trial._with_checks(verdict, [CheckedGuest(Gone())])
