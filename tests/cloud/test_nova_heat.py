"""Heat's own Nova resources, through the real novaclient, on the API over HTTP."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from recording_cloud import attribute, hot, ref, resource

from hotplate.timing.deadline import Deadline, retry

TEMPLATE = hot(
    {
        "private": attribute("key", "private_key"),
        "public": attribute("key", "public_key"),
        "shown": attribute("web", "show"),
        "tags": attribute("web", "tags"),
        "console": attribute("web", "console_urls", "novnc"),
    },
    key=resource("Nova::KeyPair", name="made-by-heat", save_private_key=True),
    group=resource(
        "Nova::ServerGroup", policies=["anti-affinity"], rules={"max_server_per_host": 3}
    ),
    web=resource(
        "Nova::Server",
        name="web",
        image="debian",
        flavor="m1.small",
        key_name=ref("key"),
        metadata={"role": "front", "number": 1},
        tags=["blue"],
        scheduler_hints={"group": ref("group")},
        user_data="#!/bin/sh\necho hello\n",
        user_data_format="RAW",
    ),
)


def changed(**properties: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    template["resources"]["web"]["properties"] |= properties
    return template


@pytest.fixture
def web(cloud: Any, stacks: Any) -> Iterator[tuple[str, str]]:
    """Return the ids of a stack and of its server."""
    stack = stacks.complete(TEMPLATE)
    yield stack, stacks.client.resources.get(stack, "web").physical_resource_id
    stacks.clean()
    # The next test's stack creates one with that name.
    gone = Deadline(120, "the key pair to be deleted")
    retry(lambda _: not cloud.servers.has_keypair("made-by-heat"), gone, every=0.05)


def asked(cloud: Any, method: str, part: str) -> int:
    """Return the number of requests to Nova."""
    return sum(
        1
        for each in cloud.events
        if (each.source, each.kind) == ("nova", "request")
        and each.detail["method"] == method
        and part in each.detail["path"]
    )


def test_stack_is_created_over_http(
    cloud: Any, stacks: Any, compute: Any, web: tuple[str, str]
) -> None:
    stack, server_id = web
    spec = compute.specs[server_id]
    assert (spec.name, spec.image, spec.flavor) == ("web", "debian", "m1.small")
    assert spec.user_data == b"#!/bin/sh\necho hello\n"
    assert spec.metadata == {"role": "front", "number": "1"}
    assert spec.resource_name == "web"
    assert spec.stack_name == stacks.client.stacks.get(stack).stack_name
    outputs = stacks.outputs(stack)
    assert "PRIVATE KEY" in outputs["private"]
    assert spec.public_keys == {"made-by-heat": outputs["public"]}
    assert outputs["tags"] == ["blue"]
    assert outputs["shown"]["id"] == server_id
    assert "Unavailable console type novnc" in outputs["console"]
    group = stacks.client.resources.get(stack, "group").physical_resource_id
    assert cloud.servers.get(server_id).notes.group == group
    assert not {"OS::Nova::ServerGroup"} & {each.kind for each in cloud.stand_ins(stack)}
    for path in ("/servers", "/os-keypairs", "/os-server-groups"):
        assert asked(cloud, "POST", f"/v2.1{path}")


def test_stack_is_changed_over_http(
    cloud: Any, stacks: Any, compute: Any, web: tuple[str, str]
) -> None:
    stack, server_id = web
    template = changed(name="front", metadata={"role": "back"}, flavor="m1.large")
    stacks.update(stack, template)
    spec = cloud.servers.get(server_id).spec
    assert (spec.name, spec.metadata, spec.flavor) == ("front", {"role": "back"}, "m1.large")
    assert cloud.servers.get(server_id).notes.old_flavor == ""
    template = changed(name="front", flavor="m1.large", image="trixie", tags=["red", "green"])
    template["resources"]["web"]["properties"]["image_update_policy"] = "REBUILD"
    stacks.update(stack, template)
    assert compute.specs[server_id].image == "trixie"
    assert cloud.servers.get(server_id).notes.tags == ["red", "green"]


def test_stack_is_suspended_resumed_and_deleted_over_http(
    cloud: Any, stacks: Any, compute: Any, web: tuple[str, str]
) -> None:
    stack, server_id = web
    for action, status in (("suspend", "SUSPENDED"), ("resume", "ACTIVE")):
        getattr(stacks.client.actions, action)(stack)
        stacks.wait(stack, f"{action.upper()}_COMPLETE")
        assert compute.states[server_id][0] == status
    stacks.client.actions.check(stack)
    stacks.wait(stack, "CHECK_COMPLETE")
    stacks.delete(stack)
    assert server_id not in compute.specs
    assert not cloud.servers.has_keypair("made-by-heat")


def test_network_of_a_server_is_chosen_by_nova(stacks: Any, compute: Any) -> None:
    auto = [{"allocate_network": "auto"}]
    template = hot(server=resource("Nova::Server", image="i", flavor="f", networks=auto))
    stack = stacks.complete(template)
    assert stacks.client.resources.get(stack, "server").physical_resource_id in compute.specs
