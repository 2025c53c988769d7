"""rpm's databases, made by rpm itself."""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
import subprocess
from pathlib import Path

import pytest

from hotplate.inspection import rpm_database
from hotplate.inspection.inspection import inspected
from hotplate.inspection.packages import Package
from hotplate.inspection.sbom import as_cyclonedx
from hotplate.inspection.show import as_document, as_text

pytestmark = [pytest.mark.tool("rpm"), pytest.mark.tool("rpmbuild")]

SPEC = """\
Name: {name}
Version: {version}
Release: 3.el10
Epoch: {epoch}
Summary: x
License: MIT
%description
x
%install
mkdir -p $(dirname %{{buildroot}}{file})
seq 1000 >%{{buildroot}}{file}
chmod 755 %{{buildroot}}{file}
%files
{file}
"""
RELEASE = 'NAME="Rocky Linux"\nID=rocky\nVERSION_ID="10.1"\n'


def run(*words: object) -> None:
    command = [str(each) for each in words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a database in sqlite: cloud-init, two kernels, and rpm itself."""
    folder = tmp_path_factory.mktemp("rpm")
    for name, version, epoch, file in (
        ("cloud-init", "24.4", "1", "/usr/bin/cloud-init"),
        ("kernel-core", "6.12.0", "0", "/lib/modules/6.12.0/vmlinuz"),
        ("kernel-core", "6.14.0", "0", "/lib/modules/6.14.0/vmlinuz"),
        ("rpm", "4.19", "0", "/usr/bin/rpm"),
    ):
        spec = folder / "it.spec"
        spec.write_text(SPEC.format(name=name, version=version, epoch=epoch, file=file))
        options = ["--target", "x86_64", "--define", f"_topdir {folder}/top"]
        run("rpmbuild", "-bb", "--quiet", *options, "--define", "debug_package %{nil}", spec)
    packages = sorted((folder / "top/RPMS").rglob("*.rpm"))
    # On sqlite it keeps the last changes in a second file, until it is closed.
    run(
        *("rpm", "--dbpath", folder / "db", "--justdb", "--nodeps", "--ignorearch", "--oldpackage"),
        *("-i", *packages),
    )
    return folder / "db"


def as_ndb(source: Path, target: Path) -> Path:
    """Write the packages of a database as rpm's ndb does (``lib/backend/ndb/rpmpkg.c``)."""
    with sqlite3.connect(source / "rpmdb.sqlite") as made:
        headers = [row[0] for row in made.execute("SELECT blob FROM Packages")]
    slots, blobs, at = b"", b"", 4096
    for number, header in enumerate(headers, 1):
        blob = struct.pack("<4s3I", b"BlbS", number, 0, len(header)) + header
        blob += struct.pack("<2I4s", 0, len(header), b"BlbE")
        blob = blob.ljust(-(-len(blob) // 16) * 16, b"\0")
        slots += struct.pack("<4s3I", b"Slot", number, (at + len(blobs)) // 16, len(blob) // 16)
        blobs += blob
    head = struct.pack("<4s7I", b"RpmP", 0, 1, 1, len(headers) + 1, 0, 0, 0)
    empty = struct.pack("<4s3I", b"Slot", 0, 0, 0)
    table = (head + slots).ljust(4096 - 16, b"\0") + empty
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(table + blobs)
    return target


@pytest.fixture
def image(good: Path, write, make_disk, database: Path):
    """Return a function that makes an image with a database of a kind."""
    shutil.rmtree(good / "var/lib/dpkg")
    (good / "usr/lib/os-release").write_text(RELEASE)

    def make(kind: str) -> Path:
        if kind == "ndb":
            as_ndb(database, good / "usr/lib/sysimage/rpm/Packages.db")
        else:
            shutil.copytree(database, good / "var/lib/rpm")
        return make_disk(good, "web.raw", "-b", "4096")

    return make


@pytest.mark.parametrize("kind", ["sqlite", "ndb"])
def test_packages_of_rpm_are_read(image, kind: str):
    with inspected(image(kind)) as inspection:
        contents = inspection.contents
        assert contents is not None
        packages = contents.packages
        assert packages.not_read == ""
        assert packages.manager == "rpm"
        assert sorted(packages.installed) == [
            "cloud-init",
            "kernel-core",
            "kernel-core-6.14.0-3.el10.x86_64",
            "rpm",
        ]
        size = packages.rpm["cloud-init"].size
        assert packages.rpm["cloud-init"] == Package(
            "cloud-init", "24.4-3.el10", "x86_64", size, "cloud-init", epoch="1"
        )
        assert size > 1
        assert packages.owner("/usr/bin/cloud-init") == "cloud-init"
        assert packages.owner("/lib/modules/6.14.0/vmlinuz") == "kernel-core"
        assert contents.cloud_init is not None
        assert contents.cloud_init.version == "1:24.4-3.el10"
        assert contents.arch == "amd64"
        assert "4 of rpm; " in as_text(inspection)
        assert len(as_document(inspection)["packages"]) == 4
        document = json.loads(as_cyclonedx(inspection, contents))
        urls = {each["purl"] for each in document["components"] if "purl" in each}
        assert "pkg:rpm/rocky/cloud-init@24.4-3.el10?arch=x86_64&distro=rocky-10.1&epoch=1" in urls
        assert len(urls) == 4
        assert "properties" not in document["metadata"]


def test_missing_rpm_is_named_with_its_package(image, monkeypatch):
    path = image("sqlite")
    monkeypatch.setenv("PATH", "/nowhere")
    with inspected(path) as inspection:
        assert inspection.contents is not None
        reason = inspection.contents.packages.not_read
    assert reason == (
        'the packages are rpm\'s, and were not read: the program "rpm" was not found in PATH '
        "(apt-get install --no-install-recommends rpm)"
    )


@pytest.mark.parametrize("name", ["rpmdb.sqlite", "Packages.db", "Packages"])
def test_damaged_database_is_an_error_message(good, write, make_disk, name: str):
    shutil.rmtree(good / "var/lib/dpkg")
    write(good, f"var/lib/rpm/{name}", b"RpmP garbage" * 1000)
    with inspected(make_disk(good)) as inspection:
        assert inspection.contents is not None
        reason = inspection.contents.packages.not_read
    assert reason.startswith("the packages are rpm's, and were not read: ")
    assert "\n" not in reason


def test_ndb_with_any_numbers_is_read_to_its_end(database, tmp_path):
    data = bytearray(as_ndb(database, tmp_path / "Packages.db").read_bytes())
    for at in range(4, 128):
        data[at] ^= 0xFF
        assert len(list(rpm_database._ndb(bytes(data)))) <= 4
        data[at] ^= 0xFF
    assert len(list(rpm_database._ndb(bytes(data)))) == 4


@pytest.mark.root
def test_rpm_runs_as_a_user_that_owns_nothing(image, monkeypatch, tmp_path):
    """The image names its packages, and rpm reads them, as somebody else."""
    seen = []
    spawn = rpm_database.Keeper.spawn

    def watched(self, argv, **options):
        seen.append((argv, options["confine"]))
        return spawn(self, ["sh", "-c", 'id -u; exec "$@"', "sh", *argv], **options)

    monkeypatch.setattr(rpm_database.Keeper, "spawn", watched)
    parsed = rpm_database._parsed
    monkeypatch.setattr(
        rpm_database, "_parsed", lambda text: (seen.append(text.split("\n")[0]), parsed(text))[1]
    )
    with inspected(image("sqlite")) as inspection:
        assert inspection.contents is not None
        assert len(inspection.contents.packages.rpm) == 4
    (argv, confined), user = seen
    assert confined
    assert "--dbpath" in argv
    assert int(user) >= 61184
