"""The level of instructions that an image needs, by its manifest, its programs and its release."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.image.inspect import Image
from hotplate.inspection.cpu_level import RELEASES, cpu_need, isa_needed
from hotplate.inspection.inspection import inspected

LIBC = "usr/lib/x86_64-linux-gnu/libc.so.6"
RELEASE = "usr/lib/os-release"


def program(bits: int | None, *, machine: int = 62, kind: int = 5) -> bytes:
    """Return the head of a program with a note of the levels it needs, and one of features before.

    :param bits: one for each level, the lowest first; None for a note without them.
    """
    properties = struct.pack("<IIII", 0xC0000002, 4, 3, 0)
    if bits is not None:
        properties += struct.pack("<IIII", 0xC0008002, 4, bits, 0)
    note = struct.pack("<III", 4, len(properties), kind) + b"GNU\0" + properties
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 999, 999, 4096)
    where = 64 + 2 * 56
    size = len(note)
    return head + load + struct.pack("<IIQQQQQQ", 0x6474E553, 4, where, 0, 0, size, size, 8) + note


@pytest.fixture
def need_of_image(good, make_disk, write):
    """Return a function that returns the need of an image with these files in place of others."""

    def need(**files):
        for name, text in files.items():
            write(good, {"libc": LIBC, "release": RELEASE}.get(name, name), text)
        return cpu_need(Image.open(make_disk(good)))

    return need


@pytest.mark.parametrize(
    ("identity", "version", "level"),
    [
        ("debian", "13", ""),
        ("ubuntu", "26.04", ""),
        ("fedora", "44", ""),
        ("rhel", "8.10", ""),
        ("rhel", "9.6", "x86-64-v2"),
        ("centos", "9", "x86-64-v2"),
        ("centos", "10", "x86-64-v3"),
        ("rocky", "10.1", "x86-64-v3"),
        ("almalinux", "9.6", "x86-64-v2"),
        ("ol", "11.0", "x86-64-v3"),
        ("sles", "15.7", ""),
        ("sles", "16.0", "x86-64-v2"),
        ("opensuse-leap", "16.0", "x86-64-v2"),
        ("opensuse-tumbleweed", "20260101", ""),
        ("rhel", "", ""),
        ("rhel", "ten", ""),
    ],
)
def test_release_tells_the_level(need_of_image, identity, version, level):
    need = need_of_image(release=f'ID="{identity}"\nVERSION_ID="{version}"\n')
    assert need.level == level
    assert need.reason
    if level:
        assert need.reason in {row.reason for row in RELEASES}


@pytest.mark.parametrize(
    ("bits", "level"),
    [
        (0b0001, ""),
        (0b0011, "x86-64-v2"),
        (0b0010, "x86-64-v2"),
        (0b0111, "x86-64-v3"),
        # The most that QEMU emulates.
        (0b1111, "x86-64-v3"),
        # Bits that have no level.
        (0xFFFFFFF1, ""),
        (None, ""),
    ],
)
def test_note_of_the_c_library_tells_the_level(need_of_image, bits, level):
    need = need_of_image(libc=program(bits))
    assert need.level == level
    if level:
        assert need.reason.startswith(
            f'"/lib/x86_64-linux-gnu/libc.so.6" is marked as needing {level[:-1]}'
        )


def test_note_counts_more_than_the_release(need_of_image):
    """AlmaLinux 10 is built for x86-64-v2 as well, by the same name and version."""
    release = 'ID="almalinux"\nVERSION_ID="10.0"\n'
    assert need_of_image(release=release, libc=program(0b0011)).level == "x86-64-v2"


def test_note_of_the_lowest_level_does_not_hide_the_release(need_of_image):
    release = 'ID="rocky"\nVERSION_ID="9.6"\n'
    assert need_of_image(release=release, libc=program(0b0001)).level == "x86-64-v2"


def test_better_libraries_beside_are_no_need(need_of_image):
    """The loader takes those of glibc-hwcaps where the CPU has the level, and others elsewhere."""
    name = "usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6"
    assert need_of_image(**{name: program(0b0111), "libc": program(0b0001)}).level == ""


@pytest.mark.parametrize(
    "arch", [program(0b0111, machine=183), program(0b0111, kind=4), b"", b"\x7fELF"]
)
def test_other_program_has_no_level(need_of_image, arch):
    assert need_of_image(libc=arch).level == ""


@pytest.mark.tool("gcc")
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_init_that_the_compiler_marks_has_the_level(good, make_disk, tmp_path, level):
    (tmp_path / "init.c").write_text("int main(void) { return 0; }\n")
    init = good / "usr/lib/systemd/systemd"
    # -mneeded is of GCC 11 and later.
    command = ["gcc", f"-march={level}", "-mneeded", "-static", "-o", init, tmp_path / "init.c"]
    subprocess.run(command, check=True)
    assert cpu_need(Image.open(make_disk(good))).level == level


def test_c_library_of_this_debian_needs_the_lowest_level(good, make_disk):
    library = Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not library.exists():
        pytest.skip("this host is no Debian for amd64")
    (good / LIBC).parent.mkdir(parents=True)
    shutil.copy(library, good / LIBC)
    with inspected(make_disk(good)) as inspection:
        assert isa_needed(inspection.contents.tree, f"/{LIBC}") == 1


def test_manifest_is_enough(good, make_disk, write):
    """The image is not read: its files would say something else."""
    write(good, LIBC, program(0b0111))
    disk = make_disk(good)
    disk.with_name("web.manifest.json").write_text(json.dumps({"release": "trixie"}))
    need = cpu_need(Image.open(disk))
    assert (need.level, need.reason) == ("", 'its manifest names the release "trixie"')


def test_image_that_cannot_be_read_has_no_need(tmp_path, make_file_system, good):
    disk = tmp_path / "x.raw"
    make_file_system(good, disk)
    for name in ("x.vmlinuz", "x.initrd"):
        (tmp_path / name).write_bytes(b"MZ")
    image = Image.open(disk)
    data = bytearray(disk.read_bytes())
    data[1024 + 88 : 1024 + 90] = b"\xff\xff"
    disk.write_bytes(data)
    assert cpu_need(image).level == ""


def test_image_that_is_built_again_is_read_again(good, make_disk, write):
    assert cpu_need(Image.open(make_disk(good))).level == ""
    write(good, RELEASE, "ID=rocky\nVERSION_ID=9.6\n")
    assert cpu_need(Image.open(make_disk(good))).level == "x86-64-v2"


class OneFile:
    """A tree with the same bytes at each path."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self, path: str, limit: int) -> bytes:
        return self.data[:limit]


@given(st.binary(max_size=300), st.integers(0, 200))
def test_damaged_program_has_some_level_or_none(data, at):
    whole = program(0b0011)
    damaged = whole[:at] + data + whole[at + len(data) :]
    assert isa_needed(OneFile(damaged), "/x") in range(5)
