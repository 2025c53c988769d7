"""The requests of hotplate's own clients to Heat, each of which costs milliseconds of a test."""

from __future__ import annotations

from recording_cloud import hot, resource

from hotplate.cloud.cloud import Cloud
from hotplate.events.kinds import ServiceRequest
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template

SERVER = hot(
    server=resource("Nova::Server", image="any", flavor="any", user_data_format="SOFTWARE_CONFIG")
)


def requests_since(cloud: Cloud, since: int) -> list[tuple[str, str, int | None]]:
    """Return service, method and status of the requests by clients on the host, in order."""
    cloud.events.settle()
    asked = [(each.source, ServiceRequest.of(each)) for each in cloud.events.since(since)]
    return [(name, each.method, each.status) for name, each in asked if each]


def test_clients_share_a_token(cloud: Cloud) -> None:
    assert list(cloud.heat().stacks.list(limit=1)) == []
    since = len(cloud.events)
    assert list(cloud.heat().stacks.list(limit=1)) == []
    assert requests_since(cloud, since) == [("heat", "GET", 200)]


def test_deployment_is_asked_for_without_redirects_and_other_requests(cloud: Cloud) -> None:
    """A stack's name alone is answered with a redirect, and a resource is shown with attributes."""
    stack = Stack.create(cloud, Template(source="a test", template=SERVER)).wait()
    server = stack.physical_id("server")
    spec = DeploymentSpec(group="script", config="true", transport="NO_SIGNAL")
    done = Deployment(cloud, server, spec).wait()
    since = len(cloud.events)
    assert done.outputs == {}
    assert requests_since(cloud, since) == [("heat", "GET", 200)] * 2
    since = len(cloud.events)
    done.forget()
    stack.forget()
    asked = requests_since(cloud, since)
    assert ("heat", "DELETE", 204) in asked
    assert not [each for each in asked if each[2] == 302]
