"""Contents of an image: its system, its agent, its hooks and its network configuration."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.image.plan import MACHINES
from hotplate.inspection.boot_entries import BootEntry, boot_entries, kernel_words
from hotplate.inspection.packages import Packages
from hotplate.inspection.tree import Tree
from hotplate.inspection.units import Units

#: The agent's PATH, in the unit's order.
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")

#: The runner's directories of hooks; the second is that of heat-agents.
HOOK_FOLDERS = ("/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks")

AGENT = "os-collect-config"
AGENT_PROGRAMS = (AGENT, "os-apply-config", "os-refresh-config")
BOOTSTRAP = "/usr/libexec/heat-config/bootstrap"

#: Group -> the programs that its hook calls, the best first, and their directories beside PATH.
#:
#: Copies of the hooks' own lists; tests/inspection/test_contents.py compares them.
TOOLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ansible": (("ansible-playbook",), ()),
    "apply-config": (("os-apply-config",), ()),
    "cfn-init": (("cfn-init",), ()),
    "chef": (
        ("cinc-client", "chef-client", "cinc-solo", "chef-solo"),
        ("/opt/cinc/bin", "/opt/chef/bin"),
    ),
    "docker-cmd": (("docker", "podman"), ()),
    "docker-compose": (
        ("docker-compose", "podman-compose"),
        ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins"),
    ),
    "puppet": (("puppet",), ("/opt/puppetlabs/bin",)),
    "salt": (("salt-call",), ("/opt/heat-salt/bin", "/opt/saltstack/salt")),
}

#: Network renderers and the programs by which they are detected; cloud-init takes the first.
RENDERERS = (
    ("ifupdown", ("ifup",)),
    ("netplan", ("netplan",)),
    ("NetworkManager", ("NetworkManager", "nmcli")),
    ("systemd-networkd", ("/usr/lib/systemd/systemd-networkd", "/lib/systemd/systemd-networkd")),
)

#: cloud-init's clients for a first address (``cloudinit/net/dhcp.py``).
DHCP_CLIENTS = ("dhcpcd", "dhclient", "udhcpc")

#: The relevant ones of cloud-init's default data sources.
DEFAULT_SOURCES = ("NoCloud", "ConfigDrive", "OpenStack", "Ec2", "None")

_SETTING = re.compile(r"""^([A-Z_]+)=(.*)$""", re.M)


@dataclass(frozen=True)
class Agent:
    """The agent of an image.

    :param install_type: ``slim``, ``venv``, ``package``, or ``other``.
    :param version: of upstream's distribution or package, "" for ours.
    """

    install_type: str
    version: str
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hook:
    """A hook and the tool that it calls.

    :param group: the group of its software configs.
    :param tool: the program, "" when it needs none or has none.
    :param tool_version: name and version of the tool's package.
    :param wanted: the programs of which it needs one; empty for most.
    """

    group: str
    path: str
    tool: str
    tool_version: str
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class CloudInit:
    """Configuration of cloud-init.

    :param sources: its data sources, in their order.
    :param disabled: the file that disables it, "" for none.
    """

    version: str
    sources: tuple[str, ...]
    disabled: str


class Contents:
    """Everything that is read from the root file system of an image."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.packages = Packages(tree)
        self.units = Units(tree)

    @cached_property
    def release(self) -> Mapping[str, str]:
        """Return the fields of os-release(5)."""
        text = ""
        for path in ("/etc/os-release", "/usr/lib/os-release"):
            # Read little of it: shlex takes quadratic time for a long field.
            text = text or self.tree.text(path, 8 << 10)
        return {name: _unquoted(value) for name, value in _SETTING.findall(text)}

    @property
    def distribution(self) -> str:
        """Return the name and the version of the distribution, "" when unknown."""
        return self.release.get("PRETTY_NAME") or self.release.get("NAME", "")

    @property
    def arch(self) -> str:
        """Return the processor, in Debian's spelling; "" when no package manager tells."""
        package = self.packages.installed.get(self.packages.manager)
        return MACHINES.get(package.arch, package.arch) if package else ""

    @cached_property
    def init(self) -> str:
        """Return the init system: systemd, OpenRC, sysvinit, busybox, or its name; "" for none."""
        real = self.tree.real_path("/sbin/init") or self.tree.real_path("/usr/sbin/init")
        name = real.rpartition("/")[2]
        if name == "systemd" or (not name and self.program(("/usr/lib/systemd/systemd",))):
            return "systemd"
        # Both of the others start OpenRC, as a program of their own.
        if self.program(("openrc",)):
            return "OpenRC"
        return "sysvinit" if name == "init" and self.tree.exists("/etc/inittab") else name

    @cached_property
    def kernels(self) -> list[str]:
        """Return the versions of the kernels that a boot loader can start."""
        names = self.tree.names("/boot")
        files = [name.removeprefix("vmlinuz-") for name in names if name.startswith("vmlinuz-")]
        return list(
            dict.fromkeys([*files, *filter(None, (each.version for each in self.boot_entries))])
        )

    @cached_property
    def boot_entries(self) -> list[BootEntry]:
        """Return the entries of the Boot Loader Specification, the default one first."""
        return boot_entries(self.tree)

    @cached_property
    def command_line(self) -> str:
        """Return the command line with which the kernel is started by default, "" when unknown."""
        return " ".join(kernel_words(self.tree))

    @cached_property
    def boot_loaders(self) -> list[str]:
        """Return the configured boot loaders."""
        grub = any(self.tree.exists(f"/boot/{each}/grub.cfg") for each in ("grub", "grub2"))
        systemd = self.tree.exists("/boot/loader/loader.conf") or self.tree.exists(
            "/efi/loader/loader.conf"
        )
        return ["GRUB"] * grub + ["systemd-boot"] * systemd

    def program(self, names: tuple[str, ...], places: tuple[str, ...] = ()) -> str:
        """Return the path of the first program that exists, "" when none does.

        :param places: directories to search before PATH.
        """
        for name in names:
            for path in [name] if "/" in name else [f"{each}/{name}" for each in (*places, *PATH)]:
                if self.tree.is_program(path):
                    return path
        return ""

    @cached_property
    def agent(self) -> Agent | None:
        """Return the agent, None when its program is missing."""
        programs = {name: self.program((name,)) for name in AGENT_PROGRAMS}
        if not programs[AGENT]:
            return None
        types = {name: self._install_type(path) for name, path in programs.items() if path}
        return Agent(types[AGENT], self._version(programs[AGENT]), types)

    @property
    def runs_deployments(self) -> bool:
        """Return whether there is an agent, or a unit that starts one from another path."""
        return self.agent is not None or bool(self.units.file(f"{AGENT}.service"))

    def _install_type(self, path: str) -> str:
        real = self.tree.real_path(path)
        if real.startswith("/usr/libexec/heat-agent/"):
            return "slim"
        if self.tree.exists(f"{real.rpartition('/bin/')[0]}/pyvenv.cfg"):
            return "venv"
        return "package" if self.packages.owner(path) or self.packages.owner(real) else "other"

    def _version(self, path: str) -> str:
        return self.packages.version_of(path).rpartition(" ")[2]

    @cached_property
    def groups(self) -> dict[str, str]:
        """Return the groups that have a hook -> the path of the hook that the runner uses."""
        groups: dict[str, str] = {}
        for folder in HOOK_FOLDERS:
            for path in self.tree.paths(folder):
                group = path.rpartition("/")[2]
                if group != "__pycache__" and not group.startswith("."):
                    groups.setdefault(group, path)
        return groups

    @cached_property
    def hooks(self) -> list[Hook]:
        """Return the hooks, one for each group."""
        return [self._hook(group, path) for group, path in self.groups.items()]

    def _hook(self, group: str, path: str) -> Hook:
        # Both names lead to one hook.
        programs, places = TOOLS.get("chef" if group == "chef-solo" else group, ((), ()))
        tool = self.program(programs, places)
        return Hook(group, path, tool, self.packages.version_of(tool) if tool else "", programs)

    @cached_property
    def cloud_init(self) -> CloudInit | None:
        """Return cloud-init's configuration, None without cloud-init."""
        program = self.program(("cloud-init",))
        if not program:
            return None
        return CloudInit(self._version(program), self._sources(), self._disabled_by())

    def _disabled_by(self) -> str:
        if self.tree.exists(path := "/etc/cloud/cloud-init.disabled"):
            return path
        for path in ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"):
            if "cloud-init=disabled" in self.tree.text(path):
                return path
        return ""

    def _sources(self) -> tuple[str, ...]:
        chosen: object = None
        for settings in self._cloud_configs():
            # The last file that sets a list replaces all of it.
            chosen = settings.get("datasource_list", chosen)
        if not isinstance(chosen, list):
            return DEFAULT_SOURCES
        return tuple(each for each in chosen if isinstance(each, str))

    def _cloud_configs(self) -> Iterator[dict[str, Any]]:
        """Yield the contents of cloud-init's configuration files, in its order."""
        for path in ["/etc/cloud/cloud.cfg", *self.tree.paths("/etc/cloud/cloud.cfg.d", ".cfg")]:
            with contextlib.suppress(yaml.YAMLError):
                settings = yaml_text.load(self.tree.text(path))
                if isinstance(settings, dict):
                    yield settings

    @property
    def metadata_reader(self) -> str:
        """Return the program that reads the metadata at first boot, "" for none that is known."""
        if self.cloud_init is not None and not self.cloud_init.disabled:
            return "cloud-init"
        # Both run in the initrd, of which the root file system has the sources.
        if self.program(("/usr/libexec/ignition", "/usr/lib/dracut/modules.d/30ignition/ignition")):
            return "Ignition"
        return "Afterburn" if self.program(("afterburn", "coreos-metadata")) else ""

    @property
    def default_user(self) -> str:
        """Return the user that cloud-init gives Nova's keys to, "" when none is configured."""
        user: object = ""
        for settings in self._cloud_configs():
            system = settings.get("system_info")
            given = system.get("default_user") if isinstance(system, dict) else None
            user = given.get("name", user) if isinstance(given, dict) else user
        return user if isinstance(user, str) else ""

    @property
    def has_ssh_server(self) -> bool:
        """Return whether an ssh server is installed."""
        return bool(self.program(("sshd", "dropbear")))

    @property
    def has_bootstrap(self) -> bool:
        """Return whether a replacement of cloud-init is installed."""
        return self.tree.is_program(BOOTSTRAP)

    @cached_property
    def renderers(self) -> list[str]:
        """Return the network renderers, in the order of cloud-init's choice."""
        return [name for name, programs in RENDERERS if self.program(programs)]

    @cached_property
    def dhcp_client(self) -> str:
        """Return the program that asks for a first address, "" for none."""
        return self.program(DHCP_CLIENTS)

    def homes(self) -> Iterator[str]:
        """Yield the home directories of root and of users."""
        yield "/root"
        yield from self.tree.paths("/home")


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value)[:1])
    except ValueError:
        return value
