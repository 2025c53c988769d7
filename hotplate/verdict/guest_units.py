"""Unit faults in a guest's own state: disabled units, restrictions of the agent's unit.

Each function returns a sentence without its full stop, or "".
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from hotplate.verdict import health
from hotplate.verdict.facts import Facts
from hotplate.verdict.guest_network import has_address
from hotplate.verdict.health import AGENT, Health
from hotplate.verdict.hook_output import last_exception
from hotplate.verdict.stages import Stage

_CLOUD_INIT = tuple(unit for unit in health.UNITS if unit.startswith("cloud-"))
#: The kernel's, Python's and systemd's errors for a limit that is reached.
_EXHAUSTED = (
    r"Too many open files|\[Errno (?:11|12|24)\]|Cannot allocate memory|MemoryError|"
    r"Resource temporarily unavailable|can't start new thread|"
    r"Failed to (?:connect stdout to the journal socket|set up standard (?:in|out)put)"
)


def _wanted_units(facts: Facts) -> tuple[str, ...]:
    """Return the units that the missing stage needs, except the agent's."""
    state = facts.health
    units: list[str] = []
    # cloud-init gets its metadata before the network is up, by a lease of its own.
    if facts.missing in (Stage.BOOTED, Stage.NETWORK_UP) or (
        state.lines("addresses") and not has_address(state)
    ):
        others = [state.unit(name, "UnitFileState") for name in health.OTHER_RENDERERS]
        units += [] if "enabled" in others else ["systemd-networkd.service"]
    return tuple(units) if facts.got_user_data else (*units, *_CLOUD_INIT)


def agent_off(facts: Facts) -> str:
    return _masked(facts, AGENT) or _disabled(facts, AGENT)


def agent_skipped(facts: Facts) -> str:
    """Look for a condition or a requirement that keeps systemd from starting the agent."""
    state = facts.health
    if state.unit(AGENT, "ActiveState") != "inactive":
        return ""
    if missing := state.lines("missing-requirements"):
        where = state.drop_in("Requires|Requisite|BindsTo") or AGENT
        return f'"{where}" requires the unit "{missing[0]}", which is not there or masked'
    line = facts.log_line(r"unmet condition check|[Cc]ondition check resulted in", "agent-log")
    if match := re.search(r"((?:Condition|Assert)[A-Z]\w+)=[^\s)]*", line):
        where = state.drop_in(match[1]) or AGENT
        return f'"{where}" has "{match[0]}", which is not so: systemd skips the agent'
    return ""


def _masked(facts: Facts, *names: str) -> str:
    state = facts.health
    for name in names:
        states = state.unit(name, "LoadState"), state.unit(name, "UnitFileState")
        if any(each.startswith("masked") for each in states):
            return f'the unit "{name}" is masked'
    return ""


def _disabled(facts: Facts, *names: str) -> str:
    state = facts.health
    for name in names:
        idle = state.unit(name, "ActiveState") in ("inactive", "")
        if state.unit(name, "UnitFileState") == "disabled" and idle:
            return f'the unit "{name}" is installed but not enabled'
    return ""


def unit_masked(facts: Facts) -> str:
    return _masked(facts, *_wanted_units(facts))


def unit_disabled(facts: Facts) -> str:
    return _disabled(facts, *_wanted_units(facts))


def renderer_failed(facts: Facts) -> str:
    state = facts.health
    if not state.lines("addresses") or has_address(state):
        return ""
    for name in ("systemd-networkd.service", *health.OTHER_RENDERERS):
        if state.unit(name, "ActiveState") == "failed":
            why = state.unit(name, "Result")
            status = state.unit(name, "ExecMainStatus")
            how = f"{why}, status {status}" if status not in ("", "0") else why
            said = next(iter(state.lines("renderer-log")), "")
            return f'the unit "{name}", which brings up the network, failed ({how})' + (
                f': "{said[:180]}"' if said else ""
            )
    return ""


def two_agents(facts: Facts) -> str:
    groups = facts.health.lines("agents")
    units = [PurePosixPath(group).name for group in groups if group.startswith("/system.slice/")]
    others = [unit for unit in units if unit != AGENT]
    if len(groups) > 1 and others:
        return f'two agents run at once: "{AGENT}" and "{others[0]}"'
    return ""


def memory_limit(facts: Facts) -> str:
    state = facts.health
    if not (state.unit(AGENT, "Result") == "oom-kill" or _killed_and_restarted(state)):
        return ""
    limit = state.unit(AGENT, "MemoryMax")
    if limit.isdigit():
        where = state.drop_in("MemoryMax") or "its unit"
        return (
            f'the agent was killed because memory ran out: "{where}" gives it no more than '
            f"MemoryMax={int(limit) >> 20}M"
        )
    return "the agent was killed because memory ran out"


def _killed_and_restarted(state: Health) -> bool:
    """Return True when the kernel killed the agent at its limit; a restart clears the result."""
    limited = f"oom_memcg=/system.slice/{AGENT},"
    killed = any("oom-kill:" in line and limited in line for line in state.lines("kernel"))
    return killed and state.unit(AGENT, "NRestarts") not in ("", "0")


def _fails(state: Health) -> bool:
    """Return True when the agent has failed in systemd's view, now or before."""
    return (
        state.unit(AGENT, "Result") not in ("", "success")
        or state.unit(AGENT, "SubState") in ("failed", "auto-restart")
        or state.unit(AGENT, "NRestarts") not in ("", "0")
    )


def other_command(facts: Facts) -> str:
    """Look for a drop-in that has the agent's unit start a program that fails."""
    state = facts.health
    for path, line in state.drop_ins("ExecStart"):
        program = line.partition("=")[2].lstrip("-@:+!")
        if not program or not _fails(state):
            # The empty one only resets the unit's own ExecStart.
            continue
        gone = any(row[:2] == ["gone", program] for row in state.rows("programs", 3))
        gone = gone or state.unit(AGENT, "ExecMainStatus") == "203"
        if not gone and last_exception(facts.probes.get("agent-log", "")):
            # A Python program that starts reports the error better.
            continue
        why = "which does not exist" if gone else "which does not stay"
        return f'"{path}" has the agent\'s unit start "{program}", {why}'
    return ""


def limits(facts: Facts) -> str:
    """Look for a drop-in that limits a resource of the agent and its programs too tightly."""
    state = facts.health
    sign = facts.log_line(_EXHAUSTED, "agent-log")
    if match := facts.search(rf"[^\n]*(?:{_EXHAUSTED})[^\n]*"):
        sign = match[0].strip()
    if not sign and (facts.missing is None or not _fails(state)):
        return ""
    for path, line in state.drop_ins("Limit[A-Z]+|TasksMax|Memory[A-Za-z]+"):
        return f'"{path}" gives the agent {line}' + (f': "{sign[:180]}"' if sign else "")
    return ""


def _hardened(state: Health, key: str, *harmless: str) -> str:
    value = state.unit(AGENT, key)
    if not value or value in harmless:
        return ""
    where = state.drop_in(key) or state.unit(AGENT, "FragmentPath") or AGENT
    return f'"{where}" runs the agent with {key}={value}'


def no_network_for_agent(facts: Facts) -> str:
    state = facts.health
    for key in ("PrivateNetwork", "IPAddressDeny"):
        if setting := _hardened(state, key, "no"):
            return f"{setting}, which keeps it from the network"
    families = state.unit(AGENT, "RestrictAddressFamilies")
    if families and families != "~" and "AF_INET" not in families.replace("AF_INET6", ""):
        return _hardened(state, "RestrictAddressFamilies") + ", which keeps it from the network"
    return ""


def read_only_for_agent(facts: Facts) -> str:
    setting = _hardened(facts.health, "ProtectSystem", "no", "yes")
    return f"{setting}, which makes directories read-only for all that it runs" if setting else ""


def other_user(facts: Facts) -> str:
    setting = _hardened(facts.health, "User", "root")
    return f"{setting}, which may neither write its state nor run hooks as root" if setting else ""
