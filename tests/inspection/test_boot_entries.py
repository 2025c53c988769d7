"""Entries of boot loaders: of the Boot Loader Specification, and unified kernel images."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_disk import SYSTEM, fat, partitioned

from hotplate.errors import ImageError
from hotplate.inspection.boot_entries import MAX_OPTIONS, boot_entries, kernel_words, pe_sections
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.fat import Fat
from hotplate.inspection.inspection import inspected
from hotplate.inspection.tree import Tree

#: A PE program without contents, by systemd.
STUB = Path("/usr/lib/systemd/boot/efi/linuxx64.efi.stub")
Opener = Callable[[Path], Tree]


def disk(path: Path) -> Disk:
    data = path.read_bytes()
    return Disk(lambda at, length: data[at : at + length], len(data), path.name)


@pytest.fixture
def opened(tmp_path: Path, make_file_system) -> Opener:
    """Return a function that reads a folder as a tree of ext4."""
    return lambda root: Tree(Ext4(disk(make_file_system(root, tmp_path / "fs", size="16M"))))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def unified(path: Path, **texts: str) -> Path:
    """Make a unified kernel image, as ukify(1) does with objcopy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = []
    texts = {"osrel": 'PRETTY_NAME="Fedora 42"\n', "uname": "6.14.0", **texts, "linux": "kernel"}
    for number, (name, text) in enumerate(texts.items(), 2):
        content = path.with_suffix(f".{name}")
        content.write_text(text)
        options += ["--add-section", f".{name}={content}"]
        options += ["--change-section-vma", f".{name}=0x{number}0000"]
    subprocess.run(["objcopy", *options, STUB, path], check=True, env=SYSTEM)
    for name in texts:
        path.with_suffix(f".{name}").unlink()
    return path


def entry(version: str, options: str) -> str:
    return f"title  Rocky ({version})\nversion {version}\nlinux /vmlinuz-{version}\n{options}"


@pytest.mark.parametrize(
    ("default", "words"),
    [
        ("", ["root=b", "ro"]),
        ("default id-9*", ["root=a", "console=ttyS0"]),
        ("timeout 3\ndefault id-9.conf", ["root=a", "console=ttyS0"]),
    ],
)
def test_default_entry_is_the_latest_or_the_one_that_is_named(
    root: Path, write, opened: Opener, default: str, words: list[str]
):
    folder = "boot/loader/entries"
    write(root, f"{folder}/id-9.conf", entry("9.1", "options root=a\noptions console=ttyS0\n"))
    write(root, f"{folder}/id-10.conf", entry("10.1", "options root=b ro $tuned_params\n"))
    write(root, f"{folder}/id-0-rescue.conf", entry("99.0-rescue", "options root=c\n"))
    write(root, "boot/loader/loader.conf", f"{default}\n")
    tree = opened(root)
    assert kernel_words(tree) == words
    assert {each.version for each in boot_entries(tree)} == {"9.1", "10.1", "99.0-rescue"}
    assert {each.kind for each in boot_entries(tree)} == {"BLS"}


def test_options_in_the_environment_of_grub_are_read(root: Path, write, opened: Opener):
    """RHEL 8 has the command line there."""
    write(root, "boot/grub2/grubenv", "# GRUB\nsaved_entry=x\nkernelopts=root=UUID=1 ro\n####")
    write(root, "boot/loader/entries/a.conf", entry("4.18", "options $kernelopts ${tuned} quiet\n"))
    assert kernel_words(opened(root)) == ["root=UUID=1", "ro", "quiet"]


def test_options_that_repeat_a_long_variable_are_cut(root: Path, write, opened: Opener):
    write(root, "boot/grub2/grubenv", f"k={'x' * 8000}\n")
    write(root, "boot/loader/entries/a.conf", entry("1", f"options {'$k' * 10_000}\n"))
    assert sum(map(len, kernel_words(opened(root)))) == MAX_OPTIONS


def test_menu_of_grub_comes_before_entries(root: Path, write, opened: Opener):
    write(root, "boot/grub/grub.cfg", "  linux /boot/vmlinuz-6.1 root=x ro\n")
    write(root, "boot/loader/entries/a.conf", entry("6.12", "options root=y\n"))
    assert kernel_words(opened(root)) == ["root=x", "ro"]


@pytest.mark.skipif(not STUB.exists(), reason="needs systemd-boot-efi on this host")
@pytest.mark.tool("objcopy")
@pytest.mark.tool("mkfs.vfat")
@pytest.mark.parametrize("folder", ["EFI/Linux", "efi/LINUX"])
def test_unified_kernel_image_is_read(good, write, tmp_path, make_file_system, folder: str):
    (good / "boot/grub/grub.cfg").unlink()
    (good / "boot/vmlinuz-6.1.0-56-cloud-amd64").unlink()
    files = tmp_path / "files"
    unified(files / f"{folder}/linux.efi", cmdline="root=LABEL=root console=ttyS0\n\0")
    # The loader itself is no entry.
    shutil.copy(STUB, files / f"{folder}/other.efi")
    write(files, "loader/loader.conf", "timeout 3\n")
    esp, system = fat(files, tmp_path / "esp"), make_file_system(good, tmp_path / "fs")
    path = partitioned(tmp_path / "gpt.raw", ("U", esp), ("L", system))
    with inspected(path) as inspection:
        contents = inspection.contents
        assert contents is not None
        (found,) = contents.boot_entries
        assert (found.kind, found.title, found.version) == ("UKI", "Fedora 42", "6.14.0")
        assert found.path == f"/{folder}/linux.efi"
        assert contents.kernels == ["6.14.0"]
        assert contents.command_line == "root=LABEL=root console=ttyS0"
        assert inspection.boot_loaders == ["systemd-boot"]


@pytest.mark.skipif(not STUB.exists(), reason="needs systemd-boot-efi on this host")
def test_damaged_program_has_no_sections():
    head = bytearray(STUB.read_bytes()[:4096])
    assert ".text" in pe_sections(bytes(head))
    for at in range(1024):
        head[at] ^= 0xFF
        pe_sections(bytes(head))
        pe_sections(bytes(head[:at]))
        head[at] ^= 0xFF


@pytest.mark.tool("mkfs.vfat")
def test_files_of_fat_are_read_by_path(root: Path, tmp_path: Path, write):
    write(root, "loader/entries/a long name.conf", "text")
    write(root, "EFI/BOOT/BOOTX64.EFI", b"\1" * 70_000)
    tree = Tree(Fat(disk(fat(root, tmp_path / "esp")), uuid="1234-ABCD"))
    assert tree.names("/") == ["EFI", "loader"]
    assert tree.text("/loader/entries/a long name.conf") == "text"
    assert tree.read("/EFI/BOOT/BOOTX64.EFI") == b"\1" * 70_000
    assert tree.find("/loader/entries/none") is None
    assert [path for path, _ in tree.walk()][-1] in (
        "/loader/entries/a long name.conf",
        "/EFI/BOOT/BOOTX64.EFI",
    )


@pytest.mark.tool("mkfs.vfat")
def test_damaged_fat_has_no_entries(root: Path, tmp_path: Path, write, opened: Opener):
    write(root, "loader/entries/a.conf", "linux /x\noptions root=a\n")
    path = fat(root, tmp_path / "esp")
    data = bytearray(path.read_bytes())
    tree = opened(root)
    for at in [*range(11, 64), *range(2048, 2048 + 64)]:
        data[at] ^= 0xFF
        try:
            content = bytes(data)
            efi = Fat(Disk(lambda at, size, all_=content: all_[at : at + size], len(data), "esp"))
        except ImageError as error:
            assert "FAT" in error.message
        else:
            tree.efi = Tree(efi)
            boot_entries(tree)
        data[at] ^= 0xFF
