"""Types of images, and one sentence for each that cannot boot."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.errors import ImageError, UsageError
from hotplate.image.inspect import ESP, Image, Table, read_table
from hotplate.image.plan import Layout
from hotplate.image.qcow2 import read_header, required_length

pytestmark = pytest.mark.tool("qemu-img")

EXT4 = {1080: b"\x53\xef"}
CODE = b"\xeb\x63\x90" + b"GRUB" * 20


def mbr(kind: int = 0x83, *, code: bytes = CODE, status: int = 0x80) -> dict[int, bytes]:
    entry = bytes([status, 0, 2, 0, kind, 0, 0, 0]) + struct.pack("<II", 2048, 8192)
    return {0: code, 446: entry, 510: b"\x55\xaa"}


def gpt(kind: bytes, *, code: bytes = b"", last: int = 0) -> dict[int, bytes]:
    protective = mbr(0xEE, code=code, status=0)
    header = b"EFI PART".ljust(80, b"\0") + struct.pack("<II", 128, 128)
    entry = kind + bytes(16) + struct.pack("<QQ", 2048 if last else 0, last)
    return protective | {512: header, 1024: entry.ljust(128, b"\0")}


def with_kernel(path: Path) -> Path:
    path.with_suffix(".vmlinuz").write_bytes(b"kernel")
    path.with_suffix(".initrd").write_bytes(b"initrd")
    return path


@pytest.mark.parametrize("suffix", ["raw", "qcow2"])
@pytest.mark.parametrize(
    ("content", "table"),
    [
        (mbr(), Table("mbr", bios=True, uefi=False)),
        (gpt(ESP), Table("gpt", bios=False, uefi=True)),
        (gpt(ESP, code=CODE), Table("gpt", bios=True, uefi=True)),
        (gpt(bytes(range(16)), code=CODE), Table("gpt", bios=True, uefi=False)),
    ],
    ids=["mbr", "gpt-uefi", "gpt-both", "gpt-bios"],
)
def test_whole_disk_is_recognised(make_image, suffix: str, content: dict[int, bytes], table: Table):
    image = Image.open(make_image(f"disk.{suffix}", content))
    assert (image.layout, image.table, image.format) == (Layout.DISK, table, suffix)
    assert image.bios_bootable == table.bios
    assert image.virtual_size == 8 << 20
    assert image.kernel is None


def test_suffix_may_be_left_out(make_image):
    path = make_image("disk.qcow2", mbr())
    assert Image.open(path.with_suffix("")).path == path


def test_full_disk_is_no_fault_of_the_image(make_image, monkeypatch):
    """Nothing is written to read the first sectors."""
    path = make_image("disk.qcow2", mbr())
    monkeypatch.setattr("tempfile.tempdir", "/dev/full")
    assert Image.open(path).bios_bootable


def test_partition_image_has_its_kernel_beside_it(make_image):
    path = with_kernel(make_image("part.qcow2", EXT4))
    image = Image.open(path)
    assert image.layout is Layout.PARTITION
    assert image.kernel == path.with_suffix(".vmlinuz")
    assert image.initrd == path.with_suffix(".initrd")
    assert image.bios_bootable


def test_real_file_system_is_recognised(tmp_path: Path):
    path = tmp_path / "real.raw"
    path.touch()
    os.truncate(path, 16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", path], check=True, env={"PATH": "/sbin:/usr/sbin"})
    assert Image.open(with_kernel(path)).layout is Layout.PARTITION
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(ImageError, match=r"is truncated: .*, and the file system ends"):
        Image.open(path)


def test_real_partition_table_is_recognised(make_image):
    path = make_image("real.raw", {0: CODE})
    subprocess.run(["sfdisk", "-q", path], input=b"label: gpt\n,,U\n", check=True)
    assert Image.open(path).table == Table("gpt", bios=True, uefi=True)


def truncated(make_image, length: int) -> Path:
    """Return an image that was cut to a length, from its end when it is negative."""
    path = make_image("cut.qcow2", mbr() | {1 << 20: os.urandom(2 << 20)})
    os.truncate(path, length if length > 0 else path.stat().st_size + length)
    return path


def without_initrd(make_image, tmp_path: Path) -> Path:
    path = with_kernel(make_image("part.raw", EXT4))
    path.with_suffix(".initrd").unlink()
    return path


def without_backing_file(make_image, tmp_path: Path) -> Path:
    path = tmp_path / "over.qcow2"
    base = make_image("base.raw", mbr())
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path]
    subprocess.run(command, check=True)
    base.unlink()
    return path


def qed(make_image, folder: Path) -> Path:
    path = folder / "disk.qed"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qed", path, "8M"], check=True)
    return path


def written(name: str, text: str):
    def write(make_image, tmp_path: Path) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("make_bad", "sentence"),
    [
        (written("empty.qcow2", ""), "is empty"),
        (written("text.qcow2", "# not an image\n"), "is not an image"),
        (lambda make, _: make("zeros.raw", {}), "is not an image"),
        (
            lambda make, _: make("part.raw", EXT4),
            'no kernel lies beside it; expected "part.vmlinuz" or "part.kernel"',
        ),
        (without_initrd, 'no initrd lies beside it; expected "part.initrd" or "part.initramfs"'),
        (lambda make, _: make("noboot.raw", mbr(code=b"")), "nothing that boots"),
        (lambda make, _: truncated(make, -(1 << 20)), "is truncated"),
        (lambda make, _: truncated(make, 64), "image"),
        (
            lambda make, _: make("cut.raw", mbr(), size=4 << 20),
            "truncated: the disk has 4194304 bytes, and partition 1 ends at 5242880",
        ),
        (
            lambda make, _: make("cut.raw", gpt(ESP, last=10239), size=4 << 20),
            "truncated: the disk has 4194304 bytes, and partition 1 ends at 5242880",
        ),
        (
            lambda make, _: make("shrunk.qcow2", mbr(), size=4 << 20),
            "truncated: the disk has 4194304 bytes, and partition 1 ends at 5242880",
        ),
        (
            lambda make, _: make("cut.raw", {0: b"XFSB" + struct.pack(">IQ", 4096, 4096)}),
            "truncated: the disk has 8388608 bytes, and the file system ends at 16777216",
        ),
        (without_backing_file, 'needs the backing file ".*base.raw"'),
    ],
)
def test_unbootable_image_is_refused_with_one_sentence(
    make_image, tmp_path: Path, make_bad, sentence
):
    path = make_bad(make_image, tmp_path)
    with pytest.raises(ImageError, match=sentence) as raised:
        Image.open(path)
    assert str(path.name) in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.exit_status == 1


def test_image_of_a_container_needs_no_boot_loader_and_no_kernel(make_image):
    for path in (make_image("part.raw", EXT4), make_image("noboot.raw", mbr(code=b""))):
        image = Image.open(path, boots=False)
        with pytest.raises(ImageError, match="boot"):
            image.check_boots()


@pytest.mark.parametrize(
    ("make_bad", "sentence"),
    [
        (lambda _, tmp_path: tmp_path / "none.qcow2", "there is no image"),
        (lambda _, tmp_path: tmp_path, "is a directory"),
        (lambda *_: Path("https://host/web.qcow2"), '"https://host/web.qcow2" is a URL, and only'),
        (qed, 'in the format "qed"; expected qcow2 or raw or vmdk or vhdx or vdi'),
    ],
)
def test_path_that_is_no_file_is_a_usage_error(make_image, tmp_path: Path, make_bad, sentence):
    path = make_bad(make_image, tmp_path)
    with pytest.raises(UsageError, match=sentence) as raised:
        Image.open(path)
    assert raised.value.exit_status == 2
    if "no image" in sentence:
        assert f"ls {tmp_path}; " in raised.value.hint
        assert f"hotplate build -o {path}" in raised.value.hint


@pytest.mark.parametrize("name", ["disk.qed", "disk.qcow2"])
def test_hint_for_another_format_can_be_pasted(make_image, tmp_path: Path, name: str):
    """diskimage-builder leaves a partition image's kernel and initrd beside each format of it."""
    (tmp_path / "a b").mkdir()
    path = tmp_path / "a b" / name
    raw = make_image("disk.raw", EXT4)
    subprocess.run(["qemu-img", "convert", "-O", "qed", raw, path], check=True)
    with pytest.raises(UsageError) as raised:
        Image.open(path)
    assert "copy disk.vmlinuz and disk.initrd" in raised.value.hint
    subprocess.run(["sh", "-c", raised.value.hint], check=True)
    for each in ("vmlinuz", "initrd"):
        (tmp_path / "a b" / f"disk.{each}").write_bytes(b"it")
    assert Image.open(tmp_path / "a b" / "disk.qcow2").layout is Layout.PARTITION


@pytest.mark.parametrize(
    ("kind", "option", "error"), [("qcow2", "encrypt.", ImageError), ("luks", "", UsageError)]
)
def test_hint_for_an_encrypted_image_can_be_pasted(make_image, tmp_path, kind, option, error):
    """It has the name of a file with the key."""
    (tmp_path / "KEY").write_text("geheim")
    raw, path = make_image("raw.raw", mbr()), tmp_path / f"a, b.{kind}"
    options = f"{option}key-secret=key,{option}iter-time=10"
    options += f",{option}format=luks" if option else ""
    secret = ["--object", f"secret,id=key,file={tmp_path}/KEY"]
    command = ["qemu-img", "convert", *secret, "-O", kind, "-o", options, raw, path]
    subprocess.run(command, check=True)
    with pytest.raises(error, match="encrypted" if option else "in the format") as raised:
        Image.open(path)
    assert raised.value.exit_status == (1 if option else 2)
    subprocess.run(["sh", "-c", raised.value.hint], check=True, cwd=tmp_path)
    (made,) = {*tmp_path.glob("*.qcow2")} - {path}
    assert Image.open(made).layout is Layout.DISK


@pytest.mark.parametrize("options", [["-c"], []], ids=["compressed", "plain"])
def test_complete_qcow2_has_its_required_length(make_image, tmp_path: Path, options: list[str]):
    source, path = make_image("source.raw", {0: os.urandom(6 << 20)}), tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "convert", *options, "-O", "qcow2", source, path], check=True)
    needed = required_length(path, read_header(path))
    assert needed <= path.stat().st_size < needed + 65536


def test_file_system_with_an_mbr_signature_is_no_disk():
    head = bytearray(4096)
    head[510:512] = b"\x55\xaa"
    head[1080:1082] = b"\x53\xef"
    assert read_table(bytes(head)) is None


def test_overlay_takes_the_writes_and_the_image_stays(make_image, tmp_path: Path):
    path = make_image("disk.qcow2", mbr())
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    image = Image.open(path)
    overlay = image.overlay(tmp_path / "run")
    subprocess.run(["qemu-io", "-c", "write -P 7 0 64k", overlay], check=True, capture_output=True)
    assert image.sha256() == before
    assert Image.open(path).table is not None
    with pytest.raises(ImageError):
        Image.open(overlay)


def converted(
    make_image, folder: Path, kind: str, *options: str, contents: dict[int, bytes] | None = None
) -> Path:
    path = folder / f"disk.{kind}"
    raw = make_image("disk.raw", mbr() | (contents or {1 << 20: b"contents"}))
    command = ["qemu-img", "convert", "-q", "-O", kind, *options, raw, path]
    subprocess.run(command, check=True)
    raw.unlink()
    return path


STREAM = ("-o", "subformat=streamOptimized")


@pytest.mark.parametrize(
    ("kind", "options"),
    [("vmdk", ()), ("vmdk", STREAM), ("vhdx", ()), ("vdi", ())],
    ids=["vmdk", "vmdk-stream", "vhdx", "vdi"],
)
def test_image_of_another_hypervisor_is_never_changed(make_image, tmp_path: Path, kind, options):
    path = converted(make_image, tmp_path, kind, *options)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    image = Image.open(path.with_suffix(""))
    assert (image.path, image.format, image.virtual_size) == (path, kind, 8 << 20)
    assert image.table == Table("mbr", bios=True, uefi=False)
    overlay = image.overlay(tmp_path / "run")
    write = ["qemu-io", "-c", "read -v 1M 8", "-c", "write -P 7 0 64k", overlay]
    done = subprocess.run(write, check=True, capture_output=True, text=True)
    assert "contents" in done.stdout
    assert image.sha256() == before
    assert [each.format for each in Image.open(path).chain] == [kind]


@pytest.mark.parametrize("kind", ["vmdk", "vhdx", "vdi"])
def test_truncated_image_of_another_hypervisor_is_refused(make_image, tmp_path: Path, kind: str):
    path = converted(make_image, tmp_path, kind)
    os.truncate(path, 1000)
    with pytest.raises(ImageError, match=r'disk\..*" (cannot be read|is )') as raised:
        Image.open(path)
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    ("kind", "options"),
    [("vmdk", ()), ("vmdk", STREAM), ("vhdx", ()), ("vdi", ())],
    ids=["vmdk", "vmdk-stream", "vhdx", "vdi"],
)
def test_image_of_another_hypervisor_without_its_end_is_refused(
    make_image, tmp_path: Path, kind, options
):
    """QEMU reads zeros for the data that a VMDK or VDI file lacks."""
    contents = {1 << 20: os.urandom(4 << 20)}
    path = converted(make_image, tmp_path, kind, *options, contents=contents)
    assert Image.open(path).format == kind
    os.truncate(path, path.stat().st_size - (3 << 20))
    with pytest.raises(ImageError, match=r'disk\..*" (cannot be read|is truncated)'):
        Image.open(path)


def test_hash_is_cached_until_the_file_changes(make_image, tmp_path: Path):
    image = Image.open(make_image("disk.raw", mbr()))
    first = image.sha256(tmp_path / "cache")
    (note,) = (tmp_path / "cache" / "sha256").iterdir()
    note.write_text("0" * 64)
    assert image.sha256(tmp_path / "cache") == "0" * 64
    with image.path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"changed")
    changed = image.sha256(tmp_path / "cache")
    assert changed not in ("0" * 64, first)
    assert changed == image.sha256()


def test_fifo_among_the_checksums_is_not_waited_for(make_image, tmp_path):
    image = make_image("disk.raw", mbr())
    script = (
        "import sys; from pathlib import Path; from hotplate.image.checksum import sha256_of; "
        "print(sha256_of(Path(sys.argv[1]), Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", script, str(image), str(tmp_path / "cache")]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (note,) = (tmp_path / "cache" / "sha256").iterdir()
    note.unlink()
    os.mkfifo(note)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == first
