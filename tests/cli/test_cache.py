"""``hotplate cache``: sizes, removed and kept entries, and unusable caches."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import hotplate_command
import pytest

from hotplate import locks
from hotplate.image.base_cache import BaseCache
from hotplate.machine import admission
from hotplate.testbed import warm_state as warm
from hotplate.timing.deadline import Deadline

BUSY = """
import sys, time
from pathlib import Path
from hotplate.testbed.warm_state import WarmState
with WarmState(Path(sys.argv[1])).in_use():
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "cache"
    path.mkdir()
    monkeypatch.setenv("HOTPLATE_CACHE", str(path))
    return path


def hotplate(*words: object) -> subprocess.CompletedProcess[str]:
    return hotplate_command.hotplate("cache", *words)


def state(root: Path, name: str = "aa", *, size: int = 100_000, days: float = 0) -> Path:
    path = root / "warm" / name
    path.mkdir(parents=True)
    (path / "memory").write_bytes(os.urandom(size))
    about = {"name": "web.qcow2", "memory": "1024", "accelerator": "tcg"}
    (path / "about.json").write_text(json.dumps(about))
    used = time.time() - days * 86400
    os.utime(path, (used, used))
    return path


def kept(root: Path, folder: str, name: str, *, days: float = 0) -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 50_000)
    used = time.time() - days * 86400
    os.utime(path, (used, used))
    return path


def test_empty_and_missing_cache_are_reported(root):
    assert hotplate("list").stdout == f'4 kB in all in "{root}"\n'
    root.rmdir()
    done = hotplate("list")
    assert (done.returncode, done.stdout) == (0, f'0 B in all in "{root}"\n')
    done = hotplate("clean", "--all")
    assert (done.returncode, done.stdout) == (0, f'there is nothing in "{root}"\n')


@pytest.mark.parametrize("action", ["list", "clean"])
def test_cache_that_is_a_file_is_a_usage_error(root, action):
    root.rmdir()
    root.touch()
    done = hotplate(action)
    assert (done.returncode, done.stdout) == (2, "")
    assert f'the cache "{root}" is not a directory' in done.stderr


@pytest.mark.parametrize("words", [(), ("list",)])
def test_list_has_names_sizes_and_times(root, words):
    state(root, days=2)
    kept(root, "releases", "bookworm-disk.qcow2")
    text = hotplate(*words).stdout
    assert "web.qcow2 (1024 MiB, tcg)" in text
    assert "2 days ago" in text
    assert "bookworm-disk.qcow2" in text
    assert str(root) in text.splitlines()[-1]


def test_sizes_are_those_on_the_disk(root):
    state(root)
    listing = json.loads(hotplate("list", "--json").stdout)
    used = subprocess.run(["du", "-s", "-B1", root], capture_output=True, text=True).stdout
    assert listing["bytes"] == int(used.split()[0])
    assert listing["entries"][0]["bytes"] >= 100_000


def test_each_folder_is_sized_once(root, monkeypatch):
    state(root)
    kept(root, "dib/base", "tarball")
    seen = []

    def lstat(path, see=Path.lstat):
        seen.append(path)
        return see(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    hotplate("list")
    assert sorted(seen) == sorted([root, *root.rglob("*")])


def test_clean_removes_states_and_old_entries_only(root):
    state(root)
    fresh = kept(root, "releases", "fresh.qcow2", days=6)
    old = kept(root, "releases", "old.qcow2", days=8)
    tarball = kept(root, "dib", "base.tgz", days=1)
    done = hotplate("clean")
    assert done.returncode == 0, done.stderr
    assert not warm.states(root)
    assert fresh.exists()
    assert tarball.exists()
    assert not old.exists()
    assert "freed" in done.stdout
    hotplate("clean", "--all")
    assert not fresh.exists()
    assert not tarball.exists()


def test_state_in_use_stays_and_is_named(root):
    path = state(root)
    user = subprocess.Popen([sys.executable, "-c", BUSY, path], stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout.readline() == "held\n"
        done = hotplate("clean", "--all")
        assert done.returncode == 0
        assert '"aa" is in use by a run; it stays' in done.stdout
        assert (path / "memory").exists()
    finally:
        user.kill()
        user.wait()
    hotplate("clean")
    assert not path.exists()


def test_clean_removes_leftovers_of_killed_runs_only(root):
    left = root / "warm" / "bb.new"
    left.mkdir(parents=True)
    assert "a state that was not finished" in hotplate("list").stdout
    with warm._only_one(root / "warm", "bb"):
        hotplate("clean", "--all")
        assert left.exists()
    hotplate("clean")
    assert not left.exists()


def test_all_entries_are_listed_and_removed_by_clean_all(root):
    """All files that hotplate writes into the cache are listed, so that none grows unseen."""
    for name in ("history.json", "kvm.json"):
        (root / name).write_text("{}")
    kept(root, "releases", "bookworm.qcow2")
    assert {"history.json", "kvm.json", "bookworm.qcow2"} <= {
        entry["what"] for entry in json.loads(hotplate("list", "--json").stdout)["entries"]
    }
    assert hotplate("clean", "--all").returncode == 0
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_cache_of_a_running_build_stays_and_is_named(root):
    """The lock of hotplate.image.build, held by another process than the cleaning one."""
    tarball = root / "dib" / "0123456789ab" / "base.tar.gz"
    tarball.parent.mkdir(parents=True)
    with BaseCache(tarball, refresh=True), locks.shared(tarball.parent):
        tarball.write_text("being made")
        done = hotplate("clean", "--all")
        assert f'"{tarball.parent}" is in use by a build or a machine; it stays' in done.stdout
        assert done.returncode == 0
        assert tarball.exists()
        assert tarball.with_name("base.tar.gz.lock").exists()
    hotplate("clean", "--all")
    assert not tarball.parent.exists()


def test_image_of_a_running_machine_stays(root):
    """QEMU locks bytes of each file that it uses (docs/system/images.rst of QEMU)."""
    image = kept(root, "releases", "web.qcow2")
    with image.open("rb") as stream:
        fcntl.fcntl(
            stream,
            fcntl.F_OFD_SETLK,
            struct.pack("@hhqqi0q", fcntl.F_RDLCK, os.SEEK_SET, 100, 1, 0),
        )
        assert "it stays" in hotplate("clean", "--all").stdout
        assert image.exists()
    hotplate("clean", "--all")
    assert not image.exists()


def test_memory_queue_in_use_is_not_removed(root):
    with admission.reserve(1, directory=root / "memory", deadline=Deadline(10, "memory")):
        queue = (root / "memory" / admission.QUEUE).stat().st_ino
        assert hotplate("clean", "--all").returncode == 0
        assert (root / "memory" / admission.QUEUE).stat().st_ino == queue
        assert len(admission.live_reservations(root / "memory")) == 1


def test_number_of_states_is_limited(root):
    for number in range(warm.KEPT + 3):
        state(root, f"s{number}", days=number)
    assert warm.forget(root, keep=warm.KEPT) == []
    assert [each.directory.name for each in warm.states(root)] == [
        f"s{n}" for n in range(warm.KEPT)
    ]


@pytest.mark.root
def test_read_only_cache_error_is_one_sentence(root):
    """Root can write to any but a read-only mount."""
    image = root / "releases"
    image.mkdir()
    kept(root, "releases", "old.qcow2", days=9)
    state(root)
    script = (
        f"mount --bind {root} {root} && mount -o remount,ro,bind {root} && "
        f"{sys.executable} -m hotplate cache list && {sys.executable} -m hotplate cache clean"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert "web.qcow2" in done.stdout
    assert done.returncode == 3
    assert "Read-only file system" in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr


ASK = """
import os
import sys
from pathlib import Path
from hotplate.testbed import warm_state as warm
from hotplate.errors import HostError
from hotplate.image.inspect import Image
from hotplate.settings import Settings
settings = Settings.load({}, environ=os.environ, directory=Path("/nonexistent"))
try:
    image = Image.open(Path(sys.argv[1]))
    warm.find_or_make(image, settings, directory=Path(sys.argv[2]), say=print)
except HostError as error:
    print(error)
"""


@pytest.mark.root
@pytest.mark.tool("qemu-system-x86_64")
def test_lack_of_room_for_a_state_is_reported_before_the_boot(root, tmp_path):
    disk = bytearray(4 << 20)
    disk[0:2], disk[510:512] = b"\xeb\x63", b"\x55\xaa"
    disk[446:462] = bytes([0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 24, 0, 0])
    (tmp_path / "web.raw").write_bytes(disk)
    mount = f'mount -t tmpfs -o size=8m none {root} && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-c", mount, "sh"),
            *(sys.executable, "-c", ASK, tmp_path / "web.raw", tmp_path / "boot"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "MB free" in done.stdout
    assert str(root) in done.stdout
    assert "booting" not in done.stdout
    assert done.stderr == ""
    assert not (tmp_path / "boot").exists()
