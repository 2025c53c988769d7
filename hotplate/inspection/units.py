"""systemd's units as they are on the disk: which are there, and which a boot starts.

Source: systemd.unit(5), "Unit File Load Path" and "[Install] Section"; systemd.preset(5);
machine-id(5), "First Boot Semantics".
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from hotplate.inspection.tree import Tree

OURS = "/etc/systemd/system"
FOLDERS = (OURS, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
PRESETS = ("/etc/systemd/system-preset", "/usr/lib/systemd/system-preset")


class Units:
    """The units of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._folders = [each for each in FOLDERS if not (each[:5] == "/lib/" and merged(tree))]

    def file(self, unit: str) -> str:
        """Return the path of a unit's file, "" when there is none."""
        paths = (f"{folder}/{unit}" for folder in self._folders)
        return next((path for path in paths if self._tree.exists(path)), "")

    def is_masked(self, unit: str) -> bool:
        """Whether a unit is not to be started by anybody."""
        path = f"{OURS}/{unit}"
        empty = self._tree.find(path)
        return self._tree.target(path) == "/dev/null" or bool(
            empty and empty.is_file and not empty.size
        )

    def enabled(self) -> set[str]:
        """Return the units that a target or another unit starts by a link."""
        return {
            unit
            for folder in self._folders
            for wants in self._tree.paths(folder)
            if wants.endswith((".wants", ".requires"))
            for unit in self._tree.names(wants)
            if not self.is_masked(unit)
        }

    def starts(self, unit: str) -> bool:
        """Whether a boot starts a unit: it is there, enabled and not masked.

        A first boot enables what the presets do not disable; it is one when the machine has no
        id, not when its file is empty.
        """
        if not self.file(unit) or self.is_masked(unit):
            return False
        return unit in self.enabled() or (self._first_boot() and self._is_preset(unit))

    def _first_boot(self) -> bool:
        path = "/etc/machine-id"
        return not self._tree.exists(path) or self._tree.text(path).strip() == "uninitialized"

    def _is_preset(self, unit: str) -> bool:
        """Whether the first line of the presets that names a unit enables it; none does as well."""
        if "[Install]" not in self._tree.text(self.file(unit)):
            return False
        files: dict[str, str] = {}
        for folder in PRESETS:
            for path in self._tree.paths(folder, ".preset"):
                files.setdefault(path.rpartition("/")[2], path)
        for name in sorted(files):
            for line in self._tree.text(files[name]).splitlines():
                verb, pattern = (*line.split(), "", "")[:2]
                if verb in ("enable", "disable") and fnmatchcase(unit, pattern):
                    return verb == "enable"
        return True


def merged(tree: Tree) -> bool:
    """Whether ``/lib`` is a link, so that its units are not looked at twice."""
    return tree.is_link("/lib")
