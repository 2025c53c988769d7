"""Network faults in a guest's own state: devices, routes, a firewall, a proxy.

Each function returns a sentence without its full stop, or "".
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from hotplate.verdict import health
from hotplate.verdict.facts import Facts
from hotplate.verdict.health import AGENT, Health
from hotplate.verdict.stages import Stage

UNREACHED = r"timed out|Max retries exceeded|Failed to establish|unreachable|No route"
#: The kernel's errors for a missing route, and the three kinds of routes that reject.
_SHUT = re.compile(
    r"answers: (?:Network is unreachable|No route|Permission denied|Invalid argument)|"
    r"^(?:unreachable|prohibit|blackhole) "
)
_LOCAL = r"^(lo|dummy|docker|veth|br-|cni|podman|virbr|ifb|sit|tun|tap)"


def _devices(state: Health) -> list[list[str]]:
    """Return name, state and addresses of each device that leads outside.

    ``ip`` shows a container's device with the index of its other end: ``ens4@if2``.
    """
    rows = [[row[0].partition("@")[0], *row[1:]] for row in state.rows("addresses", 3)]
    return [row for row in rows if not re.match(_LOCAL, row[0])]


def has_address(state: Health) -> bool:
    """Return True when a device has an IPv4 address, which somebody must have given it."""
    return any("." in row[2] for row in _devices(state))


def link_down(facts: Facts) -> str:
    state = facts.health
    devices = _devices(state)
    if facts.link_up and devices and not has_address(state):
        down = [row[0] for row in devices if row[1] == "DOWN"]
        if len(down) == len(devices):
            return (
                f'the network device "{down[0]}" is down: nothing in the guest has set it up, or '
                "something has set it down"
            )
    return ""


def no_route(facts: Facts) -> str:
    rows = [(row[0], row[1]) for row in facts.health.rows("routes", 2)]
    shut = [(port, text) for port, text in rows if _SHUT.search(text)]
    if not shut or not facts.link_up:
        # The routes are gone with the link, and that was cut from outside.
        return ""
    error = shut[0][1].removeprefix("RTNETLINK answers: ")
    if len(shut) == len(rows):
        return f'the guest has no route to {health.CLOUD}: "{error}"'
    rules = [line for line in facts.health.lines("rules") if "lookup" not in line]
    why = f' by the rule "{rules[0].strip()}" (ip rule)' if rules else f': "{error}"'
    return f"port {shut[0][0]} of {health.CLOUD} is shut in the guest{why}"


def firewall(facts: Facts) -> str:
    lines = facts.health.lines("firewall")
    # The presence of a firewall is no fault.
    if not facts.log_line(UNREACHED, "agent-log"):
        return ""
    return f'the guest has a firewall: "{lines[0].strip()[:180]}"' if lines else ""


def proxy(facts: Facts) -> str:
    state = facts.health
    own, all_units = state.rows("environment", 2), state.rows("manager-environment", 2)
    rows = [*own, *all_units]
    excepted = [host for name, host in rows if name.lower() == "no_proxy"]
    if any(health.CLOUD in hosts or hosts == "*" for hosts in excepted):
        return ""
    # Before the agent, cloud-init asks for the metadata.
    before = facts.missing is Stage.METADATA_SERVED
    for name, host in all_units if before else rows:
        if name.lower() in ("http_proxy", "all_proxy") and host:
            if [name, host] not in own:
                paths = state.lines("default-environment")
                where = f'"{paths[0]}"' if paths else "systemd's own environment"
                return f"{where} sends what all services ask for to the proxy {host} ({name})"
            where = state.drop_in("Environment") or AGENT
            return f'"{where}" sends what the agent asks for to the proxy {host} ({name})'
    return ""


def other_interface(facts: Facts) -> str:
    if has_address(facts.health):
        return ""
    devices = {"eth0", *(row[0] for row in _devices(facts.health))}
    for line in facts.lines:
        if match := re.search(r" (\S+): renamed from (eth\d+)", line):
            devices.add(match[1])
    rows = [
        (path, match[1].split())
        for path, text in facts.health.rows("networks", 2)
        if (match := re.search(r"\bName=(.+)", text))
    ]
    # A file with other conditions than Name= may well match.
    if not rows or len(rows) < len(facts.health.lines("networks")) or len(devices) < 2:
        return ""
    patterns = [name for _, names in rows for name in names]
    if any(fnmatchcase(device, name) for device in devices for name in patterns):
        return ""
    real = ", ".join(sorted(devices - {"eth0"}))
    return f'"{rows[0][0]}" is for "{patterns[0]}", and the machine\'s device is "{real}"'


def fixed_address(facts: Facts) -> str:
    """Look for an address that is fixed in the image and that Neutron did not give."""
    for path, address in [] if facts.got_user_data else facts.health.rows("fixed-addresses", 2):
        if address in facts.addresses:
            continue
        given = " and ".join(facts.addresses)
        other = f"Neutron gave the server {given}" if given else "its network gives another by DHCP"
        return f'"{path}" fixes the address {address}, and {other}'
    return ""


def old_address(facts: Facts) -> str:
    for file, section in (
        ("/etc/os-collect-config.conf", "collect-conf"),
        ("/var/lib/heat-cfntools/cfn-init-data", "boot-metadata"),
    ):
        for row in facts.health.rows(section, 2):
            host = row[1] or row[0]
            if host.partition(":")[0] != health.CLOUD:
                return f'"{file}" has the agent ask {host}, which is not this cloud'
    return ""
