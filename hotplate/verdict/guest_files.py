"""File faults in a guest's own state: programs, packages, disks, phase scripts, hooks.

Each function returns a sentence without its full stop, or "".
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from hotplate.inspection.findings import OPEN_DIRECTORIES
from hotplate.verdict import health
from hotplate.verdict.facts import Facts
from hotplate.verdict.health import Health

#: The phase scripts of hotplate's elements; any other is the site's or another element's.
OWN_SCRIPTS = ("10-wait-for-cloud-init", "20-os-apply-config", "55-heat-config")

_UNREADABLE = r'os-collect-config: "(?P<path>/[^"]+)" cannot be read: (?P<why>line \d+ .+)'
#: From the standard-library agent, and from oslo.config, without the text of the line.
_UNPARSED = r"Failed to parse (?P<path>/\S+): at \S*:(?P<why>\d+, .+?)(?:: '.*)?$"
#: From bash, which writes "line", and from dash.
PHASE_SYNTAX = (
    r"/\S*/(?:pre-configure|configure|post-configure|migration)\.d/\S+: (?:line )?\d+: "
    r"[Ss]yntax error\b.*"
)


def program_missing(facts: Facts) -> str:
    for kind, path, *rest in facts.health.rows("programs", 3):
        target = " ".join(rest)
        if kind == "no-interpreter":
            wanted, _, real = target.partition(" ")
            via = f' (it leads to "{real}")' if real and real != wanted else ""
            return f'"{wanted}", which runs "{path}", does not exist{via}'
        if kind == "gone" and target and target != path:
            return f'"{path}" leads to "{target}", which does not exist'
        if kind == "gone":
            return f'"{path}" does not exist'
    return ""


def line_ends(facts: Facts) -> str:
    """Look for a script that cannot run because its first line ends in a carriage return."""
    finished = facts.finished
    if facts.missing is None and not (finished and finished.status):
        return ""
    group = facts.track.group if facts.track else ""
    for kind, path, _ in facts.health.rows("programs", 3):
        ours = not path.startswith(health.HOOK_FOLDERS) or PurePosixPath(path).name == group
        if kind == "carriage-return" and ours:
            return f'the lines of "{path}" end as in Windows, with a carriage return'
    return ""


def hook_program_missing(facts: Facts) -> str:
    """Look for a hook that the kernel could not run: the shell's status is 126 or 127 then."""
    finished = facts.finished
    return program_missing(facts) if finished and finished.status in (126, 127) else ""


def closed_directory(facts: Facts) -> str:
    for mode, path in facts.health.rows("closed", 2):
        if mode.isdigit() and path in OPEN_DIRECTORIES:
            return (
                f'"{path}" has mode {mode:0>4}, so that services which run as users of their own '
                "do not start, or do not find their files"
            )
    return ""


def not_executable(facts: Facts) -> str:
    for kind, path, _ in facts.health.rows("programs", 3):
        # The runner already reports this for hooks.
        if kind == "not-executable" and not path.startswith(health.HOOK_FOLDERS):
            return f'"{path}" is not executable'
    return ""


def package_broken(facts: Facts) -> str:
    signs = (
        r"error while loading shared libraries|ImportError|ModuleNotFoundError|cannot open shared"
    )
    broken = facts.health.lines("packages")
    log = [*facts.lines[-2000:], *facts.probes.get("agent-log", "").splitlines()]
    sign = next((line for line in reversed(log) if re.search(signs, line)), "")
    if broken and (sign or "disk" in facts.probes):
        name, _, status = broken[0].partition(" ")
        state = status.split()[-1] if status else "not installed"
        return f'the package "{name}" is {state}' + (f': "{sign.strip()[:180]}"' if sign else "")
    return ""


def disk_full(facts: Facts) -> str:
    state = facts.health
    for path, (inodes, free_inodes, free, available, blocks) in state.space:
        point, options = state.mount(path)
        point = point or path
        if "ro" in options:
            continue
        # ext4 reserves 1/50 also from root, at most 4096, of more blocks than it shows.
        if not available and free <= min(blocks // 25, 4096):
            return f'the file system on "{point}" is full'
        if inodes and not free_inodes:
            return f'the file system on "{point}" has no inodes left'
    return ""


def disk_said_full(facts: Facts) -> str:
    """Trust a program that reports a full disk, unless the guest itself reports free space.

    The free blocks of a mounted disk cannot be read from it: ext4 keeps the count in memory.
    """
    finding = facts.finding("disk-full")
    asked = "space" in Health.read(facts.probes.get("health", "")).sections
    return f'{finding.pattern.reason}: "{finding.line[:180]}"' if finding and not asked else ""


def read_only(facts: Facts) -> str:
    state = facts.health
    # An image with a root that is read-only by design has these on other file systems.
    for path in ("/etc", "/var/lib/cloud", *health.STATE):
        point, options = state.mount(path)
        if "ro" in options:
            return f'"{point}" is mounted read-only'
    return ""


def not_writable(facts: Facts) -> str:
    state = facts.health
    for path in state.lines("unwritable"):
        if "ro" not in state.mount(path)[1]:
            return f'"{path}" cannot be written to by root, although its file system can'
    return ""


def no_exec(facts: Facts) -> str:
    if facts.missing is None and not facts.search(r"[Pp]ermission denied"):
        return ""
    point, options = facts.health.mount("/var/lib/heat-config/heat-config-script")
    if "noexec" in options:
        return f'"{point}" is mounted noexec, and hooks run their scripts there'
    return ""


def script_hangs(facts: Facts) -> str:
    for path in facts.health.lines("running"):
        if path.startswith(f"{health.REFRESH}/") and PurePosixPath(path).name not in OWN_SCRIPTS:
            return f'the script "{path}" has not ended, and what comes after it waits'
    return ""


def agent_config_broken(facts: Facts) -> str:
    for pattern, words in ((_UNREADABLE, ""), (_UNPARSED, "line ")):
        if match := re.search(pattern, facts.log_line(pattern, "agent-log")):
            return f'"{match["path"]}" cannot be read: {words}{match["why"].rstrip(".")}'
    return ""


def script_broken(facts: Facts) -> str:
    line = next((line for line in facts.lines if re.search(PHASE_SYNTAX, line)), "")
    match = re.search(PHASE_SYNTAX, line or facts.log_line(PHASE_SYNTAX, "agent-log"))
    return f'a phase script has a syntax error: "{match[0][:180]}"' if match else ""


def template_broken(facts: Facts) -> str:
    pattern = r"could not render moustache template (/[^\s,:']+)(?:: (.+))?"
    match = re.search(pattern, facts.log_line(pattern, "agent-log"))
    if not match:
        return ""
    # OpenStack's os-apply-config logs the reason in a line of its own, before this one.
    why = f": {match[2][:180]}" if match[2] else ""
    return f'os-apply-config could not render the template "{match[1]}"{why}'


def no_hooks(facts: Facts) -> str:
    marker = facts.marker("rejected")
    answered = "hooks" in facts.health.sections
    names = [name for name in facts.health.lines("hooks") if not name.endswith(":")]
    if marker and answered and not names:
        return f'there is no hook at all in "{health.HOOKS}", so none for group "{marker.group}"'
    return ""
