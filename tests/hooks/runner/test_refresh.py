"""The runner as os-refresh-config runs it: the real program, the real phases, our dib-run-parts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "elements" / "os-refresh-config" / "os-refresh-config-files" / "dib-run-parts"


@pytest.fixture
def refresh(guest):
    """Run os-refresh-config over a tree that holds 55-heat-config, and a script after it."""
    program = shutil.which(
        "os-refresh-config",
        path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    if program is None:
        pytest.skip("os-refresh-config is not on this host; tools/setup test installs it")
    base = guest.root / "orc"
    for name in ("pre-configure", "configure", "post-configure", "migration"):
        (base / f"{name}.d").mkdir(parents=True)
    shutil.copy2(ROOT / "hooks" / "55-heat-config", base / "configure.d")
    after = base / "post-configure.d" / "99-after"
    after.write_text(f"#!/bin/sh\necho ran >>{guest.root}/after\n")
    after.chmod(0o755)
    (guest.root / "bin").mkdir()
    shutil.copy2(PARTS, guest.root / "bin" / "dib-run-parts")
    (guest.root / "bin" / "dib-run-parts").chmod(0o755)

    def run():
        return subprocess.run(
            [program, "--lockfile", str(guest.root / "lock")],
            env={
                **guest.environment,
                "PATH": f"{guest.root}/bin:{os.environ['PATH']}",
                "OS_REFRESH_CONFIG_BASE_DIR": str(base),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.defect("A5")
@pytest.mark.parametrize("name", ["50-heat-config-docker-cmd", "50-heat-config-docker-compose"])
def test_a_clean_up_that_cannot_be_done_holds_no_deployment_up(guest, heat, cfn, refresh, name):
    shutil.copy2(ROOT / "hooks" / name, guest.root / "orc" / "configure.d")
    guest.settings["HEAT_DOCKER_CMD"] = guest.settings["HEAT_DOCKER_COMPOSE_CMD"] = "/no/such"
    work = guest.root / "compose"
    (work / "left").mkdir(parents=True)
    (work / "left" / ".deployment.json").write_text('{"deployment": "of a stack that is gone"}')
    (work / "left" / "docker-compose.yml").write_text("services: {}\n")
    guest.settings["HEAT_DOCKER_COMPOSE_WORKING"] = str(work)
    collected = guest.root / "cfn.json"
    collected.write_text('{"deployments": []}')
    guest.settings["OS_CONFIG_FILES"] = str(collected)
    guest.metadata(cfn())
    done = refresh()
    assert done.returncode == 0, done.stderr
    assert f"{name}: " in done.stderr, "it had something to say"
    assert guest.state_of("d-1") == "signalled"


def test_a_signal_that_is_not_accepted_has_the_agent_come_again(
    guest, heat, cfn, refresh, replying
):
    replying(503)
    guest.metadata(cfn(), cfn(id="d-2", group="os-apply-config"))
    assert refresh().returncode != 0
    assert not (guest.root / "after").exists()
    assert guest.runs("d-1") == 1
    replying(200)
    done = refresh()
    assert done.returncode == 0, done.stderr
    assert guest.runs("d-1") == 1
    assert guest.state_of("d-1") == guest.state_of("d-2") == "signalled"
    assert (guest.root / "after").read_text() == "ran\n"
    assert "heat-config: signalled id=d-1" in done.stderr
