"""A SIGKILL of the harness at any moment leaves nothing behind; the next run works.

Every CI run kills a session with machines that boot nothing, in ``tests/cli/test_up.py``.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hotplate.image.inspect import Image
from hotplate.testbed import warm_state
from tests.booted.run_settings import settings_of_this_run

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]

MOMENTS = 2
SECONDS = 1800

TESTS = """
    import pytest

    @pytest.mark.parametrize("number", range(2))
    def test_hook(server, number):
        done = server.deploy(group="script", config="#!/bin/sh\\necho out\\n").wait()
        assert done.status == "COMPLETE", server.diagnosis()
"""


def all_ended(machines) -> None:
    """Assert that QEMU ends within moments of the process that started it."""
    end = time.monotonic() + 60
    while machines() and time.monotonic() < end:
        time.sleep(0.05)
    assert machines() == []


def one_is_up(machines, directory: Path) -> None:
    """Wait up to a limit for a QEMU of the run in that directory."""
    end = time.monotonic() + 600
    while not machines(directory) and time.monotonic() < end:
        time.sleep(0.05)


def has_workers(child: subprocess.Popen[bytes]) -> None:
    """Wait up to a limit for a process that a run has started."""
    end = time.monotonic() + 120
    while child.poll() is None and not children(child.pid) and time.monotonic() < end:
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_kill_of_a_run_at_random_moments_leaves_nothing(
    without_cloud_init, tmp_path, machines, test_image, nothing_left
):
    chance = random.Random(2)
    met = 0
    for number in range(MOMENTS):
        # One directory per run: a QEMU that was just being started when its run was killed may
        # show up in the next run; it ends at once.
        folder = tmp_path / str(number)
        child = subprocess.Popen(
            [sys.executable, "-m", "hotplate", "test", without_cloud_init, "--artifacts", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if number % 2:
            # However late QEMU is up on a busy host.
            one_is_up(machines, folder)
        time.sleep(chance.uniform(0.2, 7.5))
        met += bool(machines(folder))
        child.send_signal(signal.SIGKILL)
        child.wait()
        all_ended(machines)
    # The test proves something only if QEMU was up at some of the moments.
    assert met >= MOMENTS // 2
    # The killed runs do not disturb the next one, which passes and writes JUnit.
    words = ("--machine", "container", "--junit", tmp_path / "result.xml")
    done = test_image(without_cloud_init, *words)
    assert done.status == 0, done.stdout
    assert "PASSED" in done.stdout
    assert 'failures="0"' in (tmp_path / "result.xml").read_text()


class Pytest:
    """A run of pytest with the plug-in, in a folder with two short tests."""

    def __init__(self, image: Path, folder: Path, *words: str) -> None:
        (folder / "test_hooks.py").write_text(textwrap.dedent(TESTS))
        self.folder = folder
        self.command = [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"),
            *(f"--rootdir={folder}", f"--image={image}", "--artifacts", str(folder / "a"), *words),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(
                self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def passes(self) -> None:
        assert self.start().wait(SECONDS) == 0, (self.folder / "log").read_text()


@pytest.fixture
def restored(without_cloud_init, tmp_path) -> Path:
    """The image whose servers are restored, so that no run is killed in its first boot."""
    image = Image.open(without_cloud_init)
    warm_state.find_or_make(image, settings_of_this_run(), directory=tmp_path / "boot", say=print)
    return without_cloud_init


def test_kill_of_pytest_at_random_moments_leaves_nothing(
    restored, tmp_path, machines, nothing_left
):
    tests = Pytest(restored, tmp_path)
    # The process that asks QEMU for its version runs in the folder itself.
    artifacts = tmp_path / "a"
    chance = random.Random(3)
    met = 0
    for number in range(MOMENTS):
        child = tests.start()
        if number % 2:
            # However late QEMU is up on a busy host.
            one_is_up(machines, artifacts)
            time.sleep(chance.uniform(0, 3))
        else:
            time.sleep(chance.uniform(0.5, 15))
        met += bool(machines(artifacts))
        child.kill()
        child.wait()
        all_ended(machines)
    assert met >= MOMENTS // 2
    tests.passes()


def test_kill_of_a_worker_at_random_moments_leaves_nothing(
    restored, tmp_path, machines, nothing_left
):
    """pytest replaces the worker; then pytest is killed as well."""
    tests = Pytest(restored, tmp_path, "-n", "2")
    chance = random.Random(4)
    killed = 0
    for number in range(MOMENTS):
        child = tests.start()
        if number % 2:
            # However late the workers are there on a busy host.
            has_workers(child)
        time.sleep(chance.uniform(2, 15))
        if workers := children(child.pid):
            # One may end by itself meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                killed += 1
        time.sleep(chance.uniform(0, 5))
        child.kill()
        child.wait()
        all_ended(machines)
    assert killed >= MOMENTS // 2
    tests.passes()
