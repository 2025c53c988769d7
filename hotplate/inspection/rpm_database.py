"""The packages in an image's rpm database, read by the program ``rpm`` of this host.

The database is copied, and the program runs with bounds, and as root as a user that owns nothing:
the image may be a stranger's.

Sources: ``lib/backend`` of rpm: sqlite (Fedora 33, RHEL 9 and later) and Berkeley DB (RHEL 8) are
read by Debian's rpm; ndb (openSUSE), which that is built without, is turned into sqlite first.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hotplate.children.keeper import Keeper
from hotplate.errors import HostError
from hotplate.host_tools import find_tool
from hotplate.image.overlay import bounded
from hotplate.inspection.tree import Tree
from hotplate.timing.deadline import Deadline, DeadlineExceeded

FOLDERS = ("/var/lib/rpm", "/usr/lib/sysimage/rpm", "/usr/share/rpm")
SQLITE, NDB, BERKELEY = "rpmdb.sqlite", "Packages.db", "Packages"
#: Limits of the bytes of a database, and of the list of its packages with their files; 3,000
#: packages have 200 MB and 30 MB.
MAX_DATABASE, MAX_OUTPUT = 512 << 20, 256 << 20
SECONDS = 120.0
#: A line for each package, then one for each of its files.
QUERY = (
    r"P\t%{NAME}\t%{EPOCHNUM}\t%{VERSION}-%{RELEASE}\t%{ARCH}\t%{LONGSIZE}\t%{SOURCERPM}\n"
    r"[F\t%{FILENAMES}\n]"
)
FIELDS = 7

# From rpm's lib/backend/ndb/rpmpkg.c.
_NDB_MAGIC, _NDB_SLOT, _NDB_BLOB = b"RpmP", b"Slot", b"BlbS"
_NDB_PAGE, _NDB_SLOT_BYTES, _NDB_BLOCK = 4096, 16, 16


@dataclass(frozen=True)
class RpmPackage:
    """An installed package.

    :param size: bytes of its files.
    :param source: the file name of its source package.
    """

    name: str
    epoch: str
    version: str
    arch: str
    size: int
    source: str
    files: list[str] = field(default_factory=list)


def has_database(tree: Tree) -> bool:
    """Return whether an image has a database of rpm."""
    return any(tree.exists(each) for each in FOLDERS)


def read_packages(tree: Tree) -> list[RpmPackage]:
    """Return the packages of an image by name and version; none without a database.

    :raises HostError: there is no ``rpm`` on this host, or it does not read the database.
    """
    for folder in FOLDERS:
        for name in (SQLITE, NDB, BERKELEY):
            if tree.size(f"{folder}/{name}"):
                return _listed(tree, folder, name)
    return []


def _listed(tree: Tree, folder: str, name: str) -> list[RpmPackage]:
    program = find_tool("rpm")
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotplate-rpm-")))
        # Only the program's user gets into the folder in it.
        work.chmod(0o711)
        copy = work / "database"
        copy.mkdir(mode=0o700)
        keeper = stack.enter_context(Keeper())
        if name == NDB:
            headers = list(_ndb(tree.read(f"{folder}/{name}", MAX_DATABASE)))
            _run(keeper, program, copy, work / "made", "--initdb")
            with contextlib.closing(sqlite3.connect(copy / SQLITE)) as database, database:
                rows = ((each,) for each in headers)
                database.executemany("INSERT INTO Packages (blob) VALUES (?)", rows)
        else:
            for file in (name, f"{name}-wal"):
                if data := tree.read(f"{folder}/{file}", MAX_DATABASE):
                    (copy / file).write_bytes(data)
        _run(keeper, program, copy, work / "listed", "-qa", "--nodigest", "--qf", QUERY)
        text = (work / "listed").read_text(errors="replace")
        packages = _parsed(text)
        if not packages:
            last = " ".join(text.split("\n")[-2:]).strip()
            raise HostError(f"rpm finds no package in its database: {last or 'it is empty'}")
        return packages


def _run(keeper: Keeper, program: str, copy: Path, output: Path, *words: str) -> None:
    """Run rpm on a database, as the user that then owns it.

    :raises HostError: it fails, or takes too long.
    """
    keeper.request("own", paths=[str(each) for each in (copy, *copy.iterdir())])
    prlimit = shutil.which("prlimit")
    limit = [prlimit, f"--fsize={MAX_OUTPUT}"] if prlimit else []
    child = keeper.spawn(
        [*limit, *bounded(program), "--dbpath", str(copy), *words],
        directory=Path("/"),
        stderr=output,
        confine=True,
    )
    try:
        status = child.wait(Deadline(SECONDS, "rpm"))
    except DeadlineExceeded as error:
        child.kill()
        raise HostError(f"rpm takes longer than {SECONDS:.0f} s to read its database") from error
    if status:
        raise HostError(f"rpm does not read its database: {child.complaint() or status}")


def _parsed(text: str) -> list[RpmPackage]:
    packages: list[RpmPackage] = []
    for line in text.split("\n"):
        words = line.split("\t")
        # What the program says besides has no such word in front.
        if words[0] == "P" and len(words) == FIELDS:
            _, name, epoch, version, arch, size, source = words
            count = int(size) if size.isdigit() and len(size) < 16 else 0
            # The keys by which packages are verified are in the database like packages.
            if name != "gpg-pubkey":
                packages.append(
                    RpmPackage(name, epoch if epoch != "0" else "", version, arch, count, source)
                )
        elif words[0] == "F" and len(words) == 2 and packages:
            packages[-1].files.append(words[1])
    # The order of the database is any.
    return sorted(packages, key=lambda each: (each.name, each.version, each.arch))


def _ndb(data: bytes) -> Iterator[bytes]:
    """Yield the headers of the packages in a database of ndb.

    :raises HostError: it is no such database.
    """
    if data[:4] != _NDB_MAGIC or len(data) < _NDB_PAGE:
        raise HostError(f'"{NDB}" is not a database of ndb')
    (pages,) = struct.unpack_from("<I", data, 12)
    end = min(pages * _NDB_PAGE, len(data) - _NDB_SLOT_BYTES)
    # The file's own header takes the place of two slots.
    for at in range(2 * _NDB_SLOT_BYTES, end, _NDB_SLOT_BYTES):
        magic, package, block, _ = struct.unpack_from("<4s3I", data, at)
        start = block * _NDB_BLOCK
        if magic != _NDB_SLOT or not package or start + 16 > len(data):
            continue
        mark, number, _, length = struct.unpack_from("<4s3I", data, start)
        if mark == _NDB_BLOB and number == package:
            yield data[start + 16 : start + 16 + length]
