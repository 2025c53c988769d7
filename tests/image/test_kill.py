"""SIGKILL of the harness at any moment leaves nothing, and the next run works."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root]

MOMENTS = 10


def test_ten_random_moments(bookworm, tmp_path, machines, test_image, nothing_left):
    chance = random.Random(2)
    met = 0
    for _ in range(MOMENTS):
        child = subprocess.Popen(
            [sys.executable, "-m", "hotplate", "test", bookworm, "--artifacts", tmp_path / "a"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.2, 15))
        met += bool(machines())
        child.send_signal(signal.SIGKILL)
        child.wait()
        end = time.monotonic() + 10
        while machines() and time.monotonic() < end:
            time.sleep(0.05)
        assert machines() == []
    # The moments are worth something only if QEMU was up at some of them.
    assert met >= 2
    done = test_image(bookworm)
    assert done.status == 0, done.stdout
