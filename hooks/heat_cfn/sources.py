"""The section "sources": archives that are unpacked into directories."""

import bz2
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
from typing import IO, Any, Callable, Iterator, List, NamedTuple, Optional

from heat_cfn import download, web
from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_map, as_text

GITHUB = re.compile(r"https?://(api\.)?github\.com/.+/(tarball|zipball)(/.*)?")
ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, ValueError)


class Member(NamedTuple):
    """One entry of an archive, of whatever kind of archive."""

    name: str
    type: str  # "file", "directory", "symlink", "hardlink"
    mode: int
    target: str
    content: Optional[Any]  # a function that opens it


def steps(value: Any, where: str) -> List[Step]:
    """Return a step for each source: ``{directory: URL of a tar, zip, gz, bz2 or xz}``."""
    result = []
    for directory, url in sorted(as_map(value, where).items()):
        as_text(directory, where)
        if not os.path.isabs(directory):
            raise CfnError('"%s/%s" must be the absolute path of a directory' % (where, directory))
        download.check(url, "%s/%s" % (where, directory))

        def run(changes: Changes, directory: str = directory, url: str = url) -> None:
            with download.fetch(url) as file:
                try:
                    unpack(file, url, directory)
                except DAMAGED:
                    raise CfnError(
                        '"%s" is damaged: it cannot be read to its end' % web.shown(url)
                    ) from None
                except RuntimeError:  # zipfile has no other for these
                    raise CfnError(
                        '"%s" cannot be unpacked: it is encrypted, or compressed in a way '
                        "that this Python does not support" % web.shown(url)
                    ) from None
                except OSError as error:
                    raise CfnError(
                        '"%s" cannot be unpacked: %s' % (web.shown(url), error.strerror or error)
                    ) from None
            changes.sources.add(os.path.normpath(directory))

        result.append(Step('sources: "%s"' % directory, run))
    return result


def unpack(file: "IO[bytes]", url: str, directory: str) -> None:
    """Unpack an archive into ``directory``, over what is there; never outside of it.

    The kind follows from the content, not from the name. An archive that GitHub makes loses its
    top directory, as with CloudFormation's own cfn-init.

    :raises CfnError: for anything that is not an archive; for a name that points outside the
        directory, before anything is written; for such a link, before what comes after it.
    """
    os.makedirs(directory, exist_ok=True)
    strip = 1 if GITHUB.fullmatch(url) else 0
    head = file.read(6)
    file.seek(0)
    if head.startswith(ZIP):
        _unzip(file, directory, strip)
        return
    try:
        archive = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115 - closed below
    except (tarfile.ReadError, *DAMAGED):
        file.seek(0)
    else:
        with archive:
            _place(list(_tar_members(archive)), directory, strip)
        return
    # Checked last: a zip is recognized by its end, and a tar may end in one.
    if not _opener(head) and zipfile.is_zipfile(file):
        _unzip(file, directory, strip)
        return
    file.seek(0)
    _single(file, url, directory)


def _unzip(file: "IO[bytes]", directory: str, strip: int) -> None:
    with zipfile.ZipFile(file) as archive:
        _place(list(_zip_members(archive)), directory, strip)


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
            raise CfnError('the archive holds a device or a pipe, "%s"' % entry.name)
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


def _place(members: List[Member], directory: str, strip: int) -> None:
    root = os.path.realpath(directory)
    placed = []
    for member in members:  # the whole archive is looked at before anything is written
        name = _inside(member.name, strip)
        if name:
            placed.append((name, member))
    for name, member in placed:
        path = os.path.join(root, name)
        parent = os.path.dirname(path)
        _contained(root, parent, member.name)  # an earlier link may point outside
        os.makedirs(parent, exist_ok=True)
        if member.type == "directory":
            _contained(root, path, member.name)
            os.makedirs(path, exist_ok=True)
            os.chmod(path, (member.mode & 0o755) | 0o700)
            continue
        if os.path.lexists(path) and not (os.path.isdir(path) and not os.path.islink(path)):
            os.unlink(path)
        if member.type == "symlink":
            _contained(root, os.path.join(parent, member.target), member.name)
            if os.path.isabs(member.target):
                raise _escape(member.name)
            os.symlink(member.target, path)
        elif member.type == "hardlink":
            target = os.path.join(root, _inside(member.target, strip))
            _contained(root, target, member.name)
            os.link(target, path, follow_symlinks=False)
        else:
            with member.content() as data, open(path, "xb") as out:  # type: ignore[misc]
                shutil.copyfileobj(data, out)
                os.fchmod(out.fileno(), member.mode & 0o755 | 0o600)


def _inside(name: str, strip: int) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _escape(name)
    return "/".join(parts[strip:])


def _contained(root: str, path: str, name: str) -> None:
    real = os.path.realpath(path)
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise _escape(name)


def _escape(name: str) -> CfnError:
    return CfnError('the archive\'s entry "%s" points outside the directory' % name)


def _single(file: "IO[bytes]", url: str, directory: str) -> None:
    """Unpack one compressed file under the name that its URL has without the ending."""
    name = os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    opener = _opener(file.read(6))
    file.seek(0)
    if opener is None:
        raise CfnError(
            '"%s" is neither a tar archive (plain, gzip, bzip2 or xz) nor a zip archive, nor one '
            "compressed file" % web.shown(url)
        )
    plain = os.path.splitext(name)[0] or name
    if plain in ("", ".", ".."):
        raise CfnError('"%s" has no file name in it' % web.shown(url))
    path = os.path.join(directory, plain)
    with opener(file, "rb") as data, open(path + ".new", "wb") as out:
        shutil.copyfileobj(data, out)
    os.rename(path + ".new", path)


def _opener(head: bytes) -> Optional[Callable[..., Any]]:
    """Return what opens a compressed file that begins with ``head``, None when nothing does."""
    openers = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
    return next((opener for magic, opener in openers if head.startswith(magic)), None)
