"""A test's deployments never reach the guest of the next test."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova.compute import GuestServices, ServerSpec
from hotplate.errors import ImageError
from hotplate.events.log import EventLog
from hotplate.plugin import pool
from hotplate.plugin.pool import ServerPool
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.testbed.first_boot import TEMPLATE
from hotplate.timing.deadline import Deadline, retry

pytestmark = pytest.mark.slow


class Remembered:
    """Servers that are only recorded: the agent's data is Heat's alone."""

    networked = False

    def __init__(self) -> None:
        self.specs: dict[str, ServerSpec] = {}

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        del services
        self.specs[spec.id] = spec

    def delete(self, server_id: str) -> None:
        """Do nothing: the machine is gone, but Nova still knows the server, as a restored one."""

    def status(self, server_id: str) -> tuple[str, str]:
        return "ACTIVE", ""


@pytest.fixture(scope="module")
def testbed(tmp_path_factory):
    compute = Remembered()
    with Cloud(
        directory=tmp_path_factory.mktemp("cloud"), compute=compute, events=EventLog()
    ) as cloud:
        cloud.heat().stacks.create(stack_name="warm", template=TEMPLATE)
        retry(lambda _: compute.specs, Deadline(300, "the server"))
        yield SimpleNamespace(cloud=cloud, compute=compute, events=cloud.events, servers=[])


def test_server_without_agent_is_booted_but_refuses_deployments(monkeypatch):
    booted = SimpleNamespace(id="web", name="web")
    monkeypatch.setattr(pool, "boot_without_agent", lambda testbed, reader: booted)
    testbed = SimpleNamespace(events=EventLog(), image=SimpleNamespace(path="web.qcow2"))
    server = ServerPool(testbed, None, agent=False).server()
    assert server.id == "web"
    with pytest.raises(ImageError, match=r'"web\.qcow2" has no agent, so no deployment runs'):
        server.deploy(group="script", config="#!/bin/sh\n")
    assert server.deployments == []


@pytest.mark.parametrize("seen", [True, False], ids=["delivered", "just begun"])
@pytest.mark.parametrize("actions", [("CREATE", "UPDATE"), ("CREATE", "DELETE")])
def test_next_guest_gets_no_earlier_deployment(testbed, actions, seen):
    server_id = next(iter(testbed.compute.specs))
    heat = testbed.cloud.heat()

    def deployments() -> list[str]:
        return [each["id"] for each in heat.software_deployments.metadata(server_id)]

    # Without an answer it stays IN_PROGRESS, as for a guest that was powered off.
    deployment = Deployment(
        testbed.cloud,
        server_id,
        DeploymentSpec(group="script", config="#!/bin/sh\n", actions=actions),
    )
    if seen:
        retry(lambda _: deployments(), Deadline(300, "the deployment"))
    server = SimpleNamespace(id=server_id, deployments=[deployment])
    ServerPool(testbed, None).give_back(server)
    # Also when Heat continues with a DELETE that the guest would have to run.
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert deployments() == []
        time.sleep(0.2)
