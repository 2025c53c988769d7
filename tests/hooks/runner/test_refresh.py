"""The runner as os-refresh-config runs it: upstream's with our dib-run-parts, and our own.

Ours runs the runner in a fork of itself.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).resolve().parents[3]
PARTS = ROOT / "elements" / "os-refresh-config" / "os-refresh-config-files" / "dib-run-parts"


def upstream():
    """The os-refresh-config from the index."""
    program = shutil.which(
        "os-refresh-config",
        path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )
    if program is None:
        pytest.skip("os-refresh-config is not on this host; tools/setup test installs it")
    return program


@pytest.fixture(params=["upstream", "ours"])
def refresh(guest, request):
    """Run os-refresh-config over a tree that holds 55-heat-config, and a script after it."""
    program = upstream() if request.param == "upstream" else ROOT / "hooks/os-refresh-config"
    base = guest.root / "orc"
    for name in ("pre-configure", "configure", "post-configure", "migration"):
        (base / f"{name}.d").mkdir(parents=True)
    shutil.copy2(ROOT / "hooks" / "55-heat-config", base / "configure.d")
    programs.program(base / "post-configure.d" / "99-after", f"echo ran >>{guest.root}/after")
    (guest.root / "bin").mkdir()
    shutil.copy2(PARTS, guest.root / "bin" / "dib-run-parts")

    def run():
        return programs.completed(
            [program, "--lockfile", str(guest.root / "lock")],
            env={
                **guest.environment,
                "PATH": f"{guest.root}/bin:{os.environ['PATH']}",
                "OS_REFRESH_CONFIG_BASE_DIR": str(base),
            },
            timeout=120,
        )

    return run


@pytest.mark.defect("A5")
@pytest.mark.parametrize("name", ["50-heat-config-docker-cmd", "50-heat-config-docker-compose"])
def test_failed_clean_up_does_not_delay_a_deployment(guest, heat, cfn, refresh, name):
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


@pytest.mark.defect("A5")
@pytest.mark.parametrize("status", [403, 404, 503])
def test_signal_not_accepted_does_not_delay_a_phase(guest, heat, cfn, refresh, replying, status):
    replying(status)
    guest.metadata(cfn(), cfn(id="d-2", group="os-apply-config"))
    assert refresh().returncode == 0
    assert (guest.root / "after").read_text() == "ran\n"
    assert guest.runs("d-1") == 1
    states = {guest.state_of("d-1"), guest.state_of("d-2")}
    assert states == {"undeliverable" if status == 404 else "finished"}


def test_failure_to_record_makes_the_agent_run_again(guest, cfn, refresh):
    guest.state.parent.joinpath("deployed").write_text("in the way")
    guest.metadata(cfn())
    assert refresh().returncode != 0
    assert not (guest.root / "after").exists()
    guest.state.unlink()
    assert refresh().returncode == 0
    assert (guest.root / "after").read_text() == "ran\n"


@pytest.fixture
def agent(guest):
    """Start our os-collect-config, whose command is 55-heat-config."""
    local = guest.root / "local"
    local.mkdir()
    (local / "data.json").write_text("{}")
    runner = ROOT / "hooks" / "55-heat-config"
    text = f"echo ran >>{guest.root}/commands\nexec {sys.executable} -IS {runner}"
    command = programs.program(guest.root / "command", text)
    configuration = guest.root / "occ.conf"
    configuration.write_text(
        f"[DEFAULT]\ncommand = {command}\ncollectors = local\ncachedir = {guest.root}/cache\n"
        f"backup_cachedir = {guest.root}/backup\npolling_interval = 1\n[local]\npath = {local}\n"
    )
    resend = (sys.executable, "-IS", str(ROOT / "hooks" / "heat-config"), "resend", "--due")
    arguments = ["--config-file", str(configuration)]
    program = (
        f"import sys\nsys.path.insert(0, {str(ROOT / 'hooks')!r})\n"
        "from heat_agent.collect import program, waiting\n"
        f"seams = program.Seams(idle=lambda: waiting.resend({resend!r}))\n"
        f"sys.exit(program.main({arguments!r}, seams))\n"
    )

    @contextlib.contextmanager
    def start():
        with (guest.root / "agent.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**guest.environment, "HOME": str(guest.root)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    return start


def test_agent_sends_waiting_signals_without_running_phases(
    guest, heat, cfn, replying, agent, wait_until
):
    """Otherwise all phases of all elements would run at each poll while one signal is refused."""
    replying(503)
    guest.metadata(cfn())
    with agent():
        wait_until(lambda: len(heat.requests) > 6, 300)  # three a pass: the third pass at least
        replying(200)
        wait_until(lambda: not (guest.state / ".waiting").exists(), 300)
    assert guest.state_of("d-1") == "signalled"
    assert (guest.root / "commands").read_text() == "ran\n"
    assert guest.runs("d-1") == 1
    assert "Traceback" not in (guest.root / "agent.log").read_text()
