"""Bytes of a disk, read through qemu-nbd or from the file, and its partitions."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from programs import program

from hotplate.children.keeper import Child, Keeper
from hotplate.errors import HostError, ImageError, Outcome, UsageError, outcome_of
from hotplate.image.inspect import ImageFile
from hotplate.inspection.disk import BLOCK, NbdClient, open_disk
from hotplate.inspection.partitions import partitions
from hotplate.timing.deadline import Deadline

CONTENT = random.Random(3).randbytes(5 << 20)


def qemu_img(*arguments: str | Path) -> None:
    subprocess.run(["qemu-img", *arguments], check=True, capture_output=True)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "disk.raw"
    path.write_bytes(CONTENT)
    return path


def check(path: Path, content: bytes = CONTENT) -> None:
    with open_disk(ImageFile.open(path)) as disk:
        assert disk.size == len(content)
        for at, length in ((0, 512), (BLOCK - 3, 7), (3 * BLOCK + 1, 2 * BLOCK), (0, len(content))):
            assert disk.read(at, length) == content[at : at + length]
        assert disk.read(len(content) - 4, 100) == content[-4:]


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_qcow2_is_read_with_any_file_mode(raw, tmp_path, mode):
    path = tmp_path / "disk.qcow2"
    qemu_img("convert", "-c", "-O", "qcow2", raw, path)
    path.chmod(mode)
    check(path)


def test_raw_is_read(raw):
    check(raw)


def test_backing_file_is_read(raw, tmp_path):
    for name, behind, kind in (("b.qcow2", "disk.raw", "raw"), ("c.qcow2", "b.qcow2", "qcow2")):
        qemu_img("create", "-f", "qcow2", "-F", kind, "-b", behind, tmp_path / name)
    subprocess.run(
        ["qemu-io", "-c", "write -P 7 1M 1M", tmp_path / "c.qcow2"], check=True, capture_output=True
    )
    check(tmp_path / "c.qcow2", CONTENT[: 1 << 20] + b"\7" * (1 << 20) + CONTENT[2 << 20 :])


def test_backing_file_outside_of_the_directory_is_refused(raw, tmp_path):
    (tmp_path / "other").mkdir()
    path = tmp_path / "other/over.qcow2"
    qemu_img("create", "-f", "qcow2", "-F", "raw", "-b", raw, path)
    with pytest.raises(ImageError, match="outside its directory"):
        ImageFile.open(path)


def test_missing_image_is_refused():
    with pytest.raises(UsageError, match="there is no image"):
        ImageFile.open("/nowhere/web.qcow2")


def test_damaged_cluster_is_reported(raw, tmp_path):
    path = tmp_path / "disk.qcow2"
    raw.write_bytes(bytes(range(256)) * 4096)
    qemu_img("convert", "-c", "-O", "qcow2", raw, path)
    data = path.read_bytes()
    path.write_bytes(data[:-4096] + os.urandom(4096))
    with (
        open_disk(ImageFile.open(path)) as disk,
        pytest.raises(ImageError, match="cannot be read at byte") as raised,
    ):
        disk.read(0, disk.size)
    assert raised.value.hint == f"qemu-img check {path}"


def test_server_that_ends_at_once_is_reported(raw, tmp_path, monkeypatch):
    path = tmp_path / "disk.qcow2"
    qemu_img("convert", "-O", "qcow2", raw, path)
    # Read by our user alone, and so by our program.
    path.chmod(0o600)
    program(tmp_path / "bin" / "qemu-nbd", "echo no such format >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    spawn = Keeper.spawn

    def ended(*words: Any, **more: Any) -> Child:
        child = spawn(*words, **more)
        child.wait(Deadline(60, "qemu-nbd"))
        return child

    monkeypatch.setattr(Keeper, "spawn", ended)
    with (
        pytest.raises(ImageError, match="cannot be opened by qemu-nbd: no such format"),
        open_disk(ImageFile.open(path)),
    ):
        pass


def test_image_that_qemu_refuses_is_at_fault(raw, tmp_path):
    path = tmp_path / "disk.qcow2"
    qemu_img("convert", "-O", "qcow2", raw, path)
    with path.open("r+b") as stream:
        # The highest incompatible feature, which no version has.
        stream.seek(72)
        stream.write(b"\x80")
    file = ImageFile.open(path)
    with pytest.raises(ImageError, match="incompatible feature") as raised, open_disk(file):
        pass
    assert outcome_of(raised.value) is Outcome.FAILED


def test_processes_end_with_the_context(raw, tmp_path):
    path = tmp_path / "only-here.qcow2"
    qemu_img("convert", "-O", "qcow2", raw, path)
    with open_disk(ImageFile.open(path)) as disk:
        disk.read(0, 1)
        assert servers()
    assert not servers()


def servers() -> list[str]:
    """Return the qemu-nbd processes that are grandchildren of ours."""
    children = _children({os.getpid()})
    commands = []
    for pid in _children(children):
        try:
            commands.append(Path(f"/proc/{pid}/cmdline").read_text())
        except OSError:
            continue
    return [each for each in commands if "qemu-nbd" in each]


def _children(parents: set[int]) -> set[int]:
    pids = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in parents:
            pids.add(int(path.parent.name))
    return pids


@pytest.mark.parametrize("reply", [b"", b"SSH-2.0-OpenSSH_9.2\r\n12345678", b"NBDMAGIC"])
def test_server_with_another_protocol_is_refused(reply):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(reply)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(HostError):
            NbdClient(ours)


def test_answer_to_another_request_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">HQH", 3, 1024, 1))
        client = NbdClient(ours)
        assert client.size == 1024
        answer = threading.Thread(target=theirs.sendall, args=(struct.pack(">IIQ", 1, 0, 9),))
        answer.start()
        with pytest.raises(HostError, match="something else"):
            client.read(0, 512)
        answer.join()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("label: dos\n2048,8192,83,*\n,8192,82\n", [(1, 2048, "data"), (2, 10240, "data")]),
        (
            "label: gpt\nsize=4M,type=U\nsize=1M,type=21686148-6449-6E6F-744E-656564454649\n,,L\n",
            [(1, 2048, "efi system"), (2, 10240, "bios boot"), (3, 12288, "data")],
        ),
    ],
    ids=["mbr", "gpt"],
)
def test_partitions_made_by_sfdisk_are_read(tmp_path, script, expected):
    path = tmp_path / "disk.raw"
    with path.open("wb") as stream:
        stream.truncate(32 << 20)
    subprocess.run(["/sbin/sfdisk", "-q", path], input=script.encode(), check=True)
    with open_disk(ImageFile.open(path)) as disk:
        listed = partitions(disk)
    assert [(each.number, each.start // 512, each.purpose) for each in listed] == expected
    assert all(each.size > 0 and each.file_system == "" for each in listed)
