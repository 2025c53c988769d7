"""Nova's instance actions, read by unmodified clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import requests
from novaclient import exceptions as nova_exceptions
from openstack.compute.v2.server_action import ServerAction
from recording_cloud import owner_headers

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova import instance_actions
from hotplate.errors import MachineLostError


@pytest.fixture
def web(nova: Any) -> Iterator[Any]:
    """Create a server over the API."""
    server = nova.servers.create(f"web-{uuid.uuid4()}", image="debian", flavor="1", nics="auto")
    yield server
    if server.id in {each.id for each in nova.servers.list()}:
        server.delete()


def names(nova: Any, server: Any) -> list[str]:
    """Return the actions on a server, oldest first."""
    return [each.action for each in nova.instance_action.list(server)][::-1]


def test_first_action_names_the_creator(cloud: Cloud, nova: Any, web: Any) -> None:
    (made,) = nova.instance_action.list(web)
    assert (made.action, made.instance_uuid, made.message) == ("create", web.id, None)
    assert (made.user_id, made.project_id) == (
        cloud.credentials.user_id,
        cloud.credentials.project_id,
    )
    # The id of the request, which Nova returns and clients log.
    assert made.request_id == web.request_ids[0]
    (event,) = nova.instance_action.get(web, made.request_id).events
    assert (event["event"], event["result"]) == ("compute__do_build_and_run_instance", "Success")
    began, ended = (datetime.fromisoformat(event[key]) for key in ("start_time", "finish_time"))
    assert began <= ended


def test_actions_have_novas_names(nova: Any, web: Any) -> None:
    for act in ("stop", "start", "pause", "unpause", "suspend", "resume", "reboot"):
        getattr(web, act)()
    web.rebuild("debian")
    web.resize("2")
    web.revert_resize()
    web.resize("2")
    web.confirm_resize()
    web.lock()
    web.unlock()
    web.change_password("secret")
    nova.volumes.create_server_volume(web.id, str(uuid.uuid4()))
    web.stop()
    port = web.interface_attach(None, None, None)
    web.interface_detach(port.port_id)
    wanted = "create stop start pause unpause suspend resume reboot rebuild resize revertResize "
    wanted += "resize confirmResize lock unlock changePassword attach_volume stop "
    assert names(nova, web) == f"{wanted}attach_interface detach_interface".split()
    for each in nova.instance_action.list(web):
        (event,) = nova.instance_action.get(web, each.request_id).events
        assert event["event"] == instance_actions.EVENTS[each.action]


def test_fields_depend_on_the_microversion(at: Callable[[str], Any], web: Any) -> None:
    def shown(version: str) -> tuple[dict[str, Any], dict[str, Any]]:
        actions = at(version).instance_action
        (listed,) = actions.list(web)
        whole = actions.get(web, listed.request_id).to_dict()
        return listed.to_dict(), (whole.get("events") or [{}])[0]

    # Users see events since 2.51, and never a traceback or the host's name.
    assert (shown("2.50")[1], "result" in shown("2.51")[1]) == ({}, True)
    listed, event = shown("2.57")
    assert "updated_at" not in listed
    assert not {"host", "hostId", "details"} & set(event)
    listed, event = shown("2.62")
    assert listed["updated_at"] >= listed["start_time"]
    assert "hostId" in event
    assert not {"host", "traceback", "details"} & shown("2.84")[1].keys()


def test_reads_and_refused_requests_are_no_actions(nova: Any, web: Any) -> None:
    web.get_console_output()
    for refused in (web.start, web.unpause, lambda: web.resize("1")):
        with pytest.raises((nova_exceptions.Conflict, nova_exceptions.BadRequest)):
            refused()
    assert names(nova, web) == ["create"]


def test_failed_action_has_a_reason(
    nova: Any, compute: Any, web: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_server_id: str) -> None:
        raise MachineLostError("the machine is gone")

    monkeypatch.setattr(compute, "stop", stop)
    with pytest.raises(nova_exceptions.Conflict, match="the machine is gone"):
        web.stop()
    newest = nova.instance_action.list(web)[0]
    assert (newest.action, newest.message) == ("stop", "Error")
    (event,) = nova.instance_action.get(web, newest.request_id).events
    assert event["result"] == "Error"
    # The policy os-instance-actions:events:details.
    assert "details" not in event


def test_action_is_unfinished_while_the_server_builds(nova: Any, compute: Any, web: Any) -> None:
    (made,) = nova.instance_action.list(web)
    compute.states[web.id] = ("BUILD", "")
    (event,) = nova.instance_action.get(web, made.request_id).events
    assert (event["finish_time"], event["result"]) == (None, None)
    compute.states[web.id] = ("ACTIVE", "")
    (event,) = nova.instance_action.get(web, made.request_id).events
    assert event["result"] == "Success"


def test_actions_of_a_deleted_server_remain(nova: Any, at: Callable[[str], Any], web: Any) -> None:
    web.delete()
    assert names(nova, web) == ["create", "delete"]
    with pytest.raises(nova_exceptions.NotFound, match="could not be found"):
        at("2.20").instance_action.list(web)
    with pytest.raises(nova_exceptions.NotFound, match="Instance nobody could not be found"):
        nova.instance_action.list("nobody")
    with pytest.raises(nova_exceptions.NotFound, match="Action req-none not found"):
        nova.instance_action.get(web, "req-none")


def test_actions_are_paged_and_filtered_by_time(
    cloud: Cloud, nova: Any, connection: Any, web: Any
) -> None:
    for _ in range(2):
        web.stop()
        web.start()
    whole = nova.instance_action.list(web)
    first = nova.instance_action.list(web, limit=2)
    rest = nova.instance_action.list(web, marker=first[-1].request_id)
    assert [each.request_id for each in [*first, *rest]] == [each.request_id for each in whole]
    # The SDK follows the links.
    compute = connection.compute
    compute.default_microversion = "2.84"
    # openstacksdk 4.10, of 2026.1, has no limit for compute.server_actions().
    assert len(list(ServerAction.list(compute, server_id=web.id, limit=2))) == 5
    middle = f"{whole[2].updated_at}Z"
    assert len(nova.instance_action.list(web, changes_since=middle)) == 3
    assert len(nova.instance_action.list(web, changes_before=middle)) == 3
    for query in ("changes-since=soon", "changes-since=2030-01-01&changes-before=2020-01-01"):
        answer = requests.get(
            f"{cloud.endpoints['nova']}/v2.1/servers/{web.id}/os-instance-actions?{query}",
            headers={**owner_headers(cloud), "OpenStack-API-Version": "compute 2.66"},
            timeout=120,
        )
        assert answer.status_code == 400, answer.text


def test_newest_actions_are_kept(nova: Any, web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_actions, "MAX_PER_SERVER", 2)
    web.stop()
    web.start()
    assert names(nova, web) == ["stop", "start"]
    monkeypatch.setattr(instance_actions, "MAX_ACTIONS", 1)
    other = nova.servers.create("other", image="debian", flavor="1", nics="auto")
    assert names(nova, other) == ["create"]
    assert names(nova, web) == []
    other.delete()
