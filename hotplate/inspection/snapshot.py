"""All files of an image with their owners, for the comparison of two images."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hotplate.errors import ImageError
from hotplate.inspection.contents import Contents
from hotplate.inspection.ext4 import Inode
from hotplate.inspection.inspection import Inspection

MAX_EFI_FILE = 256 << 20
"""Limit of the bytes of a file in the EFI system partition."""

NO_PACKAGE = "no package"

_COMPILED = re.compile(r"^(?P<folder>.*)/__pycache__/(?P<module>[^/]+?)\.[^/]+\.pyc$")


@dataclass(frozen=True)
class Snapshot:
    """The compared properties of an image.

    :param packages: name -> version, of dpkg's packages and of Python distributions; the latter
        with their directory after the name.
    :param hooks: group -> name and version of its tool.
    :param services: units that a boot starts.
    :param users: name -> numbers, home and shell.
    :param facts: single values, such as the system, the agent and the firmware; and the files of
        the EFI system partition.
    :param files: path -> inode.
    :param owners: path -> its package, its folder in ``/opt``, or :data:`NO_PACKAGE`.
    """

    inspection: Inspection
    contents: Contents
    packages: Mapping[str, str]
    hooks: Mapping[str, str]
    services: frozenset[str]
    users: Mapping[str, str]
    facts: Mapping[str, str]
    files: Mapping[str, Inode]
    owners: Mapping[str, str]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the files of each owner, the largest first."""
        sizes: dict[str, int] = {}
        seen: set[int] = set()
        for path, inode in self.files.items():
            # Another name of a file takes no more space.
            if inode.is_file and inode.number not in seen:
                seen.add(inode.number)
                owner = self.owners[path]
                sizes[owner] = sizes.get(owner, 0) + inode.size
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def snapshot(inspection: Inspection) -> Snapshot:
    """Return all compared properties of an image.

    :raises ImageError: its root file system cannot be read; the text has the reason.
    """
    contents = inspection.contents
    if contents is None:
        raise ImageError(inspection.unread)
    files = dict(contents.tree.walk())
    return Snapshot(
        inspection,
        contents,
        _packages(contents),
        {hook.group: hook.tool_version or hook.tool for hook in contents.hooks},
        frozenset(contents.units.enabled()),
        _users(contents),
        _facts(inspection, contents),
        files,
        {path: _owner(contents, path) for path in files},
    )


def _packages(contents: Contents) -> dict[str, str]:
    packages = {name: each.version for name, each in contents.packages.debian.items()}
    for each in contents.packages.python:
        packages[f"{each.name} ({each.place})"] = each.version
    return packages


def _users(contents: Contents) -> dict[str, str]:
    users = {}
    for line in contents.tree.text("/etc/passwd").splitlines():
        name, _, rest = line.partition(":")
        # Leave out the password field and the real name.
        fields = rest.split(":")
        if len(fields) == 6:
            users[name] = ":".join([*fields[1:3], *fields[4:]])
    return users


def _facts(inspection: Inspection, contents: Contents) -> dict[str, str]:
    agent, init = contents.agent, contents.cloud_init
    return _efi(inspection) | {
        "system": f"{contents.distribution} {contents.arch}".strip(),
        "kernel": ", ".join(contents.kernels) or "none",
        "boot loader": ", ".join(inspection.boot_loaders) or "none",
        "firmware": ", ".join(inspection.firmware) or "none",
        "agent": f"{agent.install_type} {agent.version}".strip() if agent else "none",
        "data sources": ", ".join(init.sources) if init else "none",
        "network": ", ".join(contents.renderers) or "none",
        "DHCP client": contents.dhcp_client or "none",
        "faults": ", ".join(sorted({each.kind for each in inspection.findings})) or "none",
    }


def _efi(inspection: Inspection) -> dict[str, str]:
    """Return the files of the EFI system partition, each with its size and hash."""
    facts: dict[str, str] = {}
    efi = inspection.efi
    if efi is None:
        return facts
    for file in inspection.efi_files:
        digest = hashlib.sha256(efi.read(file, MAX_EFI_FILE)).hexdigest()
        facts[f"EFI {file.path}"] = f"{file.size} bytes, SHA-256 {digest[:16]}"
    return facts


def _owner(contents: Contents, path: str) -> str:
    owner = contents.packages.owner(path)
    if not owner and (compiled := _COMPILED.match(path)):
        owner = contents.packages.owner(f"{compiled['folder']}/{compiled['module']}.py")
    if not owner and path.startswith("/opt/"):
        # A virtual environment, or another builder's folder there, counts as one owner.
        return "/".join(path.split("/")[:3])
    return owner or NO_PACKAGE
