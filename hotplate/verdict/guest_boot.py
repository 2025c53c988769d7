"""Boot faults in a guest's own state: waiting units, cloud-init's configuration, the clock.

Each function returns a sentence without its full stop, or "".
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from hotplate.events import classify
from hotplate.verdict.facts import CUT, Facts
from hotplate.verdict.health import AGENT, UNITS
from hotplate.verdict.hook_output import error_in

#: A clock that is further off makes signatures and certificates invalid.
CLOCK_SECONDS = 3600.0
_JOB_BEGAN = re.compile(r"^\s*(?:\[ *\d+\.\d+\] systemd\[1\]: )?Starting (\S.*?)\.\.\.$")
#: Source: ``job_done_message_format()`` of systemd, and a unit's own ``finished_start_job``.
_JOB_ENDED = re.compile(
    r"\b(?:Started|Finished|Found device|Mounted|Set up automount|Activated swap|Listening on|"
    r"Reached target|Created slice|(?:Dependency|Assertion) failed for|Condition check resulted in|"
    r"Unnecessary job was removed for|Failed to (?:start|mount|set up automount|activate swap|"
    r"listen on)|Timed out (?:starting|mounting|activating swap|waiting for device)) (\S.*)"
)
_BOOT_ENDED = re.compile(r"login: ?$|Reached target .*(?i:multi-user)|Cloud-init v\. .* finished")
#: Units that wait for others, and so are not the reason why the boot does not go on.
#:
#: The device of a console on which systemd can write exists: it only comes late on a slow host.
_IN_VAIN = re.compile(rf"wait-onl|(?i:wait for network)|{AGENT}|^(?:dev-|/dev/)(?:tty|hvc)")
_DEVICE_LATE = re.compile(r"Timed out waiting for device (\S.*)")
_MOUNT_FAILED = re.compile(r"\[FAILED\] Failed to mount (?!.*/sysroot\.?$)(\S.*)")
_QUOTES = "\"'"
_MENU = "Press enter to boot the selected OS"
_MENU_REST = re.compile(r"^\W*$|^\s*before booting or `c' for a command-line")
#: Source: ``transaction_verify_order_one()`` of systemd.
_CYCLE = re.compile(
    r"\bOrdering cycle found, skipping (?P<skipped>\S+)"
    r"|\bJob (?P<deleted>\S+)/\w+ deleted to break ordering cycle"
    r"|\bFound (?:ordering cycle|dependency) on (?P<member>\S+?)/\w+"
)


def boot_waits(facts: Facts) -> str:
    rows = facts.health.rows("jobs", 4)
    waits = [row[1] for row in rows if row[3] == "running" and not _IN_VAIN.search(row[1])]
    if waits and any(row[3] == "waiting" for row in rows):
        return f'the boot waits for the unit "{waits[0]}", which has not ended'
    shown = _shown_waiting(facts.lines)
    return f'the boot waits for "{facts.whole_unit(shown[0])}" ({shown[1]})' if shown else ""


def _shown_waiting(lines: list[str]) -> tuple[str, str] | None:
    """Return the job that systemd showed as running and that never ended, in an unfinished boot."""
    waits: dict[str, str] = {}
    for line in lines:
        if job := classify.job_in(line):
            waits[job[0]] = job[1]
        elif _BOOT_ENDED.search(line):
            waits.clear()
        elif match := _JOB_ENDED.search(line):
            waits = {name: since for name, since in waits.items() if not _is(name, match[1])}
    rows = [(name, since) for name, since in waits.items() if not _IN_VAIN.search(name)]
    # A job with a limit ends by itself.
    endless = [row for row in rows if "no limit" in row[1]]
    named = endless or rows
    return named[-1] if named else None


def _is(name: str, ended: str) -> bool:
    """Return True when an ended job has that name; a cut name is compared up to the cut."""
    begins, *_ = CUT.split(name, maxsplit=1)
    shown, *cut = CUT.split(ended, maxsplit=1)
    return shown.startswith(begins) or (bool(cut) and begins.startswith(shown))


def unit_not_ended(facts: Facts) -> str:
    """Look for a unit that systemd began to start and that never came up, in an unfinished boot.

    The last resort: systemd shows a waiting job only when nothing else happens.
    """
    begun: list[str] = []
    for line in facts.lines:
        if match := _JOB_BEGAN.search(line):
            begun.append(match[1])
        elif _BOOT_ENDED.search(line):
            begun.clear()
        elif match := _JOB_ENDED.search(line):
            begun = [name for name in begun if not _is(name, match[1])]
    names = [name for name in begun if not _IN_VAIN.search(name)]
    if not names:
        return ""
    return f'the unit "{facts.whole_unit(names[0])}" was started in the boot and has not come up'


def menu_waits(facts: Facts) -> str:
    waits = is_menu(facts.lines)
    return "GRUB's menu waits for a key, and nothing will press one" if waits else ""


def is_menu(lines: Sequence[str]) -> bool:
    """Return True when a console ends with GRUB's menu, which does not count down."""
    for line in reversed(lines):
        if _MENU in line:
            return True
        if "will be executed automatically in" in line or not _MENU_REST.search(line):
            return False
    return False


def ordering_cycle(facts: Facts) -> str:
    """Look for a unit of the boot that systemd deleted to break a cycle, and for the cycle."""
    cycles: dict[str, list[str]] = {}
    members: list[str] = []
    for line in [*facts.lines, *facts.probes.get("ordering", "").splitlines()]:
        if not (match := _CYCLE.search(line)):
            continue
        if match["member"]:
            members.append(match["member"])
            continue
        deleted = match["deleted"] or match["skipped"]
        cycles[deleted] = cycles.get(deleted) or list(dict.fromkeys(members))
        members = []
    for deleted, cycle in cycles.items():
        if deleted in UNITS or deleted.endswith(".target"):
            among = f" of {', '.join(cycle)}" if cycle else ""
            return f'systemd deleted "{deleted}" to break an ordering cycle{among}'
    return ""


def other_target(facts: Facts) -> str:
    for line in facts.health.lines("default-target"):
        if line in ("rescue.target", "emergency.target", "poweroff.target", "halt.target"):
            return f'the image boots to "{line}" by default'
    return ""


def missing_device(facts: Facts) -> str:
    if not facts.finding("emergency-mode"):
        return ""
    fstab = facts.health.rows("fstab", 2)
    for line in facts.lines:
        if not (match := _DEVICE_LATE.search(line)) or _IN_VAIN.search(match[1]):
            continue
        shown = _last_words(match[1])
        rows = [row for row in fstab if shown and _path(row[0]).endswith(shown)]
        device = rows[0][0] if rows else shown
        at = f' for "{rows[0][1].split()[0]}"' if rows and rows[0][1] else ""
        return f'/etc/fstab names "{device}"{at}, a device that the machine does not have'
    return ""


def mount_failed(facts: Facts) -> str:
    if not facts.finding("emergency-mode"):
        return ""
    fstab = facts.health.rows("fstab", 2)
    for line in facts.lines:
        if not (match := _MOUNT_FAILED.search(line)):
            continue
        shown = _last_words(match[1])
        rows = [row for row in fstab if shown and row[1].endswith(shown)]
        of = f' of "{rows[0][0]}"' if rows else ""
        point = rows[0][1] if rows else shown
        return f'the mount{of} on "{point}", which /etc/fstab asks for, failed'
    return ""


def _last_words(shown: str) -> str:
    """Return the path at the end of systemd's line; only its end where the console has cut it."""
    return CUT.split(shown.rpartition(" - ")[2])[-1].rstrip(". ")


def _path(device: str) -> str:
    """Return udev's path for a device of /etc/fstab (mount(8): LABEL=, UUID=)."""
    kind, _, name = device.partition("=")
    by = {"UUID": "uuid", "LABEL": "label", "PARTUUID": "partuuid", "PARTLABEL": "partlabel"}
    return f"/dev/disk/by-{by[kind]}/{name.strip(_QUOTES)}" if kind in by else device


def cloud_init_off(facts: Facts) -> str:
    if facts.got_user_data:
        # This image gets its metadata without cloud-init.
        return ""
    for line in facts.health.lines("cloud-init"):
        if line == "cloud-init=disabled":
            return 'the kernel command line has "cloud-init=disabled"'
        if line.endswith("/cloud-init.disabled"):
            return f'"{line}" keeps cloud-init from running'
    if any("cloud-init=disabled" in line for line in facts.lines if "ommand line:" in line):
        return 'the kernel command line has "cloud-init=disabled"'
    return ""


def cloud_config_broken(facts: Facts) -> str:
    rows = [] if facts.got_user_data else facts.health.rows("broken-yaml", 2)
    return f'"{rows[0][0]}" is not YAML: {rows[0][1]}' if rows else ""


def cloud_init_crashed(facts: Facts) -> str:
    """Look for a cloud-init that ends in a traceback whatever it is asked."""
    text = facts.probes.get("cloud-init", "")
    # Where it works, its own answers come first.
    error = error_in(text) if text.startswith("Traceback (most recent call last):") else ""
    return f'cloud-init does not run: "{error}"' if error else ""


def other_datasource(facts: Facts) -> str:
    for path, text in [] if facts.got_user_data else facts.health.rows("datasource-list", 2):
        if not re.search(r"OpenStack|Ec2|ConfigDrive|NoCloud\b.*OpenStack", text):
            return f'"{path}" has datasource_list {text}'
    return ""


def wrong_clock(facts: Facts) -> str:
    host = facts.health.seconds("asked")
    return clock_is_off("".join(facts.health.lines("clock")), host) if host is not None else ""


def clock_is_off(text: str, host: float) -> str:
    """Return a sentence about a guest's wrong clock, "" for a right or unreadable one.

    :param text: the output of ``date +%s`` in the guest.
    :param host: the host's time then, seconds since the epoch.
    """
    # A clock has no more digits than this.
    if not re.fullmatch(r"-?\d{1,10}", text.strip()) or abs(int(text) - host) < CLOCK_SECONDS:
        return ""
    shown = time.strftime("%Y-%m-%d %H:%M", time.gmtime(int(text)))
    return f"the guest's clock says {shown} UTC"
