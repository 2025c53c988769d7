"""The tests of the cloud with each older release of Heat, in the environment of ``--heat``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hotplate.heat_releases import is_installed
from hotplate.settings import HeatChoice

CLOUD = Path(__file__).parent
OLDER = [each for each in HeatChoice if not is_installed(each)]
#: The files that meet what differs between releases: patches, clients, deployments and signals.
OF_HEAT = ("clients", "patches", "software_config", "transports")

pytestmark = pytest.mark.network


@pytest.fixture(scope="module", params=OLDER, ids=lambda each: each.value)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with the packages of an older release, and behind them those of this one.

    ``hotplate doctor`` makes the environment of the release once. What only the tests need comes
    from here, so it stays as users have it.
    """
    release: HeatChoice = request.param
    ask = (sys.executable, "-m", "hotplate", "doctor", "--heat", release.value, "--json")
    found = json.loads(subprocess.run(ask, stdout=subprocess.PIPE).stdout)
    (sentence,) = [
        each["sentence"] for each in found["findings"] if each["name"] == "openstack-heat"
    ]
    assert sentence.startswith(f"version {release.value}.")
    environment = Path(sentence.rpartition(" ")[2]).parents[1]
    folder = tmp_path_factory.mktemp("layered")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    layers = (environment, Path(sys.prefix))
    (packages(folder) / "layers.pth").write_text("".join(f"{packages(each)}\n" for each in layers))
    for program in (program for each in layers for program in (each / "bin").iterdir()):
        if not (link := folder / "bin" / program.name).exists():
            link.symlink_to(program)
    return folder / "bin" / "python"


def packages(environment: Path) -> Path:
    base = {"base": str(environment), "platbase": str(environment)}
    return Path(sysconfig.get_path("purelib", "venv", base))


def passes(python: Path, *tests: Path) -> None:
    """Run tests side by side, with the programs beside that Python found first."""
    # Not more workers: each loads Heat, and others run beside this test.
    words = ("-m", "not long", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider")
    # The platformdirs of an older release has no plug-in yet.
    words += ("-p", "no:platformdirs")
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
def test_other_tests_of_the_cloud_pass_with_an_older_release(python: Path) -> None:
    files = {each for each in CLOUD.glob("test_*.py") if each.stem[5:] not in OF_HEAT}
    passes(python, *sorted(files - {Path(__file__)}))
