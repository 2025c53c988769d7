"""Builds with ``SOURCE_DATE_EPOCH``: the last step on a small tree, and real builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from programs import completed

from hotplate import paths

HOOK = paths.elements_dir() / "reproducible/cleanup.d/99-zz-reproducible"
EPOCH = 1_700_000_000
DAY = EPOCH // 86400
OLD = EPOCH - 1000

TEXTS = {
    "etc/resolv.conf": "nameserver 192.0.2.1\n",
    "etc/resolv.conf.ORIG": "nameserver 192.0.2.2\n",
    "etc/shadow": f"root:*:{DAY + 9}:0:99999:7:::\nme:*:{DAY - 9}:0:99999:7:::\nno:!::::::\n",
    "etc/shadow-": "root\n",
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "etc/dib-manifests/dib_environment": (
        'declare -x DIB_IMAGE_CACHE="/a"\ndeclare -x DIB_LOCKFILES="/a/l"\n'
        'declare -x DIB_RELEASE="trixie"\n'
    ),
    "root/install.log": "x",
    "tmp/left": "x",
    "usr/old": "x",
    "usr/new": "x",
    "var/cache/ldconfig/aux-cache": "x",
    "var/log/apt/history.log": "Start-Date: today\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, text in TEXTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "usr/link").symlink_to("new")
    os.utime(root / "usr/old", (OLD, OLD))
    return root


def finish(root: Path, **environment: str) -> None:
    """Run the hook in a mount namespace of its own, as a build does."""
    subprocess.run(
        ["unshare", "--mount", "--", HOOK],
        env={**os.environ, "TARGET_ROOT": str(root), **environment},
        check=True,
        timeout=60,
    )


def state(root: Path) -> dict[str, tuple[int, str]]:
    """Return the times and contents of everything below a directory."""
    listed = {}
    for path in [root, *sorted(root.rglob("*"))]:
        text = path.read_text() if path.is_file() and not path.is_symlink() else ""
        listed[str(path.relative_to(root))] = (int(path.lstat().st_mtime), text)
    return listed


@pytest.mark.root
def test_files_are_not_newer_and_varying_files_are_removed(tree: Path):
    finish(tree, SOURCE_DATE_EPOCH=str(EPOCH))
    left = state(tree)
    times = {time for time, _ in left.values()}
    assert times == {EPOCH, OLD}
    assert left["usr/old"][0] == OLD
    assert not {"etc/shadow-", "root/install.log", "tmp/left", "etc/resolv.conf.ORIG"} & set(left)
    assert "var/cache/ldconfig/aux-cache" not in left
    texts = {name: text for name, (_, text) in left.items()}
    assert texts["etc/resolv.conf"] == TEXTS["etc/resolv.conf.ORIG"]
    assert texts["etc/shadow"].splitlines() == [
        f"root:*:{DAY}:0:99999:7:::",
        f"me:*:{DAY - 9}:0:99999:7:::",
        "no:!::::::",
    ]
    assert texts["etc/machine-id"] == texts["var/log/apt/history.log"] == ""
    assert texts["etc/dib-manifests/dib_environment"] == 'declare -x DIB_RELEASE="trixie"\n'


@pytest.mark.root
def test_later_changes_touch_a_copy_with_the_same_files(tree: Path, tmp_path: Path):
    """diskimage-builder ends with such changes, and then may make a tar of the tree."""
    tar = tmp_path / "image.tar"
    later = f"{HOOK} && tar -C {tree} -cf {tar} . && rm -r {tree}/tmp {tree}/etc/* || :"
    (tree / "etc" / "shadow").chmod(0o600)
    subprocess.run(
        ["unshare", "--mount", "--", "sh", "-ec", later],
        env={**os.environ, "TARGET_ROOT": str(tree), "SOURCE_DATE_EPOCH": str(EPOCH)},
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert state(tree)["etc/resolv.conf"] == (EPOCH, TEXTS["etc/resolv.conf.ORIG"])
    with tarfile.open(tar) as packed:
        assert set(packed.getnames()) == {
            f"./{name}" if name != "." else "." for name in state(tree)
        }
        assert packed.getmember("./etc/shadow").mode == 0o600
        assert packed.getmember("./etc/shadow").mtime == EPOCH


@pytest.mark.root
def test_mounted_file_system_is_left_alone_and_its_mount_point_is_not(tree: Path):
    """As /sys while an image is made: newer than the build's time, and often read-only."""
    (tree / "sys").mkdir()
    mounts = f"mount -t tmpfs -o ro none {tree}/sys"
    subprocess.run(
        ["unshare", "--mount", "--", "sh", "-euc", f"{mounts}; exec {HOOK}"],
        env={**os.environ, "TARGET_ROOT": str(tree), "SOURCE_DATE_EPOCH": str(EPOCH)},
        check=True,
        timeout=60,
    )
    assert (tree / "sys").stat().st_mtime == EPOCH


@pytest.mark.root
def test_tree_is_unchanged_without_a_time(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    before = state(tree)
    finish(tree)
    assert state(tree) == before


#: With and without cloud-init, and each release, firmware and way to install the agent.  A
#: partition image is the root partition of a disk.
KINDS = (
    ("--release", "bookworm", "--firmware", "uefi", "--no-cloud-init"),
    ("--release", "trixie", "--install-type", "package"),
)


@pytest.mark.long
@pytest.mark.root
@pytest.mark.builds
@pytest.mark.network
@pytest.mark.tool("debootstrap")
@pytest.mark.tool("qemu-img")
@pytest.mark.parametrize("words", KINDS, ids=lambda words: " ".join(words))
def test_two_builds_have_the_same_files(tmp_path: Path, words: tuple[str, ...]):
    images = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        images.append(tmp_path / name / "web.raw")
        command = [sys.executable, "-m", "hotplate", "build", *words]
        subprocess.run(
            [*command, "-o", images[-1]],
            env={**os.environ, "SOURCE_DATE_EPOCH": "1795305600"},
            check=True,
            timeout=1800,
        )
    done = completed(
        [sys.executable, "-m", "hotplate", "diff", "--exact", "--strict", "--json", *images],
        timeout=600,
    )
    comparison = json.loads(done.stdout)
    assert comparison["owners"] == []
    assert comparison["same"], comparison
    assert done.returncode == 0
