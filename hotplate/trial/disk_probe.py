"""Read the state of a guest from its disk, when the guest itself cannot be asked.

A guest without network or cloud-init never starts the harness's shell, and that is when its
masked, missing or misspelt parts matter most.  The disk is read while the guest uses it, by the
reader of ``hotplate inspect``: nothing is copied or mounted, and no kernel reads data that a guest
wrote.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import yaml

from hotplate import yaml_text
from hotplate.errors import HotplateError, ImageError
from hotplate.image.inspect import ImageFile
from hotplate.inspection.disk import open_disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.packages import STATUS
from hotplate.inspection.partitions import partitions
from hotplate.inspection.tree import MAX_TEXT, Tree
from hotplate.inspection.units import OURS, Units
from hotplate.verdict import health

SECONDS = 60.0
#: Limit of the names that are read of a directory.
MAX_NAMES = 200


def look_at_disk(disk: Path) -> str:
    """Return the state on a machine's disk, in the sections of :mod:`hotplate.verdict.health`.

    :param disk: qcow2, which may be in use.
    :return: "" when it cannot be read, such as one without an ext file system.
    """
    lines: list[str] = []
    # The backing file is the image under test, in a directory of its user's.
    with (
        contextlib.suppress(HotplateError, OSError),
        open_disk(ImageFile.open(disk, allow_backing=True), seconds=SECONDS) as opened,
    ):
        for partition in partitions(opened):
            if partition.file_system != "ext4":
                continue
            tree = Tree(Ext4(partition.on(opened)))
            # The root file system, and no other.
            if tree.exists("/etc") and tree.exists("/usr"):
                lines = [*_report(tree), ""]
                break
    return "\n".join(lines)


# -- the sections of the report --------------------------------------------------------------------


def _report(tree: Tree) -> Iterator[str]:
    for name, lines in SECTIONS.items():
        yield f"=== {name}"
        # A guest that writes meanwhile, or whose disk is damaged, shows less.
        with contextlib.suppress(ImageError):
            yield from lines(tree)
    yield "=== end"


def _names(tree: Tree, directory: str) -> list[str]:
    return tree.names(directory)[:MAX_NAMES]


def _units(tree: Tree) -> Iterator[str]:
    units = Units(tree)
    enabled = units.enabled()
    for unit in health.UNITS:
        load, state = "loaded", "enabled" if unit in enabled else "disabled"
        if units.is_masked(unit):
            load = state = "masked"
        elif not (path := units.file(unit)):
            load, state = "not-found", ""
        elif state == "disabled" and "[Install]" not in tree.text(path):
            state = "static"
        yield from (f"Id={unit}", f"LoadState={load}", f"UnitFileState={state}", "ActiveState=")


def _programs(tree: Tree) -> Iterator[str]:
    unit = tree.text(Units(tree).file(health.AGENT))
    paths = re.findall(r"^ExecStart=[-@:+!]*(/\S+)", unit, re.MULTILINE)[:1]
    phases = [f"{health.REFRESH}/{name}" for name in _names(tree, health.REFRESH)]
    for directory in (*phases, health.HOOKS):
        paths += [f"{directory}/{name}" for name in _names(tree, directory)]
    # An image need not have cloud-init.
    if tree.is_link(path := "/usr/bin/cloud-init") or tree.exists(path):
        paths.insert(0, path)
    for path in paths:
        yield from _program(tree, path)
    if tree.exists(f"{health.REFRESH}/configure.d") and not tree.exists(health.PHASE_SCRIPT):
        yield f"gone {health.PHASE_SCRIPT}"


def _program(tree: Tree, path: str) -> Iterator[str]:
    inode = tree.find(path)
    if inode is None:
        yield f"gone {path} {tree.end_of_links(path)}"
        return
    if not inode.mode & 0o111:
        yield f"not-executable {path}"
    first = tree.text(path, 200).partition("\n")[0]
    if not first.startswith("#!"):
        return
    if first.endswith("\r"):
        yield f"carriage-return {path}"
        return
    words = first.removeprefix("#!").split()
    if words and not words[0].endswith("/env") and not tree.exists(words[0]):
        yield f"no-interpreter {path} {words[0]} {tree.end_of_links(words[0])}"


def _space(tree: Tree) -> Iterator[str]:
    yield f"/ {' '.join(map(str, tree.file_system.space()))}"


def _fstab(tree: Tree) -> Iterator[list[str]]:
    for line in tree.text("/etc/fstab").splitlines():
        row = line.split()
        if len(row) >= 4 and not row[0].startswith("#"):
            yield row


def _default_target(tree: Tree) -> Iterator[str]:
    if target := tree.target(f"{OURS}/default.target"):
        yield target.rpartition("/")[2]


def _cloud_init(tree: Tree) -> Iterator[str]:
    if tree.exists(path := "/etc/cloud/cloud-init.disabled"):
        yield path


def _cloud_configs(tree: Tree) -> Iterator[tuple[str, str]]:
    for path in ("/etc/cloud/cloud.cfg", *tree.paths("/etc/cloud/cloud.cfg.d", ".cfg")[:MAX_NAMES]):
        yield path, tree.text(path)


def _datasource_list(tree: Tree) -> Iterator[str]:
    """Yield the list in effect: later files override earlier ones."""
    last = ""
    for path, text in _cloud_configs(tree):
        if match := re.search(r"^datasource_list: *(.*)", text, re.MULTILINE):
            last = f"{path} {match[1]}"
    if last:
        yield last


def _broken_yaml(tree: Tree) -> Iterator[str]:
    for path, text in _cloud_configs(tree):
        try:
            yaml_text.load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            yield f"{path} {where}{getattr(error, 'problem', None) or 'it cannot be read'}"


def _networks(tree: Tree) -> Iterator[str]:
    for path in tree.paths("/etc/systemd/network", ".network")[:MAX_NAMES]:
        matches = re.search(r"\[Match\]([^\[]*)", tree.text(path))
        yield f"{path} {' '.join(matches[1].split()) if matches else '*'}"


#: Each renderer's setting of an IPv4 address: directory, ending of its files, the line.
_FIXED = (
    ("/etc/systemd/network", ".network", r"^\s*Address\s*=\s*([\d.]+)"),
    ("/etc/network", "interfaces", r"^\s*address\s+([\d.]+)"),
    ("/etc/network/interfaces.d", "", r"^\s*address\s+([\d.]+)"),
    ("/etc/netplan", ".yaml", r"^(?!\s*#)(?!.*(?:via|gateway|nameservers)).*?([\d.]+)/\d+"),
    ("/etc/NetworkManager/system-connections", ".nmconnection", r"^address\d*=([\d.]+)"),
)


def _fixed_addresses(tree: Tree) -> Iterator[str]:
    for directory, ending, line in _FIXED:
        for path in tree.paths(directory, ending)[:MAX_NAMES]:
            for address in re.findall(line, tree.text(path), re.MULTILINE):
                if not address.startswith("127."):
                    yield f"{path} {address}"


def _collect_conf(tree: Tree) -> Iterator[str]:
    text = tree.text("/etc/os-collect-config.conf")
    for match in re.finditer(r"^(\w*url) *= *\w+://(?:[^/@\s]*@)?([^/\s]*)", text, re.MULTILINE):
        yield f"{match[1]} {match[2]}"


def _packages(tree: Tree) -> Iterator[str]:
    name = ""
    for line in tree.text(STATUS, MAX_TEXT).splitlines():
        if line.startswith("Package: "):
            name = line[9:]
        elif line.startswith("Status: ") and not re.search(
            r" ok (installed|config-files|not-installed)$", line
        ):
            yield f"{name} {line[8:]}"


SECTIONS: dict[str, Callable[[Tree], Iterable[str]]] = {
    "units": _units,
    "programs": _programs,
    "hooks": lambda tree: _names(tree, health.HOOKS),
    "space": _space,
    "mounts": lambda tree: map(" ".join, _fstab(tree)),
    "fstab": lambda tree: (" ".join(row[:2]) for row in _fstab(tree)),
    "default-target": _default_target,
    "cloud-init": _cloud_init,
    "datasource-list": _datasource_list,
    "broken-yaml": _broken_yaml,
    "networks": _networks,
    "fixed-addresses": _fixed_addresses,
    "collect-conf": _collect_conf,
    "packages": _packages,
}
