"""Run a check in a guest, over any connection, with a time limit, and go on after a reboot.

The check runs by itself in the guest, and its state is asked for: so it may restart the network,
the ssh server or the machine. A check restarts the machine with autopkgtest's commands::

    /tmp/autopkgtest-reboot MARK            # never returns: the machine is restarted
    /tmp/autopkgtest-reboot-prepare MARK    # returns: the check itself restarts the machine

It is then started again, with the mark in ``AUTOPKGTEST_REBOOT_MARK`` (autopkgtest,
``doc/README.package-tests.rst``, "Reboot during a test").
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from hotplate.checks.check import CheckResult, CheckStatus, UserCheck
from hotplate.checks.metadata import GuestFacts
from hotplate.errors import HostError, HotplateError, MachineLostError, SubjectError
from hotplate.guest.base import BOOT_END, BOOT_ID, CommandResult, Guest, GuestGoneError
from hotplate.timing import host_speed
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

#: Below /var, which survives a reboot: hardened images mount /tmp, /var/tmp and /run with noexec.
DIRECTORY = "/var/lib/hotplate-checks"

#: autopkgtest's command that reboots; with "-prepare", the one that announces a reboot.
COMMANDS = "/tmp/autopkgtest-reboot"  # noqa: S108 - autopkgtest's interface

#: The bytes that are kept of an output: its first ones and its last ones.
FIRST_BYTES = LAST_BYTES = 32 << 10

#: The bytes of the output that are read at a time; the first part may be longer by that.
BLOCK_BYTES = 4096

#: The seconds within which a guest answers, also on a slow host.
ANSWER_SECONDS = 60.0

#: The seconds between the end of a check and that of its output, which another process may hold.
OUTPUT_SECONDS = 10.0

#: autopkgtest's exit status of a test that skips itself.
SKIPPED_STATUS = 77

CUT = "\n[... the middle of the output is left out here ...]\n"
HELD = "\n[the rest of the output is not known: a process that it left running holds it]\n"
OFF = "the machine is off"

_FACTS = """\
uname -m
if [ -r /etc/os-release ]; then
    . /etc/os-release
    printf '%s\\n' "$ID" "$VARIANT_ID"
fi
"""

#: Waits up to a second for news, so that the end of a short check is known at once.
_STATE = f"""\
{BOOT_ID}
cd {DIRECTORY}/run 2>/dev/null || exit 0
i=0
while [ ! -e status ] && [ ! -e reboot ] && [ ! -e prepare ] && [ $i -lt 10 ]; do
    sleep 0.1
    i=$((i + 1))
done
[ ! -e wrapper ] || echo waits yes
for name in ended status reboot prepare; do
    if [ -e $name ]; then
        IFS= read -r value <$name
        printf '%s %s\\n' $name "$value"
    fi
done
"""

#: The output is read to its end, so that a check that writes without end neither fills the disk
#: nor is ended by SIGPIPE. "dd" and not "head", which keeps its input to itself until it ends, as
#: at a reboot. In a session of its own, the check can be killed with all that it started.
_RUN = """\
cd /
umask 022
{{
    {environment} setsid {program} </dev/null 2>&1 &
    pid=$!
    echo $pid >{directory}/run/pid
    wait $pid
    status=$?
    kill -KILL -$pid
    echo $status >{directory}/run/ended
}} 2>/dev/null | {{
    cd {directory}/run
    size=0 before=-1
    while [ $size -gt $before ] && [ $size -lt {first} ]; do
        dd bs={block} count=1 >>first 2>/dev/null
        before=$size
        size=$(wc -c <first)
    done
    tail -c {last} >last
}}
mv {directory}/run/ended {directory}/run/status
"""

_REBOOT = f"""\
#!/bin/sh -e
[ -n "$1" ] || {{ echo "Usage: $0 MARK" >&2; exit 1; }}
echo "$1" >{DIRECTORY}/run/new
mv {DIRECTORY}/run/new {DIRECTORY}/run/reboot
while :; do sleep 60; done
"""
_PREPARE = f"""\
#!/bin/sh -e
[ -n "$1" ] || {{ echo "Usage: $0 MARK" >&2; exit 1; }}
echo "$1" >{DIRECTORY}/run/new
mv {DIRECTORY}/run/new {DIRECTORY}/run/prepare
while [ -e {DIRECTORY}/run/prepare ]; do sleep 0.2; done
"""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class GuestAccess(Protocol):
    """The connection to the guest of one server."""

    @property
    def running(self) -> bool:
        """Return False when the machine is off, as far as that can be seen."""
        ...

    def connect(self, seconds: float) -> Guest:
        """Return a connection; a new one after :meth:`drop`.

        :raises HotplateError: and DeadlineExceeded, when there is none within the seconds.
        """
        ...

    def drop(self) -> None:
        """Forget the connection, which may be that to a boot that has ended."""
        ...


@dataclass(frozen=True)
class _State:
    """The state of a check, as the guest reports it.

    :param waits: it was not started.
    :param status: its exit status, once its output is complete.
    :param ended: its exit status, while another process holds its output.
    :param reboot: the mark with which it asks for a reboot.
    :param prepare: the mark with which it announces one.
    """

    boot: str
    waits: bool = False
    status: int | None = None
    ended: int | None = None
    reboot: str = ""
    prepare: str = ""

    @classmethod
    def of(cls, text: str) -> _State:
        boot, *lines = text.split("\n")
        words = dict(line.split(" ", 1) for line in lines if " " in line)

        def number(name: str) -> int | None:
            # A guest can write anything here.
            word = words.get(name, "")
            return int(word) if word.isdigit() and len(word) < 4 else None

        return cls(
            boot.strip(),
            "waits" in words,
            number("status"),
            number("ended"),
            words.get("reboot", ""),
            words.get("prepare", ""),
        )


@dataclass(frozen=True)
class _End:
    """The end of a check, or of the part of it before a reboot.

    :param status: its exit status; None when something else ended it.
    :param why: the reason then.
    :param mark: of the reboot that follows; "" for none.
    :param held: another process holds its output.
    """

    status: int | None = None
    why: str = ""
    mark: str = ""
    held: bool = False


class CheckRunner:
    """Runs checks in one guest, one after the other, as root.

    :param memory: see :class:`GuestFacts`, as ``platforms`` and ``internet``.
    :ivar gone: why no further check can run, "" while they can.
    """

    def __init__(
        self,
        access: GuestAccess,
        *,
        platforms: tuple[str, ...] = ("openstack",),
        memory: int = 0,
        internet: bool = False,
    ) -> None:
        self._access = access
        self._platforms = platforms
        self._memory = memory
        self._internet = internet
        self._facts: GuestFacts | None = None
        self.gone = ""

    @property
    def facts(self) -> GuestFacts:
        """Return the facts about the guest.

        :raises HotplateError: and DeadlineExceeded, when it cannot be asked.
        """
        if self._facts is None:
            lines = [*self._run(_FACTS).stdout.decode(errors="replace").split("\n"), "", "", ""]
            architecture, distro, variant = lines[:3]
            distros = [distro]
            if variant == "coreos":
                # kola's words for Fedora CoreOS and for that of RHEL.
                distros += ["fcos" if distro == "fedora" else "rhcos"]
            self._facts = GuestFacts(
                architecture,
                self._platforms,
                tuple(filter(None, distros)),
                self._memory,
                self._internet,
            )
        return self._facts

    @property
    def architecture(self) -> str:
        """Return the guest's architecture, "" for a guest that could not be asked."""
        return self._facts.architecture if self._facts is not None else ""

    def run(self, check: UserCheck, *, first_bytes: int = FIRST_BYTES) -> CheckResult:
        """Run one check; a guest that no longer answers is its failure, too.

        :param first_bytes: how much of the begin of its output is kept.
        """
        began = time.monotonic()
        output = ""
        try:
            if why := self.gone or check.metadata.why_skipped(self.facts):
                return CheckResult(check.name, CheckStatus.SKIPPED, reason=why)
            end, output = self._run_to_its_end(check, first_bytes)
        except HostError:
            # A jump host that refuses the connection is no fault of the guest.
            raise
        except (HotplateError, DeadlineExceeded) as error:
            words = error.message if isinstance(error, HotplateError) else str(error)
            end = _End(why=f"the guest could not be asked: {words}")
            self.gone = f'the guest could not be asked after the check "{check.name}"'
        return _result(check, end, output, time.monotonic() - began)

    # -- inside ----------------------------------------------------------------------------------

    def _run(self, command: str) -> CommandResult:
        return self._access.connect(ANSWER_SECONDS).run(command, timeout=ANSWER_SECONDS)

    def _run_to_its_end(self, check: UserCheck, first_bytes: int) -> tuple[_End, str]:
        """Run a check with its reboots; return its end, and the outputs of all of its starts."""
        # The limit is for a host of normal speed, as those of the boot are.
        seconds = check.metadata.minutes * 60.0 * host_speed.factor()
        deadline = Deadline(seconds, f'the check "{check.name}"')
        outputs = []
        mark = ""
        while True:
            boot = self._start(check, mark, first_bytes)
            end = self._wait(boot, deadline)
            if self.gone:
                break
            outputs.append(self._output(held=end.held))
            mark = end.mark
            if not mark:
                self._run(f"rm -rf {DIRECTORY} {COMMANDS} {COMMANDS}-prepare")
                break
            outputs.append(f"\n[the machine was rebooted with the mark {mark}]\n")
            try:
                # The check would disturb a boot that goes on, and would be disturbed by it.
                self._access.connect(deadline.left).run(BOOT_END, timeout=deadline.left + 1.0)
            except DeadlineExceeded:
                end = _End(why=_too_long(deadline))
                break
        return end, "".join(outputs).strip("\n")

    def _start(self, check: UserCheck, mark: str, first_bytes: int) -> str:
        """Copy a check into the guest, and start it; return the id of the guest's boot.

        It is copied at each start: a crash may have lost the files of the one before.
        """
        program = f"{DIRECTORY}/bin/{check.file}"
        environment = {
            "PATH": _PATH,
            "HOME": "/root",
            "KOLA_TEST": check.name,
            "KOLA_TEST_EXE": check.file,
            "KOLA_EXT_DATA": f"{DIRECTORY}/data",
            "AUTOPKGTEST_TMP": f"{DIRECTORY}/tmp",  # noqa: S108 - below a directory of ours
        }
        if mark:
            environment["AUTOPKGTEST_REBOOT_MARK"] = mark
        wrapper = _RUN.format(
            # env: unlike the shell, it takes any name.
            environment=shlex.join(
                ["env", *(f"{key}={each}" for key, each in environment.items())]
            ),
            program=shlex.quote(program),
            directory=DIRECTORY,
            block=BLOCK_BYTES,
            first=first_bytes,
            # One more, so that its length tells whether something was left out.
            last=LAST_BYTES + 1,
        )
        folders = {str(PurePosixPath("data", each.path).parent) for each in check.data}
        made = shlex.join(["mkdir", "-p", "bin", "data", *sorted(folders)])
        boot = self._run(
            f"rm -rf {DIRECTORY} && umask 022 && mkdir -p {DIRECTORY} && cd {DIRECTORY} && {made} "
            f"&& mkdir -m 1777 tmp && mkdir -m 700 run && {BOOT_ID}"
        ).check()
        guest = self._access.connect(ANSWER_SECONDS)
        guest.copy_in(check.program, program, mode=0o755)
        for each in check.data:
            guest.copy_in(each.content, f"{DIRECTORY}/data/{each.path}", mode=each.mode)
        for name, text in (("reboot", _REBOOT), ("reboot-prepare", _PREPARE)):
            guest.copy_in(text.encode(), f"{DIRECTORY}/bin/autopkgtest-{name}", mode=0o755)
        # The name of a check's file need not be UTF-8 (PEP 383).
        script = wrapper.encode(errors="surrogateescape")
        guest.copy_in(script, f"{DIRECTORY}/run/wrapper", mode=0o600)
        try:
            # Links of other users in /tmp are replaced, and not followed.
            self._run(
                f"mv -f {DIRECTORY}/bin/autopkgtest-* /tmp/ && cd {DIRECTORY}/run && "
                "mv wrapper started || exit 1; setsid sh started </dev/null >/dev/null 2>&1 &"
            ).check()
        except GuestGoneError:
            # A check that reboots at once can be faster than this answer.
            self._access.drop()
        return boot.text

    def _wait(self, boot: str, deadline: Deadline) -> _End:
        """Wait until a check has ended, or the machine was rebooted for it.

        :param boot: the id of the boot in which it was started.
        """
        mark = ""
        held: Deadline | None = None

        def look(_: bool) -> _End | None:
            nonlocal mark, held
            state = self._look()
            if state is None:
                if self._access.running:
                    return None
                self.gone = OFF
                return _End(why="the machine was switched off while it ran")
            if state.boot != boot:
                lost = f"the machine rebooted while it ran, and not by {COMMANDS}"
                return _End(mark=mark) if mark else _End(why=lost)
            if state.waits:
                return _End(why="the connection to the guest was lost before its start")
            if state.reboot and not mark:
                mark = state.reboot
                self._reboot()
                return None
            if state.prepare:
                mark = state.prepare
                # This answers the command, which returns.
                self._run(f"rm -f {DIRECTORY}/run/prepare")
                return None
            status = state.ended if state.status is None else state.status
            # Before a reboot that it has announced, a check may end, or be ended by the shutdown.
            if status is None or (mark and (status == 0 or status > 128)):
                return None
            if state.status is None:
                held = held or Deadline(OUTPUT_SECONDS, "the output of a check")
                return _End(status, held=True) if held.passed else None
            return _End(status)

        try:
            return retry(look, deadline, every=0.2)
        except DeadlineExceeded:
            return self._kill(deadline)

    def _kill(self, deadline: Deadline) -> _End:
        """End a check whose time has passed, and all that it started in its session."""

        def has_ended(_: bool) -> bool:
            state = self._look()
            return bool(state and (state.status, state.ended) != (None, None))

        try:
            self._run(f"kill -KILL -$(cat {DIRECTORY}/run/pid)")
            retry(has_ended, Deadline(OUTPUT_SECONDS, "the end of a check"), every=0.2)
        except (MachineLostError, DeadlineExceeded):
            self.gone = "the guest no longer answers"
            return _End(why=f"it did not end within {deadline.seconds:.0f} s, and {self.gone}")
        return _End(why=_too_long(deadline))

    def _look(self) -> _State | None:
        """Return the state of the check, None when the guest does not answer."""
        try:
            answer = self._run(_STATE)
        except (MachineLostError, SubjectError, DeadlineExceeded):
            # As at a reboot: the next words may be the rest of an answer, and the ssh server of a
            # guest that still boots lets nobody in (pam_nologin).
            self._access.drop()
            return None
        return _State.of(answer.text)

    def _reboot(self) -> None:
        # In the background: the connection is not to be cut within an answer. The check is ended
        # first, and its output has a second to be written.
        commands = f"kill -KILL -$(cat {DIRECTORY}/run/pid); sleep 1; systemctl reboot || reboot"
        self._run(f"setsid sh -c {shlex.quote(commands)} </dev/null >/dev/null 2>&1 &")
        self._access.drop()

    def _output(self, *, held: bool) -> str:
        """Return the output of the check, with a note where a part is missing."""
        try:
            first = self._run(f"cat {DIRECTORY}/run/first").stdout
            last = self._run(f"cat {DIRECTORY}/run/last").stdout
        except GuestGoneError:
            return ""
        middle = b""
        if len(last) > LAST_BYTES:
            last = last[-LAST_BYTES:]
            middle = CUT.encode()
        return (first + middle + last).decode(errors="replace") + (HELD if held else "")


def _too_long(deadline: Deadline) -> str:
    return f"it did not end within {deadline.seconds:.0f} s, and was killed"


def _result(check: UserCheck, end: _End, output: str, seconds: float) -> CheckResult:
    def result(status: CheckStatus, reason: str = "") -> CheckResult:
        return CheckResult(check.name, status, seconds, reason, output)

    if end.status == 0:
        return result(CheckStatus.PASSED)
    if end.status == SKIPPED_STATUS and check.metadata.skippable:
        return result(CheckStatus.SKIPPED, f"it ended with status {SKIPPED_STATUS}")
    if end.status is None:
        return result(CheckStatus.FAILED, end.why)
    if end.status > 128:
        return result(CheckStatus.FAILED, f"it was ended by the signal {end.status - 128}")
    return result(CheckStatus.FAILED, f"it ended with status {end.status}")
