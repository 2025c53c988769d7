"""A container goes with its harness, however that ends, and leaves nothing on the host."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_container
from small_disk import small_disk
from tiny_container import Made, attached, of_namespace

from hotplate.container import cgroups
from hotplate.container.machine import LAYER
from hotplate.container.root import Root
from hotplate.errors import HostError
from hotplate.timing.deadline import Deadline

pytestmark = [pytest.mark.root, pytest.mark.tool("systemd-nspawn")]

Make = Callable[..., Made]

#: Seconds until all is gone.
SECONDS = 60
#: Arguments: the root's file, a directory, the moment.
HARNESS = """
import pathlib, sys, time
for folder in ("container", "machine", "network"):
    sys.path.insert(0, f"{sys.argv[4]}/{folder}")
import tiny_container
root, place = (pathlib.Path(each) for each in sys.argv[1:3])
with tiny_container.containers(tiny_container.root_of(root), place) as make:
    made = make(start=False)
    opened = made.machine._open
    def say() -> None:
        opened()
        print(made.machine._keeper.pid, flush=True)
    made.machine._open = say
    made.machine.start()
    if sys.argv[3] == "up":
        tiny_container.attached(made.machine)
    print(made.machine.pid, flush=True)
    time.sleep(1000)
"""


@dataclass(frozen=True)
class Traces:
    """All that a helper's container could leave on the host.

    :param helper: the process id of its helper.
    :param mounts: its mount namespace.
    :param network: its network namespace.
    """

    helper: int
    mounts: str
    network: str
    directory: Path

    @classmethod
    def of(cls, helper: int, directory: Path) -> Traces:
        spaces = Path(f"/proc/{helper}/ns")
        names = (str((spaces / kind).readlink()) for kind in ("mnt", "net"))
        return cls(helper, *names, directory)

    def left(self, before: float = 0.0) -> list[str]:
        """Return everything that is still there, in words; see :func:`of_namespace`."""
        spaces = {"mnt": self.mounts, "net": self.network}
        found = [
            f"process {each} in {space}"
            for kind, space in spaces.items()
            for each in of_namespace(kind, space, before=before)
        ]
        found += [f"group {each}" for each in self.groups() if processes(each)]
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [f"mount: {each}" for each in mounts if " - tmpfs hotplate " in each]
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                if str(self.directory) in backing.read_text():
                    found.append(f"loop device: {backing}")
        return found

    def groups(self) -> list[Path]:
        name = cgroups.name_of(self.helper)
        return [each / name for each in cgroups._own().values() if (each / name).is_dir()]

    def check(self) -> None:
        """Wait up to a limit until nothing is left."""
        until = time.monotonic() + SECONDS
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        while (left := self.left(now)) and time.monotonic() < until:
            time.sleep(0.05)
        assert left == []

    def check_groups(self) -> None:
        """Wait up to a limit until its groups are gone; its helper ends after its processes."""
        until = time.monotonic() + SECONDS
        while self.groups() and time.monotonic() < until:
            time.sleep(0.05)
        assert self.groups() == []


def processes(group: Path) -> list[str]:
    found: list[str] = []
    # A group may go while it is listed.
    with contextlib.suppress(OSError):
        for listed in group.rglob("cgroup.procs"):
            found += listed.read_text().split()
    return found


def host_state() -> dict[str, list[str]]:
    """Return the host's own interfaces and nspawn's files, which no container of ours changes."""
    folders = ("/sys/class/net", "/run/netns", "/run/systemd/nspawn", "/run/systemd/machines")
    state = {}
    for folder in folders:
        names = []
        if Path(folder).exists():
            names = sorted(str(each) for each in Path(folder).rglob("*") if each.name != "lo")
        state[folder] = names
    return state


@pytest.fixture(autouse=True)
def _host_as_before() -> Iterator[None]:
    # The folder itself is nspawn's, and stays.
    Path("/run/systemd/nspawn").mkdir(parents=True, exist_ok=True)
    before = host_state()
    yield
    assert host_state() == before


@contextlib.contextmanager
def harness(root: Root, place: Path, moment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process with a container; its lines are the helper's and nspawn's process ids."""
    # The root's file is below the directory that the traces are searched for.
    own = place / "root.ext4"
    if not own.exists():
        subprocess.run(["cp", "--sparse=always", root.path, own], check=True)
    arguments = [own, place, moment, Path(__file__).parents[1]]
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        process.kill()
        assert process.stderr is not None
        raise AssertionError(process.stderr.read())
    return int(text)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.1, 0.3])
def test_kill_of_the_harness_while_it_starts_leaves_nothing(
    tiny: Root, tmp_path: Path, seconds: float
) -> None:
    with harness(tiny, tmp_path, "start") as process:
        traces = Traces.of(line(process), tmp_path)
        time.sleep(seconds)
        process.kill()
        traces.check()
    traces.check_groups()


@pytest.mark.parametrize("moment", ["start", "up"])
def test_kill_of_the_harness_with_a_running_container_leaves_nothing(
    tiny: Root, tmp_path: Path, moment: str
) -> None:
    with harness(tiny, tmp_path, moment) as process:
        traces = Traces.of(line(process), tmp_path)
        line(process)
        assert any("loop device" in each for each in traces.left())
        assert traces.groups()
        process.kill()
        traces.check()
    traces.check_groups()


@pytest.mark.parametrize("moment", ["start", "up"])
def test_kill_of_the_helper_leaves_nothing_but_groups_which_the_next_removes(
    tiny: Root, tmp_path: Path, make: Make, moment: str
) -> None:
    with harness(tiny, tmp_path, moment) as process:
        helper = line(process)
        traces = Traces.of(helper, tmp_path)
        line(process)
        os.kill(helper, signal.SIGKILL)
        # The harness still runs.
        traces.check()
        assert process.poll() is None
    # Another worker's container may have removed them already.
    make()
    traces.check_groups()


def test_kill_of_the_helper_is_a_lost_container_that_can_be_started_again(make: Make) -> None:
    made = make()
    attached(made.machine).run("echo kept >/root/kept; sync").check()
    keeper = made.machine._keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (-9, "lost")
    assert not made.machine.running
    made.machine.start()
    assert attached(made.machine).run("test -d /root").rc == 0


@pytest.mark.parametrize("moment", ["start", "up"])
def test_interrupt_of_the_harness_leaves_nothing(tiny: Root, tmp_path: Path, moment: str) -> None:
    with harness(tiny, tmp_path, moment) as process:
        traces = Traces.of(line(process), tmp_path)
        if moment == "up":
            line(process)
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
        traces.check()
    traces.check_groups()


def test_kill_switch_leaves_nothing(make: Make, tmp_path: Path) -> None:
    made = make()
    attached(made.machine)
    keeper = made.machine._keeper
    assert keeper is not None
    traces = Traces.of(keeper.pid, tmp_path)
    assert traces.left()
    made.machine.kill()
    traces.check()
    traces.check_groups()


def test_groups_in_use_are_not_removed_by_the_next(make: Make) -> None:
    first, second = make(), make(name="second")
    assert attached(first.machine).run("echo on").text == "on"
    second.machine.kill()
    make(name="third")
    assert attached(first.machine).run("echo on").text == "on"
    assert first.machine.resident_mib() > 0


def test_disk_without_room_for_the_layer_is_refused_and_leaves_nothing(
    tiny: Root, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", "64k") as small:
        with (
            tiny_container.containers(tiny, small) as make,
            pytest.raises(HostError, match="cannot mount the root of a container"),
        ):
            make(layer_bytes=1 << 30)
        assert not list(small.rglob(LAYER))


def test_host_disk_that_fills_up_is_the_guests_error_and_leaves_nothing(
    tiny: Root, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", "8M") as small:
        with tiny_container.containers(tiny, small) as make:
            made = make(layer_bytes=1 << 30)
            shell = attached(made.machine)
            keeper = made.machine._keeper
            assert keeper is not None
            traces = Traces.of(keeper.pid, small)
            done = shell.run("head -c 30000000 /dev/zero >/root/all; sync; echo over")
            assert "over" in done.text
            assert shell.run("echo on").text == "on"
            made.machine.kill()
        traces.check()
        traces.check_groups()
