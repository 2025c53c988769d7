"""All tests of the cloud with each older release of Heat, in the environment of ``--heat``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.settings import HeatChoice

CLOUD = Path(__file__).parent
OLDER = [each for each in HeatChoice if (CLOUD / f"heat-{each.value}.txt").is_file()]


@pytest.mark.long
@pytest.mark.network
@pytest.mark.parametrize("release", OLDER, ids=lambda each: each.value)
def test_cloud_passes_with_an_older_heat(release: HeatChoice, tmp_path: Path) -> None:
    """The tests' packages are added as the lock of the release has them."""
    ask = (sys.executable, "-m", "hotplate", "doctor", "--heat", release.value, "--json")
    environ = {**os.environ, "HOTPLATE_CACHE": str(tmp_path)}
    found = json.loads(subprocess.run(ask, env=environ, stdout=subprocess.PIPE).stdout)
    (sentence,) = [
        each["sentence"] for each in found["findings"] if each["name"] == "openstack-heat"
    ]
    assert sentence.startswith(f"version {release.value}.")
    python = Path(sentence.rpartition(" ")[2])
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement")
    subprocess.run([python, *install, CLOUD / f"heat-{release.value}.txt"], check=True)
    tests = (CLOUD, "-m", "not long", "-n", "4", "--dist", "loadfile", "-p", "no:cacheprovider")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *tests],
        cwd=CLOUD.parents[1],
        env={**environ, "PATH": f"{python.parent}{os.pathsep}{environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
