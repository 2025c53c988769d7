"""Nova's API, asked by unmodified clients: novaclient, the SDK and the ``openstack`` command."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import requests
import test_clients
from cryptography.hazmat.primitives import serialization
from novaclient import api_versions
from novaclient import exceptions as nova_exceptions
from oslo_utils import uuidutils
from recording_cloud import owner_headers
from test_clients import owner_session
from wire_guest import guest

from hotplate.cloud.glance.images import image_id
from hotplate.cloud.http.addresses import HOST_SERVICES, PORTS
from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.nova import capacity
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.microversions import NEWEST
from hotplate.cloud.nova.server_records import Notes
from hotplate.errors import HostError

MINE = "169.254.169.15"


@pytest.fixture
def web(cloud: Any) -> Iterator[str]:
    """Return the id of a booted server."""
    spec = ServerSpec(
        id=str(uuid.uuid4()),
        name="web",
        image="debian",
        flavor="m1.small",
        key_name="mine",
        metadata={"role": "front"},
    )
    cloud.servers.boot(spec, Notes(tags=["blue"], description="the front"))
    yield spec.id
    if any(each.spec.id == spec.id for each in cloud.servers.all()):
        cloud.servers.delete(spec.id)


def url(cloud: Any, path: str) -> str:
    return f"{cloud.endpoints['nova']}{path}"


def ask(cloud: Any, method: str, path: str, **fields: Any) -> requests.Response:
    return test_clients.ask(cloud, "nova", method, path, **fields)


# -- versions and access --------------------


def test_catalogue_leads_to_the_api(cloud: Any, nova: Any) -> None:
    session = owner_session(cloud)
    for interface in ("public", "internal", "admin"):
        endpoint = session.get_endpoint(service_type="compute", interface=interface)
        assert endpoint == url(cloud, "/v2.1")
    data = session.get_endpoint_data(service_type="compute")
    assert (data.min_microversion, data.max_microversion) == ((2, 1), (2, NEWEST))
    newest = api_versions.discover_version(nova, api_versions.APIVersion("2.latest"))
    assert newest.get_string() == f"2.{NEWEST}"


def test_versions_are_described_without_a_token(cloud: Any) -> None:
    root = requests.get(url(cloud, "/"), timeout=120).json()
    assert [(each["id"], each["status"]) for each in root["versions"]] == [("v2.1", "CURRENT")]
    answer = requests.get(url(cloud, "/v2.1/"), timeout=120)
    one = answer.json()["version"]
    assert (one["min_version"], one["version"]) == ("2.1", f"2.{NEWEST}")
    # doc/api_samples/versions/v21-version-get-resp.json of Nova.
    assert one["links"] == [
        {"rel": "self", "href": url(cloud, "/v2.1/")},
        {"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"},
    ]
    assert answer.headers["OpenStack-API-Version"] == "compute 2.1"
    assert [each["links"] for each in root["versions"]] == [one["links"][:1]]


def test_answer_of_each_service_has_a_request_id(cloud: Any) -> None:
    for service, path in (
        ("nova", "/v2.1/servers"),
        ("neutron", "/v2.0/networks"),
        ("glance", "/v2/images"),
        ("keystone", "/v3"),
        ("heat", f"/v1/{cloud.credentials.project_id}/stacks"),
        ("cfn", "/v1"),
    ):
        address = cloud.endpoints[service] + path
        answer = requests.get(address, headers=owner_headers(cloud), timeout=120)
        assert answer.headers["x-openstack-request-id"].startswith("req-"), service


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ({}, "2.1"),
        ({"OpenStack-API-Version": "compute 2.26"}, "2.26"),
        ({"OpenStack-API-Version": "volume 3.1, compute 2.26"}, "2.26"),
        ({"OpenStack-API-Version": "compute latest"}, f"2.{NEWEST}"),
        ({"X-OpenStack-Nova-API-Version": "2.3"}, "2.3"),
    ],
)
def test_answer_names_its_version(cloud: Any, headers: dict[str, str], version: str) -> None:
    answer = ask(cloud, "GET", "/v2.1/servers", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["OpenStack-API-Version"] == f"compute {version}"
    assert answer.headers["X-OpenStack-Nova-API-Version"] == version
    assert "OpenStack-API-Version" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("version", "status", "fault"),
    [
        ("2.9999", 406, "computeFault"),
        ("3.1", 406, "computeFault"),
        ("2.0", 406, "computeFault"),
        ("two", 400, "badRequest"),
        ("2." + "9" * 3000, 400, "badRequest"),
    ],
)
def test_unknown_version_is_refused(cloud: Any, version: str, status: int, fault: str) -> None:
    headers = {"OpenStack-API-Version": f"compute {version}"}
    answer = ask(cloud, "GET", "/v2.1/servers", headers=headers)
    assert (answer.status_code, list(answer.json())) == (status, [fault])


def test_stack_user_is_refused(cloud: Any, web: str) -> None:
    """Its password is in a server's metadata, so it must give no access here."""
    user_id = cloud.identity.create_stack_user("in-a-guest", cloud.credentials.project_id, "p")
    token = cloud.identity.token(cloud.identity.grant(cloud.identity.user(user_id)))
    headers = {"X-Auth-Token": token}
    answer = requests.get(url(cloud, f"/v2.1/servers/{web}"), headers=headers, timeout=120)
    assert (answer.status_code, list(answer.json())) == (403, ["forbidden"])


def test_guest_cannot_reach_the_api(cloud: Any, web: str) -> None:
    """No listener for guests leads to it, and their catalogue does not list it."""
    assert "nova" in HOST_SERVICES
    assert not set(HOST_SERVICES) & set(PORTS.values())
    owner = cloud.credentials
    user = {"id": owner.user_id, "password": owner.password}
    body = {"auth": {"identity": {"methods": ["password"], "password": {"user": user}}}}
    with guest(cloud, web) as vm:
        answer = vm.request("POST", "http://169.254.169.254:5000/v3/auth/tokens", json=body)
    assert answer.status_code == 201
    kinds = {entry["type"] for entry in answer.json()["token"]["catalog"]}
    assert "orchestration" in kinds
    assert "compute" not in kinds


@pytest.mark.parametrize("path", ["/v2.1/nothing", "/v2/servers", "/v2.1/servers/x/y/z"])
def test_unknown_path_is_404(cloud: Any, path: str) -> None:
    answer = ask(cloud, "GET", path)
    assert (answer.status_code, list(answer.json())) == (404, ["itemNotFound"])


def test_unknown_method_is_405(cloud: Any) -> None:
    answer = ask(cloud, "DELETE", "/v2.1/servers")
    assert (answer.status_code, list(answer.json())) == (405, ["badMethod"])
    assert answer.headers["Allow"] == "GET, POST"


def test_path_may_contain_the_project(cloud: Any, web: str) -> None:
    answer = ask(cloud, "GET", f"/v2.1/{cloud.credentials.project_id}/servers/{web}")
    assert answer.json()["server"]["id"] == web


def test_url_and_body_are_limited(cloud: Any) -> None:
    assert ask(cloud, "GET", "/v2.1/servers?name=" + "x" * 9000).status_code == 414
    assert ask(cloud, "POST", "/v2.1/servers", data=b"x" * (2 << 20)).status_code == 413


# -- servers --------------------


def test_novaclient_shows_a_server(nova: Any, cloud: Any, web: str) -> None:
    server = nova.servers.get(web)
    assert (server.name, server.status, server.metadata) == ("web", "ACTIVE", {"role": "front"})
    assert server.networks == {"hotplate": [MINE]}
    assert server.flavor["original_name"] == "m1.small"
    assert server.image["id"] == image_id("debian")
    assert (server.key_name, server.tags, server.description) == ("mine", ["blue"], "the front")
    assert server.tenant_id == cloud.credentials.project_id
    assert getattr(server, "OS-EXT-STS:vm_state") == "active"
    assert server.addresses["hotplate"][0]["OS-EXT-IPS-MAC:mac_addr"].startswith("52:54:00:")


def test_fields_depend_on_the_microversion(at: Any, web: str) -> None:
    old = at("2.1").servers.get(web).to_dict()
    assert old["flavor"]["id"] == "2"
    assert not {"tags", "description", "locked", "host_status"} & set(old)
    new = at("2.47").servers.get(web).to_dict()
    assert new["flavor"]["vcpus"] == 1
    assert "server_groups" not in new
    assert at("2.71").servers.get(web).server_groups == []


@pytest.mark.parametrize(
    ("version", "whole", "rebuilt"),
    [
        ("2.53", False, {"adminPass"}),
        ("2.57", False, {"adminPass", "key_name", "user_data"}),
        ("2.75", True, {"adminPass", "user_data"}),
    ],
)
def test_answer_to_a_change_has_all_details_from_2_75_on(
    cloud: Any, web: str, version: str, whole: bool, rebuilt: set[str]
) -> None:
    """As tempest's schemas, and ``_update`` and ``_action_rebuild`` of Nova's ``servers.py``."""
    headers = {"OpenStack-API-Version": f"compute {version}"}
    path = f"/v2.1/servers/{web}"
    shown = ask(cloud, "GET", path, headers=headers).json()["server"]
    body = {"server": {"name": "web"}}
    changed = ask(cloud, "PUT", path, headers=headers, json=body).json()["server"]
    details = {
        "OS-EXT-AZ:availability_zone", "OS-EXT-STS:power_state", "OS-EXT-STS:task_state",
        "OS-EXT-STS:vm_state", "OS-SRV-USG:launched_at", "OS-SRV-USG:terminated_at",
        "config_drive", "key_name", "security_groups", "os-extended-volumes:volumes_attached",
    }  # fmt: skip
    assert set(shown) - set(changed) == (set() if whole else details)
    body = {"rebuild": {"imageRef": "i"}}
    answer = ask(cloud, "POST", f"{path}/action", headers=headers, json=body).json()["server"]
    assert set(answer) - set(changed) == rebuilt


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"accessIPv6": "::babe:220.12.22.2"}, "::babe:dc0c:1602"),
        ({"accessIPv6": "2001:DB8:0:0::1"}, "2001:db8::1"),
        ({"accessIPv4": "1.1.1.1.1.1"}, None),
        ({"accessIPv4": "::1"}, None),
        ({"accessIPv6": "notvalid"}, None),
    ],
)
def test_access_addresses_are_addresses(
    cloud: Any, web: str, given: dict[str, str], shown: str | None
) -> None:
    """As tempest's ServersTestJSON and ServersNegativeTestJSON."""
    ((name, text),) = given.items()
    changed = ask(cloud, "PUT", f"/v2.1/servers/{web}", json={"server": given})
    body = {"rebuild": {"imageRef": "i", **given}}
    rebuilt = ask(cloud, "POST", f"/v2.1/servers/{web}/action", json=body)
    made = ask(cloud, "POST", "/v2.1/servers", json={
        "server": {"name": "x", "imageRef": "i", "flavorRef": "1", **given}
    })  # fmt: skip
    if shown:
        assert changed.json()["server"][name] == rebuilt.json()["server"][name] == shown
        cloud.servers.delete(made.json()["server"]["id"])
    else:
        words = f"Invalid input for field/attribute {name}. Value: {text}. '{text}' is not a 'ipv"
        for answer in (changed, rebuilt, made):
            assert answer.status_code == 400
            assert words in answer.json()["badRequest"]["message"]


def test_server_in_error_has_a_reason(nova: Any, compute: Any, web: str) -> None:
    compute.states[web] = ("ERROR", "QEMU could not start")
    server = nova.servers.get(web)
    assert (server.status, server.fault["message"]) == ("ERROR", "QEMU could not start")


def test_unknown_server_is_404(nova: Any) -> None:
    with pytest.raises(nova_exceptions.NotFound, match="Instance nobody could not be found"):
        nova.servers.get("nobody")


@pytest.mark.parametrize("path", ["servers", "servers/detail", "limits"])
def test_list_survives_a_concurrent_deletion(
    cloud: Any, web: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Heat created a stack's server while another was deleted, and got a 404 for that one."""
    store = cloud.servers._store
    read = store.rows

    def read_and_lose(sql: str, *values: object) -> Any:
        rows = read(sql, *values)
        if "hotplate_server " in sql:
            monkeypatch.undo()
            cloud.servers.delete(web)
        return rows

    monkeypatch.setattr(store, "rows", read_and_lose)
    answer = ask(cloud, "GET", f"/v2.1/{path}")
    assert answer.status_code == 200, answer.text
    assert web not in ask(cloud, "GET", "/v2.1/servers").text


@pytest.fixture(scope="module")
def five(cloud: Any) -> Iterator[list[str]]:
    """Five servers, oldest first."""
    made = [f"five-{number}-{uuid.uuid4()}" for number in range(5)]
    for number, each in enumerate(made):
        spec = ServerSpec(id=each, name=f"five-{number}", image=f"i{number % 2}", flavor="m1.tiny")
        cloud.servers.boot(spec, Notes(tags=[f"n{number}", "five"]))
    yield made
    for each in made:
        cloud.servers.delete(each)


def test_lists_are_paged(nova: Any, connection: Any, five: list[str]) -> None:
    whole = [each.id for each in nova.servers.list(search_opts={"name": "^five-"})]
    assert whole == five[::-1]
    first = nova.servers.list(search_opts={"name": "^five-"}, limit=2)
    assert [each.id for each in first] == [five[4], five[3]]
    second = nova.servers.list(search_opts={"name": "^five-"}, limit=2, marker=five[3])
    assert [each.id for each in second] == [five[2], five[1]]
    # limit=-1 is novaclient's word for "all, page by page"; the SDK follows the links.
    assert len(nova.servers.list(search_opts={"name": "^five-"}, limit=-1)) == 5
    assert [each.id for each in connection.compute.servers(name="^five-", limit=2)] == whole
    with pytest.raises(nova_exceptions.BadRequest, match=r"marker \[none\] not found"):
        nova.servers.list(marker="none")


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"name": "five-[12]$"}, {1, 2}),
        ({"image": image_id("i1")}, {1, 3}),
        ({"flavor": "m1.tiny"}, {0, 1, 2, 3, 4}),
        ({"flavor": "m1.huge"}, set()),
        ({"status": "SHUTOFF"}, {4}),
        ({"tags": "five,n2"}, {2}),
        ({"tags-any": "n1,n3"}, {1, 3}),
        ({"not-tags": "five,n0", "tags": "five"}, {1, 2, 3, 4}),
        ({"not-tags-any": "n0,n1", "tags": "five"}, {2, 3, 4}),
        ({"deleted": "true"}, set()),
        ({"vm_state": "stopped"}, {4}),
        ({"power_state": "4"}, {4}),
        ({"ip": "^192[.]0", "tags": "five"}, set()),
        ({"ip": MINE, "tags": "five,n2"}, {2}),
        # Of a user's request Nova ignores these (remove_invalid_options).
        ({"host": "elsewhere", "uuid": "none", "tags": "five,n2"}, {2}),
        ({"all_tenants": "false", "tags": "five,n2"}, {2}),
        ({"locked": "true"}, set()),
        ({"user_id": "nobody"}, set()),
        ({"hostname": "five-3"}, {3}),
        ({"changes-since": "2100-01-01T00:00:00Z"}, set()),
        ({"changes-before": "2100-01-01T00:00:00Z", "tags": "five,n1"}, {1}),
    ],
    ids=str,
)
def test_lists_are_filtered(
    nova: Any, compute: Any, five: list[str], asked: dict[str, str], numbers: set[int]
) -> None:
    compute.states[five[4]] = ("SHUTOFF", "")
    assert {each.id for each in nova.servers.list(search_opts=asked)} == {
        five[number] for number in numbers
    }


def test_list_is_filtered_by_zone_since_2_83(at: Any, five: list[str]) -> None:
    nowhere = {"availability_zone": "nowhere", "name": "five-1"}
    assert len(at("2.82").servers.list(search_opts=nowhere)) == 1
    assert at("2.83").servers.list(search_opts=nowhere) == []


def test_lists_are_sorted(nova: Any, five: list[str]) -> None:
    names = nova.servers.list(
        search_opts={"tags": "five"}, sort_keys=["display_name"], sort_dirs=["asc"], detailed=False
    )
    assert [each.id for each in names] == five


def test_invalid_pattern_is_refused(nova: Any) -> None:
    with pytest.raises(nova_exceptions.BadRequest, match="Invalid filter field"):
        nova.servers.list(search_opts={"name": "("})


def test_slow_pattern_is_taken_as_text(nova: Any, cloud: Any, made: None) -> None:
    name = "a" * 200
    cloud.servers.boot(ServerSpec(id="long-name", name=name))
    assert nova.servers.list(search_opts={"name": "(a|aa)+b$"}) == []
    assert nova.servers.list(search_opts={"name": "a*a*a*a*a*a*b"}) == []
    assert [each.id for each in nova.servers.list(search_opts={"name": "^a.*a$"})] == ["long-name"]


def test_addresses_and_interfaces(nova: Any, connection: Any, cloud: Any, web: str) -> None:
    assert nova.servers.ips(web) == {"hotplate": [{"version": 4, "addr": MINE}]}
    assert [each.address for each in connection.compute.server_ips(web)] == [MINE]
    (interface,) = nova.servers.interface_list(web)
    assert interface.fixed_ips[0]["ip_address"] == MINE
    assert [group.name for group in nova.servers.list_security_group(web)] == ["default"]
    one = ask(cloud, "GET", f"/v2.1/servers/{web}/ips/hotplate").json()
    assert one == {"hotplate": [{"version": 4, "addr": MINE}]}
    assert ask(cloud, "GET", f"/v2.1/servers/{web}/ips/other").status_code == 404


def test_flavors(nova: Any, connection: Any) -> None:
    assert [each.name for each in nova.flavors.list()][:2] == ["m1.tiny", "m1.small"]
    assert {each.name for each in nova.flavors.list(min_ram=8000)} == {"m1.large", "m1.xlarge"}
    assert nova.flavors.get("m1.medium").vcpus == 2
    assert nova.flavors.find(name="m1.large").ram == 8192
    # A template may name a flavor of the cloud that it was written for.
    assert nova.flavors.get("of.another.cloud").name == "of.another.cloud"
    assert connection.compute.find_flavor("m1.small").disk == 20
    assert nova.flavors.get("m1.tiny").get_keys() == {}
    with pytest.raises(nova_exceptions.NotFound):
        nova.flavors.get("x" * 300)


# -- create, change, delete --------------------


@pytest.fixture
def made(cloud: Any) -> Iterator[None]:
    """Delete the servers that a test creates."""
    before = {each.spec.id for each in cloud.servers.all()}
    yield
    for each in cloud.servers.all():
        if each.spec.id not in before:
            cloud.servers.delete(each.spec.id)


def spec_of(cloud: Any, server_id: str) -> ServerSpec:
    spec: ServerSpec = cloud.servers.get(server_id).spec
    return spec


def test_novaclient_creates_a_server(nova: Any, cloud: Any, compute: Any, made: None) -> None:
    server = nova.servers.create(
        "made",
        "debian",
        "m1.small",
        userdata="#!/bin/sh\necho é\n",
        meta={"a": "b"},
        key_name="mine",
        availability_zone="nova",
        config_drive=True,
        nics="auto",
        tags=["t", "t"],
        description="by hand",
        scheduler_hints={"heat_path_in_stack": ["root", "x"], "heat_resource_name": "web"},
    )
    spec = compute.specs[server.id]
    assert spec == spec_of(cloud, server.id)
    assert (spec.name, spec.image, spec.flavor) == ("made", "debian", "m1.small")
    assert spec.user_data == "#!/bin/sh\necho é\n".encode()
    assert (spec.metadata, spec.config_drive, spec.key_name) == ({"a": "b"}, True, "mine")
    assert (spec.stack_name, spec.resource_name) == ("root", "web")
    assert server.adminPass
    shown = nova.servers.get(server.id)
    assert (shown.status, shown.tags, shown.description) == ("ACTIVE", ["t"], "by hand")
    assert shown.user_id == cloud.credentials.user_id


def test_request_creates_several_servers(nova: Any, cloud: Any, made: None) -> None:
    nova.servers.create("many", "i", "f", min_count=2, max_count=3, nics="auto")
    names = {each.spec.name for each in cloud.servers.all() if "many" in each.spec.name}
    assert names == {"many-1", "many-2", "many-3"}


def test_server_boots_the_image_of_its_first_disk(at: Any, cloud: Any, made: None) -> None:
    disk = {"uuid": "debian", "source_type": "image", "boot_index": "0"}
    server = at("2.1").servers.create("disk", None, "f", block_device_mapping_v2=[disk])
    assert spec_of(cloud, server.id).image == "debian"


@pytest.mark.parametrize(
    ("change", "version", "message"),
    [
        ({"name": ""}, "2.1", "Invalid input for field/attribute name"),
        ({"name": "x" * 256}, "2.1", "Invalid input for field/attribute name"),
        ({"name": None}, "2.1", "Invalid input for field/attribute name"),
        ({"flavorRef": {}}, "2.1", "Invalid input for field/attribute flavorRef"),
        ({"metadata": {"a": 1}}, "2.1", "Invalid input for field/attribute a"),
        ({"metadata": {"a" * 256: "x"}}, "2.1", "Invalid input for field/attribute metadata"),
        ({"colour": "red"}, "2.1", "Additional properties are not allowed"),
        ({"tags": ["x"] * 51}, "2.1", "Invalid input for field/attribute tags"),
        ({"tags": ["a,b"]}, "2.1", "Invalid input for field/attribute 0"),
        ({"min_count": 3, "max_count": 2}, "2.1", "min_count must be <= max_count"),
        ({"user_data": "?"}, "2.1", "Invalid input for field/attribute user_data"),
        ({"user_data": "eHh4" * 20000}, "2.1", "User data too large"),
        ({}, "2.37", "'networks' is a required property"),
        # Properties that would have no effect.
        ({"personality": [{"path": "/a", "contents": "YQ=="}]}, "2.1", "puts no files into"),
        ({"trusted_image_certificates": ["a"]}, "2.1", "checks no image"),
        ({"host": "another"}, "2.1", "Compute host another could not be found"),
    ],
)
def test_bad_body_is_refused_as_nova_does(
    cloud: Any, change: dict[str, Any], version: str, message: str
) -> None:
    body = {"server": {"name": "n", "imageRef": "i", "flavorRef": "f", **change}}
    headers = {"OpenStack-API-Version": f"compute {version}"}
    before = len(cloud.servers.all())
    answer = ask(cloud, "POST", "/v2.1/servers", json=body, headers=headers)
    assert (answer.status_code, list(answer.json())) == (400, ["badRequest"])
    assert message in answer.json()["badRequest"]["message"]
    assert len(answer.content) < 2000
    assert len(cloud.servers.all()) == before


@pytest.mark.parametrize(("size", "fits"), [(49149, True), (49150, False), (60000, False)])
def test_user_data_limit(cloud: Any, size: int, fits: bool) -> None:
    spec = ServerSpec(id="x", name="n", user_data=b"x" * size)
    if fits:
        cloud.servers.check_size(spec)
        return
    with pytest.raises(HttpError) as refused:
        cloud.servers.check_size(spec)
    assert refused.value.status == 400
    assert str(len(base64.b64encode(spec.user_data))) in str(refused.value)


@pytest.mark.parametrize("body", [{}, {"server": []}, [], "x", {"servers": {}}])
def test_body_without_a_server_is_refused(cloud: Any, body: Any) -> None:
    answer = ask(cloud, "POST", "/v2.1/servers", json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["badRequest"])


def test_servers_and_metadata_beyond_the_quota_are_refused(cloud: Any) -> None:
    """In the words of ``check_num_instances_quota``, which Nova's TooManyInstances has."""
    servers = [capacity.flavor(each.spec.flavor) for each in cloud.servers.all()]
    limits = {"cores": 20, "instances": 10, "ram": 51200}
    used = {
        "cores": sum(each.vcpus for each in servers),
        "instances": len(servers),
        "ram": sum(each.ram for each in servers),
    }
    for flavor, count in (("m1.tiny", 11), ("m1.xlarge", 3), ("m1.xlarge", 11)):
        size = capacity.flavor(flavor)
        asked = {"cores": count * size.vcpus, "instances": count, "ram": count * size.ram}
        over = [name for name in limits if used[name] + asked[name] > limits[name]]
        requested, taken, most = (
            ", ".join(str(values[name]) for name in over) for values in (asked, used, limits)
        )
        server = {"name": "n", "imageRef": "i", "flavorRef": flavor, "min_count": count}
        answer = ask(cloud, "POST", "/v2.1/servers", json={"server": server})
        assert (answer.status_code, answer.json()["forbidden"]["message"]) == (
            403,
            f"Quota exceeded for {', '.join(over)}: Requested {requested}, but already used "
            f"{taken} of {most} {', '.join(over)}",
        )
    body: dict[str, Any] = {}
    body["server"] = {
        "name": "n", "flavorRef": "f", "metadata": {str(n): "" for n in range(129)}
    }  # fmt: skip
    answer = ask(cloud, "POST", "/v2.1/servers", json=body)
    assert "metadata items exceeds 128" in answer.json()["forbidden"]["message"]


def test_server_that_cannot_start_is_500_and_leaves_no_port(
    nova: Any, neutron: Any, cloud: Any, compute: Any
) -> None:
    def refuse(spec: ServerSpec) -> None:
        raise HostError("the host has no memory left")

    ports = neutron.list_ports(device_owner="compute:nova")
    before = len(cloud.servers.all())
    compute.on_boot = refuse
    try:
        with pytest.raises(nova_exceptions.ClientException, match="has no memory left") as refused:
            nova.servers.create("n", "i", "f", nics="auto")
    finally:
        compute.on_boot = lambda spec: None
    assert refused.value.code == 500
    assert len(cloud.servers.all()) == before
    assert neutron.list_ports(device_owner="compute:nova") == ports


def test_server_is_renamed_and_described(nova: Any, cloud: Any, web: str) -> None:
    nova.servers.update(web, name="front", description="new")
    shown = nova.servers.get(web)
    assert (shown.name, shown.description) == ("front", "new")
    assert spec_of(cloud, web).name == "front"
    with pytest.raises(nova_exceptions.BadRequest):
        nova.servers.update(web, name=" ")


def test_properties_of_a_new_server_are_shown(nova: Any, cloud: Any, made: None) -> None:
    """The fields are those of Nova 2.96."""
    at = {"access_ip_v4": "192.0.2.7", "access_ip_v6": "2001:db8::7"}
    server = nova.servers.create(
        "shown", "i", "f", nics="auto", userdata="words", hostname="front", disk_config="AUTO", **at
    )
    shown = nova.servers.get(server.id).to_dict()
    assert (shown["accessIPv4"], shown["accessIPv6"]) == ("192.0.2.7", "2001:db8::7")
    assert shown["OS-DCF:diskConfig"] == "AUTO"
    assert shown["OS-EXT-SRV-ATTR:hostname"] == "front"
    # The time of a database, without a zone; of the attributes with this prefix a user sees one.
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.000000", shown["OS-SRV-USG:launched_at"])
    assert [each for each in shown if each.startswith("OS-EXT-SRV-ATTR:")] == [
        "OS-EXT-SRV-ATTR:hostname"
    ]
    assert "host_status" not in shown
    with guest(cloud, server.id) as vm:
        answer = vm.request("GET", "http://169.254.169.254/openstack/latest/meta_data.json").json()
        assert answer["hostname"] == "front.novalocal"
    answer = ask(
        cloud,
        "PUT",
        f"/v2.1/servers/{server.id}",
        json={"server": {"name": "renamed", "accessIPv4": "192.0.2.8"}},
    )
    assert answer.json()["server"]["accessIPv4"] == "192.0.2.8"
    # A rename leaves the host name in Nova.
    assert nova.servers.get(server.id).to_dict()["OS-EXT-SRV-ATTR:hostname"] == "front"
    nova.servers.rebuild(server.id, "other", hostname="back")
    assert nova.servers.get(server.id).to_dict()["OS-EXT-SRV-ATTR:hostname"] == "back"


def test_host_name_may_have_a_domain(cloud: Any, nova: Any, compute: Any, made: None) -> None:
    """As tempest's ServersV294TestFqdnHostnames."""
    name = "X" + "x" * 51 + "-guest-test.domaintest.com"
    server = nova.servers.create("named", "i", "f", nics="auto", hostname=name)
    assert nova.servers.get(server.id).to_dict()["OS-EXT-SRV-ATTR:hostname"] == name
    (port,) = compute.specs[server.id].ports
    assert port.names == ("x" * 52 + "-guest-test",)
    with guest(cloud, server.id) as vm:
        answer = vm.request("GET", "http://169.254.169.254/openstack/latest/meta_data.json").json()
        assert answer["hostname"] == f"{name}.novalocal"
    with pytest.raises(nova_exceptions.BadRequest, match="hostname"):
        nova.servers.create("bad", "i", "f", nics="auto", hostname="two words")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("os-interface", {"interfaceAttachment": {"network": "hotplate"}}),
        ("os-interface", {"interfaceAttachment": {"net_id": "n", "fixed_ips": [{}, {}]}}),
        ("os-volume_attachments", {"volumeAttachment": {"volumeId": "v", "size": 1}}),
    ],
)
def test_unknown_field_of_an_attachment_is_refused(
    cloud: Any, web: str, path: str, body: dict[str, Any]
) -> None:
    answer = ask(cloud, "POST", f"/v2.1/servers/{web}/{path}", json=body)
    assert answer.status_code == 400


def test_security_groups_of_a_server(nova: Any, neutron: Any, openstack: Any, made: None) -> None:
    """They are Neutron's, of the server's ports (``nova/network/security_group_api.py``)."""

    def groups(server: Any) -> set[str]:
        shown = nova.servers.get(server.id).to_dict()
        # Nova shows no empty list (``_add_security_grps`` of its ``views/servers.py``).
        assert shown.get("security_groups") != []
        return {each["name"] for each in shown.get("security_groups", ())}

    one = nova.servers.create("one", "i", "f", nics="auto")
    group = neutron.create_security_group({"security_group": {"name": "web"}})
    openstack("server", "add", "security", "group", "one", "web")
    nova.servers.add_security_group(one.id, "web")
    assert groups(one) == {"default", "web"}
    openstack("server", "remove", "security", "group", "one", "default")
    assert groups(one) == {"web"}
    # By its id as well.
    nova.servers.remove_security_group(one.id, group["security_group"]["id"])
    assert groups(one) == set()
    for name, sentence in (("default", "not associated with the instance"), ("no", "not found")):
        with pytest.raises(nova_exceptions.NotFound, match=sentence):
            nova.servers.remove_security_group(one.id, name)
    without = nova.servers.create("without", "i", "f", nics="none")
    with pytest.raises(nova_exceptions.NotFound, match="as device id on any ports"):
        nova.servers.add_security_group(without.id, "web")
    assert {each.action for each in nova.instance_action.list(one)} == {"create"}
    neutron.delete_security_group(group["security_group"]["id"])


def test_metadata(nova: Any, connection: Any, cloud: Any, web: str) -> None:
    nova.servers.set_meta(web, {"a": "1", "b": "2"})
    assert spec_of(cloud, web).metadata == {"role": "front", "a": "1", "b": "2"}
    nova.servers.set_meta_item(web, "a", "3")
    nova.servers.delete_meta(web, ["b", "role"])
    assert spec_of(cloud, web).metadata == {"a": "3"}
    assert nova.servers.list_meta(web)["metadata"] == {"a": "3"}
    assert connection.compute.get_server_metadata(web).metadata == {"a": "3"}
    path = f"/v2.1/servers/{web}/metadata"
    assert ask(cloud, "GET", f"{path}/a").json() == {"meta": {"a": "3"}}
    assert ask(cloud, "PUT", path, json={"metadata": {"z": ""}}).json() == {"metadata": {"z": ""}}
    assert ask(cloud, "PUT", f"{path}/y", json={"meta": {"x": ""}}).status_code == 400
    many = {str(number): "" for number in range(128)}
    assert ask(cloud, "POST", path, json={"metadata": many}).status_code == 403
    with pytest.raises(nova_exceptions.NotFound, match="Metadata item was not found"):
        nova.servers.delete_meta(web, ["none"])


def test_tags(nova: Any, cloud: Any, web: str) -> None:
    new = {"OpenStack-API-Version": "compute 2.26"}
    path = f"/v2.1/servers/{web}/tags"
    assert ask(cloud, "GET", f"{path}/blue", headers=new).status_code == 204
    assert ask(cloud, "GET", f"{path}/none", headers=new).status_code == 404
    assert ask(cloud, "GET", path).status_code == 404
    nova.servers.add_tag(web, "red")
    nova.servers.add_tag(web, "red")
    assert nova.servers.tag_list(web) == ["blue", "red"]
    nova.servers.delete_tag(web, "blue")
    nova.servers.set_tags(web, ["x", "y"])
    assert nova.servers.get(web).tags == ["x", "y"]
    nova.servers.delete_all_tags(web)
    assert nova.servers.tag_list(web) == []
    with pytest.raises(nova_exceptions.BadRequest):
        nova.servers.add_tag(web, "x" * 61)
    nova.servers.set_tags(web, [str(number) for number in range(50)])
    with pytest.raises(nova_exceptions.BadRequest):
        nova.servers.add_tag(web, "one too many")
    with pytest.raises(nova_exceptions.NotFound):
        nova.servers.delete_tag(web, "none")


@pytest.mark.parametrize(
    ("method", "arguments", "action"),
    [
        ("add_tag", ("red",), "update tag"),
        ("set_tags", (["red"],), "update tags"),
        ("delete_tag", ("blue",), "delete tag"),
        ("delete_all_tags", (), "delete tags"),
    ],
)
def test_tags_change_only_in_nova_states(
    nova: Any, compute: Any, web: str, method: str, arguments: tuple[Any, ...], action: str
) -> None:
    for status, machine in (("ERROR", "error"), ("BUILD", "building")):
        compute.states[web] = (status, "")
        refused = f"Cannot '{action}' instance {web} while it is in vm_state {machine} "
        with pytest.raises(nova_exceptions.Conflict, match=refused):
            getattr(nova.servers, method)(web, *arguments)
    assert nova.servers.tag_list(web) == ["blue"]
    compute.states[web] = ("REBOOT", "")
    getattr(nova.servers, method)(web, *arguments)
    assert nova.servers.tag_list(web) != ["blue"]


# -- actions --------------------


@pytest.mark.parametrize(
    ("before", "method", "arguments", "call", "after"),
    [
        ("ACTIVE", "stop", (), "stop", "SHUTOFF"),
        ("SHUTOFF", "start", (), "start", "ACTIVE"),
        ("ACTIVE", "suspend", (), "suspend", "SUSPENDED"),
        ("SUSPENDED", "resume", (), "resume", "ACTIVE"),
        ("ACTIVE", "pause", (), "pause", "PAUSED"),
        ("PAUSED", "unpause", (), "unpause", "ACTIVE"),
        ("ACTIVE", "reboot", ("SOFT",), "reboot", "ACTIVE"),
        ("ACTIVE", "reboot", ("HARD",), "hard_reboot", "ACTIVE"),
        ("SHUTOFF", "reboot", ("HARD",), "hard_reboot", "ACTIVE"),
        ("ERROR", "reboot", ("HARD",), "hard_reboot", "ACTIVE"),
        ("REBOOT", "reboot", ("HARD",), "hard_reboot", "ACTIVE"),
        ("HARD_REBOOT", "reboot", ("HARD",), "hard_reboot", "ACTIVE"),
    ],
)
def test_power_actions_change_the_state(
    nova: Any,
    compute: Any,
    web: str,
    before: str,
    method: str,
    arguments: tuple[str, ...],
    call: str,
    after: str,
) -> None:
    compute.states[web] = (before, "")
    getattr(nova.servers, method)(web, *arguments)
    assert compute.calls[-1] == (call, web)
    assert nova.servers.get(web).status == after


@pytest.mark.parametrize(
    ("state", "method", "sentence"),
    [
        ("SHUTOFF", "stop", "Cannot 'stop' instance .* while it is in vm_state stopped"),
        ("ACTIVE", "start", "Cannot 'start' instance .* while it is in vm_state active"),
        ("BUILD", "suspend", "Cannot 'suspend' instance .* while it is in vm_state building"),
        ("ACTIVE", "resume", "Cannot 'resume' instance"),
        ("PAUSED", "reboot", "Cannot 'reboot' instance .* while it is in vm_state paused"),
        ("ACTIVE", "confirm_resize", "Cannot 'confirmResize' instance"),
        ("REBOOT", "reboot", "Cannot 'reboot' instance .* while it is in task_state rebooting "),
        ("REBOOT", "pause", "Cannot 'pause' instance .* while it is in task_state rebooting "),
        ("HARD_REBOOT", "stop", "Cannot 'stop' .* while it is in task_state rebooting_hard "),
        ("REBOOT", "start", "Cannot 'start' instance .* while it is in vm_state active "),
    ],
)
def test_action_in_a_wrong_state_is_refused(
    nova: Any, compute: Any, web: str, state: str, method: str, sentence: str
) -> None:
    compute.states[web] = (state, "")
    before = len(compute.calls)
    with pytest.raises(nova_exceptions.Conflict, match=sentence):
        getattr(nova.servers, method)(web)
    assert len(compute.calls) == before


def test_console_output(nova: Any, connection: Any, compute: Any, web: str) -> None:
    compute.consoles[web] = "one\ntwo\nthree\n"
    assert nova.servers.get_console_output(web) == "one\ntwo\nthree"
    assert nova.servers.get_console_output(web, length=2) == "two\nthree"
    assert nova.servers.get_console_output(web, length=0) == ""
    assert connection.compute.get_server_console_output(web, length=1) == {"output": "three"}
    compute.consoles[web] = "x\n" * 20_000
    assert len(nova.servers.get_console_output(web).splitlines()) == 10_000


@pytest.mark.parametrize("kind", ["novnc", "serial", "spice-html5", "webmks"])
def test_remote_console_is_refused(nova: Any, web: str, kind: str) -> None:
    with pytest.raises(nova_exceptions.BadRequest, match=f"Unavailable console type {kind}"):
        nova.servers.get_console_url(web, kind)


def test_rebuild(nova: Any, cloud: Any, compute: Any, web: str) -> None:
    number = cloud.servers.get(web).number
    server = nova.servers.rebuild(
        web, "trixie", name="anew", meta={"x": "y"}, userdata="#!/bin/sh\n", description="again"
    )
    assert server.adminPass
    assert ("delete", web) in compute.calls
    spec = compute.specs[web]
    assert (spec.image, spec.name, spec.metadata) == ("trixie", "anew", {"x": "y"})
    assert (spec.user_data, spec.flavor, spec.key_name) == (b"#!/bin/sh\n", "m1.small", "mine")
    record = cloud.servers.get(web)
    assert (record.number, record.notes.tags) == (number, ["blue"])
    assert record.notes.description == "again"
    nova.servers.rebuild(web, "trixie", key_name=None)
    assert spec_of(cloud, web).key_name == ""


def test_rebuilt_server_stays_off(nova: Any, web: str) -> None:
    """As tempest's ``test_rebuild_server_in_stop_state``."""
    nova.servers.stop(web)
    nova.servers.rebuild(web, "trixie")
    assert nova.servers.get(web).status == "SHUTOFF"
    nova.servers.start(web)
    assert nova.servers.get(web).status == "ACTIVE"


def test_rebuild_refuses_what_create_refuses(nova: Any, compute: Any, web: str) -> None:
    with pytest.raises(nova_exceptions.BadRequest, match="User data too large"):
        nova.servers.rebuild(web, "trixie", userdata="x" * 60_000)
    assert web in compute.specs


def test_resize_is_confirmed_or_reverted(nova: Any, cloud: Any, web: str) -> None:
    nova.servers.resize(web, "m1.large")
    shown = nova.servers.get(web)
    assert (shown.status, shown.flavor["original_name"]) == ("VERIFY_RESIZE", "m1.large")
    nova.servers.confirm_resize(web)
    assert nova.servers.get(web).status == "ACTIVE"
    nova.servers.resize(web, "m1.tiny")
    nova.servers.revert_resize(web)
    assert (nova.servers.get(web).status, spec_of(cloud, web).flavor) == ("ACTIVE", "m1.large")
    with pytest.raises(nova_exceptions.BadRequest, match="must change flavor"):
        nova.servers.resize(web, "m1.large")


def test_resize_needs_a_flavor(nova: Any, web: str) -> None:
    """As tempest's ``test_resize_server_with_null_flavor``."""
    with pytest.raises(nova_exceptions.BadRequest, match="flavorRef"):
        nova.servers.resize(web, "")


def test_locked_server_refuses_changes(nova: Any, web: str) -> None:
    """As ``check_instance_lock`` of ``nova/compute/api.py``, also to its owner."""
    nova.servers.lock(web, reason="mine")
    assert (nova.servers.get(web).locked, nova.servers.get(web).locked_reason) == (True, "mine")
    for change in (
        nova.servers.stop,
        nova.servers.delete,
        lambda server: nova.servers.set_meta(server, {"a": "b"}),
        lambda server: nova.servers.delete_meta(server, ["role"]),
        lambda server: nova.servers.interface_attach(server, None, None, None),
        lambda server: nova.servers.interface_detach(server, "port"),
    ):
        with pytest.raises(nova_exceptions.Conflict, match=f"Instance {web} is locked"):
            change(web)
    nova.servers.get_console_output(web)
    nova.servers.unlock(web)
    assert not nova.servers.get(web).locked


def test_delete(nova: Any, compute: Any, web: str) -> None:
    nova.servers.force_delete(web)
    assert web not in compute.specs
    for delete in (nova.servers.delete, nova.servers.force_delete):
        with pytest.raises(nova_exceptions.NotFound, match="could not be found"):
            delete(web)


def test_invalid_actions_are_refused(nova: Any, cloud: Any, web: str) -> None:
    with pytest.raises(nova_exceptions.BadRequest, match="does not support the action shelve"):
        nova.servers.shelve(web)
    path = f"/v2.1/servers/{web}/action"
    answer = ask(cloud, "POST", path, json={"dance": None})
    assert answer.json()["badRequest"]["message"] == "There is no such action: dance"
    for body in ({}, {"lock": None, "unlock": None}, []):
        assert ask(cloud, "POST", path, json=body).status_code == 400
    assert ask(cloud, "POST", path, json={"reboot": {"type": "KICK"}}).status_code == 400
    nova.servers.change_password(web, "secret")


def test_attachments_are_accepted(nova: Any, web: str) -> None:
    assert nova.servers.interface_attach(web, "a-port", None, None).port_id == "a-port"
    nova.servers.interface_detach(web, "a-port")
    volume = nova.volumes.create_server_volume(web, "a-volume")
    assert volume.volumeId == "a-volume"
    assert nova.volumes.get_server_volumes(web) == []
    nova.volumes.delete_server_volume(web, "a-volume")
    with pytest.raises(nova_exceptions.NotFound, match="is not attached"):
        nova.volumes.get_server_volume(web, "a-volume")


def test_guest_password_is_shown(nova: Any, cloud: Any, web: str) -> None:
    with guest(cloud, web) as vm:
        answer = vm.request("POST", "http://169.254.169.254/openstack/latest/password", data="c2Vj")
        assert answer.status_code == 200
        assert nova.servers.get_password(web) == "c2Vj"
        # Nova forgets it, and the guest may post another one.
        nova.servers.clear_password(web)
        assert nova.servers.get_password(web) == ""
        answer = vm.request("POST", "http://169.254.169.254/openstack/latest/password", data="bmV3")
        assert answer.status_code == 200
    assert nova.servers.get_password(web) == "bmV3"


# -- key pairs, groups, limits --------------------

ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8dOyVKvhjVn8vUZ5N8IPNzW3O0vPj3VtrE1cQ1mW5i me@here"


def test_key_pairs(nova: Any, at: Any, connection: Any) -> None:
    made = nova.keypairs.create("imported", public_key=ED25519)
    digest = hashlib.md5(base64.b64decode(ED25519.split()[1])).hexdigest()
    assert made.fingerprint.replace(":", "") == digest
    assert nova.keypairs.get("imported").public_key == ED25519
    datetime.fromisoformat(nova.keypairs.get("imported").created_at)
    assert "imported" in {each.name for each in connection.compute.keypairs()}
    with pytest.raises(nova_exceptions.Conflict, match="Key pair 'imported' already exists"):
        nova.keypairs.create("imported", public_key=ED25519)
    with pytest.raises(nova_exceptions.BadRequest, match="failed to generate fingerprint"):
        nova.keypairs.create("bad", public_key="ssh-rsa nonsense")
    nova.keypairs.delete("imported")
    with pytest.raises(nova_exceptions.NotFound, match="not found for user"):
        nova.keypairs.delete("imported")


def test_key_pair_is_generated_before_2_92(at: Any, cloud: Any) -> None:
    old = at("2.91").keypairs
    made = old.create("generated")
    key = serialization.load_pem_private_key(made.private_key.encode(), None)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    assert made.public_key.startswith(public.decode())
    assert old.get("generated").public_key == made.public_key
    old.delete("generated")
    answer = ask(
        cloud,
        "POST",
        "/v2.1/os-keypairs",
        json={"keypair": {"name": "generated"}},
        headers={"OpenStack-API-Version": "compute 2.92"},
    )
    assert "'public_key' is a required property" in answer.json()["badRequest"]["message"]
    with pytest.raises(nova_exceptions.BadRequest, match="import one"):
        old.create("certificate", key_type="x509")


def test_unknown_key_pair_exists_but_is_not_listed(nova: Any) -> None:
    assert nova.keypairs.get("of.another.cloud").name == "of.another.cloud"
    assert "of.another.cloud" not in {each.name for each in nova.keypairs.list()}


def test_key_pairs_are_paged(nova: Any) -> None:
    names = [f"page-{number}" for number in range(3)]
    for name in names:
        nova.keypairs.create(name, public_key=ED25519)
    assert [each.name for each in nova.keypairs.list(limit=2)] == names[:2]
    assert [each.name for each in nova.keypairs.list(limit=2, marker=names[1])] == names[2:]
    for name in names:
        nova.keypairs.delete(name)


def test_server_groups(nova: Any, at: Any, connection: Any, cloud: Any, made: None) -> None:
    group = nova.server_groups.create("apart", "anti-affinity", rules={"max_server_per_host": 2})
    assert (group.policy, group.rules) == ("anti-affinity", {"max_server_per_host": 2})
    assert at("2.15").server_groups.get(group.id).policies == ["anti-affinity"]
    old = at("2.15").server_groups.create("near", ["soft-affinity"])
    for groups in (nova.server_groups.list(), connection.compute.server_groups()):
        assert {each.name for each in groups} == {"apart", "near"}
    server = nova.servers.create("n", "i", "f", nics="auto", scheduler_hints={"group": group.id})
    assert nova.server_groups.get(group.id).members == [server.id]
    assert nova.servers.get(server.id).server_groups == [group.id]
    with pytest.raises(nova_exceptions.BadRequest, match="Only anti-affinity policy supports"):
        nova.server_groups.create("x", "affinity", rules={"max_server_per_host": 2})
    with pytest.raises(nova_exceptions.BadRequest):
        nova.server_groups.create("x", "any")
    with pytest.raises(nova_exceptions.BadRequest, match="could not be found"):
        nova.servers.create("n", "i", "f", nics="auto", scheduler_hints={"group": "none"})
    for each in (group, old):
        nova.server_groups.delete(each.id)
    with pytest.raises(nova_exceptions.NotFound, match=f"Instance group {group.id}"):
        nova.server_groups.get(group.id)
    with pytest.raises(nova_exceptions.NotFound):
        nova.server_groups.delete(group.id)


def test_limits_and_quotas(nova: Any, at: Any, connection: Any, cloud: Any, web: str) -> None:
    used = len(cloud.servers.all())
    limits = {each.name: each.value for each in nova.limits.get().absolute}
    assert (limits["totalInstancesUsed"], limits["maxServerMeta"]) == (used, 128)
    assert "maxPersonality" not in limits
    assert "maxPersonality" in {each.name for each in at("2.1").limits.get().absolute}
    assert connection.compute.get_limits().absolute.instances_used == used
    project = cloud.credentials.project_id
    # The defaults of ``[quota]``; before 2.57 with those of injected files.
    assert nova.quotas.get(project).to_dict() == {
        "id": project,
        "instances": 10,
        "cores": 20,
        "ram": 51200,
        "metadata_items": 128,
        "key_pairs": 100,
        "server_groups": 10,
        "server_group_members": 10,
    }
    assert at("2.56").quotas.defaults(project).injected_file_content_bytes == 10240
    assert nova.quotas.get(project, detail=True).instances["in_use"] == used
    with pytest.raises(nova_exceptions.Forbidden, match="os-quota-sets:show"):
        nova.quotas.get("other")


def test_usage_is_that_of_the_projects_servers(connection: Any, cloud: Any, web: str) -> None:
    project = cloud.credentials.project_id
    usage = connection.compute.get_usage(
        project, start=datetime(2020, 1, 1), end=datetime(2100, 1, 1)
    )
    (of_web,) = [each for each in usage.server_usages if each.instance_id == web]
    assert (of_web.flavor, of_web.memory_mb, of_web.state) == ("m1.small", 2048, "active")
    assert usage.total_memory_mb_usage >= 2048 * of_web.hours > 0
    path = f"/v2.1/os-simple-tenant-usage/{project}"
    # Before the server was there.
    early = ask(cloud, "GET", path, params={"start": "2020-01-01T00:00:00", "end": "2020-02-01"})
    assert early.json() == {"tenant_usage": {}}
    for query in ({"start": "never"}, {"start": "2021-01-01", "end": "2020-01-01"}):
        assert ask(cloud, "GET", path, params=query).status_code == 400
    assert ask(cloud, "GET", "/v2.1/os-simple-tenant-usage/other").status_code == 403


def test_fewer_servers_are_made_when_the_quota_allows_no_more(cloud: Any, nova: Any) -> None:
    left = 10 - len(cloud.servers.all())
    nova.servers.create("few", "i", "m1.tiny", nics="auto", min_count=1, max_count=20)
    made = nova.servers.list(search_opts={"name": "^few-"})
    assert len(made) == left
    for each in made:
        each.delete()


def test_resize_and_groups_are_within_the_quota(nova: Any, web: str) -> None:
    with pytest.raises(nova_exceptions.Forbidden, match=r"Quota exceeded for cores.*: Requested"):
        for number in range(3):
            nova.servers.create(f"big-{number}", "i", "m1.xlarge", nics="auto")
    big = nova.servers.list(search_opts={"name": "^big-"})
    with pytest.raises(
        nova_exceptions.Forbidden, match=r"cores.*: Requested 7.*, but already used"
    ):
        nova.servers.resize(web, "m1.xlarge")
    for each in big:
        each.delete()
    groups = [nova.server_groups.create(f"g{n}", "affinity") for n in range(10)]
    with pytest.raises(nova_exceptions.Forbidden, match="too many server groups"):
        nova.server_groups.create("more", "affinity")
    for each in groups:
        each.delete()


def test_references_are_ids(cloud: Any, nova: Any, at: Any, connection: Any) -> None:
    """A flavor and an image are named or given by id, and shown by id, as in Nova."""
    server = nova.servers.create("ids", "some image", "m1.tiny", nics="auto")
    shown = nova.servers.get(server.id)
    assert uuidutils.is_uuid_like(shown.image["id"])
    assert shown.image["links"][0]["href"].endswith(shown.image["id"])
    assert at("2.46").servers.get(server.id).flavor["id"] == "1"
    assert [each.id for each in nova.servers.list(search_opts={"image": shown.image["id"]})] == [
        server.id
    ]
    for flavor in ("1", "m1.tiny"):
        assert len(nova.servers.list(search_opts={"flavor": flavor, "name": "^ids$"})) == 1
    assert connection.compute.find_flavor("m1.small").id == nova.flavors.get("m1.small").id == "2"
    assert nova.flavors.get("2").name == "m1.small"
    assert cloud.servers.get(server.id).spec.image == "some image"
    server.delete()


def test_zones_and_extensions(nova: Any, connection: Any) -> None:
    assert [each.zoneName for each in nova.availability_zones.list(detailed=False)] == ["nova"]
    assert [each.name for each in connection.compute.availability_zones()] == ["nova"]
    assert list(connection.compute.extensions()) == []


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("GET", "/servers?all_tenants=1", "servers:index:get_all_tenants"),
        ("GET", "/servers/detail?all_tenants", "servers:detail:get_all_tenants"),
        ("GET", "/os-services", "os-services:list"),
        ("GET", "/os-hypervisors/detail", "os-hypervisors:list-detail"),
        ("GET", "/os-hypervisors/1", "os-hypervisors:show"),
        ("GET", "/os-availability-zone/detail", "os-availability-zone:detail"),
        ("PUT", "/os-quota-sets/p", "os-quota-sets:update"),
        ("POST", "/flavors", "os-flavor-manage:create"),
        ("DELETE", "/flavors/1", "os-flavor-manage:delete"),
    ],
)
def test_request_of_administrators_is_refused_to_a_user(
    cloud: Any, method: str, path: str, rule: str
) -> None:
    """The defaults of ``nova/policies``, in the words of PolicyNotAuthorized."""
    answer = ask(cloud, method, f"/v2.1{path}", json={})
    words = f"Policy doesn't allow os_compute_api:{rule} to be performed."
    assert (answer.status_code, answer.json()["forbidden"]["message"]) == (403, words)


@pytest.mark.parametrize(
    ("action", "rule"),
    [("os-resetState", "os-admin-actions:reset_state"), ("migrate", "os-migrate-server:migrate")],
)
def test_user_does_not_perform_an_administrators_action(
    cloud: Any, web: str, action: str, rule: str
) -> None:
    answer = ask(cloud, "POST", f"/v2.1/servers/{web}/action", json={action: None})
    assert answer.status_code == 403
    assert f"os_compute_api:{rule} " in answer.json()["forbidden"]["message"]


# -- the command line --------------------


def test_openstack_lists_the_networks_of_a_server(openstack: Any, web: str) -> None:
    (row,) = [row for row in openstack("server", "list", "-f", "json") if row["ID"] == web]
    assert (row["Name"], row["Status"], row["Networks"]) == ("web", "ACTIVE", {"hotplate": [MINE]})


def test_openstack_generates_a_key_pair_from_2_92_on(openstack: Any) -> None:
    # The command itself generates it then, and imports the public part.
    private = openstack("--os-compute-api-version", "2.92", "keypair", "create", "by-command")
    assert "PRIVATE KEY" in private


def test_openstack_lists_actions(openstack: Any, nova: Any, made: None) -> None:
    server = nova.servers.create("acts", "i", "f", nics="auto")
    server.stop()
    listed = openstack("server", "event", "list", "acts", "-f", "json")
    assert [each["Action"] for each in listed] == ["stop", "create"]
    shown = openstack(
        *("--os-compute-api-version", "2.84", "server", "event", "show"),
        *("acts", listed[0]["Request ID"], "-f", "json"),
    )
    assert (shown["action"], shown["events"][0]["result"]) == ("stop", "Success")
