"""Notices: problems of a run that did not prevent its end.

A stack can be complete while a hook ran twice, the guest reset by itself, wrote without end or
sent no output.  All are derived from the events.  A notice with :attr:`Noticed.fails` fails the
run; the others are listed, and those of a problem fail it under ``--strict``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from hotplate.events import classify, expected
from hotplate.events.console_patterns import CACHED_LINES
from hotplate.events.event import Event
from hotplate.events.expected import ExpectedDeployment
from hotplate.events.kinds import GuestFlood, GuestJournal, GuestProbe, PowerOn, UserDataParts
from hotplate.text import clean
from hotplate.verdict.boots import Boots
from hotplate.verdict.facts import COMMON, names_in, whole
from hotplate.verdict.guest_boot import clock_is_off
from hotplate.verdict.guest_files import PHASE_SYNTAX
from hotplate.verdict.guest_standard import faults
from hotplate.verdict.hook_output import error_in
from hotplate.verdict.probes import CLOCK, STANDARD

NOTABLE_LINES = 100
#: The limits of a guest's journal in an event: lines, and characters of each.
NOTABLE_WIDTH = 300

#: The copy on the console, by the guest's journal, of a line that the runner wrote there.
_FORWARDED = re.compile(r"\w\[\d+\]: heat-config: ")

#: The harness's own unit in a guest.
_OURS = "hotplate-shell"

#: Units that need a kernel, a disk, a clock or a udev of their own, which no container has: their
#: failure says nothing about the image. By their names, and by their descriptions on the console.
_NO_HARDWARE = re.compile(
    r"^(?:systemd-(?:remount-fs|growfs|udev|modules-load|sysctl|binfmt|repart|pstore|hwdb|vconsole"
    r"|backlight|rfkill)|kmod|modprobe@|(?:dev|sys|proc-sys|boot|efi)\b.*\.mount$"
    r"|.*\.(?:swap|device|automount)$"
    r"|lvm2|mdmonitor|multipathd|open-iscsi|dracut|grub|kdump|kexec|auditd|apparmor|irqbalance|rngd"
    r"|smartd|mcelog|heat-config-growfs|growroot|iscsid|fstrim|zram|netplan-configure\.service$"
    r"|Remount Root|Apply Kernel Variables|Load Kernel Module|Rule-based Manager for Device"
    # By their descriptions: growroot.service of diskimage-builder, iscsid and open-iscsi.
    r"|Grow root partition|iSCSI initiator|Login to default iSCSI)"
)


@dataclass(frozen=True)
class NoticePattern:
    """A row of :data:`PATTERNS`.

    :param kind: a stable word.
    :param line: matches a line of the console or the journal; a group "what" distinguishes it from
        others of its kind.
    :param sentence: with "{what}".
    """

    kind: str
    line: re.Pattern[str]
    sentence: str


PATTERNS: tuple[NoticePattern, ...] = (
    NoticePattern(
        "failed-unit",
        re.compile(
            r"(?:\[FAILED\] |systemd\[1\]: )Failed to start (?P<what>[^\s]+\.[a-z]+|.+?)"
            r"(?: - .*)?\.?\s*$"
        ),
        'the unit "{what}" failed to start',
    ),
    NoticePattern(
        "failed-unit",
        re.compile(r"systemd\[1\]: (?P<what>\S+\.[a-z]+): Failed with result"),
        'the unit "{what}" failed',
    ),
    NoticePattern(
        "oom-kill",
        re.compile(
            r"(?:Out of memory|Memory cgroup out of memory): Killed process \d+ \((?P<what>.+?)\)"
        ),
        'the guest ran out of memory, and its kernel killed "{what}"',
    ),
    # The kernel's, systemd's and the C library's words; ARM's kernel has none.
    NoticePattern(
        "illegal-instruction",
        re.compile(
            r"(?P<what>[\w.@-]+)(?:\[\d+\])?:? (?:trap invalid opcode"
            r"|Main process exited, code=(?:killed|dumped), status=4/ILL"
            r"|Fatal glibc error: CPU does not support"
            r"|(?:\S+: )?error while loading shared libraries: .*CPU ISA level is lower)"
        ),
        '"{what}" has an instruction that its CPU lacks',
    ),
    NoticePattern(
        "traceback",
        re.compile(r"(?P<what>[\w.@-]+)\[\d+\]: (?:.*: )?Traceback \(most recent call last\)"),
        '"{what}" ended in a Python traceback',
    ),
    # cloud-init's; as a unit, cloud-final.service fails.
    NoticePattern(
        "user-data-failed",
        re.compile(r"cloud-init\[\d+\]: .*Failed to run module scripts[-_](?P<what>user)\b"),
        "a script of the {what} data failed",
    ),
    # Heat's loguserdata.py, which ends with 0; empty user data has the same line.
    NoticePattern(
        "user-data-ignored",
        re.compile(r"cloud-init\[\d+\]: (?P<what>Userdata empty or not executable)"),
        'the user data was not run: it does not begin with "#!", and user_data_format '
        "HEAT_CFNTOOLS, the default, takes scripts only (RAW takes cloud-config too)",
    ),
    # cloud-init goes on after each of these, and ends with 0.
    NoticePattern(
        "user-data-ignored",
        re.compile(
            r"cloud-init\[\d+\]: .*Unhandled (?P<what>non-multipart|unknown content-type "
            r"\(text/plain\))"
        ),
        'cloud-init ignored user data that begins with neither "#!" nor "#cloud-config"',
    ),
    NoticePattern(
        "user-data-ignored",
        re.compile(
            r"cloud-init\[\d+\]: .*Unhandled unknown content-type \((?!text/plain)(?P<what>[^)]+)\)"
        ),
        'cloud-init ignored a part of the user data, whose type "{what}" it does not know',
    ),
    NoticePattern(
        "user-data-ignored",
        re.compile(r"cloud-init\[\d+\]: .*Failed loading yaml blob\. (?P<what>[^:\"]+)"),
        "cloud-init ignored a cloud-config that it cannot read: {what}",
    ),
    # The substitute for cloud-init in images without it.
    NoticePattern(
        "user-data-ignored",
        re.compile(r"heat-config-bootstrap: (?P<what>user data) was ignored"),
        "the {what} was not run, as the image has no cloud-init: put it into a deployment",
    ),
    # From bash and dash. Later phases are not run, and the agent starts over at each poll.
    NoticePattern(
        "script-syntax",
        re.compile(rf"(?P<what>{PHASE_SYNTAX})"),
        'a phase script has a syntax error: "{what}"',
    ),
    NoticePattern(
        "ordering-cycle",
        re.compile(r"Ordering cycle found, skipping (?P<what>\S+)"),
        'systemd left out the unit "{what}", which is in an ordering cycle',
    ),
)


@dataclass(frozen=True)
class Noticed:
    """A problem of a run.

    :param kind: a stable word, such as ``ran-twice``.
    :param sentence: for people, without the server and without a full stop.
    :param server: the name of the server, "" when it concerns none.
    :param fails: a run with it did not pass.
    :param wrong: it is a problem, which fails a run under ``--strict``.
    """

    kind: str
    sentence: str
    server: str = ""
    fails: bool = False
    wrong: bool = True

    def __str__(self) -> str:
        return f'{self.sentence} (server "{self.server}")' if self.server else self.sentence

    def to_json(self) -> dict[str, object]:
        """Return it as JSON types."""
        return {
            "kind": self.kind,
            "sentence": self.sentence,
            "server": self.server,
            "fails": self.fails,
        }


#: A line of cloud-init's, or of what it runs.
_CLOUD_INIT = re.compile(r"cloud-init\[\d+\]: (?P<text>.*)")
#: Lines of cloud-init's own, of the program by which Heat runs user data, and of ssh-keygen: a
#: cloud-init of one process for all stages (since 24.3) writes these after its last stage.
_NOT_OF_SCRIPTS = re.compile(
    r"Cloud-init v\.|\d{4}-\d\d-\d\d [\d:,]+ - |Provision |/var/lib/heat-cfntools/cfn-userdata$"
    r"|Generating public/private |Your (?:identification|public key) has been saved in "
    r"|The key fingerprint is:|The key's randomart image is:|SHA256:|\||\+-+\[.*\]-+\+$"
)
#: The most lines of scripts that are kept.
SCRIPT_LINES = 2000


@dataclass
class _Seen:
    """The evidence about one server in the events.

    :param scripts: the console's lines of scripts in the user data, since cloud-init's last stage
        began.
    :param not_a_script: Heat's user data would run a text that is no script.
    """

    starts: dict[str, list[classify.Marker]] = field(default_factory=dict)
    boots: Boots = field(default_factory=Boots)
    units: set[str] = field(default_factory=lambda: {*COMMON})
    titles: dict[str, str] = field(default_factory=dict)
    container: bool = False
    matched: dict[tuple[str, str], NoticePattern] = field(default_factory=dict)
    deployments: dict[str, ExpectedDeployment] = field(default_factory=dict)
    by_kind: dict[tuple[str, str], Noticed] = field(default_factory=dict)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    scripts: list[str] = field(default_factory=list)
    not_a_script: bool = False


def notice(
    events: Iterable[Event],
    servers: Mapping[str, str],
    *,
    unsent: Mapping[str, Sequence[str]] | None = None,
    skip: Iterable[str] = (),
) -> tuple[Noticed, ...]:
    """Return the problems that did not prevent the end of the run, failing ones first.

    :param servers: the names of the servers by their ids; "" to leave a name out.
    :param unsent: the declared outputs that were not sent, by the label of the deployment.
    :param skip: the ids of standard checks to leave out; none of them fails a run by itself.
    """
    seen = {server: _Seen() for server in servers}
    for event in events:
        if event.server in seen and not classify.is_by_host(event):
            _see(seen[event.server], event)
    all_of_it = [each for server, one in seen.items() for each in _of(one, servers[server])]
    for label, names in (unsent or {}).items():
        listed = ", ".join(f'"{name}"' for name in names)
        all_of_it.append(
            Noticed("output-missing", f'the deployment "{label}" did not send its output {listed}')
        )
    left_out = {*skip}
    kept = [each for each in all_of_it if each.kind not in left_out]
    return tuple(sorted(kept, key=lambda each: (not each.fails, not each.wrong)))


def notable(journal: str) -> list[str]:
    """Return the lines of a guest's journal that :func:`notice` reads, a bounded number."""
    lines = (clean(line)[:NOTABLE_WIDTH] for line in journal.splitlines())
    wanted = [line for line in lines if any(row.line.search(line) for row in PATTERNS)]
    return wanted[:NOTABLE_LINES]


def _see(seen: _Seen, event: Event) -> None:
    seen.boots.see(event)
    if (started := PowerOn.of(event)) is not None:
        seen.container = started.machine == "container"
    if (given := UserDataParts.of(event)) is not None:
        seen.not_a_script = bool(given.not_a_script)
    if served := expected.deployments(event):
        seen.deployments.update({each.id: each for each in served})
    text = classify.console_text(event)
    if text is not None:
        _see_script(seen, text)
        _see_line(seen, text)
        marker = classify.marker(event)
        if marker and marker.event == "started" and not _FORWARDED.search(text):
            seen.starts.setdefault(marker.id, []).append(marker)
    elif journal := GuestJournal.of(event):
        for line in journal.lines:
            _see_line(seen, line)
    elif (answer := GuestProbe.of(event)) and answer.probe == CLOCK.name:
        if clock := clock_is_off(answer.text, event.wall):
            seen.by_kind.setdefault(("wrong-clock", ""), Noticed("wrong-clock", clock))
    elif answer and answer.probe == STANDARD.name:
        for fault in faults(answer.text, container=seen.container):
            if fault.title:
                seen.titles[fault.title] = fault.what
            if not _is_no_problem(seen, fault.id, fault.what):
                noticed = Noticed(fault.id, fault.sentence)
                seen.by_kind.setdefault((fault.id, fault.what), noticed)
    elif flood := GuestFlood.of(event):
        seen.by_kind.setdefault((flood.fault, ""), Noticed(flood.fault, flood.text))
    elif classify.is_signal(event):
        path, status = classify.path(event).partition("?")[0], classify.status(event)
        if status is not None and status >= 400:
            seen.refused[path, status] += 1
        elif any(each.is_signalled_by(path) for each in seen.deployments.values()):
            # A wait condition counts the signals of its handle, by any transport.
            seen.accepted[path] += 1


def _see_script(seen: _Seen, line: str) -> None:
    match = _CLOUD_INIT.search(line)
    if match is None:
        return
    if "running 'modules:final'" in line:
        seen.scripts.clear()
    elif len(seen.scripts) < SCRIPT_LINES and not _NOT_OF_SCRIPTS.match(match["text"]):
        # Heat's loguserdata.py writes the output of a script as a literal of Python.
        literal = match["text"].startswith(("b'", 'b"'))
        seen.scripts += match["text"][2:-1].split("\\n") if literal else [match["text"]]


def _see_line(seen: _Seen, line: str) -> None:
    units, matched = _read(line)
    seen.units.update(units)
    for row, what in matched:
        if not _is_no_problem(seen, row.kind, what):
            seen.matched.setdefault((row.kind, what.strip()), row)


# Most lines are the same in each test of an image.
@lru_cache(CACHED_LINES)
def _read(line: str) -> tuple[list[str], list[tuple[NoticePattern, str]]]:
    """Return the names of units in a line, and each pattern that it matches with its "what"."""
    matches = [(row, row.line.search(line)) for row in PATTERNS]
    return names_in(line), [(row, match["what"]) for row, match in matches if match]


def _is_no_problem(seen: _Seen, kind: str, what: str) -> bool:
    """Return whether it is the harness's own unit, hardware in a container, or empty user data."""
    if what.startswith(_OURS):
        return True
    if what.startswith("Userdata"):
        return not seen.not_a_script
    return seen.container and kind == "failed-unit" and bool(_NO_HARDWARE.search(what))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _of(seen: _Seen, name: str) -> Iterator[Noticed]:
    for identity, starts in seen.starts.items():
        if len(starts) > 1:
            what = f'the hook "{starts[0].group}" ran {len(starts)} times for one deployment'
            shown = starts[0].name or identity
            yield Noticed("ran-twice", f'{what}, "{shown}"', name, fails=True)
    # A boot loader may reset before it starts anything.
    reboots = [each for each in seen.boots.reboots if each.system]
    if crashes := sum(not each.orderly for each in reboots):
        sentence = f"the guest reset by itself {_times(crashes)}"
        yield Noticed("guest-reset", sentence, name, fails=True)
    if orderly := sum(each.orderly for each in reboots):
        sentence = f"the guest shut down and rebooted {_times(orderly)}"
        yield Noticed("guest-rebooted", sentence, name, wrong=False)
    for (kind, what), row in seen.matched.items():
        # A name that the console has cut may be whole in a later line.
        shown = seen.titles.get(what) or whole(what, seen.units)
        sentence = row.sentence.format(what=shown)
        if kind == "user-data-failed" and (error := error_in("\n".join(seen.scripts))):
            sentence += f'; it said "{error}"'
        seen.by_kind.setdefault((kind, shown), Noticed(kind, sentence))
    for each in seen.by_kind.values():
        yield Noticed(each.kind, each.sentence, name)
    for (path, status), count in seen.refused.items():
        times = "" if count == 1 else f", {count} times"
        yield Noticed("signal-refused", f"a signal was refused with {status}{times}: {path}", name)
    for path, count in seen.accepted.items():
        if count > 1:
            yield Noticed("signal-repeated", f"a signal was sent {count} times: {path}", name)
