"""Detectors of faults in the facts of a run: each returns a sentence, or "".

Sentences have no full stop: the diagnosis continues with the advice.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath

from hotplate.events import classify
from hotplate.events.console_patterns import ConsoleFinding
from hotplate.events.event import Event
from hotplate.events.kinds import StackResource
from hotplate.verdict.deployment_track import WaitSignal
from hotplate.verdict.facts import CFN_INIT_DATA, CUT, Facts
from hotplate.verdict.guest_network import has_address
from hotplate.verdict.health import HOOKS
from hotplate.verdict.hook_output import LIMIT, last_exception
from hotplate.verdict.stages import Stage

# This many answers of one kind at the end are not by chance.
BROKEN_FOR = 3
TRACEBACK_LINES = 200
# This many reboots, each after something had booted, are a fault.
BOOT_LOOP = 3
_DEPLOYED_SERVER = "OS::Heat::DeployedServer"
#: In the type or the reason of a resource that depends on a guest.
_OF_GUEST = re.compile(r"Deployment|WaitCondition|SwiftSignal")
#: Heat's words for resources that it stops because of another failure.
_STOPPED = re.compile(r"aborted|cancel|timed out", re.IGNORECASE)
_UNIT = re.compile(r"^(.*(?:Failed to (?:start|mount|listen on)|Dependency failed for) )(\S.*)$")
# This many repetitions of the same failure are not by chance.
SAME_FAILURES = 5
_FAILURE = re.compile(
    r"\b(?i:fail(?:ed|s|ure)?|error|cannot|could not|unable|refused|unreachable|timed out|"
    r"not found|no metadata)\b"
)
_REACH = (
    r"Connection refused|Failed to establish a new connection|Max retries exceeded|timed out"
    r"|Network is unreachable|No route to host|Read timeout|RemoteDisconnected"
)


def _tally(events: list[Event]) -> str:
    """Return answers as "404 (12 times), 200 (once)"."""
    counted = Counter(str(classify.status(event) or "no answer") for event in events)
    return ", ".join(
        f"{status} ({'once' if times == 1 else f'{times} times'})"
        for status, times in counted.most_common()
    )


def _all(events: list[Event], *, low: int, high: int) -> bool:
    return bool(events) and all(low <= (classify.status(event) or 0) <= high for event in events)


def _since_then(events: list[Event], *, low: int, high: int) -> list[Event]:
    """Return the answers at the end that are all within a range, as after a breakage.

    An agent that worked before does not hide it; a single bad answer after good ones is ignored.
    """
    ended = list(
        itertools.takewhile(
            lambda event: low <= (classify.status(event) or 599) <= high, reversed(events)
        )
    )
    return ended[::-1] if len(ended) >= min(BROKEN_FOR, len(events)) else []


def _quoted(line: str, limit: int = 180) -> str:
    """Return a line in quotes; a long one with its end, where the error usually stands."""
    text = line.strip()
    if len(text) > limit:
        text = f"{text[: limit // 2 - 10]} ... {text[-limit // 2 :]}"
    return f'"{text}"'


def console_finding(*names: str) -> Callable[[Facts], str]:
    def sees(facts: Facts) -> str:
        finding = facts.finding(*names)
        return f"{finding.pattern.reason}: {_quoted(_words(facts, finding))}" if finding else ""

    return sees


def _words(facts: Facts, finding: ConsoleFinding) -> str:
    """Return the line of a finding, with the full names of units.

    For a traceback it is the line with the exception.
    """
    unit = _UNIT.search(finding.line)
    if unit and CUT.search(unit[2]) and (name := facts.whole_unit(unit[2])) != unit[2]:
        return f"{unit[1]}{name}"
    start = re.search(r"([\w.@-]+\[\d+\]: ).*Traceback \(most", finding.line)
    if not start:
        return finding.line
    lines = facts.lines[finding.number - 1 : finding.number + TRACEBACK_LINES]
    mine = [line.partition(start[1])[2] for line in lines if start[1] in line]
    raised = last_exception("\n".join(["Traceback (most recent call last):", *mine[1:]]))
    return f"{start[1]}{raised}" if raised else finding.line


def flood(name: str) -> Callable[[Facts], str]:
    def sees(facts: Facts) -> str:
        return facts.floods.get(name, "")

    return sees


def panic(facts: Facts) -> str:
    if seen := console_finding("kernel-panic")(facts):
        return seen
    return "the guest's kernel told the machine that it panicked" if facts.panic else ""


def emulation_failed(facts: Facts) -> str:
    """Detect a race of QEMU before 8.1: a CPU translates code that another is changing."""
    return console_finding("stray-breakpoint")(facts) if panic(facts) else ""


def nothing_booted(facts: Facts) -> str:
    firmware = ("no-bootable-device", "uefi-shell")
    loader = ("grub-no-kernel", "grub-rescue", "boot-entry-failed", "grub-error")
    if seen := console_finding(*firmware, *loader)(facts):
        return seen
    kernel = ("Linux version", "] ", "Command line:", "systemd", "Welcome")
    if facts.powered is None or any(word in line for line in facts.lines for word in kernel):
        return ""
    seconds = facts.now - facts.powered
    if last := next((line for line in reversed(facts.lines) if line.strip()), ""):
        return f"no kernel said anything in {seconds:.0f} s; the console ends with {_quoted(last)}"
    return f"nothing at all was printed on the serial console in {seconds:.0f} s"


def machine_gone(facts: Facts) -> str:
    if facts.exit is None or facts.exit.reason != "lost":
        return ""
    message = facts.exit.message
    sentence = f"the machine went away (QEMU exit status {facts.exit.status})"
    return f"{sentence}: {_quoted(message)}" if message else sentence


def disk_of_host(facts: Facts) -> str:
    if facts.disk_error is None:
        return ""
    error = facts.disk_error
    why = "the host's disk is full" if error.full else error.message
    return f"QEMU could not write the guest's disk and stopped the guest: {why}"


def guest_stopped(facts: Facts) -> str:
    reason = facts.exit.reason if facts.exit else ""
    if not reason.startswith("guest"):
        return ""
    word = "unexpectedly rebooted" if reason == "guest-reset" else "switched itself off"
    return f"the guest {word} before that ({reason})"


def boot_loop(facts: Facts) -> str:
    crashes = [each for each in facts.boots.reboots if not each.orderly]
    return f"the guest reset itself {len(crashes)} times" if len(crashes) >= BOOT_LOOP else ""


def not_back(facts: Facts) -> str:
    """Detect a reboot from which the guest did not come back."""
    if not facts.boots.rebooting:
        return ""
    return "the guest shut down to reboot, and did not come up again"


def no_dhcp(facts: Facts) -> str:
    if facts.metadata or (facts.missing is Stage.METADATA_SERVED and has_address(facts.health)):
        # ifupdown fails for each interface that the machine does not have.
        return ""
    if seen := console_finding("no-dhcp-lease")(facts):
        return seen
    addresses = facts.health.lines("addresses")
    devices = [line for line in addresses if not line.startswith("lo ")]
    if addresses and not any(part[:1].isdigit() for line in devices for part in line.split()[2:]):
        return "the guest runs, but no network device has an IPv4 address" + (
            f": {_quoted(devices[0])}" if devices else ": it has no network device but lo"
        )
    return ""


def network_silent(facts: Facts) -> str:
    return facts.silent_network


def answered(facts: Facts) -> str:
    """Detect that the guest, asked after its boot, has not reached the missing stage."""
    return facts.answer


def metadata_refused(facts: Facts) -> str:
    if any(classify.status(event) for event in facts.metadata):
        return ""
    if seen := console_finding("metadata-unreachable")(facts):
        return seen
    if line := facts.log_line(rf"169\.254\.169\.254.*(?:{_REACH})", "cloud-init-log"):
        return f"cloud-init could not reach the metadata service: {_quoted(line)}"
    if facts.metadata or [each for each in facts.refused if each.source == "metadata"]:
        return "the guest connected to the metadata service but got no answer"
    return ""


def metadata_errors(facts: Facts) -> str:
    if facts.metadata and not any(
        classify.is_metadata_fetch(event) and classify.answered(event) for event in facts.metadata
    ):
        return f"the metadata service answered {_tally(facts.metadata)}"
    return ""


def no_datasource(facts: Facts) -> str:
    if seen := console_finding("no-datasource")(facts):
        return seen
    if line := facts.log_line(r"DataSourceNone|status: disabled|not-run", "cloud-init"):
        return f"cloud-init says {_quoted(line)}"
    return ""


def no_init_data(facts: Facts) -> str:
    if facts.user_data_parts is not None and CFN_INIT_DATA not in facts.user_data_parts:
        parts = ", ".join(facts.user_data_parts) or "no parts"
        return f'the user data has no part "{CFN_INIT_DATA}" (it has {parts})'
    user_data = [event for event in facts.metadata if classify.is_user_data(event)]
    if _all(user_data, low=400, high=599):
        return f"the request for the user data was answered {_tally(user_data)}"
    if "No such file" in facts.probes.get(CFN_INIT_DATA, ""):
        return f'cloud-init did not write "/var/lib/heat-cfntools/{CFN_INIT_DATA}"'
    return ""


def agent_missing(facts: Facts) -> str:
    if facts.agent("LoadState") == "not-found":
        return "the image has no unit os-collect-config.service"
    if line := facts.log_line(r"status=203/EXEC|Failed to locate executable", "agent-log"):
        return f"the unit's program does not exist: {_quoted(line)}"
    return ""


def agent_crashing(facts: Facts) -> str:
    restarts, result = facts.agent("NRestarts"), facts.agent("Result")
    state, sub = facts.agent("ActiveState"), facts.agent("SubState")
    crashed = state == "failed" or sub == "auto-restart" or result not in ("", "success")
    last = last_exception(facts.probes.get("agent-log", "")) or facts.log_line(
        r"^\w*(?:Error|Exception)\b|Error:", "agent-log"
    )
    often = int(restarts) if restarts.isdigit() else 0
    # Where loading takes a minute, it has not failed often yet.
    if crashed or often > 1 or (often and re.match(r"\w*(?:Error|Exception): ", last)):
        times = f"{restarts} restarts, " if restarts not in ("", "0") else ""
        sentence = f"the agent fails again and again ({times}result {result or 'unknown'})"
        return f"{sentence}: {_quoted(last)}" if last else sentence
    return console_finding("agent-failed")(facts)


def endpoint_down(facts: Facts) -> str:
    asked = facts.polls or [
        event for event in facts.requests if event.source in ("cfn", "heat", "keystone")
    ]
    if down := _since_then(asked, low=500, high=599):
        return f"Heat's endpoint answered {_tally(down)}"
    if others := [each for each in facts.refused if each.source != "metadata"]:
        return f"connections to the {others[-1].source} endpoint were refused"
    if line := facts.log_line(_REACH, "agent-log"):
        return f"the agent runs but cannot reach Heat: {_quoted(line)}"
    return ""


def poll_refused(facts: Facts) -> str:
    if refused := _since_then(facts.polls, low=401, high=403):
        return f"the agent's polls were answered {_tally(refused)}"
    denied = [event for event in facts.requests if event.source == "keystone"]
    if not facts.polls and _all(denied, low=401, high=403):
        return f"the agent's requests for a token were answered {_tally(denied)}"
    return ""


def poll_unknown(facts: Facts) -> str:
    if unknown := _since_then(facts.polls, low=400, high=499):
        return f"the agent's polls were answered {_tally(unknown)}"
    return ""


def nothing_to_deliver(facts: Facts) -> str:
    if not facts.polls:
        return ""
    failed = [
        event
        for event in facts.stack
        if classify.is_failure(event) and classify.resource_key(event)[1]
    ]
    if failed:
        return f"Heat failed before it had a deployment: {classify.describe(failed[0])}"
    what = f'the deployment "{facts.undelivered[0]}"' if facts.undelivered else "a deployment"
    return f"the agent polled {len(facts.polls)} times but accepted no answer with {what}"


def rejected(*words: str) -> Callable[[Facts], str]:
    def sees(facts: Facts) -> str:
        marker = facts.marker("rejected")
        if marker and (not words or any(word in marker.reason.lower() for word in words)):
            why = marker.reason or "it gave no reason"
            return f'the runner did not run a hook for group "{marker.group}": {why}'
        return ""

    return sees


def not_executable(facts: Facts) -> str:
    if seen := rejected("not executable", "permission denied")(facts):
        return seen
    marker = facts.marker("rejected")
    if marker:
        for kind, path, _ in facts.health.rows("programs", 3):
            if (kind, PurePosixPath(path).name) == ("not-executable", marker.group):
                return f'the hook for group "{marker.group}", "{path}", is not executable'
    return ""


def misnamed(facts: Facts) -> str:
    marker = facts.marker("rejected")
    if not marker:
        return ""
    for name in facts.health.lines("hooks"):
        if name != marker.group and _alike(name) == _alike(marker.group):
            return (
                f'the hook for group "{marker.group}" has to have just that name, and there is '
                f'"{name}" in "{HOOKS}"'
            )
    return ""


def _alike(name: str) -> str:
    """Return a name without the parts often misspelt: its ending, capitals, dashes."""
    return re.sub(r"\.\w+$", "", name).lower().replace("_", "-")


def hook_hangs(facts: Facts) -> str:
    started = facts.track.marks.get(Stage.HOOK_STARTED) if facts.track else None
    if not started or facts.track is None:
        return ""
    seconds = facts.now - started.at
    return (
        f'the hook of group "{facts.track.group}" was started for "{facts.track.label}" and has '
        f"not finished in {seconds:.0f} s"
    )


def interrupted(facts: Facts) -> str:
    marker = facts.marker("interrupted")
    return (
        f'the run of "{marker.name}" was cut off: {marker.reason or "by a reboot"}'
        if marker
        else ""
    )


def killed(facts: Facts) -> str:
    finished = facts.finished
    status = finished.status if finished else None
    number = 0
    if match := facts.search(r"(?:ended|killed) by signal (\d+)"):
        number = int(match[1])
    elif status is not None:
        number = -status if status < 0 else status - 128 if 128 < status < 160 else 0
    if not number:
        return ""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    group = finished.group if finished else "unknown"
    return f'the hook of group "{group}", or what it ran, was killed ({name})'


def bad_json(facts: Facts) -> str:
    pattern = (
        r"[^\n]*(?:not (?:valid )?JSON|JSON that is not|gave no answer|answered without)[^\n]*"
    )
    finished = facts.finished
    if match := facts.search(pattern):
        group = finished.group if finished else "unknown"
        return f'the hook of group "{group}" gave no valid JSON answer: {_quoted(match[0])}'
    return ""


def too_long(facts: Facts) -> str:
    match = facts.search(r"[^\n]*it ran longer than[^\n]*")
    return match[0] if match else ""


def hook_failed(facts: Facts) -> str:
    finished = facts.finished
    if not (facts.failed and finished and finished.status):
        return ""
    reason = "" if facts.unheard else facts.track_failed
    error = next(filter(None, (each.error for each in facts.words)), reason)
    return (
        f'the hook of group "{finished.group}" ended with status {finished.status} for '
        f'"{facts.track.label if facts.track else finished.name}"'
        + (f"; it said {_quoted(error, LIMIT)}" if error else "")
        + next((f"; {each.cut}" for each in facts.words if each.cut), "")
    )


#: The words of resolvers, package managers, Git, Go and Python for a host that is not reached.
_NOT_REACHED = re.compile(
    r"(?i)temporary failure (?:in name resolution|resolving)"
    r"|(?:could not|couldn't|unable to) resolve|name or service not known|nodename nor servname"
    r"|: no such host\b|: server misbehaving|network is unreachable|no route to host"
    r"|failed to establish a new connection"
)


def hook_reaches_out(facts: Facts) -> str:
    """Detect a hook that failed because it needs a host outside of the template's networks."""
    seen = hook_failed(facts)
    lines = (line for each in facts.words for line in str(each).splitlines())
    line = next(filter(_NOT_REACHED.search, lines), "")
    if not (seen and line):
        return ""
    return seen if _NOT_REACHED.search(seen) else f"{seen}; before that, {_quoted(line)}"


def never_started(facts: Facts) -> str:
    if facts.powered is not None:
        return ""
    changes = filter(None, map(StackResource.of, facts.stack))
    failed = [change for change in changes if change.status == "FAILED"]
    if failed or facts.failed:
        why = facts.stack_reason or next((each.reason for each in failed), "")
        return f"Heat failed before a machine was switched on: {why or 'it gave no reason'}"
    return "no machine was switched on"


def without_server(facts: Facts) -> str:
    complete = any(classify.is_complete_stack(each) for each in facts.stack)
    if facts.powered is None and complete and not facts.failed:
        return "the stack is complete, and there is no server in it"
    return ""


def deployed_server(facts: Facts) -> str:
    changes = filter(None, map(StackResource.of, facts.stack))
    names = [each.label or each.resource for each in changes if each.type == _DEPLOYED_SERVER]
    if facts.powered is None and names and not facts.failed:
        return f'"{names[0]}" is an {_DEPLOYED_SERVER}, which Heat does not boot'
    return ""


def paused_by_hook(facts: Facts) -> str:
    """Detect a resource before which, or after which, Heat waits until a hook is cleared."""
    if change := facts.paused:
        return (
            f'Heat waits at the resource "{change.label or change.resource}" ({change.type}), '
            f"because of a hook in the environment: {change.reason}"
        )
    return ""


def resource_failed(facts: Facts) -> str:
    """Detect that Heat failed a resource that does not depend on a guest.

    The guests of that stack are deleted or given up, wherever they are in their boot.
    """
    fatal = any(each.pattern.fatal for each in facts.findings.values())
    if not facts.stack_status.endswith("FAILED") or facts.powered is None:
        return ""
    lost = facts.exit is not None and facts.exit.reason != "power-cut"
    if fatal or facts.panic or lost or facts.disk_error:
        return ""
    changes = filter(None, map(StackResource.of, facts.stack))
    failed = [
        change
        for change in changes
        if change.status == "FAILED"
        and change.type != classify.STACK_TYPE
        and not _STOPPED.search(change.reason)
    ]
    if not failed or _OF_GUEST.search(f"{failed[0].type} {failed[0].reason}"):
        return ""
    name, why = failed[0].label or failed[0].resource, failed[0].reason or "it gave no reason"
    return f'Heat failed the resource "{name}" ({failed[0].type}): {why}'


def stack_failed(facts: Facts) -> str:
    if facts.failed and facts.missing is None:
        return f"Heat ended the stack as {facts.stack_status}: {facts.stack_reason or 'no reason'}"
    return ""


def signal_lost(facts: Facts) -> str:
    if not facts.link_up:
        return "the guest's network link is cut, and the result did not arrive"
    if marker := facts.marker("signal-failed"):
        return f"the guest could not deliver its signal: {marker.reason or 'it gave no reason'}"
    if others := [each for each in facts.refused if each.source != "metadata"]:
        return f"the guest's connections to the {others[-1].source} endpoint were refused"
    if line := facts.log_line(_REACH, "agent-log"):
        return f"the guest could not deliver its signal: {_quoted(line)}"
    return ""


def wait_signal_without_program(facts: Facts) -> str:
    if not isinstance(facts.track, WaitSignal):
        return ""
    if not (seen := console_finding("user-data-program-missing")(facts)):
        return ""
    return f'no signal came for the wait condition handle "{facts.track.handle}": {seen}'


def wait_signal_missing(facts: Facts) -> str:
    if not isinstance(facts.track, WaitSignal):
        return ""
    return f'no signal came for the wait condition handle "{facts.track.handle}"'


def wait_signal_missing_without_cloud_init(facts: Facts) -> str:
    return wait_signal_missing(facts) if facts.without_cloud_init else ""


def signal_refused(facts: Facts) -> str:
    if _all(facts.signals, low=401, high=403):
        return f"the signal was answered {_tally(facts.signals)}"
    return ""


def signal_errors(facts: Facts) -> str:
    if _all(facts.signals, low=400, high=599):
        return f"the signal was answered {_tally(facts.signals)}"
    return ""


def signal_ignored(facts: Facts) -> str:
    if any(classify.answered(event) for event in facts.signals):
        return f"the signal was answered {_tally(facts.signals)}, and Heat did not change its state"
    return ""


def fails_again(facts: Facts) -> str:
    """Detect a failure that repeats on the console, such as of a service with ``Restart=``."""
    lines = [classify.undated(line).strip() for line in facts.lines if _FAILURE.search(line)]
    # systemd's line about the failure says less than the program's own.
    counted = Counter(line for line in lines if "[FAILED]" not in line) or Counter(lines)
    if not counted or (times := counted.most_common(1)[0][1]) < SAME_FAILURES:
        return ""
    return f"the same failed {times} times: {_quoted(counted.most_common(1)[0][0])}"


def any_pattern(facts: Facts, *, in_cloud: bool) -> tuple[str, str]:
    """Return the sentence and advice of a console pattern that has no rule of its own.

    Fatal patterns come first.
    """
    findings = sorted(facts.findings.values(), key=lambda finding: not finding.pattern.fatal)
    if not findings:
        return "", ""
    finding = findings[0]
    pattern = finding.pattern
    advice = pattern.in_cloud if in_cloud and pattern.in_cloud else pattern.advice
    return f"{pattern.reason}: {_quoted(_words(facts, finding))}", advice
