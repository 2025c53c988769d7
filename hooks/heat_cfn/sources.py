"""The section "sources": archives that are unpacked into directories."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import urllib.parse
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from heat_config import directories
from heat_config.address import redacted

from heat_cfn import download
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_map, as_text

GITHUB = re.compile(r"https?://(api\.)?github\.com/.+/(tarball|zipball)(/.*)?")
# A file's header, and the first bytes of an archive that is empty or was split.
ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, ValueError)


class Member(NamedTuple):
    """One entry of an archive, of whatever kind of archive."""

    name: str
    type: str  # "file", "directory", "symlink", "hardlink"
    mode: int
    target: str
    content: Any | None  # a function that opens it


def steps(value: Any, where: str) -> list[Step]:
    """Return a step for each source: ``{directory: URL of a tar, zip, gz, bz2 or xz}``."""
    result = []
    for directory, url in sorted(as_map(value, where).items()):
        as_text(directory, where)
        if not os.path.isabs(directory):
            raise CfnError(f'"{where}/{directory}" must be the absolute path of a directory')
        download.check(url, f"{where}/{directory}")

        def run(changes: Changes, directory: str = directory, url: str = url) -> None:
            with download.fetch(url) as file:
                try:
                    unpack(file, url, directory)
                except DAMAGED:
                    raise CfnError(
                        f'"{redacted(url)}" is damaged: it cannot be read to its end'
                    ) from None
                except RuntimeError:  # the exception of zipfile for these
                    raise CfnError(
                        f'"{redacted(url)}" cannot be unpacked: it is encrypted, or compressed in '
                        "a way that this Python does not support"
                    ) from None
                except OSError as error:
                    raise CfnError(
                        f'"{redacted(url)}" cannot be unpacked: {error.strerror or error}'
                    ) from None
            changes.sources.add(os.path.normpath(directory))

        result.append(Step(f'sources: "{directory}"', run))
    return result


def unpack(file: IO[bytes], url: str, directory: str) -> None:
    """Unpack an archive into ``directory``, over existing files; never outside of it.

    The kind follows from the content, not from the name. An archive that GitHub makes loses its
    top directory, as with CloudFormation's own cfn-init.

    :raises CfnError: for anything but an archive; for a name that points outside the directory,
        before any file is written; for such a link, before the entries after it.
    """
    top = directories.open_directory(directory, make=True)
    try:
        _unpack(file, url, directory, top)
    finally:
        os.close(top)


def _unpack(file: IO[bytes], url: str, directory: str, top: int) -> None:
    strip = 1 if GITHUB.fullmatch(url) else 0
    # Six bytes, the length of xz's magic number.
    head = file.read(6)
    file.seek(0)
    if head.startswith(ZIP):
        _unzip(file, directory, top, strip)
        return
    try:
        archive = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 - closed below
    except (tarfile.ReadError, *DAMAGED):
        file.seek(0)
    else:
        with archive:
            _place(list(_tar_members(archive)), directory, top, strip)
        return
    # Checked last: a zip is recognized by its end, and a tar may end in one.
    if not _opener(head) and zipfile.is_zipfile(file):
        _unzip(file, directory, top, strip)
        return
    file.seek(0)
    _single(file, url, top)


def _unzip(file: IO[bytes], directory: str, top: int, strip: int) -> None:
    with zipfile.ZipFile(file) as archive:
        _place(list(_zip_members(archive)), directory, top, strip)


def _tar_members(archive: tarfile.TarFile) -> Iterator[Member]:
    for entry in archive:
        if entry.isdir():
            sort = "directory"
        elif entry.issym():
            sort = "symlink"
        elif entry.islnk():
            sort = "hardlink"
        elif entry.isreg():
            sort = "file"
        else:
            raise CfnError(f'the archive holds a device or a pipe, "{entry.name}"')
        yield Member(
            entry.name,
            sort,
            entry.mode,
            entry.linkname,
            lambda entry=entry: archive.extractfile(entry),
        )


def _zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for entry in archive.infolist():
        mode = entry.external_attr >> 16  # Unix permissions, where the archive has them
        if entry.is_dir():
            yield Member(entry.filename, "directory", 0o755, "", None)
        elif stat.S_ISLNK(mode):
            target = archive.read(entry).decode("utf-8", "surrogateescape")
            yield Member(entry.filename, "symlink", 0o777, target, None)
        else:
            yield Member(
                entry.filename,
                "file",
                mode & 0o777 or 0o644,
                "",
                lambda entry=entry: archive.open(entry),
            )


def _place(members: list[Member], directory: str, top: int, strip: int) -> None:
    root = os.path.realpath(directory)
    placed = []
    for member in members:  # check the whole archive before writing any file
        name = _inside(member.name, strip)
        if name:
            placed.append((name, member))
    for name, member in placed:
        _place_one(root, top, name, member, strip)


def _place_one(root: str, top: int, name: str, member: Member, strip: int) -> None:
    """Put one entry at *name* below the directory *root*, which is open as *top*.

    The directory may be another user's, who can swap names at any time: nothing is opened by a
    path, and each name is looked up in the directory that was opened before.
    """
    is_directory = member.type == "directory"
    path = os.path.join(root, name if is_directory else os.path.dirname(name))
    real = _contained(root, path, member.name)  # an earlier link may point outside
    below = os.path.relpath(real, root)
    parent = directories.open_below(top, [] if below == "." else below.split("/"))
    try:
        if is_directory:
            # Its owner can always enter it, and nobody else can write.
            os.fchmod(parent, (member.mode & 0o755) | 0o700)
            return
        base = os.path.basename(name)
        # An earlier file or link of that name is replaced, not written through.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(base, dir_fd=parent)
        if member.type == "symlink":
            _contained(root, os.path.join(real, member.target), member.name)
            if os.path.isabs(member.target):
                raise _escape(member.name)
            os.symlink(member.target, base, dir_fd=parent)
        elif member.type == "hardlink":
            _link(root, top, _inside(member.target, strip), member.name, base, parent)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            # Private until it is complete.
            descriptor = os.open(base, flags, 0o600, dir_fd=parent)
            with open(descriptor, "wb") as out, member.content() as data:  # type: ignore[misc]
                shutil.copyfileobj(data, out)
                os.fchmod(out.fileno(), member.mode & 0o755 | 0o600)
    finally:
        os.close(parent)


def _link(root: str, top: int, target: str, entry: str, name: str, parent: int) -> None:
    """Make *name*, in the open directory *parent*, a hard link to the entry *target*."""
    directory, base = os.path.split(target)
    real = _contained(root, os.path.join(root, directory), entry)
    _contained(root, os.path.join(root, target), entry)
    below = os.path.relpath(real, root)
    source = directories.open_below(top, [] if below == "." else below.split("/"))
    try:
        # A hard link to a symbolic link itself, not to its target.
        os.link(base, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(source)


def _inside(name: str, strip: int) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _escape(name)
    return "/".join(parts[strip:])


def _contained(root: str, path: str, name: str) -> str:
    real = os.path.realpath(path)
    # With the slash: /srv/app2 is not below /srv/app.
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise _escape(name)
    return real


def _escape(name: str) -> CfnError:
    return CfnError(f'the archive\'s entry "{name}" points outside the directory')


def _single(file: IO[bytes], url: str, directory: int) -> None:
    """Unpack one compressed file under the name in its URL without the ending."""
    name = os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    opener = _opener(file.read(6))
    file.seek(0)
    if opener is None:
        raise CfnError(
            f'"{redacted(url)}" is neither a tar archive (plain, gzip, bzip2 or xz) nor a zip '
            "archive, nor one compressed file"
        )
    plain = os.path.splitext(name)[0] or name
    if plain in ("", ".", ".."):
        raise CfnError(f'"{redacted(url)}" has no file name in it')
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = plain + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
    with open(descriptor, "wb") as out, opener(file, "rb") as data:
        shutil.copyfileobj(data, out)
    os.rename(temporary, plain, src_dir_fd=directory, dst_dir_fd=directory)


def _opener(head: bytes) -> Callable[..., Any] | None:
    """Return the function to open a compressed file that begins with ``head``, None for others."""
    openers = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
    return next((opener for magic, opener in openers if head.startswith(magic)), None)
