"""Real clients as oracles: the libraries and the command line, unmodified."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import session
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity import v3
from keystoneclient import discover
from keystoneclient.v3 import client as keystone_client
from recording_cloud import hot, owner_headers, resource
from swiftclient import client as swift_client
from swiftclient import utils as swift_utils

from hotplate.cloud.http.addresses import Side
from hotplate.timing.deadline import Deadline, retry


def owner_session(cloud: Any, **changes: str) -> session.Session:
    owner = cloud.credentials
    fields = {
        "auth_url": cloud.endpoints["keystone"] + "/v3",
        "username": owner.username,
        "password": owner.password,
        "project_name": owner.project_name,
        "user_domain_id": owner.domain,
        "project_domain_id": owner.domain,
        **changes,
    }
    return session.Session(auth=v3.Password(**fields))


def ask(cloud: Any, service: str, method: str, path: str, **fields: Any) -> requests.Response:
    """Send a request of the cloud's owner in a form that no client sends."""
    headers = {**owner_headers(cloud), **fields.pop("headers", {})}
    url = cloud.endpoints[service] + path
    return requests.request(method, url, headers=headers, timeout=120, **fields)


def test_keystone_discovery_and_token(cloud: Any) -> None:
    discovery = discover.Discover(auth_url=cloud.endpoints["keystone"] + "/")
    assert discovery.url_for("3.0") == cloud.endpoints["keystone"] + "/v3/"
    made = owner_session(cloud)
    assert made.get_endpoint(service_type="orchestration").startswith(cloud.endpoints["heat"])
    client = keystone_client.Client(session=made)
    assert client.tokens.validate(made.get_token()).user_id == cloud.credentials.user_id
    assert [project.name for project in client.auth.projects()] == ["hotplate"]


@pytest.mark.parametrize(
    "change", [{"password": "wrong"}, {"username": "nobody"}, {"project_name": "other"}]
)
def test_keystone_refuses_bad_logins(cloud: Any, change: dict[str, str]) -> None:
    with pytest.raises(ks_exceptions.Unauthorized):
        owner_session(cloud, **change).get_token()


def test_revoked_token_is_refused(cloud: Any, openstack: Any) -> None:
    client = keystone_client.Client(session=owner_session(cloud))
    doomed = owner_session(cloud).get_token()
    client.tokens.revoke_token(doomed)
    with pytest.raises(ks_exceptions.NotFound):
        client.tokens.validate(doomed)
    with pytest.raises(ks_exceptions.NotFound):
        client.tokens.revoke_token(doomed)
    headers = {"X-Auth-Token": doomed}
    url = f"{cloud.endpoints['nova']}/v2.1/servers"
    assert requests.get(url, headers=headers, timeout=120).status_code == 401
    openstack("token", "revoke", owner_session(cloud).get_token())


@pytest.mark.parametrize(
    ("service", "path", "form"),
    [
        ("heat", "/v1/{}/stacks", "json"),
        ("nova", "/v2.1/servers", "json"),
        ("neutron", "/v2.0/networks", "json"),
        ("glance", "/v2/images", "html"),
    ],
)
def test_bad_token_is_refused(cloud: Any, service: str, path: str, form: str) -> None:
    url = cloud.endpoints[service] + path.format(cloud.credentials.project_id)
    keystone = cloud.identity.base("keystone", Side.GUEST if service == "heat" else Side.HOST)
    for token in ("", "gAAAAAnonsense", "x" * 5000):
        response = requests.get(url, headers={"X-Auth-Token": token}, timeout=120)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == f'Keystone uri="{keystone}/v3"'
        assert form == "html" or response.json()["error"]["code"] == 401


def test_heat_error_body(cloud: Any) -> None:
    made = owner_session(cloud)
    response = made.get(
        f"{cloud.endpoints['heat']}/v1/{cloud.credentials.project_id}/stacks/none/none",
        raise_exc=False,
    )
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "EntityNotFound"
    assert response.json()["title"] == "Not Found"


def test_ec2tokens_is_refused(cloud: Any) -> None:
    url = cloud.endpoints["keystone"] + "/v3/ec2tokens"
    body = {"credentials": {"access": "x", "signature": "y", "params": {}}}
    assert requests.post(url, json=body, timeout=120).status_code == 401
    answer = owner_session(cloud).post(url, json=body, raise_exc=False)
    assert (answer.status_code, "identity:ec2tokens." in answer.text) == (403, True)


# -- swift --------------------


@pytest.fixture(scope="module")
def temp_key(swift: swift_client.Connection) -> str:
    key = uuid.uuid4().hex
    swift.post_account({"x-account-meta-temp-url-key": key})
    return key


@pytest.mark.parametrize("digest", ["sha1", "sha256", "sha512"])
def test_temp_url(cloud: Any, swift: swift_client.Connection, temp_key: str, digest: str) -> None:
    swift.put_container("temp")
    path = f"/v1/AUTH_{cloud.credentials.project_id}/temp/{digest}"
    base = cloud.endpoints["swift"]

    def signed(method: str, seconds: int = 60, key: str = temp_key) -> str:
        made = swift_utils.generate_temp_url(path, seconds, key, method, digest=digest)
        return f"{base}{made}"

    put, get = signed("PUT"), signed("GET")
    assert requests.put(put, data=b"data", timeout=120).status_code == 201
    answer = requests.get(get, timeout=120)
    assert (answer.status_code, answer.content) == (200, b"data")
    head = requests.head(get, timeout=120)
    assert (head.status_code, head.headers["Content-Length"]) == (200, "4")
    assert requests.head(put, timeout=120).status_code == 200

    assert requests.get(put, timeout=120).status_code == 401
    assert requests.put(get, data=b"", timeout=120).status_code == 401
    assert requests.get(signed("GET", key="wrong"), timeout=120).status_code == 401
    assert requests.get(get.replace("/temp/", "/other/"), timeout=120).status_code == 401
    expires = int(get.rpartition("=")[2])
    altered = get.replace(str(expires), str(expires + 1))
    assert requests.get(altered, timeout=120).status_code == 401
    past = swift_utils.generate_temp_url(
        path, int(time.time()) - 1, temp_key, "GET", absolute=True, digest=digest
    )
    assert requests.get(base + past, timeout=120).status_code == 401
    with cloud.fault(endpoint="swift", kind="skew", delay=120):
        assert requests.get(get, timeout=120).status_code == 401
    assert requests.get(get, timeout=120).status_code == 200


def test_swift_of_another_project(cloud: Any) -> None:
    made = owner_session(cloud)
    response = made.get(f"{cloud.endpoints['swift']}/v1/AUTH_{uuid.uuid4().hex}", raise_exc=False)
    assert response.status_code == 403


# -- zaqar --------------------


def raw_zaqar(cloud: Any) -> Adapter:
    """Return a client of Zaqar that sends requests as they are."""
    return Adapter(
        owner_session(cloud),
        endpoint_override=cloud.endpoints["zaqar"],
        additional_headers={"Client-ID": str(uuid.uuid4())},
        raise_exc=False,
    )


def zaqar_conf(cloud: Any) -> dict[str, Any]:
    """Return the settings of zaqarclient for the cloud's owner."""
    token, project = owner_session(cloud).get_token(), cloud.credentials.project_id
    options = {"os_auth_token": token, "os_project_id": project}
    return {"auth_opts": {"backend": "keystone", "options": options}}


def zaqar_client(cloud: Any) -> Any:
    from zaqarclient.queues.v2 import client

    return client.Client(cloud.endpoints["zaqar"], version=2, conf=zaqar_conf(cloud))


def test_zaqar_client(cloud: Any) -> None:
    queue = zaqar_client(cloud).queue("letters")
    queue.post([{"body": {"n": 1}, "ttl": 60}, {"body": {"n": 2}, "ttl": 60}])
    assert [message.body["n"] for message in queue.messages()] == [1, 2]
    assert [message.body for message in queue.pop(1)] == [{"n": 1}]
    assert [message.body for message in queue.pop(5)] == [{"n": 2}]
    assert list(queue.pop(1)) == []
    queue.delete()


@pytest.fixture
def messaging(cloud: Any, connection: Any) -> Iterator[Any]:
    """Return the SDK's messaging service, with five queues and five messages in the first."""
    queues = [zaqar_client(cloud).queue(f"page-{number}") for number in range(5)]
    for each in queues:
        each.ensure_exists(force_create=True)
    queues[0].post([{"body": number, "ttl": 60} for number in range(5)])
    yield connection.message
    for each in queues:
        each.delete()


def test_sdk_lists_all_queues_and_messages(messaging: Any) -> None:
    """The SDK continues after the last item until a page is empty."""

    def first(rows: Iterator[Any], name: str) -> list[Any]:
        """Return at most that many, in case there is no end."""
        return [getattr(each, name) for each in itertools.islice(rows, 30)]

    names = first(messaging.queues(limit=2), "name")
    assert sorted(names) == names
    assert [each for each in names if each.startswith("page-")] == [f"page-{n}" for n in range(5)]
    assert first(messaging.queues(), "name") == names
    assert first(messaging.messages("page-0", limit=2), "body") == [0, 1, 2, 3, 4]
    assert first(messaging.messages("page-0"), "body") == [0, 1, 2, 3, 4]


def test_zaqar_pages_are_linked(cloud: Any, messaging: Any) -> None:
    """Each non-empty page has a link to the next (``zaqar/transport/wsgi/v2_0``)."""
    del messaging
    client = raw_zaqar(cloud)
    path, seen = "/v2/queues/page-0/messages?limit=2", []
    while True:
        page = client.get(path).json()
        if not page["messages"]:
            break
        seen += page["messages"]
        (link,) = page["links"]
        path = link["href"]
    assert page["links"] == []
    assert [each["body"] for each in seen] == [0, 1, 2, 3, 4]
    ids = f"{seen[1]['id']},{seen[3]['id']}"
    some = client.get(f"/v2/queues/page-0/messages?ids={ids}").json()["messages"]
    assert [each["body"] for each in some] == [1, 3]
    gone = client.get("/v2/queues/page-0/messages?marker=gone").json()
    assert gone == {"messages": [], "links": []}
    counted = client.get("/v2/queues?limit=1&detailed=true&with_count=true").json()
    assert counted["count"] >= 5
    # Zaqar shows its defaults of a queue without metadata.
    assert counted["queues"][0]["metadata"]["_max_messages_post_size"] == 262144


def test_queue_metadata_sets_the_ttl_of_its_messages(cloud: Any) -> None:
    client = raw_zaqar(cloud)
    client.put("/v2/queues/short", json={"_default_message_ttl": 120})
    client.post("/v2/queues/short/messages", json={"messages": [{"body": 1}]})
    (message,) = client.get("/v2/queues/short/messages").json()["messages"]
    assert message["ttl"] == 120
    late = {"messages": [{"body": 1, "delay": 5}]}
    answer = client.post("/v2/queues/short/messages", json=late)
    assert answer.status_code == 400
    client.delete("/v2/queues/short")


def test_stack_events_go_to_the_queue_of_its_environment(cloud: Any, stacks: Any) -> None:
    sink = {"event_sinks": [{"type": "zaqar-queue", "target": "events", "ttl": 600}]}
    stacks.complete(hot(x=resource("Heat::TestResource")), environment=sink)
    queue = zaqar_client(cloud).queue("events")
    seen: list[str] = []

    def look(_: bool) -> bool:
        seen.extend(
            f"{message.body['payload']['resource_status']}" for message in queue.pop(count=10)
        )
        return seen.count("COMPLETE") >= 2

    retry(look, Deadline(120, f"the stack's and its resource's ends: {seen}"))


def test_zaqar_signed_url(cloud: Any) -> None:
    from zaqarclient.queues.v2 import client
    from zaqarclient.transport import errors

    queue = zaqar_client(cloud).queue("signed")
    queue.post([{"body": "hello", "ttl": 60}])
    signed = queue.signed_url(["messages"], methods=["DELETE"])
    project = signed.pop("project")

    def opened(**changes: Any) -> Any:
        options = {"os_project_id": project, **signed, **changes}
        return client.Client(
            cloud.endpoints["zaqar"],
            version=2,
            conf={"auth_opts": {"backend": "signed-url", "options": options}},
        ).queue("signed")

    with pytest.raises(errors.ResourceNotFound):
        list(opened(signature="0" * 64).pop())
    with pytest.raises(errors.ResourceNotFound):
        list(opened(expires="2001-01-01T00:00:00").pop())
    with pytest.raises(errors.ResourceNotFound):
        list(opened().messages())
    assert [message.body for message in opened().pop()] == ["hello"]


def test_zaqar_refuses_without_token(cloud: Any) -> None:
    url = cloud.endpoints["zaqar"] + "/v2/queues/any/messages"
    assert requests.get(url, timeout=120).status_code == 401


def test_zaqar_websocket(cloud: Any) -> None:
    from zaqarclient import transport
    from zaqarclient.transport import request

    endpoint = cloud.endpoints["zaqar-websocket"]
    with transport.get_transport_for(endpoint, options=zaqar_conf(cloud)) as connection:

        def ask(action: str, **body: Any) -> Any:
            return connection.send(request.Request(endpoint, action, content=json.dumps(body)))

        ask("queue_create", queue_name="pushed")
        ask("subscription_create", queue_name="pushed", ttl=60)
        answer = ask("message_delete_many", queue_name="pushed", pop=1)
        assert json.loads(answer.content) == {"messages": []}
        zaqar_client(cloud).queue("pushed").post([{"body": {"here": True}, "ttl": 60}])
        assert connection.recv()["body"] == {"here": True}


def test_zaqar_websocket_refuses_a_bad_token(cloud: Any) -> None:
    from zaqarclient import transport
    from zaqarclient.transport import errors, request

    endpoint = cloud.endpoints["zaqar-websocket"]
    conf = {"auth_opts": {"options": {"os_auth_token": "nonsense", "os_project_id": "p"}}}
    with (
        pytest.raises(errors.ForbiddenError),
        transport.get_transport_for(endpoint, options=conf) as connection,
    ):
        connection.send(request.Request(endpoint, "queue_create", content="{}"))


# -- the command line --------------------

TEMPLATE = """\
heat_template_version: 2018-08-31
parameters:
  word: {type: string, default: first}
resources:
  value:
    type: OS::Heat::Value
    properties: {value: {get_param: word}}
outputs:
  word:
    value: {get_attr: [value, value]}
"""


def test_openstack_stack_commands(openstack: Any) -> None:
    template = openstack.directory / "t.yaml"
    template.write_text(TEMPLATE)
    made = openstack(
        "stack", "create", "-t", str(template), "--wait", "--poll", "1", "person", "-f", "json"
    )
    assert made["stack_status"] == "CREATE_COMPLETE"
    shown = openstack("stack", "output", "show", "person", "word", "-f", "json")
    assert shown["output_value"] == "first"
    events = openstack("stack", "event", "list", "person", "-f", "json")
    assert {event["resource_status"] for event in events} >= {"CREATE_COMPLETE"}
    openstack("stack", "delete", "--yes", "--wait", "person")
    assert "not found" in openstack("stack", "show", "person", status=1)


def test_openstack_software_config(openstack: Any) -> None:
    script = openstack.directory / "s.sh"
    script.write_text("#!/bin/sh\necho hi\n")
    made = openstack(
        "software", "config", "create", "cfg", "--config-file", str(script), "--group", "script",
        "-f", "json",
    )  # fmt: skip
    listed = openstack("software", "config", "list", "-f", "json")
    assert made["id"] in {row["id"] for row in listed}
    deployed = openstack(
        "software", "deployment", "create", "--config", made["id"], "--server", str(uuid.uuid4()),
        "--signal-transport", "NO_SIGNAL", "dep", "-f", "json",
    )  # fmt: skip
    assert deployed["status"] == "IN_PROGRESS"
    openstack("software", "deployment", "delete", deployed["id"])


def test_openstack_catalog(openstack: Any) -> None:
    catalog = openstack("catalog", "list", "-f", "json")
    assert {entry["Type"] for entry in catalog} >= {
        "orchestration", "identity", "object-store", "messaging", "cloudformation",
    }  # fmt: skip
