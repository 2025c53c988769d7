"""Directories in which other users may write: opened name by name, so that no link misleads root.

A program of root's that writes into an application's directory must not follow a link that the
application has placed there, before or meanwhile. The rule is systemd's for its own files
(``CHASE_SAFE``): never from a file of a user to a file of somebody else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# O_PATH with O_NOFOLLOW opens a link itself, which is inspected and read by its descriptor: nobody
# can exchange it between the two.
HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: As in the kernel (path_resolution(7)).
MOST_LINKS = 40


def open_directory(path: str, *, make: bool = False) -> int:
    """Return a descriptor of the directory *path*, an absolute path.

    Each name is looked up in the directory that was opened before it. A link is followed when it
    and its directory belong to root or to this process's user; one of another user only to a
    directory of that same user (``current -> releases/7``).
    make: make missing directories, 0755 and durable, whatever the umask is; but not where a link
    leads to a directory that does not exist.

    Raises OSError, whose ``strerror`` explains a refused link.
    """
    # A stack of names, the next one last. The owners of a link lie below the names of its target,
    # and come up when its last name has been opened.
    rest: list[str | frozenset[int]] = [*_names(path)]
    links = 0
    here = os.open("/", HANDLE)
    try:
        while rest:
            name = rest.pop()
            if isinstance(name, frozenset):  # end of the target of these users' link
                _refuse_transition(name, here)
                continue
            try:
                there = os.open(name, HANDLE, dir_fd=here)
            except FileNotFoundError:
                # Owners in the stack: the name belongs to the target of a link, in which nothing is
                # made.
                if not make or any(isinstance(other, frozenset) for other in rest):
                    raise
                there = _make(here, name)
            target = None
            with _closed_on_error(there):
                status = os.fstat(there)
                if stat.S_ISLNK(status.st_mode):
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                    # An empty path means the descriptor's own link (readlinkat(2), Linux 2.6.39).
                    target = os.readlink("", dir_fd=there)
                    rest += [_strangers(status, here), *_names(target)]
            if target is None:
                os.close(here)
                here = there
                continue
            os.close(there)
            if target.startswith("/"):
                os.close(here)
                here = os.open("/", HANDLE)
        # A descriptor of O_PATH can be neither listed nor synced: open the same directory anew.
        return os.open(".", DIRECTORY, dir_fd=here)
    finally:
        os.close(here)


def open_parent(path: str, *, make: bool = False) -> tuple[int, str]:
    """Return (a descriptor of the directory of *path*, the last name), for a file that is no link.

    Where the file itself is a link, both belong to its target, by the rule for directories.
    """
    strangers: frozenset[int] = frozenset()
    for _ in range(MOST_LINKS):
        directory, name = os.path.split(path)
        descriptor = open_directory(directory, make=make)
        with _closed_on_error(descriptor):
            # Checked here for the link of the previous round, which led to this directory.
            _refuse_transition(strangers, descriptor)
            try:
                handle = os.open(name, HANDLE, dir_fd=descriptor)
            except FileNotFoundError:
                return descriptor, name
            try:
                status = os.fstat(handle)
                if not stat.S_ISLNK(status.st_mode):
                    return descriptor, name
                path = os.path.join(directory, os.readlink("", dir_fd=handle))
                strangers = _strangers(status, descriptor)
                make = False
            finally:
                os.close(handle)
        os.close(descriptor)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def open_below(root: int, names: list[str]) -> int:
    """Return a descriptor of the directory *names*, a list, below the open directory *root*.

    Links are not followed; missing directories are made.
    """
    here = os.dup(root)
    for name in names:
        try:
            try:
                there = os.open(name, DIRECTORY, dir_fd=here)
            except FileNotFoundError:
                os.close(_make(here, name))
                there = os.open(name, DIRECTORY, dir_fd=here)
        finally:
            os.close(here)
        here = there
    return here


def _names(path: str) -> list[str]:
    """Return the names in *path*, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _strangers(link: os.stat_result, directory: int) -> frozenset[int]:
    """Return the owners of a link and of its directory, without root and this process's user."""
    return frozenset({link.st_uid, os.fstat(directory).st_uid} - {0, os.geteuid()})


def _refuse_transition(strangers: frozenset[int], descriptor: int) -> None:
    if strangers and strangers != {os.fstat(descriptor).st_uid}:
        raise OSError(
            errno.EPERM,
            f"a link of user {min(strangers)} leads to a directory that is not that user's",
        )


def _make(parent: int, name: str) -> int:
    try:
        # Private until its mode is set below, by descriptor, because the umask may be anything.
        os.mkdir(name, files.PRIVATE_DIRECTORY, dir_fd=parent)
    except FileExistsError:  # another process made it first; keep its mode
        return os.open(name, HANDLE, dir_fd=parent)
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    with _closed_on_error(descriptor):
        os.fchmod(descriptor, files.SHARED_DIRECTORY)
        # The parent may be open with O_PATH, which fsync refuses.
        above = os.open(".", DIRECTORY, dir_fd=parent)
        try:
            os.fsync(above)
        finally:
            os.close(above)
    return descriptor


@contextlib.contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise
