"""The packages of an image: those of dpkg or rpm, and Python distributions outside of them.

Sources: deb-control(5) for ``/var/lib/dpkg/status`` and ``info/*.list``; "Recording installed
projects" of the Python packaging specifications for ``*.dist-info``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hotplate.errors import HostError
from hotplate.inspection import rpm_database
from hotplate.inspection.tree import MAX_FILES, MAX_TEXT, Tree

STATUS = "/var/lib/dpkg/status"
INFO = "/var/lib/dpkg/info"
#: Limit of the bytes of the list of a package's files.
MAX_LIST = 8 << 20

#: Package managers -> the paths of their databases, which are not read here.
NOT_READ = {
    "apk": ("/lib/apk/db/installed", "/usr/lib/apk/db/installed"),
    "pacman": ("/var/lib/pacman/local",),
}

#: Directories below ``/usr`` in a tree with merged directories; packages still list the old
#: names.
MERGED = re.compile(r"^/(?:bin|sbin|lib|lib32|lib64|libx32)(?=/)")

_FIELD = re.compile(r"^(Package|Status|Version|Architecture|Installed-Size|Source): *(.*)$", re.M)
_DIST_INFO = re.compile(r"^(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)\.dist-info$")


@dataclass(frozen=True)
class Package:
    """An installed package.

    :param version: of rpm without the epoch, and with the release.
    :param arch: the package manager's name; "" for a Python distribution.
    :param size: KiB, as declared by the package; 0 when it is not.
    :param place: the directory of a Python distribution; "" for a package of dpkg.
    """

    name: str
    version: str
    arch: str = ""
    size: int = 0
    source: str = ""
    place: str = ""
    epoch: str = ""

    @property
    def full_version(self) -> str:
        """Return the version with the epoch, as rpm orders packages by it; of dpkg it has one."""
        return f"{self.epoch}:{self.version}" if self.epoch else self.version


class Packages:
    """The packages installed in a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    @cached_property
    def debian(self) -> dict[str, Package]:
        """Return the packages of dpkg by name; of two architectures the native one."""
        packages: dict[str, Package] = {}
        for paragraph in self._tree.text(STATUS, MAX_TEXT).split("\n\n"):
            fields = dict(_FIELD.findall(paragraph))
            if fields.get("Status", "").endswith(" installed") and fields.get("Package"):
                package = _package(fields)
                packages.setdefault(package.name, package)
        return packages

    @cached_property
    def _rpm(self) -> tuple[list[rpm_database.RpmPackage], str]:
        """Return the packages of rpm, and why they are not read."""
        if self.debian or not rpm_database.has_database(self._tree):
            return [], ""
        try:
            packages = rpm_database.read_packages(self._tree)
        except HostError as error:
            hint = f" ({error.hint})" if error.hint else ""
            return [], f"the packages are rpm's, and were not read: {error.message}{hint}"
        return packages, "" if packages else "the packages are rpm's, whose database is empty"

    @cached_property
    def rpm(self) -> dict[str, Package]:
        """Return the packages of rpm by name; further ones of a name also by version and arch."""
        packages: dict[str, Package] = {}
        for each in self._rpm[0]:
            arch = "" if each.arch == "(none)" else each.arch
            name = each.name
            if name in packages:
                name = f"{name}-{each.version}.{arch}"
            size = -(-each.size // 1024)
            source = each.source.removesuffix(".src.rpm").rsplit("-", 2)[0]
            packages[name] = Package(each.name, each.version, arch, size, source, epoch=each.epoch)
        return packages

    @property
    def manager(self) -> str:
        """Return the package manager whose packages are read, ``dpkg`` or ``rpm``."""
        return "rpm" if self.rpm else "dpkg"

    @property
    def installed(self) -> dict[str, Package]:
        """Return the packages of dpkg or rpm by name."""
        return self.debian or self.rpm

    @cached_property
    def python(self) -> list[Package]:
        """Return the Python distributions that belong to no package of dpkg or rpm."""
        return sorted(
            (
                Package(match["name"].replace("_", "-"), match["version"], place=site)
                for site in self._sites()
                for name in self._tree.names(site)
                if (match := _DIST_INFO.match(name))
            ),
            key=lambda each: (each.place, each.name.lower()),
        )

    def _sites(self) -> Iterator[str]:
        for prefix in self.environments():
            for python in self._tree.paths(f"{prefix}/lib"):
                if python.rpartition("/")[2].startswith("python3."):
                    yield f"{python}/site-packages"
        for python in self._tree.paths("/usr/local/lib"):
            if python.rpartition("/")[2].startswith("python3."):
                yield f"{python}/dist-packages"
                yield f"{python}/site-packages"

    def environments(self) -> list[str]:
        """Return the directories of virtual environments below /opt."""
        folders = [*self._tree.paths("/opt"), *self._tree.paths("/opt/stack/venvs")]
        return [each for each in folders if self._tree.exists(f"{each}/pyvenv.cfg")]

    @cached_property
    def _owners(self) -> dict[str, str]:
        owners: dict[str, str] = {}
        for each in self._rpm[0]:
            owners.update((self.merged(file), each.name) for file in each.files)
        for path in self._tree.paths(INFO, ".list"):
            name = path.rpartition("/")[2].removesuffix(".list").partition(":")[0]
            for line in self._tree.text(path, MAX_LIST).splitlines():
                owners[self.merged(line)] = name
            if len(owners) > MAX_FILES:
                break
        return owners

    @cached_property
    def _is_merged(self) -> bool:
        return self._tree.is_link("/bin")

    def merged(self, path: str) -> str:
        """Return a path as it is in this tree, for the path listed by a package."""
        return f"/usr{path}" if self._is_merged and MERGED.match(path) else path

    def owner(self, path: str) -> str:
        """Return the name of the package that owns a path, "" for none."""
        return self._owners.get(self.merged(path), "")

    def version_of(self, path: str) -> str:
        """Return the name and version of a program's package, "" when unknown.

        :param path: path of the program; a link is looked up by its own name first.
        """
        real = self._tree.real_path(path)
        for each in (path, real):
            if package := self.installed.get(self.owner(each)):
                return f"{package.name} {package.full_version}"
        return self._in_environment(real)

    def _in_environment(self, real: str) -> str:
        """Return the distribution whose list of files has a program of an environment."""
        prefix, _, program = real.rpartition("/bin/")
        for package in self.python:
            if prefix and package.place.startswith(f"{prefix}/"):
                folder = f"{package.name.replace('-', '_')}-{package.version}.dist-info"
                record = self._tree.text(f"{package.place}/{folder}/RECORD", MAX_TEXT)
                if f"/bin/{program}," in record:
                    return f"{package.name} {package.version}"
        return ""

    @property
    def not_read(self) -> str:
        """Return the reason why packages are missing from the lists, "" when none are."""
        if self._rpm[1]:
            return self._rpm[1]
        for manager, databases in NOT_READ.items():
            if not self.installed and any(map(self._tree.exists, databases)):
                return f"the packages are {manager}'s, whose database is not read here"
        return ""


def _package(fields: dict[str, str]) -> Package:
    size = fields.get("Installed-Size", "")
    return Package(
        fields["Package"],
        fields.get("Version", ""),
        fields.get("Architecture", ""),
        int(size) if size.isdigit() and len(size) < 12 else 0,
        fields.get("Source", "").partition(" ")[0],
    )
