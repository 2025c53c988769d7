"""The verdict's twenty faults, planted in running guests, each named correctly.

Most faults are planted in a restored guest; the rest need a boot of their own.  Three are planted
under QEMU too: of the agent, of a hook and of the network.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hotplate.events import classify
from hotplate.plugin.server import ServerUnderTest
from hotplate.verdict.stages import Stage
from tests.booted.user_faults import AGENT, RESTART, START, STOP, diagnosed

pytestmark = pytest.mark.boots

HOOK = "/usr/libexec/heat-config/hooks/script"
NOTHING = "#!/bin/sh\n"


@pytest.fixture
def server(pool) -> Iterator[ServerUnderTest]:
    server = pool.server()
    yield server
    pool.testbed.cloud.faults.clear()
    pool.give_back(server)


@pytest.fixture
def cloud(pool):
    return pool.testbed.cloud


@pytest.fixture
def events(pool):
    return pool.testbed.events


def assert_named(server, fault, stage=None, *, group="script", config=NOTHING):
    """Deploy, and check that the failure is diagnosed as this fault; return the diagnosis."""
    deployment = server.deploy(group=group, config=config)

    def is_it(diagnosis):
        return diagnosis.fault == fault and stage in (None, diagnosis.stage)

    diagnosis = diagnosed(server, deployment, is_it)
    assert diagnosis is not None
    assert is_it(diagnosis), diagnosis
    return diagnosis


# -- in a guest that runs ------------------------------------------------------------------------


def test_healthy_guest_has_no_diagnosis(server):
    done = server.deploy(group="script", config=NOTHING).wait()
    assert done.status == "COMPLETE"
    assert server.diagnosis() is None


NOT_INSTALLED = (
    f"systemctl stop {AGENT} && rm -f /etc/systemd/system/{AGENT}.service && "
    "systemctl daemon-reload && { systemctl reset-failed || true; }"
)
# The agent's interpreter imports a broken module instead of the right one.
CRASHING = (
    "mkdir -p /run/broken /run/systemd/system/os-collect-config.service.d && "
    "echo 'raise ImportError(\"this module is broken\")' > /run/broken/os_collect_config.py && "
    "printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/env PYTHONPATH=/run/broken python3 "
    '-c "import os_collect_config"\\n\' '
    "> /run/systemd/system/os-collect-config.service.d/broken.conf && "
    f"systemctl daemon-reload && {RESTART}"
)


@pytest.mark.parametrize(
    ("command", "fault", "stage"),
    [
        (NOT_INSTALLED, "agent-missing", Stage.AGENT_POLLED),
        (f"systemctl disable --now {AGENT}", "agent-disabled", Stage.AGENT_POLLED),
        (CRASHING, "agent-crashing", Stage.AGENT_POLLED),
        (f"chmod a-x {HOOK}", "hook-not-executable", Stage.HOOK_STARTED),
    ],
)
def test_fault_made_by_a_command_is_named(server, command, fault, stage):
    server.run(command).check()
    assert_named(server, fault, stage)


@pytest.mark.both_machines
def test_poll_refused_for_a_wrong_secret(server, events):
    since = len(events)
    server.run(
        f"{STOP} && "
        "sed -i 's/^secret_access_key *=.*/secret_access_key = 00000000000000000000000000000000/' "
        f"/etc/os-collect-config.conf && {START}"
    ).check()
    refused = []

    def third(event) -> bool:
        if classify.is_poll(event) and classify.status(event) == 403:
            refused.append(event)
        return len(refused) == 3

    assert events.wait(third, seconds=600, since=since)
    assert_named(server, "poll-refused", Stage.DEPLOYMENT_DELIVERED)


@pytest.mark.parametrize("fault", [{"kind": "refuse"}, {"kind": "status", "status": 503}])
def test_endpoint_down(server, cloud, fault):
    with cloud.fault(endpoint="cfn", **fault):
        assert_named(server, "endpoint-down")


def test_hook_missing(server):
    diagnosis = assert_named(server, "hook-missing", Stage.HOOK_STARTED, group="chef", config="[]")
    assert "chef" in diagnosis.seen


@pytest.mark.parametrize(
    ("script", "fault"), [("sleep 1000", "hook-hanging"), ("kill -KILL $PPID", "hook-killed")]
)
def test_script_that_ends_no_hook_is_named(server, script, fault):
    assert_named(server, fault, Stage.HOOK_FINISHED, config=f"#!/bin/sh\n{script}\n")


@pytest.mark.both_machines
def test_hook_that_answers_with_invalid_json(server):
    server.copy_in(b"#!/bin/sh\necho '[1, 2]'\n", HOOK, mode=0o755)
    assert_named(server, "hook-invalid-json", Stage.HOOK_FINISHED)


def test_signal_refused(server, cloud):
    with cloud.fault(endpoint="cfn", kind="status", status=403, method="POST", path="/signal/"):
        assert_named(server, "signal-refused", Stage.SIGNAL_ACCEPTED)


@pytest.mark.both_machines
def test_signal_lost(server, events):
    since = len(events)
    waits = "#!/bin/sh\nuntil test -e /run/go; do sleep 0.1; done\n"
    deployment = server.deploy(group="script", config=waits)

    def word(wanted):
        return lambda event: (marker := classify.marker(event)) and marker.event == wanted

    assert events.wait(word("started"), seconds=600, since=since)
    server.block()
    server.run(["touch", "/run/go"]).check()
    assert events.wait(word("finished"), seconds=600, since=since)
    diagnosis = server.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("signal-lost", Stage.SIGNAL_RECEIVED)
    server.unblock()
    assert deployment.wait(seconds=600).status == "COMPLETE"
