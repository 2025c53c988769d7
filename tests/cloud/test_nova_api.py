"""Nova's API, asked by unmodified clients: novaclient, the SDK and the ``openstack`` command."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import openstack as sdk
import pytest
import requests
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from test_clients import owner_session
from wire_guest import guest

from hotplate.cloud.http.addresses import HOST_SERVICES, PORTS
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.microversions import NEWEST
from hotplate.cloud.nova.servers import Notes

MINE = "169.254.169.15"


@pytest.fixture(scope="module")
def nova(cloud: Any) -> Any:
    """novaclient at the newest version that it and the cloud speak."""
    return nova_client.Client(f"2.{NEWEST}", session=owner_session(cloud))


@pytest.fixture(scope="module")
def at(cloud: Any) -> Callable[[str], Any]:
    """novaclient at a version."""
    return lambda version: nova_client.Client(version, session=owner_session(cloud))


@pytest.fixture(scope="module")
def compute_sdk(cloud: Any) -> Any:
    """The SDK's compute service."""
    return sdk.connection.Connection(session=owner_session(cloud)).compute


@pytest.fixture
def web(cloud: Any) -> Iterator[str]:
    """The id of a server that somebody booted."""
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
    """A request with the owner's token, as no client sends it."""
    headers = {"X-Auth-Token": owner_session(cloud).get_token(), **fields.pop("headers", {})}
    return requests.request(method, url(cloud, path), headers=headers, timeout=20, **fields)


# -- versions, and who may --------------------


def test_the_catalogue_leads_to_the_api(cloud: Any) -> None:
    session = owner_session(cloud)
    for interface in ("public", "internal", "admin"):
        endpoint = session.get_endpoint(service_type="compute", interface=interface)
        assert endpoint == url(cloud, "/v2.1")
    data = session.get_endpoint_data(service_type="compute")
    assert (data.min_microversion, data.max_microversion) == ((2, 1), (2, NEWEST))


def test_versions_are_described_without_a_token(cloud: Any) -> None:
    root = requests.get(url(cloud, "/"), timeout=10).json()
    assert [(each["id"], each["status"]) for each in root["versions"]] == [("v2.1", "CURRENT")]
    one = requests.get(url(cloud, "/v2.1/"), timeout=10).json()["version"]
    assert (one["min_version"], one["version"]) == ("2.1", f"2.{NEWEST}")
    assert one["links"][0]["href"] == url(cloud, "/v2.1/")


def test_novaclient_finds_the_newest_version(at: Any) -> None:
    versions = at("2.1").versions
    assert versions.get_current().version == f"2.{NEWEST}"
    assert [each.id for each in versions.list()] == ["v2.1"]


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
def test_an_answer_names_its_version(cloud: Any, headers: dict[str, str], version: str) -> None:
    answer = ask(cloud, "GET", "/v2.1/servers", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["OpenStack-API-Version"] == f"compute {version}"
    assert answer.headers["X-OpenStack-Nova-API-Version"] == version
    assert "OpenStack-API-Version" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("version", "status", "fault"),
    [
        ("2.9999", 406, "notAcceptable"),
        ("3.1", 406, "notAcceptable"),
        ("2.0", 406, "notAcceptable"),
        ("two", 400, "badRequest"),
        ("2." + "9" * 3000, 400, "badRequest"),
    ],
)
def test_a_version_that_is_not_there(cloud: Any, version: str, status: int, fault: str) -> None:
    headers = {"OpenStack-API-Version": f"compute {version}"}
    answer = ask(cloud, "GET", "/v2.1/servers", headers=headers)
    assert (answer.status_code, list(answer.json())) == (status, [fault])


def test_a_bad_token_is_refused(cloud: Any) -> None:
    for headers in ({}, {"X-Auth-Token": "gAAAAAnonsense"}):
        answer = requests.get(url(cloud, "/v2.1/servers"), headers=headers, timeout=10)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Keystone uri=")


def test_a_stack_user_is_turned_away(cloud: Any, web: str) -> None:
    """Its password is in a server's metadata, so it must be good for nothing here."""
    user_id = cloud.identity.create_stack_user("in-a-guest", cloud.credentials.project_id, "p")
    token = cloud.identity.token(cloud.identity.grant(cloud.identity.user(user_id)))
    headers = {"X-Auth-Token": token}
    answer = requests.get(url(cloud, f"/v2.1/servers/{web}"), headers=headers, timeout=10)
    assert (answer.status_code, list(answer.json())) == (403, ["forbidden"])


def test_a_guest_has_no_way_to_it(cloud: Any, web: str) -> None:
    """No listener of a guest's leads there, and its catalogue does not name it."""
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
def test_a_path_that_is_not_there(cloud: Any, path: str) -> None:
    answer = ask(cloud, "GET", path)
    assert (answer.status_code, list(answer.json())) == (404, ["itemNotFound"])


def test_a_method_that_is_not_there(cloud: Any) -> None:
    answer = ask(cloud, "DELETE", "/v2.1/servers")
    assert (answer.status_code, list(answer.json())) == (405, ["badMethod"])


def test_the_project_may_stand_in_the_path(cloud: Any, web: str) -> None:
    answer = ask(cloud, "GET", f"/v2.1/{cloud.credentials.project_id}/servers/{web}")
    assert answer.json()["server"]["id"] == web


def test_a_request_is_bounded(cloud: Any) -> None:
    assert ask(cloud, "GET", "/v2.1/servers?name=" + "x" * 9000).status_code == 414
    assert ask(cloud, "POST", "/v2.1/servers", data=b"x" * (2 << 20)).status_code == 413


# -- servers --------------------


def test_novaclient_shows_a_server(nova: Any, cloud: Any, web: str) -> None:
    server = nova.servers.get(web)
    assert (server.name, server.status, server.metadata) == ("web", "ACTIVE", {"role": "front"})
    assert server.networks == {"hotplate": [MINE]}
    assert server.flavor["original_name"] == "m1.small"
    assert server.image["id"] == "debian"
    assert (server.key_name, server.tags, server.description) == ("mine", ["blue"], "the front")
    assert server.tenant_id == cloud.credentials.project_id
    assert getattr(server, "OS-EXT-STS:vm_state") == "active"
    assert server.addresses["hotplate"][0]["OS-EXT-IPS-MAC:mac_addr"].startswith("52:54:00:")


def test_fields_come_with_their_versions(at: Any, web: str) -> None:
    old = at("2.1").servers.get(web).to_dict()
    assert old["flavor"]["id"] == "m1.small"
    assert not {"tags", "description", "locked", "host_status"} & set(old)
    new = at("2.47").servers.get(web).to_dict()
    assert new["flavor"]["vcpus"] == 1
    assert "server_groups" not in new
    assert at("2.71").servers.get(web).server_groups == []


def test_a_server_in_error_says_why(nova: Any, compute: Any, web: str) -> None:
    compute.states[web] = ("ERROR", "QEMU could not start")
    server = nova.servers.get(web)
    assert (server.status, server.fault["message"]) == ("ERROR", "QEMU could not start")


def test_no_such_server(nova: Any) -> None:
    with pytest.raises(nova_exceptions.NotFound, match="Instance nobody could not be found"):
        nova.servers.get("nobody")


@pytest.fixture(scope="module")
def five(cloud: Any) -> Iterator[list[str]]:
    """Five servers, the oldest first."""
    made = [f"five-{number}-{uuid.uuid4()}" for number in range(5)]
    for number, each in enumerate(made):
        spec = ServerSpec(id=each, name=f"five-{number}", image=f"i{number % 2}", flavor="m1.tiny")
        cloud.servers.boot(spec, Notes(tags=[f"n{number}", "five"]))
    yield made
    for each in made:
        cloud.servers.delete(each)


def test_lists_have_pages(nova: Any, compute_sdk: Any, five: list[str]) -> None:
    whole = [each.id for each in nova.servers.list(search_opts={"name": "^five-"})]
    assert whole == five[::-1]
    first = nova.servers.list(search_opts={"name": "^five-"}, limit=2)
    assert [each.id for each in first] == [five[4], five[3]]
    second = nova.servers.list(search_opts={"name": "^five-"}, limit=2, marker=five[3])
    assert [each.id for each in second] == [five[2], five[1]]
    # limit=-1 is novaclient's word for "all, page by page"; the SDK follows the links.
    assert len(nova.servers.list(search_opts={"name": "^five-"}, limit=-1)) == 5
    assert [each.id for each in compute_sdk.servers(name="^five-", limit=2)] == whole
    with pytest.raises(nova_exceptions.BadRequest, match=r"marker \[none\] not found"):
        nova.servers.list(marker="none")


@pytest.mark.parametrize(
    ("asked", "numbers"),
    [
        ({"name": "five-[12]$"}, {1, 2}),
        ({"image": "i1"}, {1, 3}),
        ({"flavor": "m1.tiny"}, {0, 1, 2, 3, 4}),
        ({"flavor": "m1.huge"}, set()),
        ({"status": "SHUTOFF"}, {4}),
        ({"tags": "five,n2"}, {2}),
        ({"tags-any": "n1,n3"}, {1, 3}),
        ({"not-tags": "five,n0", "tags": "five"}, {1, 2, 3, 4}),
        ({"not-tags-any": "n0,n1", "tags": "five"}, {2, 3, 4}),
        ({"deleted": "true"}, set()),
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


def test_lists_are_sorted(nova: Any, five: list[str]) -> None:
    names = nova.servers.list(
        search_opts={"tags": "five"}, sort_keys=["display_name"], sort_dirs=["asc"], detailed=False
    )
    assert [each.id for each in names] == five


def test_a_pattern_that_is_none(nova: Any) -> None:
    with pytest.raises(nova_exceptions.BadRequest, match="Invalid filter field"):
        nova.servers.list(search_opts={"name": "("})


def test_addresses_and_interfaces(nova: Any, compute_sdk: Any, cloud: Any, web: str) -> None:
    assert nova.servers.ips(web) == {"hotplate": [{"version": 4, "addr": MINE}]}
    assert [each.address for each in compute_sdk.server_ips(web)] == [MINE]
    (interface,) = nova.servers.interface_list(web)
    assert interface.fixed_ips[0]["ip_address"] == MINE
    assert [group.name for group in nova.servers.list_security_group(web)] == ["default"]
    one = ask(cloud, "GET", f"/v2.1/servers/{web}/ips/hotplate").json()
    assert one == {"hotplate": [{"version": 4, "addr": MINE}]}
    assert ask(cloud, "GET", f"/v2.1/servers/{web}/ips/other").status_code == 404


def test_flavors(nova: Any, compute_sdk: Any) -> None:
    assert [each.name for each in nova.flavors.list()][:2] == ["m1.tiny", "m1.small"]
    assert {each.name for each in nova.flavors.list(min_ram=8000)} == {"m1.large", "m1.xlarge"}
    assert nova.flavors.get("m1.medium").vcpus == 2
    assert nova.flavors.find(name="m1.large").ram == 8192
    # A template may name a flavor of the cloud that it was written for.
    assert nova.flavors.get("of.another.cloud").name == "of.another.cloud"
    assert compute_sdk.find_flavor("m1.small").disk == 20
    assert nova.flavors.get("m1.tiny").get_keys() == {}
    with pytest.raises(nova_exceptions.NotFound):
        nova.flavors.get("x" * 300)


# -- the command line --------------------


def test_openstack_server_list_and_show(openstack: Any, web: str) -> None:
    listed = openstack("server", "list", "-f", "json")
    (row,) = [row for row in listed if row["ID"] == web]
    assert (row["Name"], row["Status"], row["Networks"]) == ("web", "ACTIVE", {"hotplate": [MINE]})
    shown = openstack("server", "show", web, "-f", "json")
    assert (shown["name"], shown["status"]) == ("web", "ACTIVE")
    assert shown["addresses"] == {"hotplate": [MINE]}
    assert openstack("flavor", "show", "m1.tiny", "-f", "json")["ram"] == 512
