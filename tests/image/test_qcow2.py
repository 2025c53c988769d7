"""References of an image to files of this host: refused by name, before anything opens them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.errors import HostError, ImageError
from hotplate.image import qcow2
from hotplate.image.inspect import Image
from hotplate.image.overlay import qemu_img
from hotplate.image.qcow2 import Link

pytestmark = pytest.mark.tool("qemu-img")

SECRET = b"HOST SECRET "
ENTRY = bytes([0x80, 0, 2, 0, 0x83, 0, 0, 0]) + struct.pack("<II", 2048, 8192)
BOOTABLE = {0: b"\xeb\x63\x90" + b"GRUB" * 20, 446: ENTRY, 510: b"\x55\xaa"}
EXT4 = {1080: b"\x53\xef"}


def create(path: Path, *options: str | Path, size: str = "") -> Path:
    command = ["qemu-img", "create", "-q", "-f", "qcow2", *options, path, *([size] if size else [])]
    subprocess.run(command, check=True, capture_output=True)
    return path


def named(path: Path, name: str, kind: str = "raw") -> Path:
    """Write a qcow2 file that refers to a file, which may be missing."""
    create(path, size="8M")
    subprocess.run(["qemu-img", "rebase", "-u", "-F", kind, "-b", name, path], check=True)
    return path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A disk of the host outside of the image's directory."""
    path = tmp_path / "host-secret"
    path.write_bytes(bytes(440) + SECRET * 100_000)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def test_file_outside_the_directory_is_refused_by_name(folder: Path, secret: Path):
    image = named(folder / "evil.qcow2", str(secret))
    with pytest.raises(ImageError, match=f'needs the backing file "{secret}", which is outside'):
        Image.open(image)


@pytest.mark.parametrize("name", ["../host-secret", "link", "../images/../host-secret"])
def test_dots_and_links_do_not_lead_outside(folder: Path, secret: Path, name: str):
    (folder / "link").symlink_to(secret)
    with pytest.raises(ImageError, match="outside its directory"):
        Image.open(named(folder / "evil.qcow2", name))


@pytest.mark.parametrize(
    "name",
    [
        'json:{"driver":"raw","file":{"driver":"file","filename":"/etc/passwd"}}',
        "nbd://127.0.0.1:1/x",
        "nbd:unix:/run/x",
        "https://127.0.0.1/x",
        "ssh://x/y",
        "file:/etc/passwd",
        "fat:rw:/etc",
        "host_device:/dev/sda",
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_protocol_is_always_refused(folder: Path, name: str, allow: bool):
    with pytest.raises(ImageError, match="neither a protocol nor a JSON description"):
        Image.open(named(folder / "evil.qcow2", name), allow_backing=allow)


def test_backing_file_name_that_is_not_utf8_is_quoted(folder: Path):
    image = named(folder / "top.qcow2", "basis.raw")
    changed(image, b"basis.raw", b"bas\xefs.raw")
    with pytest.raises(ImageError, match=r"names another file, b.bas\\xefs.raw.; expected UTF-8"):
        Image.open(image)


def test_network_backing_file_is_not_connected_to(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = f'{{"type":"inet","host":"127.0.0.1","port":"{port}"}}'
        name = f'json:{{"driver":"raw","file":{{"driver":"nbd","server":{server}}}}}'
        with pytest.raises(ImageError):
            Image.open(named(folder / "evil.qcow2", name))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_data_file_is_refused(folder: Path):
    options = f"data_file={folder / 'data.raw'},data_file_raw=on"
    image = create(folder / "evil.qcow2", "-o", options, size="8M")
    with pytest.raises(ImageError, match=r'has its data in another file, ".*data\.raw"'):
        Image.open(image)


def test_backing_file_of_a_backing_file_is_checked_too(folder: Path, secret: Path):
    named(folder / "middle.qcow2", str(secret))
    with pytest.raises(ImageError, match=r'middle\.qcow2" needs the backing file'):
        Image.open(named(folder / "top.qcow2", "middle.qcow2", "qcow2"))


def test_chain_in_the_images_directory_is_accepted(folder: Path, make_image):
    base = make_image("images/base.raw", BOOTABLE)
    create(folder / "middle.qcow2", "-F", "raw", "-b", "base.raw")
    top = create(folder / "top.qcow2", "-F", "qcow2", "-b", folder / "middle.qcow2")
    image = Image.open(top)
    assert image.chain == (
        Link(top, "qcow2"),
        Link(folder / "middle.qcow2", "qcow2"),
        Link(base, "raw"),
    )


def test_file_outside_the_directory_is_accepted_when_allowed(folder: Path, make_image):
    base = make_image("base.raw", BOOTABLE)
    image = create(folder / "over.qcow2", "-F", "raw", "-b", base)
    assert Image.open(image, allow_backing=True).chain[1] == Link(base, "raw")


@pytest.mark.parametrize("allow", [False, True])
def test_special_file_is_refused(folder: Path, allow: bool):
    os.mkfifo(folder / "pipe")
    with pytest.raises(ImageError, match="expected a regular file"):
        Image.open(named(folder / "evil.qcow2", "pipe"), allow_backing=allow)


def test_file_of_another_format_is_not_probed(folder: Path):
    # A VMDK descriptor refers to further files.
    (folder / "base").write_text('# Disk DescriptorFile\nRW 1 FLAT "/etc/passwd" 0\n')
    for kind, sentence in (("vmdk", "whose data are in other files"), ("luks", 'format "luks"')):
        with pytest.raises(ImageError, match=sentence):
            Image.open(named(folder / "evil.qcow2", "base", kind))


def changed(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new.ljust(len(old), b"\n"), 1))


EXTENT = b'RW 16384 SPARSE "evil.vmdk"'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (EXTENT, b'RW 1 FLAT "passwd" 0', "names other files as its extents"),
        (EXTENT, b"RW 1 SPARSE \nRW 1 SPARSE ", "names other files as its extents"),
        (b"parentCID=ffffffff", b"parentFileNameHint", "names another file as its parent"),
        (b"monolithicSparse", b"monolithicFlat", 'kind "monolithicFlat'),
        (b"createType", b"x", 'kind "unknown"'),
        ((16384).to_bytes(8, "little"), bytes(8), "has no size"),
        (b"KDMV", b"COWD", "of an old version"),
    ],
)
def test_vmdk_that_names_other_files_is_refused(folder: Path, old, new, sentence):
    image = folder / "evil.vmdk"
    subprocess.run(["qemu-img", "create", "-q", "-f", "vmdk", image, "8M"], check=True)
    changed(image, old, new)
    with pytest.raises(ImageError, match=sentence) as raised:
        Image.open(image, allow_backing=True)
    assert str(raised.value.hint).startswith("qemu-img convert")


def test_vmdk_with_an_empty_descriptor_is_refused(folder: Path):
    """A pattern that tries again from each empty line would take hours."""
    image = folder / "evil.vmdk"
    head = struct.pack("<4sIIQQQQ", b"KDMV", 1, 3, 16384, 128, 1, 2048).ljust(512, b"\0")
    image.write_bytes(head + b"\n" * (1 << 20))
    with pytest.raises(ImageError, match='kind "unknown"'):
        Image.open(image)


@pytest.mark.parametrize("kind", ["monolithicFlat", "twoGbMaxExtentSparse"])
def test_vmdk_in_several_files_is_refused(folder: Path, kind: str):
    image = folder / "evil.vmdk"
    create = ["qemu-img", "create", "-q", "-f", "vmdk", "-o", f"subformat={kind}", image, "8M"]
    subprocess.run(create, check=True)
    with pytest.raises(ImageError, match="whose data are in other files"):
        Image.open(image)


def test_vmdk_with_a_parent_is_refused(folder: Path):
    parent, image = folder / "parent.vmdk", folder / "evil.vmdk"
    create = ["qemu-img", "create", "-q", "-f", "vmdk"]
    subprocess.run([*create, parent, "8M"], check=True)
    subprocess.run([*create, "-F", "vmdk", "-b", parent, image], check=True)
    with pytest.raises(ImageError, match="names another file as its parent"):
        Image.open(image)


def test_loop_of_backing_files_is_refused(folder: Path):
    named(folder / "one.qcow2", "two.qcow2", "qcow2")
    named(folder / "two.qcow2", "one.qcow2", "qcow2")
    with pytest.raises(ImageError, match="more than 8 files"):
        Image.open(folder / "one.qcow2")


@pytest.mark.parametrize("suffix", [".vmlinuz", ".initrd"])
def test_kernel_linked_outside_the_directory_is_refused(make_image, tmp_path: Path, suffix: str):
    (tmp_path / "images").mkdir(exist_ok=True)
    image: Path = make_image("images/part.raw", EXT4)
    for each in (".vmlinuz", ".initrd"):
        image.with_suffix(each).write_bytes(b"it")
    image.with_suffix(suffix).unlink()
    image.with_suffix(suffix).symlink_to("/etc/passwd")
    with pytest.raises(ImageError, match='is a link to "/etc/passwd"'):
        Image.open(image)
    assert Image.open(image, allow_backing=True).kernel is not None


def test_qemu_img_is_bounded():
    assert "prlimit" in str(qemu_img("info", "/nonexistent").args)


THREADS = """\
#!/usr/bin/python3 -I
# As many threads at once as QEMU's pool has (util/thread-pool.c), each of which allocates.
import threading
together = threading.Barrier(64)
def work():
    bytearray(100_000)
    together.wait(60)
for _ in range(64):
    threading.Thread(target=work, daemon=True).start()
"""


def test_qemu_img_may_have_all_its_threads(monkeypatch, tmp_path: Path):
    (program := tmp_path / "qemu-img").write_text(THREADS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = qemu_img("info")
    assert done.returncode == 0, done.stderr.decode()


def evil(path: Path, pointers: list[int], *, bits: int, disk: int, end: int) -> Path:
    """Write a file with an L1 table of these entries at its second cluster, and nothing but
    holes.
    """
    head = struct.pack(">4sIQIIQIIQ", qcow2.MAGIC, 2, 0, 0, bits, disk, 0, len(pointers), 1 << bits)
    with path.open("wb") as stream:
        stream.write(head)
        stream.seek(1 << bits)
        stream.write(struct.pack(f">{len(pointers)}Q", *pointers))
        stream.truncate(end)
    return path


class Reads:
    """Counts the L2 tables that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tables = 0
        real = qcow2._end_of_data

        def counted(descriptors, cluster_bits):
            self.tables += 1
            return real(descriptors, cluster_bits)

        monkeypatch.setattr(qcow2, "_end_of_data", counted)


def test_table_is_read_once_however_many_entries_point_to_it(tmp_path: Path, monkeypatch):
    reads = Reads(monkeypatch)
    cluster = 1 << 16
    path = evil(tmp_path / "evil.qcow2", [2 * cluster] * 1000, bits=16, disk=1 << 40, end=8 << 20)
    with path.open("r+b") as stream:
        stream.seek(2 * cluster)
        stream.write(struct.pack(">Q", 9 << 20))
    assert qcow2.required_length(path, qcow2.read_header(path)) == (9 << 20) + 1
    assert reads.tables == 1


def test_entries_beyond_those_of_the_disk_are_not_read(tmp_path: Path):
    """They are the state of a saved machine, which no guest reads (docs/interop/qcow2.txt)."""
    pointers = [2 << 16, 1 << 40]
    path = evil(tmp_path / "saved.qcow2", pointers, bits=16, disk=1 << 29, end=8 << 20)
    assert qcow2.required_length(path, qcow2.read_header(path)) == 3 << 16
    path = evil(tmp_path / "larger.qcow2", pointers, bits=16, disk=(1 << 29) + 1, end=8 << 20)
    assert qcow2.required_length(path, qcow2.read_header(path)) == (1 << 40) + (1 << 16)


def test_sparse_file_with_too_many_tables_is_refused(tmp_path: Path):
    """MAX_TABLES is 1 GiB: 512 tables of 2 MiB."""
    pointers = [(number + 2) << 21 for number in range(513)]
    path = evil(tmp_path / "evil.qcow2", pointers, bits=21, disk=1 << 60, end=600 << 21)
    with pytest.raises(ImageError, match="513 L2 tables of 2097152 bytes; expected at most 1024"):
        Image.open(path)


@given(st.binary(min_size=72, max_size=300), st.sampled_from([2, 3]))
@settings(deadline=None)
def test_random_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, version: int
):
    path = tmp_path_factory.getbasetemp() / "fuzzed.qcow2"
    path.write_bytes(qcow2.MAGIC + struct.pack(">I", version) + data)
    with contextlib.suppress(ImageError):
        header = qcow2.read_header(path)
        qcow2.required_length(path, header)
        qcow2.chain(path)


@given(st.integers(0, 200), st.integers(0, 2000), st.integers(9, 21), st.lists(st.integers(0, 255)))
@settings(deadline=None)
def test_nearly_valid_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, length: int, bits: int, rest: list[int]
):
    head = struct.pack(">4sIQIIQIIQ", qcow2.MAGIC, 3, at, length, bits, 1 << 23, 0, 1, 200)
    head += struct.pack(">QIIQQQII", 200, 0, 0, 0, 0, 0, 4, 104)
    path = tmp_path_factory.getbasetemp() / "nearly.qcow2"
    path.write_bytes(head + bytes(rest) * 3)
    with contextlib.suppress(ImageError, HostError):
        Image.open(path)
