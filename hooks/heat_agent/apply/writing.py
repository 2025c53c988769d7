"""Install rendered files: write and sync all of them beside their places, then rename."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from heat_config import files

from .errors import ApplyError

NEW_MODE = 0o644

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .control import Control

    Log = Callable[[str, str], None]


class File:
    """A file to write: its path below the output directory, its bytes, and how to write it."""

    def __init__(self, name: str, body: bytes, control: Control) -> None:
        self.name = name
        self.body = body
        self.control = control

    @property
    def is_unwanted(self) -> bool:
        """Return whether the file is to be removed: it is empty, and must not be."""
        return not self.body and not self.control.allow_empty


def write(wanted: list[File], output: str, log: Log) -> None:
    """Write *wanted* below the directory *output*; remove files that are empty and must not be.

    An existing file keeps its mode and owner unless its control file sets them; a new one is 0644
    and belongs to this process. Missing directories are made. No file has its new content before
    all have been written beside their places. *log* is called with "INFO" and a line for each.
    Raises ApplyError; then no file has changed, unless renaming one failed.
    """
    places = [(os.path.join(output, file.name), file) for file in wanted]
    path = output
    staged: dict[str, str] = {}
    try:
        # Write and sync all files beside their places: a full disk is noticed with no file changed.
        for path, file in places:
            if not file.is_unwanted:
                staged[path] = _stage(path, file, len(staged))
        # Only renaming and removing are left.
        for path, _ in places:
            if path not in staged:
                _remove(path, log)
                continue
            log("INFO", f"writing {path}")
            os.rename(staged[path], path)
            del staged[path]
        # Sync the directories last: that makes the new names survive a power cut.
        for path in sorted({os.path.dirname(path) or os.curdir for path, _ in places}):
            if os.path.isdir(path):
                files.sync_directory(path)
    except OSError as error:
        raise ApplyError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        for temporary in staged.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _stage(path: str, file: File, number: int) -> str:
    """Write *file* beside *path*, with its mode and owner; return that path. Raises OSError."""
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    directory = os.path.dirname(path) or os.curdir
    _make_directory(directory)
    mode, owner, group = _attributes(path, file.control)
    temporary = os.path.join(directory, f".os-apply-config.{os.getpid()}.{number}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # left by a run with the same process id before a power cut
    # Private until it is complete, and never through a file or link that somebody put there.
    descriptor = os.open(temporary, flags, files.PRIVATE_FILE)
    try:
        files.write_all(descriptor, file.body)
        os.fchmod(descriptor, mode)
        os.fchown(descriptor, owner, group)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    return temporary


def _make_directory(path: str) -> None:
    """Make *path* and its missing parents, durable, with the modes that the umask leaves."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(os.path.abspath(path))
    _make_directory(parent)
    # Another process may have made it meanwhile.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    files.sync_directory(parent)


def _attributes(path: str, control: Control) -> tuple[int, int, int]:
    """Return mode, owner and group for *path*; -1 keeps the owner or group of the new file."""
    try:
        before = os.stat(path)
        mode, owner, group = stat.S_IMODE(before.st_mode), before.st_uid, before.st_gid
    except OSError:  # missing, or a dangling link
        mode, owner, group = NEW_MODE, -1, -1
    return (
        control.mode or mode,  # upstream takes 0 for no mode
        owner if control.owner is None else control.owner,
        group if control.group is None else control.group,
    )


def _remove(path: str, log: Log) -> None:
    if os.path.exists(path):
        log("INFO", f"deleting {path}")
        os.unlink(path)
    else:
        log("INFO", f"not creating empty {path}")
