"""The tests of the cloud with each older release of Heat, in the environment of ``--heat``."""

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
#: The files that ask Heat itself for the most: its patches, clients, resources and signals.
OF_HEAT = ("clients", "heat_database", "patches", "software_config", "templates", "transports")
#: Matches the lines about a package in a lock: its version, and the hashes of its files.
PACKAGE = re.compile(r"^([\w-]+)==(?:.*\\\n)*.*\n", re.MULTILINE)

pytestmark = pytest.mark.network


@pytest.fixture(scope="module", params=OLDER, ids=lambda each: each.value)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an older release's environment, which ``hotplate doctor`` makes.

    Packages that only the tests need have the versions of the main lock.
    """
    release: HeatChoice = request.param
    ask = (sys.executable, "-m", "hotplate", "doctor", "--heat", release.value, "--json")
    environ = {**os.environ, "HOTPLATE_CACHE": str(tmp_path_factory.mktemp("cache"))}
    found = json.loads(subprocess.run(ask, env=environ, stdout=subprocess.PIPE).stdout)
    (sentence,) = [
        each["sentence"] for each in found["findings"] if each["name"] == "openstack-heat"
    ]
    assert sentence.startswith(f"version {release.value}.")
    program = Path(sentence.rpartition(" ")[2])
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement")
    lock = (LOCKS / f"{release.value}.txt").read_text()
    installed = {each[1] for each in PACKAGE.finditer(lock)}
    main = PACKAGE.finditer(MAIN_LOCK.read_text())
    more = "".join(each[0] for each in main if each[1] not in installed)
    subprocess.run([program, *install, "/dev/stdin"], input=more, text=True, check=True)
    return program


def passes(python: Path, *tests: Path) -> None:
    """Run tests in an environment, side by side, with the other programs there found first."""
    words = ("-m", "not long", "-n", "4", "--dist", "loadfile", "-p", "no:cacheprovider")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *words, *tests],
        cwd=CLOUD.parents[1],
        env={**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_tests_of_heat_pass_with_an_older_release(python: Path) -> None:
    passes(python, *(CLOUD / f"test_{name}.py" for name in OF_HEAT))


@pytest.mark.long
def test_all_tests_of_the_cloud_pass_with_an_older_release(python: Path) -> None:
    passes(python, CLOUD)
