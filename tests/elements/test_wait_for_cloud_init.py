"""The first run waits until cloud-init has done its part, but not for ever."""

import os
from pathlib import Path

import pytest
from programs import completed, program

STEP = (
    Path(__file__).resolve().parents[2]
    / "elements/os-collect-config/os-refresh-config/pre-configure.d/10-wait-for-cloud-init"
)


def run(root: Path, queued: str, defaults: str = "", start: str = ":") -> list[str]:
    """Run the step where these units have a job; return the units it waited for."""
    (root / "etc/default").mkdir(parents=True, exist_ok=True)
    (root / "run").mkdir(exist_ok=True)
    (root / "etc/default/os-collect-config").write_text(defaults)
    program(
        root / "systemctl",
        'case "$1" in\n'
        f'list-jobs) case " {queued} " in *" $3 "*) echo "7 $3 start waiting";; esac;;\n'
        f"start) echo $2 >> {root}/waited; {start};;\n"
        "esac",
    )
    result = completed(
        [STEP], env={"PATH": f"{root}:{os.environ['PATH']}", "HEAT_AGENT_ROOT": str(root)}
    )
    assert result.returncode == 0, result.stderr
    waited = root / "waited"
    return waited.read_text().split() if waited.exists() else []


BOOT = "basic.target cloud-config.service cloud-final.service"


@pytest.mark.parametrize(
    ("queued", "defaults", "expected"),
    [
        (BOOT, "", ["basic.target", "cloud-config.service"]),
        ("cloud-config.service", "", ["cloud-config.service"]),
        ("", "", []),
        (BOOT, "HEAT_WAIT_FOR=cloud-final.service", ["basic.target", "cloud-final.service"]),
        (BOOT, "HEAT_WAIT_FOR=none", ["basic.target"]),
    ],
)
def test_step_waits_for_the_queued_stages_of_this_boot(
    queued: str, defaults: str, expected: list[str], tmp_path: Path
) -> None:
    assert run(tmp_path, queued, defaults) == expected


def test_failing_stage_does_not_delay_deployments(tmp_path: Path) -> None:
    assert run(tmp_path, BOOT, start="exit 1") == ["basic.target", "cloud-config.service"]


def test_hanging_stage_does_not_delay_deployments(tmp_path: Path) -> None:
    waited = run(tmp_path, "cloud-config.service", "HEAT_WAIT_SECONDS=3", "sleep 50")
    assert waited == ["cloud-config.service"]


def test_step_waits_once_per_boot(tmp_path: Path) -> None:
    assert run(tmp_path, BOOT) == ["basic.target", "cloud-config.service"]
    (tmp_path / "waited").unlink()
    assert run(tmp_path, BOOT) == []


def test_unwritable_mark_stops_no_deployment(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/os-collect-config.waited").symlink_to(tmp_path / "no/such/place")
    assert run(tmp_path, BOOT) == ["basic.target", "cloud-config.service"]
