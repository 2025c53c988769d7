"""How a fault is told from what was seen, as a table.

Each rule looks at :class:`~hotplate.verdict.facts.Facts` and says in a sentence what it sees, or
nothing.  The first rule that speaks is the diagnosis, so that what is certain stands before what
is likely.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hotplate.events import Event
from hotplate.verdict import readings
from hotplate.verdict.facts import CFN_INIT_DATA, Facts
from hotplate.verdict.stages import ORDER, Stage

# As often as a guest may reset itself before that is a fault.
BOOT_LOOP = 3
_BEFORE_METADATA = (Stage.NETWORK_UP, Stage.METADATA_SERVED)
_REACH = (
    r"Connection refused|Failed to establish a new connection|Max retries exceeded|timed out"
    r"|Network is unreachable|No route to host|Read timeout|RemoteDisconnected"
)


@dataclass(frozen=True)
class Rule:
    """One fault.

    :param fault: a stable word for machines, tests and JUnit.
    :param stage: the stage that the diagnosis names, None for the one that is missing.
    :param missing: the first missing stages for which the rule is asked; with ``None`` in it, also
        when all stages were reached and the stack failed all the same.
    :param sees: returns what was seen, as a sentence without its full stop, or "".
    :param advice: what to look at or do.
    """

    fault: str
    stage: Stage | None
    missing: tuple[Stage | None, ...]
    sees: Callable[[Facts], str]
    advice: str

    def __str__(self) -> str:
        return self.fault


def _tally(events: list[Event]) -> str:
    """Return answers as "404 (12 times), 200 (once)"."""
    counted = Counter(str(readings.status(event) or "no answer") for event in events)
    return ", ".join(
        f"{status} ({'once' if times == 1 else f'{times} times'})"
        for status, times in counted.most_common()
    )


def _all(events: list[Event], *, low: int, high: int) -> bool:
    return bool(events) and all(low <= (readings.status(event) or 0) <= high for event in events)


def _quoted(line: str, limit: int = 180) -> str:
    """Return a line in quotes; of a long one the end too, where the error usually stands."""
    text = line.strip()
    if len(text) > limit:
        text = f"{text[: limit // 2 - 10]} ... {text[-limit // 2 :]}"
    return f'"{text}"'


def _found(*names: str) -> Callable[[Facts], str]:
    def sees(facts: Facts) -> str:
        found = facts.finding(*names)
        return f"{found.pattern.reason}: {_quoted(found.line)}" if found else ""

    return sees


def _panic(facts: Facts) -> str:
    if told := _found("kernel-panic")(facts):
        return told
    return "the guest's kernel told the machine that it panicked" if facts.panic else ""


def _nothing_booted(facts: Facts) -> str:
    firmware = ("no-bootable-device", "uefi-shell")
    loader = ("grub-no-kernel", "grub-rescue", "boot-entry-failed", "grub-error")
    if told := _found(*firmware, *loader)(facts):
        return told
    kernel = ("Linux version", "] ", "Command line:", "systemd", "Welcome")
    if facts.powered is None or any(word in line for line in facts.lines for word in kernel):
        return ""
    seconds = facts.now - facts.powered
    if last := next((line for line in reversed(facts.lines) if line.strip()), ""):
        return f"no kernel said anything in {seconds:.0f} s; the console ends with {_quoted(last)}"
    return f"nothing at all was printed on the serial console in {seconds:.0f} s"


def _machine_gone(facts: Facts) -> str:
    if facts.exit is None or facts.exit.detail.get("reason") != "lost":
        return ""
    message = facts.exit.detail.get("message")
    told = f"the machine went away (QEMU exit status {facts.exit.detail.get('status')})"
    return f"{told}: {_quoted(str(message))}" if message else told


def _guest_stopped(facts: Facts) -> str:
    reason = str(facts.exit.detail.get("reason", "")) if facts.exit else ""
    if not reason.startswith("guest"):
        return ""
    word = "rebooted and was not to" if reason == "guest-reset" else "switched itself off"
    return f"the guest {word} before that ({reason})"


def _boot_loop(facts: Facts) -> str:
    if facts.resets < BOOT_LOOP:
        return ""
    return f"the guest reset itself {facts.resets} times"


def _no_dhcp(facts: Facts) -> str:
    if facts.metadata:
        return ""
    if told := _found("no-dhcp-lease")(facts):
        return told
    addresses = facts.probes.get("network", "")
    devices = [line for line in addresses.splitlines() if line and not line.startswith("lo ")]
    if addresses and not any(part[:1].isdigit() for line in devices for part in line.split()[2:]):
        return "the guest runs, and no network device has an IPv4 address" + (
            f": {_quoted(devices[0])}" if devices else ": it has no network device but lo"
        )
    return ""


def _metadata_refused(facts: Facts) -> str:
    if any(readings.status(event) for event in facts.metadata):
        return ""
    if told := _found("metadata-unreachable")(facts):
        return told
    if line := facts.log_line(rf"169\.254\.169\.254.*(?:{_REACH})", "cloud-init-log"):
        return f"cloud-init could not reach the metadata service: {_quoted(line)}"
    if facts.metadata or [each for each in facts.refused if each.source == "metadata"]:
        return "the guest connected to the metadata service and got no answer"
    return ""


def _metadata_errors(facts: Facts) -> str:
    if facts.metadata and not any(
        readings.is_metadata_fetch(event) and readings.answered(event) for event in facts.metadata
    ):
        return f"the metadata service answered {_tally(facts.metadata)}"
    return ""


def _no_datasource(facts: Facts) -> str:
    if told := _found("no-datasource")(facts):
        return told
    if line := facts.log_line(r"DataSourceNone|status: disabled|not-run", "cloud-init"):
        return f"cloud-init says {_quoted(line)}"
    return ""


def _no_init_data(facts: Facts) -> str:
    if facts.user_data_parts is not None and CFN_INIT_DATA not in facts.user_data_parts:
        parts = ", ".join(facts.user_data_parts) or "no parts"
        return f'the user data has no part "{CFN_INIT_DATA}" (it has {parts})'
    user_data = [event for event in facts.metadata if readings.is_user_data(event)]
    if _all(user_data, low=400, high=599):
        return f"the request for the user data was answered {_tally(user_data)}"
    if "No such file" in facts.probes.get(CFN_INIT_DATA, ""):
        return f'cloud-init did not write "/var/lib/heat-cfntools/{CFN_INIT_DATA}"'
    return ""


def _agent_missing(facts: Facts) -> str:
    if facts.agent("LoadState") == "not-found":
        return "the image has no unit os-collect-config.service"
    if line := facts.log_line(r"status=203/EXEC|Failed to locate executable", "agent-log"):
        return f"the unit's program does not exist: {_quoted(line)}"
    return ""


def _agent_disabled(facts: Facts) -> str:
    state = facts.agent("UnitFileState")
    if facts.agent("LoadState") == "masked" or state in ("masked", "masked-runtime"):
        return "the unit os-collect-config.service is masked"
    if state == "disabled" and facts.agent("ActiveState") in ("inactive", ""):
        return "the unit os-collect-config.service is installed and disabled"
    return ""


def _agent_crashing(facts: Facts) -> str:
    restarts, result = facts.agent("NRestarts"), facts.agent("Result")
    state, sub = facts.agent("ActiveState"), facts.agent("SubState")
    crashed = state == "failed" or sub == "auto-restart" or result not in ("", "success")
    if crashed or (restarts.isdigit() and int(restarts) > 1):
        last = facts.log_line(r"^\w*(?:Error|Exception)\b|Traceback|Error:", "agent-log")
        times = f"{restarts} restarts, " if restarts not in ("", "0") else ""
        told = f"the agent fails again and again ({times}result {result or 'unknown'})"
        return f"{told}: {_quoted(last)}" if last else told
    return _found("agent-failed")(facts)


def _endpoint_down(facts: Facts) -> str:
    asked = facts.polls or [
        event for event in facts.requests if event.source in ("cfn", "heat", "keystone")
    ]
    down = [event for event in asked if (readings.status(event) or 599) >= 500]
    if asked and len(down) == len(asked):
        return f"Heat's endpoint answered {_tally(asked)}"
    if others := [each for each in facts.refused if each.source != "metadata"]:
        return f"connections to the {others[-1].source} endpoint were refused"
    if line := facts.log_line(_REACH, "agent-log"):
        return f"the agent runs and cannot reach Heat: {_quoted(line)}"
    return ""


def _poll_refused(facts: Facts) -> str:
    if _all(facts.polls, low=401, high=403):
        return f"the agent's polls were answered {_tally(facts.polls)}"
    denied = [event for event in facts.requests if event.source == "keystone"]
    if not facts.polls and _all(denied, low=401, high=403):
        return f"the agent's requests for a token were answered {_tally(denied)}"
    return ""


def _poll_unknown(facts: Facts) -> str:
    if _all(facts.polls, low=400, high=499):
        return f"the agent's polls were answered {_tally(facts.polls)}"
    return ""


def _nothing_to_deliver(facts: Facts) -> str:
    if not facts.polls:
        return ""
    failed = [
        event
        for event in facts.stack
        if event.detail.get("status") == "FAILED" and event.detail.get("resource")
    ]
    if failed:
        return f"Heat failed before it had a deployment: {readings.describe(failed[0])}"
    what = f'the deployment "{facts.undelivered[0]}"' if facts.undelivered else "a deployment"
    return f"the agent polled {len(facts.polls)} times and {what} was not in an answer it took"


def _rejected(*words: str) -> Callable[[Facts], str]:
    def sees(facts: Facts) -> str:
        found = facts.marker("rejected")
        if found and (not words or any(word in found.reason.lower() for word in words)):
            why = found.reason or "it gave no reason"
            return f'the runner did not run a hook for group "{found.group}": {why}'
        return ""

    return sees


def _not_executable(facts: Facts) -> str:
    if told := _rejected("not executable", "permission denied")(facts):
        return told
    found = facts.marker("rejected")
    if found:
        # ls -l: a regular file of the group's name without an x in its mode.
        line = facts.log_line(rf"^-[rw-]{{9}}\S? .* {re.escape(found.group)}$", "hooks")
        if line:
            return (
                f'the hook for group "{found.group}" is there and not executable: {_quoted(line)}'
            )
    return ""


def _hook_hangs(facts: Facts) -> str:
    started = facts.track.marks.get(Stage.HOOK_STARTED) if facts.track else None
    if not started or facts.track is None:
        return ""
    seconds = facts.now - started.at
    return (
        f'the hook of group "{facts.track.group}" was started for "{facts.track.label}" and has '
        f"not finished in {seconds:.0f} s"
    )


def _interrupted(facts: Facts) -> str:
    found = facts.marker("interrupted")
    return (
        f'the run of "{found.name}" was cut off: {found.reason or "by a reboot"}' if found else ""
    )


def _killed(facts: Facts) -> str:
    finished = facts.marker("finished")
    status = finished.status if finished else None
    number = 0
    if told := facts.told(r"(?:ended|killed) by signal (\d+)"):
        number = int(told[1])
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


def _bad_json(facts: Facts) -> str:
    pattern = (
        r"[^\n]*(?:not (?:valid )?JSON|JSON that is not|gave no answer|answered without)[^\n]*"
    )
    finished = facts.marker("finished")
    if told := facts.told(pattern):
        group = finished.group if finished else "unknown"
        return f'the hook of group "{group}" gave no valid JSON answer: {_quoted(told[0])}'
    return ""


def _too_long(facts: Facts) -> str:
    told = facts.told(r"[^\n]*it ran longer than[^\n]*")
    return told[0] if told else ""


def _hook_failed(facts: Facts) -> str:
    finished = facts.marker("finished")
    if not (facts.failed and finished and finished.status):
        return ""
    text = next((each for each in facts.said.values() if each.strip()), facts.stack_reason)
    last = text.strip().splitlines()[-1:]
    return (
        f'the hook of group "{finished.group}" ended with status {finished.status} for '
        f'"{finished.name}"' + (f"; it said {_quoted(last[0])}" if last else "")
    )


def _never_started(facts: Facts) -> str:
    if facts.powered is not None:
        return ""
    failed = [e for e in facts.stack if e.detail.get("status") == "FAILED"]
    if failed or facts.failed:
        why = facts.stack_reason or str(failed[0].detail.get("reason", ""))
        return f"Heat failed before a machine was switched on: {why or 'it gave no reason'}"
    return "no machine was switched on"


def _stack_failed(facts: Facts) -> str:
    if facts.failed and facts.missing is None:
        return f"Heat ended the stack as {facts.stack_status}: {facts.stack_reason or 'no reason'}"
    return ""


def _signal_lost(facts: Facts) -> str:
    if not facts.link_up:
        return "the guest's network link is cut, and the result did not arrive"
    if found := facts.marker("signal-failed"):
        return f"the guest could not deliver its signal: {found.reason or 'it gave no reason'}"
    if others := [each for each in facts.refused if each.source != "metadata"]:
        return f"the guest's connections to the {others[-1].source} endpoint were refused"
    if line := facts.log_line(_REACH, "agent-log"):
        return f"the guest could not deliver its signal: {_quoted(line)}"
    return ""


def _signal_refused(facts: Facts) -> str:
    if _all(facts.signals, low=401, high=403):
        return f"the signal was answered {_tally(facts.signals)}"
    return ""


def _signal_errors(facts: Facts) -> str:
    if _all(facts.signals, low=400, high=599):
        return f"the signal was answered {_tally(facts.signals)}"
    return ""


def _signal_ignored(facts: Facts) -> str:
    if any(readings.answered(event) for event in facts.signals):
        return f"the signal was answered {_tally(facts.signals)}, and Heat did not change its state"
    return ""


def _any_pattern(facts: Facts) -> str:
    """The console patterns that no rule of its own speaks for, fatal ones first."""
    findings = sorted(facts.findings.values(), key=lambda found: not found.pattern.fatal)
    if not findings:
        return ""
    found = findings[0]
    return f"{found.pattern.reason}: {_quoted(found.line)}; {found.pattern.advice}"


_EVERY: tuple[Stage | None, ...] = ORDER
_POLL = (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
_AGENT = (Stage.METADATA_SERVED, Stage.AGENT_POLLED)
_OUTCOME: tuple[Stage | None, ...] = (Stage.HOOK_FINISHED, Stage.SIGNAL_RECEIVED, None)

RULES: tuple[Rule, ...] = (
    # There is no guest.
    Rule(
        "stack-failed",
        Stage.BOOTED,
        (Stage.BOOTED,),
        _never_started,
        "look at the stack's events in the timeline, and at Heat's log in the artefacts",
    ),
    # The guest does not boot, or stopped.
    Rule(
        "root-not-found",
        Stage.BOOTED,
        (Stage.BOOTED,),
        _found("initramfs-shell", "no-root-filesystem", "root-waited-for"),
        "compare root= on the kernel command line with the label or UUID of the image's root file "
        "system; check that the initrd has the disk's driver",
    ),
    Rule(
        "kernel-panic",
        Stage.BOOTED,
        _EVERY,
        _panic,
        "read console.log above the panic; try more memory or another CPU model",
    ),
    Rule(
        "boot-loop",
        Stage.BOOTED,
        (Stage.BOOTED,),
        _boot_loop,
        "a kernel that resets the machine at once often needs another CPU model or more memory; "
        "see console.log and the screenshot",
    ),
    Rule(
        "no-bootable-kernel",
        Stage.BOOTED,
        (Stage.BOOTED,),
        _nothing_booted,
        "look at the screenshot; check that the image has a kernel and a boot loader for this "
        "firmware, and that the kernel's command line has console=ttyS0",
    ),
    Rule(
        "machine-lost",
        None,
        _EVERY,
        _machine_gone,
        "see what QEMU wrote and the end of console.log; this says nothing about the image",
    ),
    Rule(
        "guest-stopped",
        None,
        _EVERY,
        _guest_stopped,
        "see the end of console.log for who asked for it",
    ),
    # The guest boots, and gets no metadata.
    Rule(
        "no-dhcp",
        Stage.NETWORK_UP,
        _BEFORE_METADATA,
        _no_dhcp,
        "check that a network renderer is installed and enabled in the image and asks for DHCP "
        "(systemd-networkd with a .network file for en* and eth*)",
    ),
    Rule(
        "metadata-404",
        Stage.METADATA_SERVED,
        _BEFORE_METADATA,
        _metadata_errors,
        "see requests.jsonl for the paths that the guest asked for",
    ),
    Rule(
        "metadata-refused",
        Stage.METADATA_SERVED,
        _BEFORE_METADATA,
        _metadata_refused,
        "check the guest's routes and firewall, and the harness's wiring in verdict.json",
    ),
    Rule(
        "no-datasource",
        Stage.METADATA_SERVED,
        _BEFORE_METADATA,
        _no_datasource,
        "check datasource_list in the image's /etc/cloud/cloud.cfg.d and ds-identify's policy in "
        "/etc/cloud/ds-identify.cfg: OpenStack or Ec2 must be allowed",
    ),
    # The agent does not poll, or is refused.
    Rule(
        "no-cfn-init-data",
        Stage.AGENT_POLLED,
        _POLL[:1],
        _no_init_data,
        "give the server user_data_format: SOFTWARE_CONFIG in the template",
    ),
    Rule(
        "agent-missing",
        Stage.AGENT_POLLED,
        _AGENT,
        _agent_missing,
        "build the image with the element os-collect-config (heat-config brings it)",
    ),
    Rule(
        "agent-disabled",
        Stage.AGENT_POLLED,
        _AGENT,
        _agent_disabled,
        "enable it in the image: systemctl enable os-collect-config.service",
    ),
    Rule(
        "poll-refused",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL,
        _poll_refused,
        "the guest's credentials are not those of this stack: look for an older cfn-init-data or "
        "os-collect-config.conf in the image, and at the guest's clock",
    ),
    Rule(
        "endpoint-down",
        Stage.AGENT_POLLED,
        _POLL[:1],
        _endpoint_down,
        "check metadata_url in the guest's /etc/os-collect-config.conf, and Heat's log",
    ),
    Rule(
        "endpoint-down",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL[1:],
        _endpoint_down,
        "see requests.jsonl and Heat's log in the artefacts",
    ),
    Rule(
        "agent-crashing",
        Stage.AGENT_POLLED,
        _AGENT,
        _agent_crashing,
        "journalctl -u os-collect-config in the guest (guest/ in the artefacts) has its traceback",
    ),
    Rule(
        "poll-unknown",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL,
        _poll_unknown,
        "the guest asks for another stack or resource: look for an old configuration in the image",
    ),
    Rule(
        "not-delivered",
        Stage.DEPLOYMENT_DELIVERED,
        _POLL[1:],
        _nothing_to_deliver,
        "look at the stack's events: does a deployment name this server? What does it wait for?",
    ),
    # The hook.
    Rule(
        "hook-not-executable",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        _not_executable,
        "make the hook's file in /usr/libexec/heat-config/hooks executable (mode 0755)",
    ),
    Rule(
        "hook-missing",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        _rejected("no hook", "not found", "missing", "does not exist", "not installed"),
        "build the image with the element of that group (heat-config-<group>)",
    ),
    Rule(
        "hook-rejected",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        _rejected(),
        "see journalctl -u os-collect-config in the guest",
    ),
    Rule(
        "hook-interrupted",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED,),
        _interrupted,
        "what rebooted or stopped the guest while the hook ran? See console.log",
    ),
    Rule(
        "hook-killed",
        Stage.HOOK_FINISHED,
        _OUTCOME,
        _killed,
        "look for the OOM killer in console.log; does the configuration kill its own parent?",
    ),
    Rule(
        "hook-invalid-json",
        Stage.HOOK_FINISHED,
        _OUTCOME,
        _bad_json,
        "a hook prints one JSON object on stdout and nothing else: hotplate hook check tells where",
    ),
    Rule(
        "hook-hanging",
        Stage.HOOK_FINISHED,
        (None,),
        _too_long,
        "see what it waited for: heat-config log in the guest; give it more time with the option "
        "timeout",
    ),
    Rule(
        "hook-hanging",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED,),
        _hook_hangs,
        "see what it waits for in the guest: heat-config status; ps axf",
    ),
    # The signal.
    Rule(
        "signal-lost",
        Stage.SIGNAL_RECEIVED,
        (Stage.SIGNAL_RECEIVED,),
        _signal_lost,
        "the runner signals again at the agent's next round; check the guest's network",
    ),
    Rule(
        "signal-refused",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        _signal_refused,
        "the signed URL is not valid: its credentials are another stack's, or it is older than 15 "
        "minutes (compare the guest's clock)",
    ),
    Rule(
        "signal-error",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        _signal_errors,
        "see requests.jsonl and Heat's log in the artefacts",
    ),
    Rule(
        "signal-ignored",
        Stage.SIGNAL_ACCEPTED,
        (Stage.SIGNAL_ACCEPTED,),
        _signal_ignored,
        "Heat ignores the signal of a deployment that is not in progress: see the stack's events",
    ),
    # All stages were reached, and the stack failed all the same.
    Rule(
        "hook-failed",
        Stage.HOOK_FINISHED,
        (None,),
        _hook_failed,
        "deploy_stderr of the deployment tells why: openstack software deployment output show",
    ),
    Rule(
        "stack-failed",
        Stage.SIGNAL_ACCEPTED,
        (None,),
        _stack_failed,
        "look at the stack's events in the timeline",
    ),
)


def pattern_hint(facts: Facts) -> str:
    """Return what a console pattern sees when no rule speaks, "" when none does."""
    return _any_pattern(facts)
