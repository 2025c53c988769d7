"""The key of a warm state, and the protection of states in use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotplate import locks
from hotplate.errors import MachineLostError
from hotplate.history import FILE, History
from hotplate.image.inspect import Image
from hotplate.image.plan import Layout
from hotplate.machine.accelerator import Accelerator
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed import warm_state as warm
from hotplate.timing.deadline import Deadline, retry

USES = """
import sys
from pathlib import Path
from hotplate.testbed.warm_state import WarmState
with WarmState(Path(sys.argv[1])).in_use():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    return warm.store(tmp_path / "cache")


def saved(store: Path, name: str) -> warm.WarmState:
    directory = store / name
    directory.mkdir(parents=True)
    (directory / "about.json").write_text(json.dumps({"name": "web.qcow2"}))
    return warm.WarmState(directory)


@pytest.fixture
def user():
    """Starts a process that uses a state until its standard input ends."""
    started = []

    def start(state: warm.WarmState) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", USES, state.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.communicate(timeout=300)


# -- the key ------------------------------------------------------------------------------------


@pytest.fixture
def image(tmp_path) -> Image:
    """A thin partition image with its kernel beside it."""
    if shutil.which("qemu-img") is None:
        pytest.skip("needs qemu-img on this host")
    base, path = tmp_path / "base.raw", tmp_path / "web.qcow2"
    base.write_bytes(bytes(1 << 20))
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, path], check=True
    )
    (tmp_path / "web.vmlinuz").write_bytes(b"kernel")
    (tmp_path / "web.initrd").write_bytes(b"initrd")
    return Image(
        path,
        "qcow2",
        1 << 20,
        Layout.PARTITION,
        kernel=tmp_path / "web.vmlinuz",
        initrd=tmp_path / "web.initrd",
    )


def key(image: Image, **settings: object) -> str:
    chosen = {"accelerator": AcceleratorChoice.TCG, **settings}
    return warm.key(warm.identity(image, replace(Settings(), **chosen)))


@pytest.mark.tool("qemu-system-x86_64")
def test_key_changes_with_kernel_initrd_backing_file_code_and_tpm(
    store, image, tmp_path, monkeypatch
):
    before = key(image)
    assert key(image) == before
    keys = {before}
    for name in ("web.vmlinuz", "web.initrd", "base.raw"):
        with (tmp_path / name).open("r+b") as file:
            file.write(b"other")
        keys.add(key(image))
    monkeypatch.setattr(warm, "_code", lambda: "another commit of one version")
    keys.add(key(image))
    keys.add(key(image, tpm=True))
    assert len(keys) == 6


def test_code_hash_covers_the_testbed_and_the_rooms_that_it_imports(tmp_path):
    imports = {"testbed": "machine", "machine": "network", "network": "errors", "report": "testbed"}
    for room, below in imports.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / "module.py").write_text(f"from hotplate.{below} import name\n")
    # Without the cache of a process, whose code stays the same.
    code = warm._code.__wrapped__
    before = code(tmp_path)
    for room in imports:
        with (tmp_path / room / "module.py").open("a") as module:
            module.write("changed = True\n")
        after = code(tmp_path)
        assert (after == before) is (room == "report")
        before = after


@pytest.mark.tool("qemu-system-x86_64")
def test_key_depends_on_the_host_cpu_under_kvm(store, image, monkeypatch):
    """QEMU's -cpu host passes on the host's CPU, and the state fits no other."""
    kvm = Accelerator("kvm", "host", 2, ("-accel", "kvm"), "")
    monkeypatch.setattr(warm.accelerator, "choose", lambda *_, **__: kvm)
    keys = set()
    for flags in ("fpu sse2", "fpu sse2 avx2"):
        monkeypatch.setattr(warm, "_host_cpu", lambda flags=flags: flags)
        keys.add(key(image))
    assert len(keys) == 2


def test_host_cpu_ignores_the_speed(tmp_path):
    text = "processor\t: {}\nmodel name\t: Some CPU\ncpu MHz\t\t: {}\nflags\t\t: fpu sse2\n\n"
    cpus = []
    for number, speed in enumerate(("2000.0", "3100.5")):
        file = tmp_path / f"cpuinfo-{number}"
        file.write_text(text.format(0, speed) + text.format(1, speed))
        cpus.append(warm._host_cpu(file))
    assert cpus[0] == cpus[1]
    assert "sse2" in cpus[0]


# -- in use -------------------------------------------------------------------------------------


def test_discarded_state_in_use_is_not_removed(store, user):
    state = saved(store, "aa-1")
    (state.directory / "disk.qcow2").write_bytes(b"a disk")
    process = user(state)
    warm.discard(state)
    # Overlays in use refer to this very file.
    assert (state.directory / "disk.qcow2").read_bytes() == b"a disk"
    assert state.discarded
    process.communicate(timeout=300)
    assert not state.directory.exists()


def test_discarded_state_not_in_use_is_removed_at_once(store):
    state = saved(store, "aa-1")
    warm.discard(state)
    assert not state.directory.exists()


def test_state_discarded_by_its_user_is_removed_when_that_fails(store):
    state = saved(store, "aa-1")
    with pytest.raises(MachineLostError), state.in_use():
        warm.discard(state)
        raise MachineLostError("it does not restore")
    assert not state.directory.exists()


def test_discarded_state_is_replaced_by_another_of_its_key(store, user, monkeypatch):
    monkeypatch.setattr(warm, "identity", lambda *_: {"image": "x", "name": "web.qcow2"})
    made, said = [], []

    def make(state, *_, directory, say):
        made.append(saved(store, state.directory.name))

    monkeypatch.setattr(warm, "_make", make)

    def find() -> warm.WarmState:
        return warm.find_or_make("web", Settings(memory=1), directory=store, say=said.append)

    store.mkdir(parents=True)
    first = find()
    assert said[0].endswith("; the first time takes minutes")
    History(store.parent / FILE).record("first-boot-web.qcow2", {"saved": 260.0})
    assert find() == first
    user(first)
    warm.discard(first)
    second = find()
    assert second != first
    assert "; the first time usually takes " in said[2]
    assert first.directory.exists()
    assert find() == second
    assert len(made) == 2


def test_discarded_state_does_not_count_as_kept(store, user):
    states = [saved(store, f"{name}-1") for name in ("aa", "bb")]
    user(states[0])
    warm.discard(states[0])
    assert warm.forget(store.parent, keep=1) == [states[0]]
    assert [each.directory.name for each in warm.states(store.parent) if not each.discarded] == [
        "bb-1"
    ]


def test_removed_state_is_a_lost_machine(store):
    state = saved(store, "aa-1")
    shutil.rmtree(state.directory)
    with pytest.raises(MachineLostError, match="was removed"), state.in_use():
        pass


def test_waiter_for_a_removed_state_does_not_get_the_next(store):
    """The waiter has a lock on a directory that is gone."""
    state = saved(store, "aa-1")
    aside = state.directory.with_name("aside")
    with locks.exclusive(state.directory):
        process = subprocess.Popen(
            [sys.executable, "-c", USES, state.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # proc(5): waiters for a lock are listed below it with an arrow.
        waits = re.compile(rf"-> FLOCK .* {process.pid} ")
        retry(lambda _: waits.search(Path("/proc/locks").read_text()), Deadline(60, "it to wait"))
        state.directory.rename(aside)
        saved(store, "aa-1")
    out, error = process.communicate(timeout=300)
    assert (out, "was removed" in error) == ("", True)
