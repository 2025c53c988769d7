"""The list of deployments that os-apply-config rendered, and the hooks for their groups."""

from __future__ import annotations

import contextlib
import os
import stat

from . import files, values
from .item import Item

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .journal import Journal

#: Bytes of the list.
LIMIT = 64 << 20

#: Groups that heat-agents had a hook for -> what to use instead.
DROPPED = {
    "docker": 'the group "docker-cmd"',
    "kubelet": 'the group "script" with "podman kube play", or the group "docker-cmd"',
    "atomic": 'the group "docker-cmd" with podman',
}

#: Groups whose config is metadata for os-apply-config, which has rendered it by now.
NO_PROGRAM = ("os-apply-config", "Heat::Ungrouped")


class Deployments:
    """The deployments in the file *path*: *items* is {key: Item} in the order of the list.

    is_readable: whether there is a list. failed: whether that it cannot be read is an error.
    """

    def __init__(self, path: str, journal: Journal) -> None:
        self._path = path
        self._journal = journal
        self.items: dict[str, Item] = {}
        self.is_readable = False
        self.failed = False

    def read(self) -> None:
        """Read the list; entries that are no deployments are reported and ignored."""
        document = self._document()
        self.is_readable = document is not None
        for element in document or ():
            if not isinstance(element, dict):
                self._journal.say("an entry of the deployments is not an object and was ignored")
                continue
            item = Item(element)
            if item.key in self.items:
                self._journal.say(f"the id {item.key} occurs twice; the first entry is used")
            else:
                self.items[item.key] = item

    def _document(self) -> list[Any] | None:
        path = self._path
        try:
            with open(path, "rb") as stream:
                # One byte more than allowed shows that the list is too long.
                data = stream.read(LIMIT + 1)
        except OSError as error:
            self._fail(
                f'the deployments in "{path}" cannot be read: {error.strerror}. os-apply-config '
                "writes them; is its template installed?"
            )
            return None
        if os.stat(path).st_mode & 0o077:
            self._hide()
        if not data.strip():
            return None
        try:
            # False stands for a list that cannot be used; JSON's null counts as no list.
            document = values.decode(data) if len(data) <= LIMIT else False
        except ValueError:
            document = False
        if document is None or isinstance(document, list):
            return document
        self._fail(f'"{path}" holds no JSON list; nothing new is run')
        return None

    def _fail(self, sentence: str) -> None:
        self._journal.say(sentence)
        self.failed = True

    def _hide(self) -> None:
        """Make the list 0600: it holds credentials, and an old os-apply-config leaves it 0644."""
        try:
            os.chmod(self._path, files.PRIVATE_FILE)
        except OSError as error:
            self._journal.say(f'"{self._path}" cannot be made private: {error.strerror}')


class Hook:
    """The program for a group: its *name* and *path*."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path


class NoHook(Exception):
    """There is no program for a group; the text is a sentence that says why."""


def find_hook(group: str, directories: Sequence[str]) -> Hook | None:
    """Return the Hook of *group*, None for a group that needs none. Raises NoHook."""
    # As heat-agents do (Heat::Ungrouped is the hook HeatUngrouped), but in ASCII only. Without a
    # dot and a slash no group can lead out of the directories.
    name = "".join(c for c in group if c.isascii() and (c.isalnum() or c in "-_"))
    useless = None
    for directory in directories if name else ():
        path = os.path.join(directory, name)
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                if os.access(path, os.X_OK):
                    return Hook(name, path)
                useless = useless or path
        except OSError:
            continue
    # After the search: an image may have a hook for such a group all the same.
    if group in NO_PROGRAM:
        return None
    if useless is not None:
        raise NoHook(
            f'The hook for the group "{name}" at "{useless}" is not executable: chmod 0755 '
            f"{useless}"
        )
    raise NoHook(
        f"There is no hook for the group {values.encode(values.clean(group))} on this machine; "
        f"it is looked for in {', '.join(directories)}. "
        + (_nearly(name, directories) or _instead_of(group, name))
    )


def _nearly(name: str, directories: Sequence[str]) -> str:
    """Return a sentence about a file whose name is close to the hook *name*, or ""."""
    for directory in directories if name else ():
        with contextlib.suppress(OSError):
            for file in sorted(os.listdir(directory)):
                path = os.path.join(directory, file)
                if _plain_name(file) == _plain_name(name) and os.path.isfile(path):
                    return (
                        f'"{path}" is not its hook, because a hook has the name of the group and '
                        f"no ending: mv {path} {os.path.join(directory, name)}"
                    )
    return ""


def _plain_name(file: str) -> str:
    """Return the name of a hook's file without differences that are easily overlooked."""
    return file.partition(".")[0].lower().replace("_", "-")


def _instead_of(group: str, name: str) -> str:
    """Return advice for a *group* without a hook; *name* is its part that can be a file name."""
    if group in DROPPED:
        return f"This group was dropped; use {DROPPED[group]}."
    if group != name:
        return "Correct the group: no hook can have that name."
    return f"Install the element heat-config-{name} in the image, or correct the group."
