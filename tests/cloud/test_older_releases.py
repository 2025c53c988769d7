"""All tests of the cloud with each older release of Heat, in the environment of ``--heat``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.heat_releases import LOCKS, is_installed
from hotplate.settings import HeatChoice

CLOUD = Path(__file__).parent
MAIN_LOCK = CLOUD.parents[1] / "tools" / "constraints.txt"
OLDER = [each for each in HeatChoice if not is_installed(each)]
#: Matches the lines about a package in a lock: its version, and the hashes of its files.
PACKAGE = re.compile(r"^([\w-]+)==(?:.*\\\n)*.*\n", re.MULTILINE)


@pytest.mark.long
@pytest.mark.network
@pytest.mark.parametrize("release", OLDER, ids=lambda each: each.value)
def test_cloud_passes_with_an_older_heat(release: HeatChoice, tmp_path: Path) -> None:
    """Packages that only the tests need have the versions of the main lock."""
    ask = (sys.executable, "-m", "hotplate", "doctor", "--heat", release.value, "--json")
    environ = {**os.environ, "HOTPLATE_CACHE": str(tmp_path)}
    found = json.loads(subprocess.run(ask, env=environ, stdout=subprocess.PIPE).stdout)
    (sentence,) = [
        each["sentence"] for each in found["findings"] if each["name"] == "openstack-heat"
    ]
    assert sentence.startswith(f"version {release.value}.")
    python = Path(sentence.rpartition(" ")[2])
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement")
    lock = (LOCKS / f"{release.value}.txt").read_text()
    installed = {each[1] for each in PACKAGE.finditer(lock)}
    main = PACKAGE.finditer(MAIN_LOCK.read_text())
    more = "".join(each[0] for each in main if each[1] not in installed)
    subprocess.run([python, *install, "/dev/stdin"], input=more, text=True, check=True)
    tests = (CLOUD, "-m", "not long", "-n", "4", "--dist", "loadfile", "-p", "no:cacheprovider")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *tests],
        cwd=CLOUD.parents[1],
        env={**environ, "PATH": f"{python.parent}{os.pathsep}{environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout
