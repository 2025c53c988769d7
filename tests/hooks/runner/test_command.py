"""heat-config, the command for an administrator on the guest."""

import pytest


def test_settings_and_states_are_shown(guest, heat, cfn):
    guest.metadata(cfn(name="a\x1b[31mname"), cfn(id="d-2", group="none"))
    assert "No deployment" in guest.command("status").stdout
    guest.run()
    status = guest.command("status")
    assert status.returncode == 0
    assert "\x1b" not in status.stdout
    assert [line.split()[0] for line in status.stdout.splitlines()] == ["ID", "d-1", "d-2"]
    assert "signalled" in guest.command("status", "d-1").stdout
    assert "finished id=d-2" in guest.command("log", "d-2").stdout
    assert guest.command("log", "d-").returncode == 3
    assert guest.command("log", "no").returncode == 3
    assert guest.command("frobnicate").returncode == 2
    assert guest.command().returncode == 2
    assert guest.command("--help").returncode == 0


@pytest.mark.defect("H11")
def test_the_log_can_be_followed_while_the_tool_runs(guest, heat, cfn, wait_until):
    guest.metadata(cfn(f"echo working; {guest.gate}", group="script"))
    process = guest.start()
    wait_until(lambda: "working" in guest.command("log", "d-1").stdout)
    assert "started" in guest.command("status").stdout
    assert process.poll() is None
    guest.open_gate()
    process.communicate(timeout=60)


def test_rerun_runs_once_more_and_signals_again(guest, heat, cfn):
    guest.run(cfn(), cfn(id="d-2"))
    assert guest.command("rerun", "d-1").returncode == 0
    assert (guest.runs("d-1"), guest.runs("d-2")) == (2, 1)
    assert len(heat.signals) == 3
    assert guest.state_of("d-1") == "signalled"
    guest.metadata(cfn(id="d-2"))
    done = guest.command("rerun", "d-1")
    assert done.returncode == 1
    assert "not among the deployments" in done.stderr


@pytest.mark.parametrize(("status", "exit_status"), [(0, 0), (3, 1)])
def test_rerun_ends_as_the_deployment_does(guest, heat, cfn, replying, status, exit_status):
    """Its status is not the signal's: Heat ignores that of an ended one, and its URL is old."""
    guest.shell_hook("shell", f"echo '{{\"deploy_status_code\":{status}}}'\n")
    assert guest.run(cfn()).status == 0
    replying(403)
    assert guest.command("rerun", "d-1").returncode == exit_status
    assert guest.runs("d-1") == 2


def test_hook_given_the_record_points_to_heat_config_rerun(guest, heat, cfn, run_hook):
    """Under heat-agents that file was the deployment itself, passed again to rerun it."""
    guest.run(cfn())
    answer = run_hook("script.py", (guest.state / "d-1.json").read_bytes())
    assert answer.status == 1
    assert "heat-config rerun" in answer.stderr
