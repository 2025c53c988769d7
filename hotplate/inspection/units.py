"""The systemd units of an image: the existing ones, and those that a boot starts.

Source: systemd.unit(5), "Unit File Load Path" and "[Install] Section"; systemd.preset(5);
machine-id(5), "First Boot Semantics"; ``manager_preset_all`` in systemd's ``src/core/manager.c``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from hotplate.inspection.boot_entries import kernel_words
from hotplate.inspection.tree import Tree

OURS = "/etc/systemd/system"
FOLDERS = (OURS, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")

TOO_LATE = (
    "not enabled, and its preset comes too late: systemd applies presets before it makes the root "
    'file system writable, and the kernel\'s command line has no "rw"'
)

PRESETS = ("/etc/systemd/system-preset", "/usr/lib/systemd/system-preset")


class Units:
    """The units of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # Where /lib is a link, its units would be read twice.
        self._folders = FOLDERS[:-1] if tree.is_link("/lib") else FOLDERS

    def file(self, unit: str) -> str:
        """Return the path of a unit's file, "" when there is none."""
        paths = (f"{folder}/{unit}" for folder in self._folders)
        return next((path for path in paths if self._tree.exists(path)), "")

    def is_masked(self, unit: str) -> bool:
        """Return whether a unit is masked: by a link to /dev/null, or by an empty file."""
        paths = (f"{folder}/{unit}" for folder in self._folders)
        for path in paths:
            if inode := self._tree.find(path, follow=False):
                return self._tree.target(path) == "/dev/null" or (inode.is_file and not inode.size)
        return False

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
        """Return whether a boot starts a unit."""
        return not self.obstacle(unit)

    def obstacle(self, unit: str) -> str:
        """Return why no boot starts a unit, as it reads after "is"; "" when one does.

        A first boot enables all units that the presets do not disable. A boot is the first when
        the machine has no id, not when its file is empty. The presets are written to /etc before
        systemd-remount-fs.service, so the root file system has to be mounted for writing by then.
        """
        if self.is_masked(unit):
            return "masked"
        if not self.file(unit):
            return "not there"
        if unit in self.enabled():
            return ""
        words = kernel_words(self._tree)
        if not (self._first_boot(words) and self._is_preset(unit)):
            return "not enabled"
        return "" if _mounted_for_writing(words) else TOO_LATE

    def presets_come_too_late(self, words: list[str]) -> bool:
        """Return whether a boot is the first, and cannot write the presets to /etc.

        :param words: of the kernel's command line.
        """
        return self._first_boot(words) and not _mounted_for_writing(words)

    def _first_boot(self, words: list[str]) -> bool:
        for word in reversed(words):
            name, _, value = word.partition("=")
            if name.replace("-", "_") == "systemd.condition_first_boot":
                return value in ("", "1", "yes", "true", "on")
        path = "/etc/machine-id"
        return not self._tree.exists(path) or self._tree.text(path).strip() == "uninitialized"

    def _is_preset(self, unit: str) -> bool:
        """Return whether the presets enable a unit, by their first line for it or by default."""
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


def _mounted_for_writing(words: list[str]) -> bool:
    # Without either of them the kernel, initramfs-tools and systemd in an initrd mount the root for
    # reading; of several the last one counts.
    return [word for word in words if word in ("ro", "rw")][-1:] == ["rw"]
