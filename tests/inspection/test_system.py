"""File systems that the host's kernel reads, and several of them put together."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tiny_disk import MIB, fat, partitioned, run

from hotplate.inspection import mounted
from hotplate.inspection.compare import snapshot
from hotplate.inspection.inspection import Inspection, inspected

ESP, LINUX = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
EXTENDED_BOOT = "BC13C2FF-59E6-4262-A352-B275FD6F7172"
VAR = "4D21B016-B534-45C2-A9FB-5C16E091FD2D"

#: Mounts a file system, makes subvolumes of btrfs, and copies a folder into the first one. In a
#: mount namespace of its own, or containers that start meanwhile would keep it mounted.
FILL = """
mount -o loop "$1" "$2"
for each in $4; do btrfs -q subvolume create "$2/$each" || btrfs subvolume create "$2/$each"; done
first=${4%% *}
cp -a "$3/." "$2/$first"
umount "$2"
"""


def formatted(path: Path, kind: str, *options: str, mib: int = 304) -> Path:
    path.touch()
    os.truncate(path, mib * MIB)
    run(f"mkfs.{kind}", "-q", *options, path)
    return path


def filled(tree: Path, path: Path, *options: str, volumes: str = "", **size: int) -> Path:
    """Make a file system of xfs or btrfs with the files of a folder."""
    formatted(path, *options, **size)
    point = path.with_suffix(".mnt")
    point.mkdir()
    run("unshare", "--mount", "bash", "-euc", FILL, "bash", path, point, tree, volumes)
    return path


def distribution(inspection: Inspection) -> str:
    assert inspection.contents is not None, inspection.unread
    return inspection.contents.distribution


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.root
@pytest.mark.tool("mkfs.xfs")
@pytest.mark.parametrize("kind", ["raw", "qcow2", "qcow2 without FUSE"])
def test_xfs_is_read_as_ext4_and_not_changed(
    good, make_disk_of_ext4, tmp_path, monkeypatch, kind: str
):
    system = filled(good, tmp_path / "system.xfs", "xfs", "-L", "root")
    path = partitioned(tmp_path / "disk.raw", (LINUX, system))
    if kind != "raw":
        run("qemu-img", "convert", "-O", "qcow2", path, path.with_suffix(".qcow2"))
        path = path.with_suffix(".qcow2")
    if "without" in kind:
        monkeypatch.setattr(mounted, "FUSE", tmp_path / "none")
    elif kind == "qcow2" and not (mounted.FUSE.exists() and shutil.which(mounted.SERVER)):
        pytest.skip("needs /dev/fuse and qemu-storage-daemon on this host")
    before = digest(path)
    # Mounted below a folder that no other test mounts in.
    place = tmp_path / "places"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with (
        inspected(path, cache=tmp_path / "cache") as inspection,
        inspected(make_disk_of_ext4) as of,
    ):
        assert inspection.root is not None
        assert inspection.root.file_system == "xfs"
        ours, theirs = snapshot(inspection), snapshot(of)
        theirs.files.pop("/lost+found")
        for path_, inode in theirs.files.items():
            mine = ours.files[path_]
            assert (mine.mode, mine.uid, mine.links) == (inode.mode, inode.uid, inode.links), path_
            assert inode.is_directory or mine.size == inode.size, path_
        assert len(ours.files) == len(theirs.files)
        assert ours.packages == theirs.packages
        assert inspection.contents is not None
        assert inspection.contents.tree.file_system.label == "root"
        # The root file system of fstab is this one, by its label.
        assert [each.kind for each in inspection.findings if each.kind == "fstab"] == []
    assert digest(path) == before
    # Unpacked only where it cannot be served.
    assert (tmp_path / "cache").exists() == ("without" in kind)
    assert list(place.iterdir()) == []
    assert str(place) not in Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def make_disk_of_ext4(good, tmp_path, make_file_system) -> Path:
    return make_file_system(good, tmp_path / "ext4.raw", size="8M")


@pytest.mark.root
@pytest.mark.tool("mkfs.btrfs")
@pytest.mark.parametrize(
    ("volumes", "line"),
    [("", ""), ("root home", "/home btrfs subvol=home"), ("@ @home", "/home btrfs subvol=/@home")],
)
def test_btrfs_is_read_from_its_subvolumes(good, write, tmp_path, volumes: str, line: str):
    made = "11111111-2222-3333-4444-555555555555"
    write(good, "etc/fstab", f"UUID={made} / btrfs defaults\nUUID={made} {line}\n")
    path = filled(
        good, tmp_path / "disk.raw", "btrfs", "-U", made, "-L", "sys", mib=160, volumes=volumes
    )
    home = write(tmp_path / "home", "user/.profile", "text")
    if volumes:
        point = tmp_path / "point"
        point.mkdir()
        script = 'mount -o loop "$1" "$2"; cp -a "$3" "$2/$4/"; umount "$2"'
        words = (path, point, home.parent, volumes.split()[1])
        run("unshare", "--mount", "sh", "-euc", script, "sh", *words)
    with inspected(path, cache=tmp_path / "cache") as inspection:
        assert distribution(inspection) == "Debian GNU/Linux 12 (bookworm)"
        assert inspection.contents is not None
        tree = inspection.contents.tree
        assert (tree.file_system.uuid, tree.file_system.label) == (made.replace("-", ""), "sys")
        assert tree.text("/home/user/.profile") == ("text" if volumes else "")
        assert not tree.exists("/home/home")


@pytest.mark.root
@pytest.mark.tool("mkfs.xfs")
def test_volume_in_two_pieces_is_mounted_as_one(good, tmp_path, monkeypatch):
    system, path = filled(good, tmp_path / "system.xfs", "xfs"), tmp_path / "disk.raw"
    copy = ("dd", f"if={system}", f"of={path}", "bs=1M", "conv=notrunc,sparse", "status=none")
    run(*copy, "skip=100")
    run(*copy, "seek=205", "count=100")
    pieces = ((205 * MIB, 100 * MIB), (0, 204 * MIB))
    monkeypatch.setattr(
        "hotplate.inspection.partitions.lvm.volumes",
        lambda *_: [__import__("hotplate.inspection.lvm").inspection.lvm.Volume("a/b", pieces)],
    )
    with inspected(path, cache=tmp_path / "cache") as inspection:
        assert distribution(inspection) == "Debian GNU/Linux 12 (bookworm)"


@pytest.mark.tool("mkfs.xfs")
def test_xfs_is_refused_without_root(good, tmp_path):
    path = formatted(tmp_path / "disk.raw", "xfs")
    # Any other user; root is one here.
    tmp_path.chmod(0o755)
    script = (
        "import os, sys; from pathlib import Path; "
        "from hotplate.inspection.inspection import inspected\n"
        "os.geteuid = lambda: 1000\n"
        "with inspected(sys.argv[1], cache=Path(sys.argv[2])) as it: print(it.unread)"
    )
    command = [sys.executable, "-c", script, path, tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f'the disk of "{path}" is xfs, which the host\'s kernel reads')
    assert "run hotplate inspect as root" in done.stdout
    assert "guestfish --ro -a" in done.stdout


@pytest.mark.root
def test_damaged_xfs_is_an_error_message(tmp_path):
    path = tmp_path / "disk.raw"
    path.write_bytes(b"XFSB" + bytes(MIB))
    with inspected(path, cache=tmp_path / "cache") as inspection:
        assert inspection.contents is None
        assert "the host's kernel does not mount it: " in inspection.unread
        assert "\n" not in inspection.unread


@pytest.mark.root
@pytest.mark.tool("mkfs.xfs")
def test_links_and_special_files_of_a_mount_lead_nowhere(good, tmp_path):
    (good / "etc/outside").symlink_to("/etc/passwd")
    (good / "etc/up").symlink_to("../../../../../../etc/hostname")
    (good / "etc/folder").symlink_to("/proc")
    os.mkfifo(good / "etc/fifo")
    path = filled(good, tmp_path / "disk.raw", "xfs")
    with inspected(path, cache=tmp_path / "cache") as inspection:
        assert inspection.contents is not None
        tree = inspection.contents.tree
        for each in ("outside", "up", "folder/self/status", "fifo"):
            assert tree.read(f"/etc/{each}") == b""


def boot_files(folder: Path, version: str = "6.12.0-1.el10.x86_64") -> Path:
    (folder / "loader/entries").mkdir(parents=True)
    (folder / f"vmlinuz-{version}").write_text("kernel")
    entry = f"title Rocky\nversion {version}\nlinux /vmlinuz-{version}\noptions root=/dev/a ro\n"
    (folder / f"loader/entries/id-{version}.conf").write_text(entry)
    return folder


def moved(good: Path, name: str, target: Path) -> Path:
    """Take a folder out of a tree; it stays there, and is empty."""
    (good / name).rename(target)
    (good / name).mkdir()
    return target


@pytest.mark.tool("sfdisk")
@pytest.mark.parametrize(
    ("boot", "var"),
    [
        ("UUID=11111111-2222-3333-4444-555555555555", "LABEL=data"),
        ("PARTUUID=", "/dev/disk/by-label/data"),
        ("/dev/vda1", "PARTLABEL=state"),
    ],
)
def test_boot_and_var_are_read_where_fstab_has_them(
    good, write, tmp_path, make_file_system, boot: str, var: str
):
    parts = [moved(good, name, tmp_path / name) for name in ("boot", "var")]
    options = ("-U", "11111111-2222-3333-4444-555555555555")
    first = make_file_system(parts[0], tmp_path / "boot.fs", *options)
    second = make_file_system(parts[1], tmp_path / "var.fs", "-L", "data")
    root = make_file_system(good, tmp_path / "root.fs", size="8M")
    path = partitioned(tmp_path / "disk.raw", (LINUX, first), (LINUX, second), (LINUX, root))
    run("sfdisk", "-q", "--part-label", path, "2", "state")
    if boot == "PARTUUID=":
        boot += run("sfdisk", "--part-uuid", path, "1")
    write(
        good, "etc/fstab", f"LABEL=root / ext4\n{var} /var ext4 defaults 0 2\n{boot} /boot ext4\n"
    )
    root = make_file_system(good, tmp_path / "again.fs", size="8M")
    with path.open("r+b") as stream:
        stream.seek(9 * MIB)
        stream.write(root.read_bytes())
    with inspected(path) as inspection:
        assert inspection.contents is not None
        assert inspection.contents.kernels == ["6.1.0-56-cloud-amd64"]
        assert sorted(inspection.contents.packages.debian) == ["dpkg", "puppet-agent"]
        assert inspection.missing == ()


@pytest.mark.tool("mkfs.vfat")
def test_partitions_are_found_by_their_types(good, tmp_path, make_file_system):
    parts = [moved(good, name, tmp_path / name) for name in ("boot", "var")]
    boot = fat(boot_files(tmp_path / "extended"), tmp_path / "boot.fat")
    var = make_file_system(parts[1], tmp_path / "var.fs")
    root = make_file_system(good, tmp_path / "root.fs", size="8M")
    path = partitioned(tmp_path / "disk.raw", (EXTENDED_BOOT, boot), (VAR, var), (LINUX, root))
    with inspected(path) as inspection:
        assert inspection.contents is not None
        assert inspection.contents.kernels == ["6.12.0-1.el10.x86_64"]
        assert sorted(inspection.contents.packages.debian) == ["dpkg", "puppet-agent"]


@pytest.mark.tool("mkfs.xfs")
def test_file_system_that_is_not_read_is_named(good, write, tmp_path, make_file_system):
    moved(good, "var", tmp_path / "var")
    write(good, "etc/fstab", "LABEL=root / ext4\nLABEL=data /var xfs\n")
    var = formatted(tmp_path / "var.xfs", "xfs", "-L", "data")
    root = make_file_system(good, tmp_path / "root.fs", size="8M")
    path = partitioned(tmp_path / "disk.raw", (LINUX, root), (LINUX, var))
    with inspected(path) as inspection:
        assert inspection.contents is not None
        (sentence,) = inspection.missing
        assert sentence.startswith(f'"/var" is not read: partition 2 of "{path}" is xfs')
