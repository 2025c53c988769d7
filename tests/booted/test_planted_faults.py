"""The twenty faults of the verdict, planted in guests that really run, each named rightly.

Where a fault can be planted in a guest that runs already, the guest is restored; the others need a
boot of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.events import classify
from hotplate.image.inspect import Image
from hotplate.plugin.pool import ServerPool, open_pool
from hotplate.plugin.server import ServerUnderTest
from hotplate.settings import Settings
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.verdict.stages import Stage

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root, pytest.mark.long]

GIVE_UP = 8.0
"""Seconds after which a deployment is asked about that cannot come to an end."""

HOOK = "/usr/libexec/heat-config/hooks/script"
NOTHING = "#!/bin/sh\n"
AGENT = "os-collect-config"


@pytest.fixture(scope="module")
def pool(trixie, tmp_path_factory) -> Iterator[ServerPool]:
    folder = tmp_path_factory.mktemp("faults")
    settings = Settings.load({}, environ=os.environ, directory=Path("/nonexistent"))
    with open_pool(Image.open(trixie), settings, folder, cold=False, say=print) as pool:
        yield pool


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


def named(server: ServerUnderTest, *, group="script", config=NOTHING, seconds=GIVE_UP):
    """Deploy, wait for as long as it is worth, and ask why it did not come to its end."""
    deployment = server.deploy(group=group, config=config)
    try:
        deployment.wait(seconds=seconds)
    except DeadlineExceeded:
        assert deployment.status == "IN_PROGRESS"
    else:
        assert deployment.status == "FAILED", deployment
    told = server.diagnosis()
    assert told is not None
    print(f"{told.fault}: {told}")
    return told


# -- in a guest that runs ------------------------------------------------------------------------


def test_nothing_is_named_where_nothing_is_wrong(server):
    done = server.deploy(group="script", config=NOTHING).wait()
    assert done.status == "COMPLETE"
    assert server.diagnosis() is None


def test_agent_not_installed(server):
    server.run(f"systemctl stop {AGENT}; rm -f /etc/systemd/system/{AGENT}.service").check()
    server.run("systemctl daemon-reload; systemctl reset-failed")
    told = named(server)
    assert (told.fault, told.stage) == ("agent-missing", Stage.AGENT_POLLED)


def test_agent_disabled(server):
    server.run(f"systemctl disable --now {AGENT}").check()
    told = named(server)
    assert (told.fault, told.stage) == ("agent-disabled", Stage.AGENT_POLLED)


def test_agent_crashing(server):
    # The agent's interpreter finds a broken module before the right one.
    server.run(
        "mkdir -p /run/broken /run/systemd/system/os-collect-config.service.d && "
        "echo 'raise ImportError(\"this module is broken\")' > /run/broken/os_collect_config.py && "
        "printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/env PYTHONPATH=/run/broken python3 "
        '-c "import os_collect_config"\\n\' '
        "> /run/systemd/system/os-collect-config.service.d/broken.conf && "
        f"systemctl daemon-reload && systemctl restart --no-block {AGENT}"
    ).check()
    told = named(server)
    assert (told.fault, told.stage) == ("agent-crashing", Stage.AGENT_POLLED)


def test_poll_refused_for_a_wrong_secret(server, events):
    since = len(events)
    server.run(
        "sed -i 's/^secret_access_key *=.*/secret_access_key = 00000000000000000000000000000000/' "
        f"/etc/os-collect-config.conf && systemctl restart --no-block {AGENT}"
    ).check()
    refused = []

    def third(event) -> bool:
        if classify.is_poll(event) and classify.status(event) == 403:
            refused.append(event)
        return len(refused) == 3

    assert events.wait(third, seconds=120, since=since)
    told = named(server)
    assert (told.fault, told.stage) == ("poll-refused", Stage.DEPLOYMENT_DELIVERED)


def test_endpoint_down(server, cloud):
    with cloud.fault(endpoint="cfn", kind="refuse"):
        told = named(server)
    assert told.fault == "endpoint-down"


def test_endpoint_that_answers_503(server, cloud):
    with cloud.fault(endpoint="cfn", kind="status", status=503):
        told = named(server)
    assert told.fault == "endpoint-down"


def test_hook_missing(server):
    told = named(server, group="puppet", config="notice('hello')", seconds=60)
    assert (told.fault, told.stage) == ("hook-missing", Stage.HOOK_STARTED)
    assert "puppet" in told.seen


def test_hook_not_executable(server):
    server.run(["chmod", "a-x", HOOK]).check()
    told = named(server, seconds=60)
    assert (told.fault, told.stage) == ("hook-not-executable", Stage.HOOK_STARTED)


def test_hook_hanging(server):
    told = named(server, config="#!/bin/sh\nsleep 1000\n", seconds=15)
    assert (told.fault, told.stage) == ("hook-hanging", Stage.HOOK_FINISHED)


def test_hook_killed(server):
    told = named(server, config="#!/bin/sh\nkill -KILL $PPID\n", seconds=60)
    assert (told.fault, told.stage) == ("hook-killed", Stage.HOOK_FINISHED)


def test_hook_that_answers_with_invalid_json(server):
    server.copy_in(b"#!/bin/sh\necho '[1, 2]'\n", HOOK, mode=0o755)
    told = named(server, seconds=60)
    assert (told.fault, told.stage) == ("hook-invalid-json", Stage.HOOK_FINISHED)


def test_signal_refused(server, cloud):
    with cloud.fault(endpoint="cfn", kind="status", status=403, method="POST", path="/signal/"):
        told = named(server, seconds=15)
    assert (told.fault, told.stage) == ("signal-refused", Stage.SIGNAL_ACCEPTED)


def test_signal_lost(server, events):
    since = len(events)
    deployment = server.deploy(group="script", config="#!/bin/sh\nsleep 3\n")

    def word(wanted):
        return lambda event: (found := classify.marker(event)) and found.event == wanted

    assert events.wait(word("started"), seconds=60, since=since)
    server.block()
    assert events.wait(word("finished"), seconds=60, since=since)
    with pytest.raises(DeadlineExceeded):
        deployment.wait(seconds=2)
    told = server.diagnosis()
    assert (told.fault, told.stage) == ("signal-lost", Stage.SIGNAL_RECEIVED)
    server.unblock()
    assert deployment.wait(seconds=180).status == "COMPLETE"
