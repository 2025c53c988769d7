"""heat-config-notify: the arguments are heat-agents', the exit status is true."""

import json
import sys
from pathlib import Path

import pytest
from programs import completed

NOTIFY = Path(__file__).resolve().parents[3] / "hooks" / "heat-config-notify"


@pytest.fixture
def notify(guest):
    """Run heat-config-notify on a config (a document, or text) with a signal on stdin."""

    def run(config, signal, *more):
        path = guest.root / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return completed(
            [sys.executable, "-IS", str(NOTIFY), str(path), *more],
            env=guest.environment,
            input=signal,
        )

    return run


def test_an_accepted_signal_is_status_0(notify, heat, cfn):
    done = notify(cfn(), '{"deploy_stdout": "x"}')
    assert (done.returncode, done.stderr) == (0, "")
    assert heat.signals == [{"deploy_stdout": "x"}]


def test_empty_signal_means_success(notify, heat, cfn):
    assert notify(cfn(), "").returncode == 0
    assert heat.signals == [{}]


@pytest.mark.defect("N1", "N2", "N6")
@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_signal_not_accepted_is_status_1_with_a_reason(notify, heat, cfn, replying, status):
    replying(status)
    done = notify(cfn(), "{}")
    assert done.returncode == 1
    assert str(status) in done.stderr
    assert "Signature" not in done.stderr
    assert len(heat.requests) == (3 if status >= 500 else 1)


@pytest.mark.parametrize("signal", ["junk", "[1]", "5", '{"cut'])
def test_malformed_signal_is_not_sent_as_success(notify, heat, cfn, signal):
    done = notify(cfn(), signal)
    assert done.returncode == 2
    assert heat.requests == []


def test_no_way_to_signal_is_status_0(notify, heat, make_deployment):
    done = notify(make_deployment(), "{}")
    assert done.returncode == 0
    assert heat.requests == []


@pytest.mark.defect("N3")
def test_a_huge_signal_without_stdout_is_trimmed(notify, heat, cfn):
    signal = json.dumps(
        {"r": "é" * 2_000_000, "list": ["x" * 1000] * 2000, "deploy_status_code": 0}
    )
    assert notify(cfn(), signal).returncode == 0
    assert len(heat.requests[0].body) <= 950_000
    assert "left out" in heat.signals[0]["r"]
    assert "left out" in heat.signals[0]["list"]
    assert heat.signals[0]["deploy_status_code"] == 0


def test_state_of_the_runner_can_be_sent_by_hand(guest, notify, heat, cfn, replying):
    replying(503)
    guest.run(cfn())
    replying(200)
    heat.requests.clear()
    record = (guest.state / "d-1.json").read_text()
    assert notify(record, (guest.state / "d-1.notify.json").read_text()).returncode == 0
    assert heat.signals[0]["deploy_stdout"] == "out"


def test_usage_is_printed(notify, cfn, guest):
    assert notify(cfn(), "", "too", "many").returncode == 2
    assert notify("no json", "").returncode == 2
    assert notify("[]", "").returncode == 2
    done = completed([sys.executable, "-IS", str(NOTIFY), "--help"], env=guest.environment)
    assert done.returncode == 0
    assert "usage" in done.stdout
    done = completed([sys.executable, "-IS", str(NOTIFY), "/no/such"], env=guest.environment)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
