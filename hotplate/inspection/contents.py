"""What an image says of itself: its system, its agent, its hooks and how it gets its network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import yaml

from hotplate.inspection.packages import Packages
from hotplate.inspection.tree import Tree
from hotplate.inspection.units import Units

PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The agent's, in the unit's order."""

HOOK_FOLDERS = ("/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks")
"""Where the runner looks for hooks; the second is heat-agents'."""

AGENT = "os-collect-config"
AGENT_PROGRAMS = (AGENT, "os-apply-config", "os-refresh-config")
BOOTSTRAP = "/usr/libexec/heat-config/bootstrap"

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
"""Group -> the programs that its hook calls, the best first, and where they are beside PATH.

The hooks' own lists; tests/inspection/test_contents.py holds them together."""

RENDERERS = (
    ("ifupdown", ("ifup",)),
    ("netplan", ("netplan",)),
    ("NetworkManager", ("NetworkManager", "nmcli")),
    ("systemd-networkd", ("/usr/lib/systemd/systemd-networkd", "/lib/systemd/systemd-networkd")),
)
"""What brings up a network, and by which program it is known; cloud-init takes the first."""

DHCP_CLIENTS = ("dhcpcd", "dhclient", "udhcpc")
"""What cloud-init asks for a first address with (``cloudinit/net/dhcp.py``)."""

DEFAULT_SOURCES = ("NoCloud", "ConfigDrive", "OpenStack", "Ec2", "None")
"""The data sources that matter here of those that cloud-init looks for by itself."""

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

    :param group: of the software configs that it takes.
    :param tool: the program, "" when it needs none or has none.
    :param tool_version: name and version of what brought the tool.
    :param wanted: the programs of which it needs one; none for most.
    """

    group: str
    path: str
    tool: str
    tool_version: str
    wanted: tuple[str, ...]


@dataclass(frozen=True)
class CloudInit:
    """cloud-init.

    :param sources: the data sources that it looks for, in their order.
    :param disabled: the file that turns it off, "" when none does.
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
        """The fields of os-release(5)."""
        text = ""
        for path in ("/etc/os-release", "/usr/lib/os-release"):
            # Little of it: shlex takes time by the square of the length of a field.
            text = text or self.tree.text(path, 8 << 10)
        return {name: _unquoted(value) for name, value in _SETTING.findall(text)}

    @property
    def distribution(self) -> str:
        """The name and the version of the distribution, "" when it does not say."""
        return self.release.get("PRETTY_NAME") or self.release.get("NAME", "")

    @property
    def arch(self) -> str:
        """The processor, as Debian calls it; "" when dpkg does not say."""
        package = self.packages.debian.get("dpkg")
        return package.arch if package else ""

    @cached_property
    def init(self) -> str:
        """What the kernel starts: systemd, OpenRC, sysvinit, busybox, or its name; "" for none."""
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
        """The versions of the kernels that a boot loader can start."""
        names = self.tree.names("/boot")
        return [name.removeprefix("vmlinuz-") for name in names if name.startswith("vmlinuz-")]

    @cached_property
    def boot_loaders(self) -> list[str]:
        """The boot loaders that are configured."""
        grub = any(self.tree.exists(f"/boot/{each}/grub.cfg") for each in ("grub", "grub2"))
        systemd = self.tree.exists("/boot/loader/loader.conf") or self.tree.exists(
            "/efi/loader/loader.conf"
        )
        return ["GRUB"] * grub + ["systemd-boot"] * systemd

    def program(self, names: tuple[str, ...], places: tuple[str, ...] = ()) -> str:
        """Return the path of the first program that is there, "" when none is.

        :param places: directories that are looked through before PATH.
        """
        for name in names:
            for path in [name] if "/" in name else [f"{each}/{name}" for each in (*places, *PATH)]:
                if self.tree.is_program(path):
                    return path
        return ""

    @cached_property
    def agent(self) -> Agent | None:
        """The agent, None when its program is not there."""
        programs = {name: self.program((name,)) for name in AGENT_PROGRAMS}
        if not programs[AGENT]:
            return None
        types = {name: self._install_type(path) for name, path in programs.items() if path}
        return Agent(types[AGENT], self._version(programs[AGENT]), types)

    @property
    def runs_deployments(self) -> bool:
        """Whether there is an agent, or at least a unit that starts one from elsewhere."""
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
        """The groups that have a hook -> the path of the hook that the runner takes."""
        groups: dict[str, str] = {}
        for folder in HOOK_FOLDERS:
            for path in self.tree.paths(folder):
                group = path.rpartition("/")[2]
                if group != "__pycache__" and not group.startswith("."):
                    groups.setdefault(group, path)
        return groups

    @cached_property
    def hooks(self) -> list[Hook]:
        """The hooks, each of a group once."""
        return [self._hook(group, path) for group, path in self.groups.items()]

    def _hook(self, group: str, path: str) -> Hook:
        # Both names reach one hook.
        programs, places = TOOLS.get("chef" if group == "chef-solo" else group, ((), ()))
        tool = self.program(programs, places)
        return Hook(group, path, tool, self.packages.version_of(tool) if tool else "", programs)

    @cached_property
    def cloud_init(self) -> CloudInit | None:
        """cloud-init, None when it is not there."""
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
        files = ["/etc/cloud/cloud.cfg", *self.tree.paths("/etc/cloud/cloud.cfg.d", ".cfg")]
        for path in files:
            try:
                # One file has the last word on all of a list.
                settings = yaml.safe_load(self.tree.text(path))
            except (yaml.YAMLError, ValueError, RecursionError):
                continue
            if isinstance(settings, dict):
                chosen = settings.get("datasource_list", chosen)
        if not isinstance(chosen, list):
            return DEFAULT_SOURCES
        return tuple(each for each in chosen if isinstance(each, str))

    @property
    def has_bootstrap(self) -> bool:
        """Whether something stands in for cloud-init."""
        return self.tree.is_program(BOOTSTRAP)

    @cached_property
    def renderers(self) -> list[str]:
        """What can bring up the network, in the order in which cloud-init chooses."""
        return [name for name, programs in RENDERERS if self.program(programs)]

    @cached_property
    def dhcp_client(self) -> str:
        """The program that asks for a first address, "" when there is none."""
        return self.program(DHCP_CLIENTS)

    def homes(self) -> Iterator[str]:
        """Yield the home directories of root and of people."""
        yield "/root"
        yield from self.tree.paths("/home")


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value)[:1])
    except ValueError:
        return value
