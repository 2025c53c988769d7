"""Faults of an image, and leftovers of an earlier server or the build.

Each check looks for one fault, and reports it in a sentence with a fix. None is found in an image
made by ``hotplate build``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from hotplate.inspection.contents import AGENT, AGENT_PROGRAMS, Contents

UNIT = f"{AGENT}.service"
BOOTSTRAP_UNIT = "heat-config-bootstrap.service"
#: Limit of the paths named in one sentence.
NAMED = 3

#: The data sources through which Nova provides user data.
HEAT_SOURCES = ("OpenStack", "ConfigDrive", "Ec2")

#: The unit of each renderer that a boot starts; netplan starts its own.
RENDERER_UNITS = {
    "ifupdown": "networking.service",
    "NetworkManager": "NetworkManager.service",
    "systemd-networkd": "systemd-networkd.service",
}

#: Directories that every user has to be able to enter.
OPEN_DIRECTORIES = ("/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/var", "/var/lib")

PHASES = ("/usr/libexec/os-refresh-config/configure.d", "/opt/stack/os-config-refresh/configure.d")
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
URL_PASSWORD = re.compile(rb"://[^/\s:@\"']+:[^/\s@\"']+@")
SECRET_SETTING = re.compile(r"^[ \t]*(?:password|secret_key|access_key_id)[ \t]*=[ \t]*\S", re.M)
#: Words in the name of a variable that holds a secret.
SECRET_WORDS = ("PASSWORD", "SECRET", "TOKEN")


class Level(StrEnum):
    """Severity of a finding for servers of the image."""

    FAILS = "fails"
    LEFT = "left in"
    DIFFERS = "differs"


@dataclass(frozen=True)
class ImageFault:
    """One fault.

    :param kind: a stable word, for scripts.
    :param sentence: the fault and its consequence.
    :param mend: the fix.
    :param paths: all files at fault.
    """

    kind: str
    level: Level
    sentence: str
    mend: str
    paths: tuple[str, ...] = ()


Check = Callable[[Contents], Iterator[ImageFault]]


def findings(contents: Contents) -> list[ImageFault]:
    """Return the faults of a root file system: what fails, then what was left in."""
    return [finding for check in CHECKS for finding in check(contents)]


def fails(kind: str, sentence: str, mend: str, paths: Iterable[str] = ()) -> ImageFault:
    """Return a finding of a part that does not work."""
    return ImageFault(kind, Level.FAILS, sentence, mend, tuple(paths))


_PLURAL = {"is": "are", "has": "have", "lets": "let"}


def left(kind: str, paths: Iterable[str], sentence: str, mend: str) -> Iterator[ImageFault]:
    """Yield a finding for leftover files, none without files.

    :param sentence: their consequence, as it reads after the name of one.
    """
    listed = tuple(paths)
    if listed:
        verb, _, rest = sentence.partition(" ")
        if len(listed) > 1:
            sentence = f"{_PLURAL[verb]} {rest}"
        yield ImageFault(kind, Level.LEFT, f"{named(listed)} {sentence}", mend, listed)


def named(paths: tuple[str, ...]) -> str:
    """Return the first of some paths, quoted, and the number of the others."""
    quoted = ", ".join(f'"{path}"' for path in paths[:NAMED])
    more = len(paths) - NAMED
    return f"{quoted} and {more} more" if more > 0 else quoted


def no_init(contents: Contents) -> Iterator[ImageFault]:
    """Report that the kernel finds no init."""
    if not contents.program(("/sbin/init", "/usr/sbin/init", "/usr/lib/systemd/systemd")):
        yield fails(
            "no-init",
            'there is no "/sbin/init": the kernel has nothing to start',
            "put an init system in; of Debian the package systemd-sysv",
        )


def closed_directory(contents: Contents) -> Iterator[ImageFault]:
    """Report directories that only their owner may enter, and every service has to."""
    found = ((path, contents.tree.find(path)) for path in OPEN_DIRECTORIES)
    closed = {
        path: f"{inode.mode & 0o7777:04o}" for path, inode in found if inode and not inode.mode & 1
    }
    if closed:
        modes = " and ".join(dict.fromkeys(closed.values()))
        yield fails(
            "closed-directory",
            f"{named(tuple(closed))} has mode {modes}: services that run as users of their own, "
            "such as dbus and systemd-networkd, do not start or find their files",
            f"chmod 0755 {' '.join(closed)}, in the image's chroot; mktemp -d makes directories "
            "with 0700",
            closed,
        )


def no_agent(contents: Contents) -> Iterator[ImageFault]:
    """Report that the agent, or a part of it, is missing."""
    agent = contents.agent
    if agent is None:
        yield fails(
            "no-agent",
            f'there is no agent: the program "{AGENT}" is not in the image, so no deployment runs',
            f"build the image with the element {AGENT}, or with hotplate build",
        )
        return
    for name in AGENT_PROGRAMS:
        if name not in agent.programs:
            yield fails(
                "agent-incomplete",
                f'the program "{name}" is missing, without which the agent runs no deployment',
                f"build the image with the element {name}",
            )


def agent_not_started(contents: Contents) -> Iterator[ImageFault]:
    """Report that no boot starts the agent, or that its unit starts a missing program."""
    if contents.agent is None or contents.init != "systemd":
        return
    path = contents.units.file(UNIT)
    if why := contents.units.obstacle(UNIT):
        yield fails(
            "agent-not-started",
            f'no boot starts the agent: the unit "{UNIT}" is {why}',
            f"systemctl unmask {UNIT} && systemctl enable {UNIT}, in the image's chroot",
            [path] if path else [],
        )
        return
    for program in re.findall(r"^ExecStart=[-@:+!]*(/\S+)", contents.tree.text(path), re.M)[:1]:
        if not contents.tree.is_program(program):
            yield fails(
                "agent-not-started",
                f'the unit "{UNIT}" starts "{program}", which is not there or no program',
                f"build the image with the element {AGENT}",
                [path],
            )


def no_runner(contents: Contents) -> Iterator[ImageFault]:
    """Report that the runner of hooks, or every hook, is missing."""
    scripts = [path for folder in PHASES for path in contents.tree.paths(folder)]
    runs = any("heat-config" in path.rpartition("/")[2] for path in scripts)
    if contents.agent is not None and not runs:
        yield fails(
            "no-runner",
            f'there is no "55-heat-config" in "{PHASES[0]}": no deployment reaches a hook',
            "build the image with the element heat-config",
        )
    if contents.agent is not None and not contents.hooks:
        yield fails(
            "no-hook",
            "there is no hook: each deployment stays IN_PROGRESS until its stack gives up",
            "build the image with the group's element: hotplate build --group script",
        )


def hook_without_tool(contents: Contents) -> Iterator[ImageFault]:
    """Report that a hook cannot be run, or lacks the program that it calls."""
    for hook in contents.hooks:
        if not contents.tree.is_program(hook.path):
            yield fails(
                "hook-not-executable",
                f'the hook of group "{hook.group}" is no program that may be run',
                f"chmod 0755 {hook.path}",
                [hook.path],
            )
        elif hook.wanted and not hook.tool and not _is_configured(contents, hook.group):
            names = " or ".join(f'"{name}"' for name in hook.wanted)
            yield fails(
                "hook-without-tool",
                f'the hook of group "{hook.group}" finds no {names}: its deployments fail',
                f"build the image with the element heat-config-{hook.group}",
                [hook.path],
            )


def _is_configured(contents: Contents, group: str) -> bool:
    """Return whether the agent's unit sets the path of a group's tool, which is not checked."""
    word = group.partition("-")[0].upper()
    folder = f"/etc/systemd/system/{UNIT}.d"
    files = [contents.units.file(UNIT), *contents.tree.paths(folder, ".conf")]
    return any(f"HEAT_{word}" in contents.tree.text(path) for path in files if path)


def no_metadata(contents: Contents) -> Iterator[ImageFault]:
    """Report that no program finds the server's metadata."""
    init = contents.cloud_init
    if init is None:
        started = contents.init != "systemd" or contents.units.starts(BOOTSTRAP_UNIT)
        if not (contents.has_bootstrap and started):
            yield fails(
                "no-metadata",
                "nothing finds the server's metadata: there is no cloud-init, and "
                "heat-config-bootstrap is not there or not started",
                "build the image with the element heat-config-bootstrap, or with cloud-init",
            )
        return
    if init.disabled:
        yield fails(
            "cloud-init-disabled",
            f'cloud-init is turned off by "{init.disabled}": no server gets its user data',
            "remove the file, or cloud-init=disabled from the kernel's command line",
            [init.disabled],
        )
    if not set(HEAT_SOURCES) & set(init.sources):
        yield fails(
            "no-datasource",
            f"cloud-init looks for {', '.join(init.sources) or 'nothing'} only; user data of "
            f"Nova comes by {', '.join(HEAT_SOURCES[:-1])} or {HEAT_SOURCES[-1]}",
            "datasource_list: [OpenStack, ConfigDrive, None] in a file of /etc/cloud/cloud.cfg.d",
        )


def nocloud_seed(contents: Contents) -> Iterator[ImageFault]:
    """Report that a seed in the image hides the metadata of the cloud."""
    if contents.cloud_init is None or "NoCloud" not in contents.cloud_init.sources:
        return
    for folder in ("/var/lib/cloud/seed/nocloud", "/var/lib/cloud/seed/nocloud-net"):
        if contents.tree.exists(f"{folder}/meta-data"):
            yield fails(
                "nocloud-seed",
                f'"{folder}" has a seed, which cloud-init takes before the cloud\'s metadata',
                "remove it; the element cloud-init-nocloud makes it",
                [folder],
            )


def no_network(contents: Contents) -> Iterator[ImageFault]:
    """Report that no program configures the network."""
    if not contents.renderers:
        yield fails(
            "no-renderer",
            "nothing brings up the network: there is neither systemd-networkd, NetworkManager, "
            "netplan nor ifupdown",
            "put one of them in; the element heat-config-cloud-init enables systemd-networkd",
        )
        return
    units = [RENDERER_UNITS[each] for each in contents.renderers if each in RENDERER_UNITS]
    obstacles = {each: contents.units.obstacle(each) for each in units}
    by_units = contents.init == "systemd" and "netplan" not in contents.renderers
    if by_units and all(obstacles.values()):
        why = "; ".join(f'"{unit}" is {obstacle}' for unit, obstacle in obstacles.items())
        yield fails(
            "renderer-not-started",
            f"no boot brings up the network: {why}",
            f"systemctl enable {units[0]}, in the image's chroot",
        )
    if contents.cloud_init is not None and not contents.program(("ip",)):
        yield fails(
            "no-ip-program",
            'there is no program "ip", without which cloud-init configures no network',
            "put the package iproute2 in",
        )


def no_dhcp_client(contents: Contents) -> Iterator[ImageFault]:
    """Report that cloud-init or ifupdown has no DHCP client."""
    if contents.dhcp_client:
        return
    if contents.cloud_init is not None:
        yield fails(
            "no-dhcp-client",
            "there is no DHCP client: before the network is up cloud-init cannot ask OpenStack "
            "for its metadata, and either comes to it late or takes another data source",
            "put the package dhcpcd-base in; isc-dhcp-client for cloud-init before 24.1",
        )
    elif contents.renderers[:1] == ["ifupdown"]:
        yield fails(
            "no-dhcp-client",
            "there is no DHCP client, without which ifupdown gets no address",
            "put the package dhcpcd-base or isc-dhcp-client in",
        )


def machine_id(contents: Contents) -> Iterator[ImageFault]:
    """Report that each server would have the same machine id."""
    paths = ("/etc/machine-id", "/var/lib/dbus/machine-id")
    ids = [path for path in paths if not contents.tree.is_link(path)]
    yield from left(
        "machine-id",
        [path for path in ids if re.fullmatch(r"[0-9a-f]{32}\s*", contents.tree.text(path))],
        "has an id, which all servers of the image would share; so they would their DHCP leases",
        "truncate -s 0 /etc/machine-id, in the image's chroot",
    )


def ssh_host_keys(contents: Contents) -> Iterator[ImageFault]:
    """Report that each server would have the same host keys."""
    names = [name for name in contents.tree.names("/etc/ssh") if name.startswith("ssh_host_")]
    yield from left(
        "ssh-host-keys",
        [f"/etc/ssh/{name}" for name in names if name.endswith("_key")],
        "lets whoever has the image pretend to be any of its servers",
        "remove them, and let cloud-init or the element runtime-ssh-host-keys make new ones",
    )


def cloud_init_state(contents: Contents) -> Iterator[ImageFault]:
    """Report that cloud-init has the state of another server."""
    folders = [f"/var/lib/cloud/{name}" for name in ("instance", "instances", "sem", "data")]
    yield from left(
        "cloud-init-state",
        [path for path in folders if contents.tree.is_link(path) or contents.tree.names(path)],
        "is what cloud-init keeps of another server: its user data, and what it need not do again",
        "heat-agent-forget --capture, or cloud-init clean --logs, before the disk is captured",
    )


def agent_state(contents: Contents) -> Iterator[ImageFault]:
    """Report that the image has the agent's credentials and deployments of another server."""
    tree = contents.tree
    paths = [
        *tree.paths("/var/lib/heat-cfntools"),
        *tree.paths("/var/lib/os-collect-config", ".json"),
        *tree.paths("/var/lib/heat-config/deployed", ".json"),
        *[path for path in ("/var/lib/os-collect-config/instance-id",) if tree.exists(path)],
    ]
    if SECRET_SETTING.search(tree.text(conf := "/etc/os-collect-config.conf")):
        paths.append(conf)
    yield from left(
        "agent-state",
        paths,
        "is of another server: its deployments, and the credentials of its stack",
        "heat-agent-forget --capture, before the disk is captured",
    )


def credentials(contents: Contents) -> Iterator[ImageFault]:
    """Report that the image has secrets of users or of the build."""
    yield from left(
        "credentials",
        _secrets(contents),
        "has a secret, which whoever has the image has as well",
        "remove it from the image, and change the secret",
    )


def _secrets(contents: Contents) -> Iterator[str]:
    tree = contents.tree
    for home in contents.homes():
        for path in tree.paths(f"{home}/.ssh"):
            if PRIVATE_KEY.search(tree.read(path, 4096)):
                yield path
        for name in (".netrc", ".aws/credentials", ".git-credentials", ".pypirc", ".pgpass"):
            if tree.size(f"{home}/{name}"):
                yield f"{home}/{name}"
        if b'"auth"' in tree.read(path := f"{home}/.docker/config.json", 1 << 16):
            yield path
    for path in ("/etc/apt/auth.conf", *tree.paths("/etc/apt/auth.conf.d")):
        if "password" in tree.text(path):
            yield path
    for path in places_of_urls(contents):
        if URL_PASSWORD.search(tree.read(path, 1 << 20)):
            yield path
    for path in ("/etc/dib-manifests/dib_environment", "/etc/environment"):
        if any(map(_is_secret, tree.text(path).splitlines())):
            yield path


def _is_secret(line: str) -> bool:
    name, _, value = line.partition("=")
    return bool(value.strip(" \"'")) and any(word in name for word in SECRET_WORDS)


def places_of_urls(contents: Contents) -> Iterator[str]:
    """Yield the files in which the URL of a proxy or a mirror may have a password."""
    for folder in ("/etc/apt/apt.conf.d", "/etc/apt/sources.list.d", "/etc/yum.repos.d"):
        yield from contents.tree.paths(folder)
    yield from ("/etc/apt/apt.conf", "/etc/apt/sources.list", "/etc/pip.conf", "/etc/environment")
    for home in contents.homes():
        yield from (f"{home}/.pip/pip.conf", f"{home}/.config/pip/pip.conf", f"{home}/.gitconfig")


def logins(contents: Contents) -> Iterator[ImageFault]:
    """Report keys and passwords that let somebody log into every server of the image."""
    tree = contents.tree
    keys = [f"{home}/.ssh/authorized_keys" for home in contents.homes()]
    paths = [path for path in keys if "ssh-" in tree.text(path) or "ecdsa-" in tree.text(path)]
    for line in tree.text("/etc/shadow").splitlines():
        fields = line.split(":")
        # Neither locked (! and *) nor without a password prompt; crypt(5).
        if len(fields) > 1 and fields[1].startswith(("$", "_")):
            paths.append("/etc/shadow")
            break
    yield from left(
        "logins",
        paths,
        "lets somebody log into every server of the image",
        "leave it to the key pair of the server; the element devuser is for trying things",
    )


def logs(contents: Contents) -> Iterator[ImageFault]:
    """Report that there are logs of another server or of the build."""
    paths = [path for path, inode in contents.tree.walk("/var/log") if inode.is_file and inode.size]
    yield from left(
        "logs",
        [path for path in paths if not contents.packages.owner(path)],
        "is of another server, or of the build",
        "empty /var/log, in the image's chroot",
    )


#: The caches of dnf, yum, zypper, apk and pacman.
PACKAGE_CACHES = (
    "/var/cache/dnf",
    "/var/cache/libdnf5",
    "/var/cache/yum",
    "/var/cache/zypp/packages",
    "/var/cache/apk",
    "/var/cache/pacman/pkg",
)


def caches(contents: Contents) -> Iterator[ImageFault]:
    """Report that there are caches, which take space and become outdated."""
    tree = contents.tree
    lists = [path for path in tree.paths("/var/lib/apt/lists") if "Packages" in path]
    paths = [
        *lists,
        *tree.paths("/var/cache/apt/archives", ".deb"),
        *tree.paths("/var/cache/apt", ".bin"),
        *[path for folder in PACKAGE_CACHES for path in tree.paths(folder)],
        *[f"{home}/.cache/pip" for home in contents.homes() if tree.names(f"{home}/.cache/pip")],
    ]
    size = sum(tree.size(path) for path in paths)
    yield from left(
        "caches",
        paths,
        f"is cached data ({size // 1_000_000} MB), which takes space and is soon outdated",
        "apt-get clean && rm -rf /var/lib/apt/lists/*, in the image's chroot",
    )


CHECKS: tuple[Check, ...] = (
    no_init,
    closed_directory,
    no_agent,
    agent_not_started,
    no_runner,
    hook_without_tool,
    no_metadata,
    nocloud_seed,
    no_network,
    no_dhcp_client,
    machine_id,
    ssh_host_keys,
    cloud_init_state,
    agent_state,
    credentials,
    logins,
    logs,
    caches,
)
