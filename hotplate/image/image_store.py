"""Fetched images in the cache of a worker: each once, by its content."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from hotplate import locks
from hotplate.errors import HostError
from hotplate.image.checksum import hash_file
from hotplate.image.image_set import ImageSet, SetFile

#: The folder in the cache.
FOLDER = "images"

#: The suffix of an unfinished image; the next attempt resumes it.
PART = ".part"

#: The default limit of all of them together.
LIMIT_GIB = 20.0

GIB = 1 << 30

#: Appends the missing part of a file to the existing one.
Fetch = Callable[[SetFile, Path], None]


class ImageStore:
    """The folder ``images`` of the cache: a folder for each image, shared by its users.

    :param cache: the cache directory.
    :param limit: bytes of all images; the least recently used go first, but none that is in use.
    """

    def __init__(self, cache: Path, *, limit: int = int(LIMIT_GIB * GIB)) -> None:
        self._root = cache / FOLDER
        self._limit = limit

    @contextlib.contextmanager
    def use(self, wanted: ImageSet, fetch: Fetch) -> Iterator[Path]:
        """Keep an image on this host while the context lasts; yield its file.

        Only one of several users fetches it; the others wait.

        :param fetch: fetches a file, see :data:`Fetch`.
        :raises HostError: when it cannot be kept, or has the wrong content.
        """
        folder = self._root / wanted.key
        with contextlib.ExitStack() as held:
            # Another process may have removed it to make room, between its arrival and our lock.
            for _ in range(3):
                self._bring(wanted, folder, fetch)
                try:
                    held.enter_context(locks.shared(folder))
                    os.utime(folder)
                    break
                except FileNotFoundError:
                    held.pop_all().close()
            else:
                raise HostError(
                    f'the image "{wanted.name}" was removed from the cache again and again',
                    hint="hotplate worker --image-cache GIB",
                )
            yield folder / wanted.name

    def _bring(self, wanted: ImageSet, folder: Path, fetch: Fetch) -> None:
        part = folder.with_name(f"{folder.name}{PART}")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not folder.is_dir():
                with contextlib.suppress(FileNotFoundError), locks.exclusive(part, make=True):
                    # A process that waited for our lock finds the image complete.
                    if folder.is_dir():
                        part.rmdir()
                        return
                    for file in wanted.files:
                        self._bring_file(wanted, file, part, fetch)
                    self._make_room(part)
                    part.rename(folder)
        except OSError as error:
            raise HostError(
                f'the image "{wanted.name}" cannot be kept in "{self._root}": {error.strerror}',
                hint=f"df -h {shlex.quote(str(self._root))}",
            ) from error

    def _bring_file(self, wanted: ImageSet, file: SetFile, part: Path, fetch: Fetch) -> None:
        target = part / file.name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The part of an earlier attempt may be damaged: then the whole file is fetched, once.
        for _ in range(2):
            target.touch(mode=0o600)
            if file.size < 0 or target.stat().st_size < file.size:
                fetch(file, target)
            if not file.sha256 or hash_file(target) == file.sha256:
                return
            target.unlink()
        raise HostError(
            f'what came as "{file.name}" of the image "{wanted.name}" is not what was asked for: '
            f"its SHA-256 is not {file.sha256}"
        )

    def _make_room(self, new: Path) -> None:
        """Remove the least recently used images until there is room for one more."""
        others = [each for each in self._root.iterdir() if each.is_dir() and each != new]
        room = self._limit - size_of(new) - sum(map(size_of, others))
        for each in sorted(others, key=lambda folder: folder.stat().st_mtime):
            if room >= 0:
                return
            size = size_of(each)
            with contextlib.suppress(locks.InUse, FileNotFoundError):
                with locks.exclusive(each, wait=False):
                    shutil.rmtree(each)
                room += size


def size_of(path: Path, *, without: Collection[Path] = ()) -> int:
    """Return the disk usage of a file or tree in bytes; files that vanish count as 0.

    :param without: files and folders that are left out.
    """
    total = 0
    paths = [path]
    # Unlike Path.rglob(), it goes on where a folder has vanished.
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if Path(folder, name) not in without]
        paths += (Path(folder, name) for name in folders)
        paths += (each for name in files if (each := Path(folder, name)) not in without)
    for each in paths:
        with contextlib.suppress(OSError):
            # In units of 512 bytes, whatever the file system; a sparse image takes less than its
            # length.
            total += each.lstat().st_blocks * 512
    return total
