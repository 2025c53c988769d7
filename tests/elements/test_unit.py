"""The agent's unit: its protections of the agent, tested where that needs no systemd."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"
UNIT = ELEMENTS / "os-collect-config/os-collect-config-files/os-collect-config.service"


def settings() -> dict[str, list[str]]:
    """Return all settings of the unit; a unit file may repeat one."""
    options: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            options.setdefault(key, []).append(value)
    return options


def unit_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in settings()["Environment"])


def collect_local(
    directory: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run the real agent's local collector once on a directory, with this environment."""
    return completed(
        [
            *(Path(sys.executable).with_name("os-collect-config"), "--print"),
            *("--config-file", directory / "conf", "--local-path", directory / "data", "local"),
        ],
        env={**environment, "PATH": os.environ["PATH"]},
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "conf").write_text("[DEFAULT]\n")
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data/mine").write_text('{"a": 1}')
    return tmp_path


def test_local_collector_works_in_the_units_locale(directory: Path) -> None:
    result = collect_local(directory, unit_environment())
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"mine": {"a": 1}}


@pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="Python 3.12 and later get through this by themselves"
)
def test_local_collector_needs_that_locale(directory: Path) -> None:
    """If this fails the agent was fixed, and the unit's LC_ALL can be removed."""
    locales = completed(["locale", "-a"]).stdout
    if "en_us" in locales.lower():
        pytest.skip("this host has the locale en_US, with which the agent gets through")
    assert collect_local(directory, {"LC_ALL": "C.UTF-8"}).returncode != 0


def test_unit_restarts_the_agent_after_any_end() -> None:
    unit = settings()
    # SIGPIPE (the journal went away) is a clean end for "on-failure".
    assert unit["Restart"] == ["always"]
    assert unit["StartLimitIntervalSec"] == ["0"]


def test_restart_of_the_agent_keeps_processes_of_deployments() -> None:
    assert settings()["KillMode"] == ["process"]


def test_unit_waits_for_no_unit_that_waits_for_it() -> None:
    """multi-user.target wants it, and cloud-final.service comes after that on Debian."""
    after = set(" ".join(settings()["After"]).split())
    assert after.isdisjoint({"cloud-final.service", "multi-user.target", "network-online.target"})
    assert settings()["WantedBy"] == ["multi-user.target"]
