"""The processor of an image: from its kernel, its manifest, or the default."""

import json
import struct
from pathlib import Path

import pytest

from hotplate.image.inspect import Image, kernel_arch
from hotplate.settings import Settings
from hotplate.testbed.qemu_maker import arch_of

MACHINES = {"x86_64": 0x8664, "aarch64": 0xAA64}


def kernel(path: Path, machine: int, *, at: int = 64) -> Path:
    """Write a file with the part of a PE header that has the processor."""
    data = bytearray(4096)
    data[:2] = b"MZ"
    data[60:64] = struct.pack("<I", at)
    if at + 6 <= len(data):
        data[at : at + 6] = b"PE\0\0" + struct.pack("<H", machine)
    path.write_bytes(data)
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A partition image whose kernel does not tell."""
    disk = bytearray(1 << 20)
    disk[1080:1082] = b"\x53\xef"
    (tmp_path / "web.v1.raw").write_bytes(disk)
    (tmp_path / "web.v1.initrd").write_bytes(b"initrd")
    (tmp_path / "web.v1.vmlinuz").write_bytes(b"a kernel without a header that EFI knows")
    return tmp_path / "web.v1.raw"


@pytest.mark.parametrize(("name", "machine"), MACHINES.items())
def test_kernel_names_its_processor(tmp_path: Path, name: str, machine: int) -> None:
    assert kernel_arch(kernel(tmp_path / "k", machine)) == name


@pytest.mark.parametrize("at", [5000, 0xFFFFFFFF])
def test_header_beyond_the_file_tells_nothing(tmp_path: Path, at: int) -> None:
    assert kernel_arch(kernel(tmp_path / "k", 0xAA64, at=at)) is None


@pytest.mark.parametrize("data", [b"", b"MZ", b"\x1f\x8b" + b"\0" * 100])
def test_other_file_has_no_processor(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "k").write_bytes(data)
    assert kernel_arch(tmp_path / "k") is None


@pytest.mark.tool("qemu-img")
def test_kernel_overrides_the_manifest(image: Path) -> None:
    assert Image.open(image).arch == "x86_64"
    manifest = image.with_name("web.v1.manifest.json")
    for broken in ("", "[]", '{"arch": 7}', '{"arch": "s390x"}'):
        manifest.write_text(broken)
        assert Image.open(image).arch == "x86_64", broken
    manifest.write_text(json.dumps({"arch": "arm64"}))
    assert Image.open(image).arch == "aarch64"
    kernel(image.with_name("web.v1.vmlinuz"), 0x8664)
    assert Image.open(image).arch == "x86_64"


@pytest.mark.tool("qemu-img")
def test_setting_overrides_kernel_and_manifest(image: Path, tmp_path: Path) -> None:
    opened = Image.open(image)
    settings = Settings.load({"arch": "aarch64"}, environ={}, directory=tmp_path)
    assert arch_of(opened, settings) == "aarch64"
    assert arch_of(opened, Settings()) == "x86_64"
