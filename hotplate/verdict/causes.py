"""The causes that a guest's own state shows, as rules that stand before those of the symptoms.

Each is asked only for the stages that it can keep from being reached: a full disk in a guest whose
agent is not installed is not why nothing is polled.
"""

from __future__ import annotations

import re
import time
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from hotplate.events import classify
from hotplate.verdict import health
from hotplate.verdict.facts import Facts
from hotplate.verdict.health import AGENT, Health
from hotplate.verdict.rule import Rule
from hotplate.verdict.stages import Stage

CLOCK_SECONDS = 3600.0
"""A clock that is further off makes signatures and certificates invalid."""

PYTHON = "/usr/bin/python3"
OWN_SCRIPTS = ("10-wait-for-cloud-init", "20-os-apply-config", "55-heat-config")
"""The phase scripts that the elements bring; any other is the site's or another element's."""

_UP = (Stage.BOOTED, Stage.NETWORK_UP)
_METADATA = (*_UP, Stage.METADATA_SERVED)
UNREACHED = r"timed out|Max retries exceeded|Failed to establish|unreachable|No route"
_SHUT = re.compile(
    r"answers: (?:Network is unreachable|No route|Permission denied|Invalid argument)|"
    r"^(?:unreachable|prohibit|blackhole) "
)
"""What the kernel says of a route that is not there, and of those three kinds."""
_LOCAL = r"^(lo|dummy|docker|veth|br-|cni|podman|virbr|ifb|sit|tun|tap)"
_IN_VAIN = re.compile(rf"wait-online|(?i:wait for network)|{AGENT}")
"""Units that wait for what others do, and so are not why the boot does not go on."""
_CLOUD_INIT = (
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "cloud-config.service",
    "cloud-final.service",
)


def health_of(facts: Facts) -> Health:
    """The guest's own answer, or what its disk shows where it could not be asked."""
    text = facts.probes.get("health") or facts.probes.get("disk") or ""
    return Health.read(text)


# -- units -----------------------------------------------------------------------------------------


def _wanted_units(facts: Facts) -> tuple[str, ...]:
    """The units without which the stage that is missing cannot be reached, but for the agent's."""
    state = health_of(facts)
    units: list[str] = []
    # cloud-init gets its metadata before the network is up, by a lease of its own.
    if facts.missing in _UP or (state.lines("addresses") and not _has_address(state)):
        others = [state.unit(name, "UnitFileState") for name in health.OTHER_RENDERERS]
        units += [] if "enabled" in others else ["systemd-networkd.service"]
    return (*units, *_CLOUD_INIT) if facts.missing in _METADATA else tuple(units)


def agent_off(facts: Facts) -> str:
    return _masked(facts, AGENT) or _disabled(facts, AGENT)


def _masked(facts: Facts, *names: str) -> str:
    state = health_of(facts)
    for name in names:
        states = state.unit(name, "LoadState"), state.unit(name, "UnitFileState")
        if any(each.startswith("masked") for each in states):
            return f'the unit "{name}" is masked'
    return ""


def _disabled(facts: Facts, *names: str) -> str:
    state = health_of(facts)
    for name in names:
        idle = state.unit(name, "ActiveState") in ("inactive", "")
        if state.unit(name, "UnitFileState") == "disabled" and idle:
            return f'the unit "{name}" is installed and not enabled'
    return ""


def unit_masked(facts: Facts) -> str:
    return _masked(facts, *_wanted_units(facts))


def unit_disabled(facts: Facts) -> str:
    return _disabled(facts, *_wanted_units(facts))


def boot_waits(facts: Facts) -> str:
    rows = health_of(facts).rows("jobs", 4)
    waits = [row[1] for row in rows if row[3] == "running" and not _IN_VAIN.search(row[1])]
    if waits and any(row[3] == "waiting" for row in rows):
        return f'the boot waits for the unit "{waits[0]}", which has not ended'
    shown = [found for line in facts.lines[-400:] if (found := classify.job_in(line))]
    # Once the boot has gone on, what was waited for has ended.
    if (
        shown
        and not _IN_VAIN.search(shown[-1][0])
        and any(classify.job_in(line) for line in facts.lines[-5:])
    ):
        return f'the boot waits for "{shown[-1][0]}" ({shown[-1][1]})'
    return ""


def two_agents(facts: Facts) -> str:
    groups = health_of(facts).lines("agents")
    units = [PurePosixPath(group).name for group in groups if group.startswith("/system.slice/")]
    others = [unit for unit in units if unit != AGENT]
    if len(groups) > 1 and others:
        return f'two agents run at once: "{AGENT}" and "{others[0]}"'
    return ""


def memory_limit(facts: Facts) -> str:
    state = health_of(facts)
    if state.unit(AGENT, "Result") == "oom-kill":
        limit = state.unit(AGENT, "MemoryMax")
        if limit.isdigit():
            where = state.drop_in("MemoryMax") or "its unit"
            return (
                f'the agent was killed for want of memory: "{where}" gives it no more than '
                f"MemoryMax={int(limit) >> 20}M"
            )
        return "the agent was killed for want of memory"
    return ""


def _hardened(state: Health, key: str, *harmless: str) -> str:
    value = state.unit(AGENT, key)
    if not value or value in harmless:
        return ""
    where = state.drop_in(key) or state.unit(AGENT, "FragmentPath") or AGENT
    return f'"{where}" runs the agent with {key}={value}'


def no_network_for_agent(facts: Facts) -> str:
    state = health_of(facts)
    for key in ("PrivateNetwork", "IPAddressDeny"):
        if told := _hardened(state, key, "no"):
            return f"{told}, which keeps it from the network"
    families = state.unit(AGENT, "RestrictAddressFamilies")
    if families and families != "~" and "AF_INET" not in families.replace("AF_INET6", ""):
        return _hardened(state, "RestrictAddressFamilies") + ", which keeps it from the network"
    return ""


def read_only_for_agent(facts: Facts) -> str:
    told = _hardened(health_of(facts), "ProtectSystem", "no", "yes")
    return f"{told}, which makes directories read-only for all that it runs" if told else ""


def other_user(facts: Facts) -> str:
    told = _hardened(health_of(facts), "User", "root")
    return f"{told}, which may neither write its state nor run hooks as root" if told else ""


def proxy(facts: Facts) -> str:
    rows = health_of(facts).rows("environment", 2)
    excepted = [host for name, host in rows if name.lower() == "no_proxy"]
    if any(health.CLOUD in hosts or hosts == "*" for hosts in excepted):
        return ""
    for name, host in rows:
        if name.lower() in ("http_proxy", "all_proxy") and host:
            where = health_of(facts).drop_in("Environment") or AGENT
            return f'"{where}" sends what the agent asks for to the proxy {host} ({name})'
    return ""


# -- files -----------------------------------------------------------------------------------------


def program_missing(facts: Facts) -> str:
    for kind, path, *rest in health_of(facts).rows("programs", 3):
        target = " ".join(rest)
        if kind == "no-interpreter":
            wanted, _, real = target.partition(" ")
            via = f' (it leads to "{real}")' if real and real != wanted else ""
            return f'"{wanted}", which runs "{path}", is not there{via}'
        if kind == "gone" and target and target != path:
            return f'"{path}" leads to "{target}", which is not there'
        if kind == "gone":
            return f'"{path}" is not there'
    return ""


def hook_program_missing(facts: Facts) -> str:
    """A hook that the kernel could not run: the shell's statuses for it are 126 and 127."""
    finished = facts.marker("finished")
    return program_missing(facts) if finished and finished.status in (126, 127) else ""


def not_executable(facts: Facts) -> str:
    for kind, path, _ in health_of(facts).rows("programs", 3):
        # Of a hook the runner says it too.
        if kind == "not-executable" and not path.startswith(health.HOOKS):
            return f'"{path}" is not executable'
    return ""


def other_python(facts: Facts) -> str:
    """The interpreter of a virtual environment is another than the one it was made with."""
    for python, version, names in health_of(facts).rows("venv", 3):
        libraries = [name.removeprefix("python") for name in names.split() if name[-1:].isdigit()]
        if version and libraries and version not in libraries:
            root = PurePosixPath(python).parent.parent
            return (
                f'"{root}" was made with Python {libraries[0]}, and "{python}" is now Python '
                f"{version}, which finds none of its packages"
            )
    return ""


def package_broken(facts: Facts) -> str:
    signs = (
        r"error while loading shared libraries|ImportError|ModuleNotFoundError|cannot open shared"
    )
    broken = health_of(facts).lines("packages")
    log = [*facts.lines[-2000:], *facts.probes.get("agent-log", "").splitlines()]
    sign = next((line for line in reversed(log) if re.search(signs, line)), "")
    if broken and (sign or "disk" in facts.probes):
        name, _, status = broken[0].partition(" ")
        state = status.split()[-1] if status else "not installed"
        return f'the package "{name}" is {state}' + (f': "{sign.strip()[:180]}"' if sign else "")
    return ""


# -- disks -----------------------------------------------------------------------------------------


def disk_full(facts: Facts) -> str:
    state = health_of(facts)
    for path, (inodes, free_inodes, free, available, blocks) in state.space:
        point, options = state.mount(path)
        point = point or path
        if "ro" in options:
            continue
        # ext4 keeps as many blocks back from root too.
        if not available and free <= min(blocks // 50, 4096):
            return f'the file system on "{point}" is full'
        if inodes and not free_inodes:
            return f'the file system on "{point}" has no inode left'
    return ""


def read_only(facts: Facts) -> str:
    state = health_of(facts)
    # A root file system that is read-only by design has these elsewhere.
    for path in ("/etc", "/var/lib/cloud", *health.STATE):
        point, options = state.mount(path)
        if "ro" in options:
            return f'"{point}" is mounted read-only'
    return ""


def not_writable(facts: Facts) -> str:
    state = health_of(facts)
    for path in state.lines("unwritable"):
        if "ro" not in state.mount(path)[1]:
            return f'"{path}" cannot be written to by root, although its file system can'
    return ""


def no_exec(facts: Facts) -> str:
    if facts.missing is None and not facts.told(r"[Pp]ermission denied"):
        return ""
    point, options = health_of(facts).mount("/var/lib/heat-config/heat-config-script")
    if "noexec" in options:
        return f'"{point}" is mounted noexec, and hooks run their scripts there'
    return ""


# -- the network -----------------------------------------------------------------------------------


def _devices(state: Health) -> list[list[str]]:
    """Name, state and addresses of each device that leads outside."""
    return [row for row in state.rows("addresses", 3) if not re.match(_LOCAL, row[0])]


def _has_address(state: Health) -> bool:
    """Whether a device has an IPv4 address, which it has by somebody's doing."""
    return any("." in row[2] for row in _devices(state))


def link_down(facts: Facts) -> str:
    state = health_of(facts)
    devices = _devices(state)
    if facts.link_up and devices and not _has_address(state):
        down = [row[0] for row in devices if row[1] == "DOWN"]
        if len(down) == len(devices):
            return f'the network device "{down[0]}" is down: something in the guest put it so'
    return ""


def no_route(facts: Facts) -> str:
    rows = [(row[0], row[1]) for row in health_of(facts).rows("routes", 2)]
    shut = [(port, text) for port, text in rows if _SHUT.search(text)]
    if not shut:
        return ""
    said = shut[0][1].removeprefix("RTNETLINK answers: ")
    if len(shut) == len(rows):
        return f'the guest has no route to {health.CLOUD}: "{said}"'
    rules = [line for line in health_of(facts).lines("rules") if "lookup" not in line]
    why = f' by the rule "{rules[0].strip()}" (ip rule)' if rules else f': "{said}"'
    return f"port {shut[0][0]} of {health.CLOUD} is shut in the guest{why}"


def firewall(facts: Facts) -> str:
    lines = health_of(facts).lines("firewall")
    # A firewall by itself is nothing wrong.
    if not facts.log_line(UNREACHED, "agent-log"):
        return ""
    return f'the guest has a firewall: "{lines[0].strip()[:180]}"' if lines else ""


# -- what is configured ----------------------------------------------------------------------------


def old_address(facts: Facts) -> str:
    for file, section in (
        ("/etc/os-collect-config.conf", "collect-conf"),
        ("/var/lib/heat-cfntools/cfn-init-data", "boot-metadata"),
    ):
        for row in health_of(facts).rows(section, 2):
            host = row[1] or row[0]
            if host.partition(":")[0] != health.CLOUD:
                return f'"{file}" has the agent ask {host}, which is not this cloud'
    return ""


def wrong_clock(facts: Facts) -> str:
    guest, host = health_of(facts).seconds("clock"), health_of(facts).seconds("asked")
    if guest is None or host is None or abs(guest - host) < CLOCK_SECONDS:
        return ""
    shown = time.strftime("%Y-%m-%d %H:%M", time.gmtime(guest))
    return f"the guest's clock says {shown} UTC"


def cloud_init_off(facts: Facts) -> str:
    if any(classify.is_user_data(event) for event in facts.metadata):
        # Something else than cloud-init looks for metadata in this image.
        return ""
    for line in health_of(facts).lines("cloud-init"):
        if line == "cloud-init=disabled":
            return 'the kernel command line has "cloud-init=disabled"'
        if line.endswith("/cloud-init.disabled"):
            return f'"{line}" keeps cloud-init from running'
    if any("cloud-init=disabled" in line for line in facts.lines if "ommand line:" in line):
        return 'the kernel command line has "cloud-init=disabled"'
    return ""


def cloud_config_broken(facts: Facts) -> str:
    rows = health_of(facts).rows("broken-yaml", 2)
    return f'"{rows[0][0]}" is not YAML: {rows[0][1]}' if rows else ""


def other_datasource(facts: Facts) -> str:
    for path, text in health_of(facts).rows("datasource-list", 2):
        if not re.search(r"OpenStack|Ec2|ConfigDrive|NoCloud\b.*OpenStack", text):
            return f'"{path}" has datasource_list {text}'
    return ""


def other_target(facts: Facts) -> str:
    for line in health_of(facts).lines("default-target"):
        if line in ("rescue.target", "emergency.target", "poweroff.target", "halt.target"):
            return f'the image boots to "{line}" by default'
    return ""


def other_interface(facts: Facts) -> str:
    if _has_address(health_of(facts)):
        return ""
    devices = {"eth0", *(row[0] for row in _devices(health_of(facts)))}
    for line in facts.lines:
        if found := re.search(r" (\S+): renamed from (eth\d+)", line):
            devices.add(found[1])
    rows = [
        (path, found[1].split())
        for path, text in health_of(facts).rows("networks", 2)
        if (found := re.search(r"\bName=(.+)", text))
    ]
    # A file that matches by other means may well match.
    if not rows or len(rows) < len(health_of(facts).lines("networks")) or len(devices) < 2:
        return ""
    patterns = [name for _, names in rows for name in names]
    if any(fnmatchcase(device, name) for device in devices for name in patterns):
        return ""
    real = ", ".join(sorted(devices - {"eth0"}))
    return f'"{rows[0][0]}" is for "{patterns[0]}", and the machine\'s device is "{real}"'


def missing_device(facts: Facts) -> str:
    if not facts.finding("emergency-mode"):
        return ""
    for line in facts.lines:
        if found := re.search(r"Timed out waiting for device (?:\S+ - )?(/\S+)", line):
            device = found[1].rstrip(".")
            mounts = [row for row in health_of(facts).rows("fstab", 2) if row[0] == device]
            at = f' for "{mounts[0][1].split()[0]}"' if mounts and mounts[0][1] else ""
            return f'/etc/fstab names "{device}"{at}, a device that the machine has not'
    return ""


# -- scripts of os-refresh-config ------------------------------------------------------------------


def script_hangs(facts: Facts) -> str:
    for path in health_of(facts).lines("running"):
        if path.startswith(f"{health.REFRESH}/") and PurePosixPath(path).name not in OWN_SCRIPTS:
            return f'the script "{path}" has not ended, and what comes after it waits'
    return ""


def no_hooks(facts: Facts) -> str:
    found = facts.marker("rejected")
    answered = "hooks" in health_of(facts).sections
    names = [name for name in health_of(facts).lines("hooks") if not name.endswith(":")]
    if found and answered and not names:
        return f'there is no hook at all in "{health.HOOKS}", so none for group "{found.group}"'
    return ""


_AGENT = (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED)
_TO_AGENT = (*_METADATA, *_AGENT)
_RUNS = (Stage.HOOK_STARTED, Stage.HOOK_FINISHED)
_TO_RUNS = (*_AGENT, *_RUNS)
_SIGNALS = (Stage.SIGNAL_RECEIVED, Stage.SIGNAL_ACCEPTED)
_AFTER_BOOT = (*_TO_RUNS, *_SIGNALS)
_ALWAYS = (*_METADATA, *_AFTER_BOOT)

_SPACE = "make the image's root file system larger (DIB_IMAGE_SIZE), or remove what fills it"

CAUSES: tuple[Rule, ...] = (
    # Disks first: whatever else fails, may fail by them.
    Rule(
        "disk-full",
        None,
        _ALWAYS,
        disk_full,
        _SPACE,
    ),
    Rule(
        "disk-full",
        Stage.HOOK_FINISHED,
        (None,),
        disk_full,
        _SPACE,
    ),
    Rule(
        "read-only",
        None,
        _ALWAYS,
        read_only,
        "look at its options in /etc/fstab and for errors of the disk in console.log",
    ),
    Rule(
        "not-writable",
        None,
        _AFTER_BOOT,
        not_writable,
        "look at its attributes (lsattr -d) and at security modules",
    ),
    # What boots, and what is started.
    Rule(
        "other-target",
        None,
        _TO_AGENT,
        other_target,
        "make another the default in the image: systemctl set-default multi-user.target",
    ),
    Rule(
        "missing-device",
        None,
        _TO_AGENT,
        missing_device,
        "correct the line, or give it the option nofail",
    ),
    Rule(
        "program-missing",
        None,
        _ALWAYS,
        program_missing,
        "install it in the image, or build the image anew with what needs it",
    ),
    Rule(
        "program-missing",
        Stage.HOOK_FINISHED,
        (None,),
        hook_program_missing,
        "install it in the image, or build the image anew with what needs it",
    ),
    Rule(
        "unit-masked",
        None,
        _TO_AGENT,
        unit_masked,
        "unmask it in the image (systemctl unmask)",
    ),
    Rule(
        "agent-disabled",
        Stage.AGENT_POLLED,
        _AGENT,
        agent_off,
        "enable it in the image: systemctl unmask, then systemctl enable os-collect-config.service",
    ),
    Rule(
        "cloud-init-off",
        Stage.METADATA_SERVED,
        (*_TO_AGENT,),
        cloud_init_off,
        "take that away: without cloud-init the guest gets no metadata",
    ),
    Rule(
        "unit-disabled",
        None,
        _TO_AGENT,
        unit_disabled,
        "enable it in the image (systemctl enable), and look for a preset that disables it",
    ),
    Rule(
        "cloud-config-broken",
        Stage.METADATA_SERVED,
        _METADATA,
        cloud_config_broken,
        "correct it; cloud-init reads none of it as it is",
    ),
    Rule(
        "other-datasource",
        Stage.METADATA_SERVED,
        _METADATA,
        other_datasource,
        "let it name OpenStack or Ec2 too",
    ),
    Rule(
        "python-changed",
        None,
        _TO_AGENT,
        other_python,
        "build the image anew, or make the virtual environment anew with that Python",
    ),
    Rule(
        "package-broken",
        None,
        _TO_AGENT,
        package_broken,
        "finish the upgrade before the image is made: dpkg --configure -a; apt-get -f install",
    ),
    Rule(
        "other-interface",
        Stage.NETWORK_UP,
        (*_METADATA, Stage.AGENT_POLLED),
        other_interface,
        "match by Type=ether, or by en* and eth*",
    ),
    Rule(
        "memory-limit",
        None,
        _AFTER_BOOT,
        memory_limit,
        "give the agent, and all that hooks run, the memory that they need",
    ),
    Rule(
        "boot-waits",
        None,
        _TO_AGENT,
        boot_waits,
        "let that unit end, or give it a limit (TimeoutStartSec=)",
    ),
    # The network.
    Rule(
        "link-down",
        None,
        _ALWAYS,
        link_down,
        "look for what switches it off: journalctl -b, and the units of the site",
    ),
    Rule(
        "no-route",
        None,
        (*_AGENT, *_SIGNALS),
        no_route,
        "look for what changes the routes and rules: journalctl -b, and the units of the site",
    ),
    Rule(
        "agent-cut-off",
        None,
        (*_AGENT, *_SIGNALS),
        no_network_for_agent,
        "remove that line",
    ),
    Rule(
        "proxy",
        None,
        (*_AGENT, *_SIGNALS),
        proxy,
        f"except {health.CLOUD} from it with no_proxy",
    ),
    Rule(
        "old-address",
        Stage.AGENT_POLLED,
        _AGENT,
        old_address,
        "remove that file before the image is made (heat-agent-forget does)",
    ),
    Rule(
        "wrong-clock",
        None,
        (*_AGENT, *_SIGNALS),
        wrong_clock,
        "look for what sets it, and let the guest take the time of its machine",
    ),
    Rule(
        "firewall",
        None,
        (*_AGENT, *_SIGNALS),
        firewall,
        f"let out what goes to {health.CLOUD}",
    ),
    # The agent and what it runs.
    Rule(
        "agent-read-only",
        None,
        _TO_RUNS,
        read_only_for_agent,
        "remove that line: the agent and its hooks configure the whole system",
    ),
    Rule(
        "agent-user",
        None,
        _TO_RUNS,
        other_user,
        "remove that line",
    ),
    Rule(
        "not-executable",
        None,
        (Stage.AGENT_POLLED, Stage.DEPLOYMENT_DELIVERED, *_RUNS),
        not_executable,
        "make it executable in the image (mode 0755)",
    ),
    Rule(
        "script-hangs",
        None,
        (Stage.DEPLOYMENT_DELIVERED, Stage.HOOK_STARTED),
        script_hangs,
        "see what it waits for; a phase of os-refresh-config runs one script after the other",
    ),
    Rule(
        "no-hooks",
        Stage.HOOK_STARTED,
        (Stage.HOOK_STARTED,),
        no_hooks,
        "build the image with the element of that group (heat-config-<group>)",
    ),
    Rule(
        "no-exec",
        Stage.HOOK_FINISHED,
        (Stage.HOOK_FINISHED, None),
        no_exec,
        "mount it without noexec",
    ),
    Rule(
        "two-agents",
        None,
        _AFTER_BOOT,
        two_agents,
        "disable one of them",
    ),
)
