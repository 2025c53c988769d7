"""Neutron's API, asked by unmodified clients: neutronclient, the SDK, the ``openstack`` command."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytest
import requests
from neutronclient.common import exceptions as failures
from test_clients import ask

from hotplate.cloud.database.store import Store
from hotplate.cloud.neutron.networking import Networking

NUMBERS = itertools.count(1)
NOWHERE = "9392d605-90bd-4547-8c0a-2d3609fb667e"


@pytest.fixture
def net(made: Any) -> Any:
    return made("network", name=f"net-{next(NUMBERS)}")


@pytest.fixture
def subnet(made: Any, net: Any) -> Any:
    return made("subnet", network_id=net["id"], ip_version=4, cidr="10.9.0.0/24")


@contextmanager
def refused(kind: str, status: int, *words: str) -> Iterator[None]:
    """Expect Neutron's error of that type, with the words in its message."""
    with pytest.raises(failures.NeutronClientException) as caught:
        yield
    error = caught.value
    assert error.status_code == status, error
    assert type(error).__name__.removesuffix("Client") in (kind, *_GENERIC[status]), error
    for word in words:
        assert word in str(error)


_GENERIC = {400: ["BadRequest"], 404: ["NotFound"], 409: ["Conflict"], 403: ["Forbidden"]}


def raw(cloud: Any, method: str, path: str, body: Any = None) -> requests.Response:
    return ask(cloud, "neutron", method, path, json=body)


def error_of(answer: requests.Response) -> tuple[int, str, str]:
    error = answer.json()["NeutronError"]
    assert set(error) == {"type", "message", "detail"}
    return answer.status_code, error["type"], error["message"]


def check_error(answer: requests.Response, status: int, kind: str, words: str = "") -> None:
    """Check Neutron's error and the words in its message."""
    *seen, message = error_of(answer)
    assert (seen, words in message) == ([status, kind], True), message


# -- networks --------------------


def test_networks(neutron: Any, made: Any) -> None:
    net = made("network", name="n", description="d", mtu=1400)
    assert (net["status"], net["mtu"], net["subnets"], net["shared"]) == ("ACTIVE", 1400, [], False)
    assert net["project_id"] == net["tenant_id"]
    assert neutron.show_network(net["id"])["network"] == net
    # global_physnet_mtu of 1500 without the 50 bytes of VXLAN over IPv4.
    assert made("network")["mtu"] == 1450
    changed = neutron.update_network(net["id"], {"network": {"name": "m"}})["network"]
    assert (changed["name"], changed["revision_number"]) == ("m", 2)
    neutron.delete_network(net["id"])
    with refused("NetworkNotFound", 404, net["id"]):
        neutron.show_network(net["id"])


def test_initial_networks_exist_and_cannot_be_deleted(cloud: Any, neutron: Any) -> None:
    project = cloud.credentials.project_id
    (own,) = neutron.list_networks(project_id=project)["networks"]
    (external,) = neutron.list_networks(**{"router:external": True})["networks"]
    assert (own["name"], external["name"]) == ("hotplate", "public")
    assert not own["shared"]
    assert not own["router:external"]
    assert not external["shared"]
    # In Neutron ``is_default`` is an attribute of external networks (``auto_allocate/db.py``).
    assert external["is_default"] is True
    assert "is_default" not in own
    # A user sees the subnets of own and of shared networks (Neutron's get_subnet).
    (subnet,) = neutron.list_subnets()["subnets"]
    assert (subnet["cidr"], subnet["enable_dhcp"]) == ("10.0.0.0/24", True)
    with refused("NetworkInUse", 409, "each cloud"):
        neutron.delete_network(own["id"])
    with refused("PolicyNotAuthorized", 403, "rule:delete_network is disallowed by policy"):
        neutron.delete_network(external["id"])
    topology = neutron.get_auto_allocated_topology(project)["auto_allocated_topology"]
    assert topology["id"] == own["id"]


def test_restart_keeps_the_networks(tmp_path: Any) -> None:
    ids = []
    for _ in range(2):
        store = Store(tmp_path / "n.db")
        networking = Networking(store, project="p", operator="o")
        ids.append((networking.default_network, networking.external_network))
        networking.create("networks", {"name": "mine"}, "p")
        names = [each["name"] for each in networking.all("networks")]
        store.close()
    assert ids[0] == ids[1]
    assert names == ["hotplate", "public", "mine", "mine"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"network": {"colour": "x"}}, "Unrecognized attribute(s) 'colour'"),
        ({"network": {"name": 5}}, "Invalid input for name"),
        ({"network": {"name": "x" * 256}}, "exceeds maximum length"),
        ({"network": {"status": "DOWN"}}, "Attribute 'status' not allowed in POST"),
        ({"network": {"admin_state_up": "perhaps"}}, "cannot be converted to boolean"),
        ({"network": {"mtu": 100_000}}, "MTU"),
        ({"network": []}, "Resource body required"),
        ({"other": {}}, "Unable to find 'network' in request body"),
        ({"networks": []}, "1 to 100"),
        ({"networks": [{}] * 101}, "1 to 100"),
    ],
)
def test_bad_body_is_400_in_neutrons_form(cloud: Any, body: Any, words: str) -> None:
    status, _, message = error_of(raw(cloud, "POST", "/v2.0/networks", body))
    assert status == 400
    assert words in message


def test_bulk_create_makes_all_or_none(cloud: Any, neutron: Any) -> None:
    body = {"networks": [{"name": "bulk-1"}, {"name": "bulk-2"}]}
    answer = raw(cloud, "POST", "/v2.0/networks", body)
    assert [each["name"] for each in answer.json()["networks"]] == ["bulk-1", "bulk-2"]
    for each in answer.json()["networks"]:
        neutron.delete_network(each["id"])
    body["networks"][1] = {"name": "bulk-2", "mtu": 1}  # type: ignore[dict-item]
    assert raw(cloud, "POST", "/v2.0/networks", body).status_code == 400
    assert neutron.list_networks(name="bulk-1")["networks"] == []


# -- subnets --------------------


def test_subnets(neutron: Any, net: Any, made: Any) -> None:
    subnet = made(
        "subnet", network_id=net["id"], ip_version=4, cidr="10.8.0.0/24", name="s",
        gateway_ip="10.8.0.254", allocation_pools=[{"start": "10.8.0.10", "end": "10.8.0.20"}],
        dns_nameservers=["10.8.0.3"], enable_dhcp=False,
        host_routes=[{"destination": "10.1.0.0/16", "nexthop": "10.8.0.9"}],
    )  # fmt: skip
    assert neutron.show_network(net["id"])["network"]["subnets"] == [subnet["id"]]
    assert neutron.show_subnet(subnet["id"])["subnet"] == subnet
    changes = {"gateway_ip": None, "dns_nameservers": [], "enable_dhcp": True}
    changed = neutron.update_subnet(subnet["id"], {"subnet": changes})["subnet"]
    assert (changed["gateway_ip"], changed["dns_nameservers"]) == (None, [])
    assert changed["allocation_pools"] == subnet["allocation_pools"]
    neutron.delete_subnet(subnet["id"])
    with refused("SubnetNotFound", 404):
        neutron.delete_subnet(subnet["id"])


def test_subnet_has_defaults(subnet: Any) -> None:
    assert subnet["gateway_ip"] == "10.9.0.1"
    assert subnet["allocation_pools"] == [{"start": "10.9.0.2", "end": "10.9.0.254"}]
    assert subnet["enable_dhcp"] is True


@pytest.mark.parametrize(
    ("values", "status", "kind", "words"),
    [
        ({"cidr": "10.9.0.0/25"}, 400, "InvalidInput", "overlaps with another subnet"),
        ({"network_id": NOWHERE}, 404, "NetworkNotFound", NOWHERE),
        ({"cidr": "fd00::/64"}, 400, "InvalidInput", "does not match the ip_version"),
        ({"cidr": "10.8.0.0/99"}, 400, "InvalidInput", "10.8.0.0/99"),
        ({"cidr": "10.8.0.0/31"}, 400, "InvalidInput", "DHCP"),
        ({"cidr": "224.0.0.0/24"}, 400, "InvalidInput", "Multicast"),
        ({"cidr": None}, 400, "HTTPBadRequest", "wrong type"),
        ({"gateway_ip": "10.8.0.0"}, 400, "InvalidInput", "Gateway is not valid on subnet"),
        ({"gateway_ip": "fd00::1"}, 400, "InvalidInput", "gateway_ip"),
        ({"ipv6_ra_mode": "slaac"}, 400, "InvalidInput", "ip_version is 4"),
        ({"dns_nameservers": [f"10.0.0.{n}" for n in range(1, 7)]}, 400,
         "DNSNameServersExhausted", "new subnet"),
        ({"allocation_pools": [{"start": "10.8.0.1", "end": "10.8.0.9"}]}, 409,
         "GatewayConflictWithAllocationPools", "10.8.0.1"),
        ({"allocation_pools": [{"start": "10.8.0.4", "end": "10.8.0.9"},
                               {"start": "10.8.0.9", "end": "10.8.0.12"}]}, 409,
         "OverlappingAllocationPools", "10.8.0.9"),
    ],
)  # fmt: skip
def test_bad_subnets_are_refused(
    cloud: Any, subnet: Any, values: Any, status: int, kind: str, words: str
) -> None:
    body = {"network_id": subnet["network_id"], "ip_version": 4, "cidr": "10.8.0.0/24", **values}
    answer = raw(cloud, "POST", "/v2.0/subnets", {"subnet": body})
    check_error(answer, status, kind, words)


def test_used_subnet_cannot_be_deleted(neutron: Any, made: Any, subnet: Any) -> None:
    port = made("port", network_id=subnet["network_id"])
    with refused("SubnetInUse", 409, "IP allocation from this subnet"):
        neutron.delete_subnet(subnet["id"])
    with refused("NetworkInUse", 409, port["id"]):
        neutron.delete_network(subnet["network_id"])
    neutron.delete_port(port["id"])
    neutron.delete_network(subnet["network_id"])
    with refused("SubnetNotFound", 404):
        neutron.show_subnet(subnet["id"])


# -- ports --------------------


def test_ports(cloud: Any, neutron: Any, made: Any, subnet: Any) -> None:
    port = made("port", network_id=subnet["network_id"], name="p", dns_name="web")
    assert port["fixed_ips"] == [{"subnet_id": subnet["id"], "ip_address": "10.9.0.2"}]
    assert port["mac_address"].startswith("fa:16:3e:")
    (default,) = neutron.list_security_groups(name="default")["security_groups"]
    assert port["security_groups"] == [default["id"]]
    assert port["status"] == "DOWN"
    assert port["dns_assignment"][0]["hostname"] == "web"
    asked = made("port", network_id=subnet["network_id"], mac_address="FA-16-3E-00-00-01",
                 fixed_ips=[{"ip_address": "10.9.0.3"}])  # fmt: skip
    assert asked["mac_address"] == "fa:16:3e:00:00:01"
    after = made("port", network_id=subnet["network_id"])
    assert after["fixed_ips"][0]["ip_address"] == "10.9.0.4"
    bound = {"binding:host_id": "here", "device_id": NOWHERE, "device_owner": "compute:nova"}
    changed = cloud.networking.change("ports", port["id"], bound)
    assert (changed["status"], changed["binding:vif_type"]) == ("ACTIVE", "ovs")
    (listed,) = neutron.list_ports(device_id=NOWHERE)["ports"]
    assert (listed["id"], listed["status"]) == (port["id"], "ACTIVE")
    neutron.delete_port(port["id"])
    with refused("PortNotFound", 404, port["id"]):
        neutron.show_port(port["id"])
    again = made("port", network_id=subnet["network_id"])
    assert again["fixed_ips"][0]["ip_address"] == "10.9.0.2"


@pytest.mark.parametrize(
    ("values", "status", "kind", "words"),
    [
        ({"fixed_ips": [{"ip_address": "10.9.0.5"}]}, 409, "IpAddressAlreadyAllocated",
         "IP address 10.9.0.5 already allocated in subnet"),
        ({"fixed_ips": [{"ip_address": "10.9.0.6"}, {"ip_address": "10.9.0.6"}]}, 400,
         "HTTPBadRequest", "Duplicate IP address"),
        ({"mac_address": "fa:16:3e:00:00:05"}, 409, "MacAddressInUse", "fa:16:3e:00:00:05"),
        ({"fixed_ips": [{"ip_address": "10.7.0.5"}]}, 400, "InvalidIpForNetwork", "10.7.0.5"),
        ({"fixed_ips": [{"ip_address": "10.9.0.255"}]}, 400, "InvalidIpForNetwork", "10.9.0.255"),
        ({"fixed_ips": [{"subnet_id": NOWHERE}]}, 400, "InvalidInput", "invalid subnet"),
        ({"fixed_ips": [{"ip_address": f"10.9.0.{n}"} for n in range(20, 26)]}, 400,
         "InvalidInput", "Exceeded maximum amount of fixed ips per port"),
        ({"network_id": NOWHERE}, 404, "NetworkNotFound", NOWHERE),
        ({"security_groups": [NOWHERE]}, 404, "SecurityGroupNotFound", NOWHERE),
        ({"mac_address": "no"}, 400, "HTTPBadRequest", "mac_address"),
        ({"port_security_enabled": False, "security_groups": "default"}, 400, "HTTPBadRequest",
         "security_groups"),
        ({"binding:vnic_type": "direct"}, 400, "HTTPBadRequest",
         '"binding:vnic_type" cannot be "direct" in hotplate: a server has virtual interfaces'),
        ({"qos_policy_id": NOWHERE}, 400, "HTTPBadRequest",
         f'"qos_policy_id" cannot be "{NOWHERE}" in hotplate: no bandwidth is limited'),
    ],
)  # fmt: skip
def test_bad_ports_are_refused(
    cloud: Any, made: Any, subnet: Any, values: Any, status: int, kind: str, words: str
) -> None:
    made("port", network_id=subnet["network_id"], mac_address="fa:16:3e:00:00:05",
         fixed_ips=[{"ip_address": "10.9.0.5", "subnet_id": subnet["id"]}])  # fmt: skip
    body = {"network_id": subnet["network_id"], **values}
    answer = raw(cloud, "POST", "/v2.0/ports", {"port": body})
    check_error(answer, status, kind, words)


POLICIES: list[tuple[str, dict[str, Any], str]] = [
    ("network", {"shared": True}, "(rule:create_network and rule:create_network:shared)"),
    (
        "network",
        {"shared": True, "router:external": True},
        "((rule:create_network and rule:create_network:shared) and "
        "rule:create_network:router:external)",
    ),
    ("network", {"is_default": True}, "rule:create_network:is_default"),
    ("network", {"provider:network_type": "flat"}, "rule:create_network:provider:network_type"),
    ("port", {"binding:host_id": "h"}, "(rule:create_port and rule:create_port:binding:host_id)"),
    ("port", {"binding:profile": {"a": "b"}}, "rule:create_port:binding:profile"),
    ("router", {"distributed": False}, "(rule:create_router and rule:create_router:distributed)"),
    ("router", {"ha": True}, "(rule:create_router and rule:create_router:ha)"),
    (
        "router",
        {"external_gateway_info": {"network_id": NOWHERE, "enable_snat": False}},
        "(rule:create_router and (rule:create_router:external_gateway_info and "
        "(rule:create_router:external_gateway_info:network_id and "
        "rule:create_router:external_gateway_info:enable_snat)))",
    ),
    ("subnet", {"ip_version": 4, "cidr": "10.9.8.0/24", "service_types": ["compute:nova"]},
     "(rule:create_subnet and rule:create_subnet:service_types)"),
    ("subnetpool", {"name": "n", "prefixes": ["10.0.0.0/8"], "is_default": True},
     "rule:create_subnetpool:is_default"),
    ("floatingip", {"floating_network_id": NOWHERE, "floating_ip_address": "203.0.113.9"},
     "(rule:create_floatingip and rule:create_floatingip:floating_ip_address)"),
]  # fmt: skip


@pytest.mark.parametrize(("single", "values", "rule"), POLICIES)
def test_user_cannot_set_an_attribute_of_administrators(
    cloud: Any, net: Any, single: str, values: dict[str, Any], rule: str
) -> None:
    """Neutron's defaults (``neutron/conf/policies``), in the words of ``neutron/policy.py``."""
    if single in ("port", "subnet"):
        values = {**values, "network_id": net["id"]}
    answer = raw(cloud, "POST", f"/v2.0/{single}s", {single: values})
    check_error(answer, 403, "PolicyNotAuthorized", rule)
    assert error_of(answer)[2].endswith(" is disallowed by policy")


def test_user_cannot_change_an_attribute_of_administrators(cloud: Any, made: Any, net: Any) -> None:
    port = made("port", network_id=net["id"])
    for path, body, rule in (
        (f"networks/{net['id']}", {"network": {"shared": True}}, "update_network:shared"),
        (f"ports/{port['id']}", {"port": {"mac_address": "fa:16:3e:00:00:09"}},
         "update_port:mac_address"),
        (f"quotas/{port['project_id']}", {"quota": {"port": 9}}, "update_quota"),
    ):  # fmt: skip
        answer = raw(cloud, "PUT", f"/v2.0/{path}", body)
        check_error(answer, 403, "PolicyNotAuthorized", f"rule:{rule}")
    assert error_of(raw(cloud, "GET", "/v2.0/quotas"))[0] == 403
    assert error_of(raw(cloud, "DELETE", f"/v2.0/quotas/{port['project_id']}"))[0] == 403
    other = {"network": {"project_id": NOWHERE}}
    assert "requires admin privileges" in error_of(raw(cloud, "POST", "/v2.0/networks", other))[2]


def test_user_sees_no_attribute_of_administrators(cloud: Any, neutron: Any, made: Any) -> None:
    net = made("network")
    made("port", network_id=net["id"])
    made("router")
    for name, hidden in (
        ("networks", {"provider:network_type", "provider:physical_network"}),
        ("ports", {"binding:host_id", "binding:profile", "binding:vif_type"}),
        ("routers", {"ha", "distributed"}),
    ):
        seen = getattr(neutron, f"list_{name}")()[name][-1]
        assert hidden <= cloud.networking.all(name)[-1].keys()
        assert not hidden & seen.keys()


def test_user_does_not_use_the_external_network_as_an_own_one(
    cloud: Any, neutron: Any, external: str
) -> None:
    for path, body, rule in (
        ("subnets", {"subnet": {"ip_version": 4, "cidr": "10.6.0.0/24"}}, "rule:create_subnet"),
        ("ports", {"port": {"fixed_ips": [{"ip_address": "203.0.113.5"}]}},
         "rule:create_port:fixed_ips:ip_address"),
        ("ports", {"port": {"port_security_enabled": False}},
         "rule:create_port:port_security_enabled"),
    ):  # fmt: skip
        (single,) = body
        body[single]["network_id"] = external
        assert rule in error_of(raw(cloud, "POST", f"/v2.0/{path}", body))[2]
    assert neutron.list_subnets(network_id=external)["subnets"] == []


def test_network_with_qos_is_refused(cloud: Any) -> None:
    answer = raw(cloud, "POST", "/v2.0/networks", {"network": {"qos_policy_id": NOWHERE}})
    assert '"qos_policy_id" cannot be' in error_of(answer)[2]


def test_ipv6_needs_an_mtu_of_1280(cloud: Any, neutron: Any, made: Any) -> None:
    network = made("network", mtu=1279)
    body = {"network_id": network["id"], "ip_version": 6, "cidr": "fd00::/64"}
    answer = raw(cloud, "POST", "/v2.0/subnets", {"subnet": body})
    check_error(answer, 409, "NetworkMTUSubnetConflict", "subnet requires a minimum of 1280")
    neutron.update_network(network["id"], {"network": {"mtu": 1280}})
    made("subnet", **body)
    with refused("NetworkMTUSubnetConflict", 409):
        neutron.update_network(network["id"], {"network": {"mtu": 1279}})


def test_full_subnet_gives_no_address(neutron: Any, made: Any, net: Any) -> None:
    made("subnet", network_id=net["id"], ip_version=4, cidr="10.9.0.0/30")
    made("port", network_id=net["id"])
    with refused("IpAddressGenerationFailure", 409, "No more IP addresses available on network"):
        made("port", network_id=net["id"])
    without = made("port", network_id=net["id"], fixed_ips=[])
    assert without["fixed_ips"] == []


def test_changed_port_keeps_its_address(neutron: Any, made: Any, subnet: Any) -> None:
    port = made("port", network_id=subnet["network_id"])
    wanted = [*port["fixed_ips"], {"ip_address": "10.9.0.77"}]
    changed = neutron.update_port(port["id"], {"port": {"fixed_ips": wanted}})["port"]
    assert [ip["ip_address"] for ip in changed["fixed_ips"]] == ["10.9.0.2", "10.9.0.77"]
    other = made("port", network_id=subnet["network_id"])
    with refused("IpAddressAlreadyAllocated", 409):
        neutron.update_port(other["id"], {"port": {"fixed_ips": [{"ip_address": "10.9.0.77"}]}})
    assert neutron.show_port(other["id"])["port"]["fixed_ips"] == other["fixed_ips"]


def test_port_keeps_its_address_on_a_subnet_named_in_a_change(
    neutron: Any, made: Any, subnet: Any
) -> None:
    here = {"subnet_id": subnet["id"]}
    port = made(
        "port", network_id=subnet["network_id"], fixed_ips=[{**here, "ip_address": "10.9.0.77"}]
    )
    for wanted, addresses in (
        ([here], ["10.9.0.77"]),
        ([here, here], ["10.9.0.77", "10.9.0.2"]),
        ([{"ip_address": "10.9.0.2"}, here], ["10.9.0.2", "10.9.0.77"]),
        ([{"ip_address": "10.9.0.9"}], ["10.9.0.9"]),
        ([], []),
    ):
        changed = neutron.update_port(port["id"], {"port": {"fixed_ips": wanted}})["port"]
        assert [ip["ip_address"] for ip in changed["fixed_ips"]] == addresses


def test_every_port_has_an_automatic_address(neutron: Any, made: Any, net: Any) -> None:
    four = made("subnet", network_id=net["id"], ip_version=4, cidr="10.9.0.0/24")
    here = {"subnet_id": four["id"]}
    present = made("port", network_id=net["id"], mac_address="fa:16:3e:00:00:08", fixed_ips=[here])
    six = made("subnet", network_id=net["id"], ip_version=6, cidr="fd00:9::/64",
               ipv6_ra_mode="slaac", ipv6_address_mode="slaac")  # fmt: skip
    assert six["gateway_ip"] == "fd00:9::1"
    new = made("port", network_id=net["id"], mac_address="fa:16:3e:00:00:09")
    present = neutron.show_port(present["id"])["port"]
    assert [ip["ip_address"] for port in (present, new) for ip in port["fixed_ips"]] == [
        "10.9.0.2", "fd00:9::f816:3eff:fe00:8", "10.9.0.3", "fd00:9::f816:3eff:fe00:9",
    ]  # fmt: skip
    changed = neutron.update_port(new["id"], {"port": {"fixed_ips": [here]}})["port"]
    assert changed["fixed_ips"] == new["fixed_ips"]
    with refused("AllocationOnAutoAddressSubnet", 400, "configured for automatic addresses"):
        made("port", network_id=net["id"], fixed_ips=[{"ip_address": "fd00:9::77"}])
    # Their hosts made these addresses, so they do not keep the subnet.
    neutron.delete_subnet(six["id"])
    port = neutron.show_port(new["id"])["port"]
    assert [ip["ip_address"] for ip in port["fixed_ips"]] == ["10.9.0.3"]


def test_dhcp_is_not_switched_on_where_it_cannot_be(neutron: Any, made: Any, net: Any) -> None:
    small = made("subnet", network_id=net["id"], ip_version=4, cidr="10.9.0.0/31",
                 enable_dhcp=False)  # fmt: skip
    assert small["gateway_ip"] == "10.9.0.1"
    assert small["allocation_pools"] == [{"start": "10.9.0.0", "end": "10.9.0.0"}]
    with refused("InvalidInput", 400, "incompatible with DHCP"):
        neutron.update_subnet(small["id"], {"subnet": {"enable_dhcp": True}})


def test_port_has_address_pairs_and_dhcp_options(neutron: Any, made: Any, subnet: Any) -> None:
    option = {"opt_name": "bootfile-name", "opt_value": "x", "ip_version": 4}
    port = made("port", network_id=subnet["network_id"], extra_dhcp_opts=[option],
                allowed_address_pairs=[{"ip_address": "10.9.0.99"}])  # fmt: skip
    assert port["allowed_address_pairs"] == [
        {"ip_address": "10.9.0.99", "mac_address": port["mac_address"]}
    ]
    for bad in ([{}], ["x"], "x"):
        with refused("AllowedAddressPairsMissingIP", 400):
            neutron.update_port(port["id"], {"port": {"allowed_address_pairs": bad}})
    with refused("HTTPBadRequest", 400, "not a valid IP address"):
        pairs = [{"ip_address": "next door"}]
        neutron.update_port(port["id"], {"port": {"allowed_address_pairs": pairs}})
    gone = [{"opt_name": "bootfile-name", "opt_value": None}]
    changed = neutron.update_port(port["id"], {"port": {"extra_dhcp_opts": gone}})["port"]
    assert (port["extra_dhcp_opts"], changed["extra_dhcp_opts"]) == ([option], [])
    with refused("AddressPairAndPortSecurityRequired", 409):
        body = {"port_security_enabled": False, "security_groups": []}
        neutron.update_port(port["id"], {"port": body})


def test_simultaneous_ports_get_different_addresses(cloud: Any, subnet: Any) -> None:
    addresses: list[str] = []

    def make() -> None:
        body = {"network_id": subnet["network_id"]}
        port = cloud.networking.create("ports", body, subnet["project_id"])
        addresses.append(port["fixed_ips"][0]["ip_address"])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [ip_address("10.9.0.2") + number for number in range(8)]
    assert sorted(map(ip_address, addresses)) == expected
    for port in cloud.networking.all("ports"):
        if port["network_id"] == subnet["network_id"]:
            cloud.networking.delete("ports", port["id"])


# -- lists --------------------


def test_lists_have_filters_fields_and_order(neutron: Any, made: Any, net: Any) -> None:
    for name in ("b", "a", "c"):
        made("port", network_id=net["id"], name=name, admin_state_up=name != "c")
    listed = neutron.list_ports(
        network_id=net["id"], sort_key="name", sort_dir="desc", fields="name"
    )
    assert listed["ports"] == [{"name": "c"}, {"name": "b"}, {"name": "a"}]
    several = neutron.list_ports(network_id=net["id"], name=["a", "b"])["ports"]
    assert [port["name"] for port in several] == ["b", "a"]
    down = neutron.list_ports(network_id=net["id"], admin_state_up=False)["ports"]
    assert [port["name"] for port in down] == ["c"]
    with refused("HTTPBadRequest", 400, "is invalid attribute for filtering"):
        neutron.list_ports(colour="blue")
    with refused("HTTPBadRequest", 400, "sort keys"):
        neutron.list_ports(sort_key="fixed_ips", sort_dir="asc")
    with refused("HTTPBadRequest", 400, "limit"):
        neutron.list_ports(limit="many")


def test_ports_are_filtered_by_address(neutron: Any, made: Any, subnet: Any) -> None:
    first, second = (made("port", network_id=subnet["network_id"]) for _ in range(2))
    by_address = neutron.list_ports(fixed_ips=["ip_address=10.9.0.3", f"subnet_id={subnet['id']}"])
    assert [port["id"] for port in by_address["ports"]] == [second["id"]]
    part = neutron.list_ports(fixed_ips="ip_address_substr=9.0.2")["ports"]
    assert [port["id"] for port in part] == [first["id"]]
    with refused("HTTPBadRequest", 400, "fixed_ips"):
        neutron.list_ports(fixed_ips="mac=1")


def test_lists_are_paged(neutron: Any, made: Any, net: Any) -> None:
    ids = [made("port", network_id=net["id"])["id"] for _ in range(5)]
    pages = list(neutron.list_ports(retrieve_all=False, network_id=net["id"], limit=2))
    assert [[port["id"] for port in page["ports"]] for page in pages] == [
        ids[:2], ids[2:4], ids[4:],
    ]  # fmt: skip
    back = neutron.list_ports(
        network_id=net["id"], limit=2, marker=ids[4], page_reverse=True, retrieve_all=True
    )
    assert [port["id"] for port in back["ports"]][:2] == ids[2:4]


def test_tags(neutron: Any, made: Any, net: Any) -> None:
    neutron.replace_tag("networks", net["id"], {"tags": ["blue", "old", "blue"]})
    neutron.add_tag("networks", net["id"], "new")
    neutron.remove_tag("networks", net["id"], "old")
    assert neutron.show_network(net["id"])["network"]["tags"] == ["blue", "new"]
    other = made("network", name=net["name"])

    def having(**filters: str) -> set[str]:
        networks = neutron.list_networks(name=net["name"], **filters)["networks"]
        return {each["id"] for each in networks}

    assert having(tags="blue,new") == having(**{"tags-any": "blue,x"}) == {net["id"]}
    assert having(**{"not-tags": "blue"}) == having(**{"not-tags-any": "new"}) == {other["id"]}
    with refused("TagNotFound", 404, "old"):
        neutron.remove_tag("networks", net["id"], "old")
    neutron.remove_tag_all("networks", net["id"])
    assert neutron.show_network(net["id"])["network"]["tags"] == []
    with refused("HTTPBadRequest", 400, "tags"):
        neutron.replace_tag("networks", net["id"], {"tags": ["x" * 256]})


# -- security groups --------------------


def test_security_groups(neutron: Any, made: Any) -> None:
    group = made("security_group", name="web")
    assert {rule["direction"] for rule in group["security_group_rules"]} == {"egress"}
    rule = made("security_group_rule", security_group_id=group["id"], direction="ingress",
                protocol="tcp", port_range_min=80, port_range_max=80,
                remote_ip_prefix="10.0.0.7")  # fmt: skip
    assert (rule["remote_ip_prefix"], rule["ethertype"]) == ("10.0.0.7/32", "IPv4")
    shown = neutron.show_security_group(group["id"])["security_group"]
    listed = neutron.list_security_group_rules(security_group_id=group["id"])
    assert listed["security_group_rules"] == shown["security_group_rules"]
    assert rule in shown["security_group_rules"]
    port = made("port", network_id=neutron.list_networks(name="hotplate")["networks"][0]["id"],
                security_groups=[group["id"]])  # fmt: skip
    with refused("SecurityGroupInUse", 409, group["id"]):
        neutron.delete_security_group(group["id"])
    neutron.delete_port(port["id"])
    neutron.update_security_group(group["id"], {"security_group": {"name": "front"}})
    assert neutron.list_security_groups(name="front")["security_groups"]
    neutron.delete_security_group(group["id"])
    with refused("SecurityGroupRuleNotFound", 404):
        neutron.show_security_group_rule(rule["id"])


def test_no_other_group_gets_the_name_of_the_default_one(neutron: Any, made: Any) -> None:
    """As tempest's NegativeSecGroupTest; Neutron's ``_validate_name_not_default``."""
    group = made("security_group", name="other")
    for name in ("default", "Default"):
        with refused("SecurityGroupDefaultAlreadyExists", 409):
            neutron.create_security_group({"security_group": {"name": name}})
        with refused("SecurityGroupDefaultAlreadyExists", 409):
            neutron.update_security_group(group["id"], {"security_group": {"name": name}})


def test_default_group_cannot_be_renamed_or_deleted(neutron: Any) -> None:
    (group,) = neutron.list_security_groups(name="default")["security_groups"]
    with refused("SecurityGroupCannotRemoveDefault", 409):
        neutron.delete_security_group(group["id"])
    with refused("SecurityGroupCannotUpdateDefault", 409):
        neutron.update_security_group(group["id"], {"security_group": {"name": "x"}})


@pytest.mark.parametrize(
    ("values", "status", "kind"),
    [
        ({"protocol": "http"}, 400, "SecurityGroupRuleInvalidProtocol"),
        ({"protocol": 256}, 400, "SecurityGroupRuleInvalidProtocol"),
        ({"port_range_min": 80, "port_range_max": 80}, 400,
         "SecurityGroupProtocolRequiredWithPorts"),
        ({"protocol": "tcp", "port_range_min": 9, "port_range_max": 8}, 400,
         "SecurityGroupInvalidPortRange"),
        ({"protocol": "tcp", "port_range_min": 70000}, 400, "SecurityGroupInvalidPortValue"),
        ({"protocol": "gre", "port_range_min": 1, "port_range_max": 2}, 400,
         "SecurityGroupInvalidProtocolForPort"),
        ({"protocol": "icmp", "port_range_min": 300}, 400, "SecurityGroupInvalidIcmpValue"),
        ({"protocol": "icmp", "port_range_max": 3}, 400, "SecurityGroupMissingIcmpType"),
        ({"ethertype": "IPX"}, 400, "SecurityGroupRuleInvalidEtherType"),
        ({"remote_ip_prefix": "fd00::/64"}, 400, "SecurityGroupRuleParameterConflict"),
        ({"remote_ip_prefix": "next door"}, 400, "InvalidCIDR"),
        ({"remote_group_id": NOWHERE}, 404, "SecurityGroupNotFound"),
        # As tempest's test_create_security_group_rule_with_non_existent_remote_groupid.
        ({"remote_group_id": "bad_group_id"}, 404, "SecurityGroupNotFound"),
        ({"direction": "sideways"}, 400, "HTTPBadRequest"),
        ({"direction": "egress"}, 409, "SecurityGroupRuleExists"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused(cloud: Any, made: Any, values: Any, status: int, kind: str) -> None:
    group = made("security_group", name="g")
    body = {"security_group_id": group["id"], "direction": "ingress", **values}
    answer = raw(cloud, "POST", "/v2.0/security-group-rules", {"security_group_rule": body})
    assert error_of(answer)[:2] == (status, kind)


# -- routers and floating addresses --------------------


@pytest.fixture
def external(neutron: Any) -> str:
    return str(neutron.list_networks(name="public")["networks"][0]["id"])


def test_routers(neutron: Any, made: Any, subnet: Any, external: str) -> None:
    router = made("router", name="r", external_gateway_info={"network_id": external})
    gateway = router["external_gateway_info"]
    assert gateway["external_fixed_ips"][0]["ip_address"].startswith("203.0.113.")
    added = neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    (port,) = neutron.list_ports(device_id=router["id"], network_id=subnet["network_id"])["ports"]
    assert (added["port_id"], added["subnet_ids"]) == (port["id"], [subnet["id"]])
    assert port["fixed_ips"][0]["ip_address"] == "10.9.0.1"
    assert (port["device_owner"], port["status"]) == ("network:router_interface", "ACTIVE")
    with refused("BadRequest", 400, "already has a port on subnet"):
        neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    with refused("ServicePortInUse", 409):
        neutron.delete_port(port["id"])
    with refused("GatewayIpInUse", 409):
        neutron.update_subnet(subnet["id"], {"subnet": {"gateway_ip": "10.9.0.9"}})
    with refused("RouterInUse", 409):
        neutron.delete_router(router["id"])
    neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    with refused("RouterInterfaceNotFoundForSubnet", 404):
        neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    cleared = neutron.remove_gateway_router(router["id"])["router"]
    assert cleared["external_gateway_info"] is None
    assert neutron.list_ports(device_id=router["id"])["ports"] == []


def test_router_interface_is_added_by_port(neutron: Any, made: Any, subnet: Any) -> None:
    router = made("router")
    port = made("port", network_id=subnet["network_id"])
    neutron.add_interface_router(router["id"], {"port_id": port["id"]})
    with refused("PortInUse", 409, router["id"]):
        neutron.add_interface_router(router["id"], {"port_id": port["id"]})
    neutron.remove_interface_router(router["id"], {"port_id": port["id"]})
    with refused("PortNotFound", 404):
        neutron.show_port(port["id"])
    for body, words in (
        ({"subnet_id": None}, "Either subnet_id or port_id"),
        ({"subnet_id": NOWHERE, "port_id": NOWHERE}, "Cannot specify both"),
        ({"subnet_id": [1]}, "subnet_id"),
    ):
        with refused("BadRequest", 400, words):
            neutron.add_interface_router(router["id"], body)
    with refused("BadRequest", 400, "is not an external network"):
        info = {"network_id": subnet["network_id"]}
        neutron.update_router(router["id"], {"router": {"external_gateway_info": info}})


def test_routes(neutron: Any, made: Any, subnet: Any) -> None:
    router = made("router")
    neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    route = {"destination": "10.50.0.0/16", "nexthop": "10.9.0.9"}
    other = {"destination": "10.51.0.0/16", "nexthop": "10.9.0.9"}
    neutron.update_router(router["id"], {"router": {"routes": [route]}})
    neutron.add_extra_routes_to_router(router["id"], {"router": {"routes": [other]}})
    assert neutron.show_router(router["id"])["router"]["routes"] == [route, other]
    with refused("RouterInterfaceInUseByRoute", 409):
        neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    neutron.remove_extra_routes_from_router(router["id"], {"router": {"routes": [route, other]}})
    far = {"destination": "10.50.0.0/16", "nexthop": "10.99.0.9"}
    with refused("InvalidRoutes", 400, "nexthop"):
        neutron.update_router(router["id"], {"router": {"routes": [far]}})
    neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})


def test_floating_addresses(neutron: Any, made: Any, subnet: Any, external: str) -> None:
    port = made("port", network_id=subnet["network_id"], name="inner")
    floating = made("floatingip", floating_network_id=external)
    assert (floating["status"], floating["port_id"]) == ("DOWN", None)
    with refused("ExternalGatewayForFloatingIPNotFound", 404, external):
        neutron.update_floatingip(floating["id"], {"floatingip": {"port_id": port["id"]}})
    router = made("router", external_gateway_info={"network_id": external})
    neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    body = {"floatingip": {"port_id": port["id"]}}
    led = neutron.update_floatingip(floating["id"], body)["floatingip"]
    assert (led["fixed_ip_address"], led["router_id"]) == ("10.9.0.2", router["id"])
    assert (led["status"], led["port_details"]["name"]) == ("ACTIVE", "inner")
    with refused("FloatingIPPortAlreadyAssociated", 409):
        made("floatingip", floating_network_id=external, port_id=port["id"])
    with refused("RouterInterfaceInUseByFloatingIP", 409):
        neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    with refused("RouterExternalGatewayInUseByFloatingIp", 409):
        neutron.remove_gateway_router(router["id"])
    neutron.delete_port(port["id"])
    shown = neutron.show_floatingip(floating["id"])["floatingip"]
    assert (shown["status"], shown["port_id"]) == ("DOWN", None)
    neutron.delete_floatingip(floating["id"])
    with refused("FloatingIPNotFound", 404):
        neutron.show_floatingip(floating["id"])
    neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})


def test_bad_floating_addresses_are_refused(made: Any, net: Any, external: str) -> None:
    with refused("BadRequest", 400, "is not a valid external network"):
        made("floatingip", floating_network_id=net["id"])
    bare = made("port", network_id=net["id"])
    with refused("BadRequest", 400, "has no fixed IPv4 addresses"):
        made("floatingip", floating_network_id=external, port_id=bare["id"])
    with refused("BadRequest", 400, "without a port_id"):
        made("floatingip", floating_network_id=external, fixed_ip_address="10.0.0.9")


# -- trunks --------------------


def vlan(port: Any, number: object = 10, kind: str = "vlan") -> dict[str, Any]:
    return {"port_id": port["id"], "segmentation_type": kind, "segmentation_id": number}


def test_trunk_carries_ports(cloud: Any, neutron: Any, made: Any, subnet: Any) -> None:
    """As tempest's and heat-tempest-plugin's (UpdateTrunkTest) look at trunks."""
    parent, first, second = (made("port", network_id=subnet["network_id"]) for _ in range(3))
    assert "trunk_details" not in parent
    trunk = made("trunk", port_id=parent["id"], name="t", sub_ports=[vlan(first)])
    assert (trunk["status"], trunk["sub_ports"]) == ("DOWN", [vlan(first)])
    neutron.trunk_add_subports(trunk["id"], {"sub_ports": [vlan(second, "20")]})
    assert neutron.trunk_get_subports(trunk["id"]) == {"sub_ports": [vlan(first), vlan(second, 20)]}
    shown = neutron.show_port(parent["id"])["port"]["trunk_details"]
    assert shown["trunk_id"] == trunk["id"]
    assert shown["sub_ports"][0] == {**vlan(first), "mac_address": first["mac_address"]}
    used = neutron.show_port(second["id"])["port"]
    assert (used["device_id"], used["device_owner"]) == (trunk["id"], "trunk:subport")
    with refused("PortInUseAsTrunkParent", 409, trunk["id"]):
        neutron.delete_port(parent["id"])
    with refused("PortInUseAsSubPort", 409, trunk["id"]):
        neutron.delete_port(second["id"])

    removed = neutron.trunk_remove_subports(trunk["id"], {"sub_ports": [{"port_id": second["id"]}]})
    assert removed["sub_ports"] == [vlan(first)]
    assert neutron.show_port(second["id"])["port"]["device_id"] == ""
    with refused("SubPortNotFound", 404):
        neutron.trunk_remove_subports(trunk["id"], {"sub_ports": [{"port_id": second["id"]}]})
    neutron.update_trunk(trunk["id"], {"trunk": {"admin_state_up": False}})
    with refused("TrunkDisabled", 409):
        neutron.delete_trunk(trunk["id"])
    neutron.update_trunk(trunk["id"], {"trunk": {"admin_state_up": True}})
    assert [each["id"] for each in neutron.list_trunks(name="t")["trunks"]] == [trunk["id"]]
    neutron.delete_trunk(trunk["id"])
    with refused("TrunkNotFound", 404):
        neutron.show_trunk(trunk["id"])
    neutron.delete_port(first["id"])


def test_bad_subports_are_refused(cloud: Any, neutron: Any, made: Any, subnet: Any) -> None:
    network_id = subnet["network_id"]
    parent, other, free = (made("port", network_id=network_id) for _ in range(3))
    used = made("port", network_id=network_id, device_id="a server")
    wide = made("network", mtu=9000)
    big = made("port", network_id=wide["id"])
    trunk = made("trunk", port_id=parent["id"], sub_ports=[vlan(other)])
    for kind, status, body in (
        ("InvalidInput", 400, [vlan(free, 4095)]),
        ("InvalidInput", 400, [vlan(free, "ten")]),
        ("InvalidInput", 400, [vlan(free, kind="inherit")]),
        ("InvalidInput", 400, [{"port_id": free["id"]}]),
        ("InvalidInput", 400, [{**vlan(free), "segmentation_type": []}]),
        ("InvalidInput", 400, None),
        ("ParentPortInUse", 409, [vlan(parent)]),
        ("TrunkPortInUse", 409, [vlan(other, 11)]),
        ("DuplicateSubPort", 409, [vlan(free)]),
        ("PortInUse", 409, [vlan(used, 11)]),
        ("SubPortMtuGreaterThanTrunkPortMtu", 409, [vlan(big, 11)]),
        ("PortNotFound", 404, [vlan({"id": NOWHERE}, 11)]),
    ):
        answer = raw(cloud, "PUT", f"/v2.0/trunks/{trunk['id']}/add_subports", {"sub_ports": body})
        error = answer.json()["NeutronError"]["type"]
        assert (error, answer.status_code) == (kind, status), body
    for port in (parent, other):
        with refused("Conflict", 409):
            made("trunk", port_id=port["id"])
    assert neutron.show_trunk(trunk["id"])["trunk"]["sub_ports"] == [vlan(other)]


# -- quotas --------------------


def test_quotas(neutron: Any, made: Any, cloud: Any) -> None:
    project = cloud.credentials.project_id
    shown = neutron.show_quota(project)["quota"]
    assert (shown["network"], shown["router"]) == (100, 10)
    assert shown == neutron.show_quota_default(project)["quota"]
    for _ in range(10 - len(neutron.list_routers()["routers"])):
        made("router")
    with refused("OverQuota", 409, "Quota exceeded for resources: ['router']"):
        made("router")
    details = neutron.show_quota_details(project)["quota"]
    assert details["router"] == {"limit": 10, "used": 10, "reserved": 0}


# -- access, versions and extensions --------------------


def test_versions_and_extensions(cloud: Any, neutron: Any) -> None:
    answer = requests.get(cloud.endpoints["neutron"] + "/", timeout=120)
    (version,) = answer.json()["versions"]
    assert (answer.status_code, version["id"], version["status"]) == (200, "v2.0", "CURRENT")
    aliases = {each["alias"] for each in neutron.list_extensions()["extensions"]}
    assert {"router", "security-group", "external-net", "quotas", "standard-attr-tag"} <= aliases
    assert neutron.show_extension("router")["extension"]["alias"] == "router"
    with refused("ExtensionsNotFound", 404, "qos"):
        neutron.show_extension("qos")
    assert raw(cloud, "GET", "/v2.0").json()["resources"][0]["name"] == "network"


def test_unknown_path_and_method_are_refused(cloud: Any) -> None:
    assert error_of(raw(cloud, "GET", "/v2.0/unicorns"))[:2] == (404, "HTTPNotFound")
    assert raw(cloud, "DELETE", "/v2.0/networks").status_code == 405
    assert error_of(ask(cloud, "neutron", "POST", "/v2.0/networks", data=b"{"))[0] == 400


@pytest.mark.parametrize("body", [
    {"port": {"network_id": NOWHERE, "fixed_ips": "x"}},
    {"port": {"network_id": ["x"]}},
    {"port": {"network_id": NOWHERE, "fixed_ips": [[]]}},
    {"port": {"network_id": NOWHERE, "extra_dhcp_opts": [{"a": 1}]}},
    {"port": {"network_id": NOWHERE, "allowed_address_pairs": 5}},
    {"port": {"network_id": NOWHERE, "device_owner": None}},
    {"port": {"network_id": NOWHERE, "project_id": {"a": []}}},
])  # fmt: skip
def test_invalid_request_is_4xx(cloud: Any, body: Any) -> None:
    answer = raw(cloud, "POST", "/v2.0/ports", body)
    assert 400 <= answer.status_code < 500, answer.text


# -- other clients --------------------


def test_sdk_manages_networks(connection: Any) -> None:
    network_sdk = connection.network
    net = network_sdk.create_network(name="by-sdk")
    subnet = network_sdk.create_subnet(network_id=net.id, ip_version=4, cidr="10.66.0.0/24")
    port = network_sdk.create_port(network_id=net.id, name="by-sdk")
    assert network_sdk.find_port("by-sdk").id == port.id
    assert [each.id for each in network_sdk.ports(fixed_ips=f"subnet_id={subnet.id}")] == [port.id]
    network_sdk.set_tags(port, ["a"])
    assert network_sdk.get_port(port.id).tags == ["a"]
    router = network_sdk.create_router(name="by-sdk")
    # By position: openstacksdk 4.10, of 2026.1, has other names for it.
    network_sdk.add_interface_to_router(router, subnet.id)
    network_sdk.remove_interface_from_router(router, subnet.id)
    assert network_sdk.find_extension("security-group")
    network_sdk.delete_router(router)
    network_sdk.delete_port(port)
    network_sdk.delete_network(net)
    assert network_sdk.find_network("by-sdk") is None


@pytest.mark.slow
def test_openstack_command_connects_networks(
    openstack: Any, made: Any, net: Any, subnet: Any, neutron: Any
) -> None:
    """Run the commands for which test_each_call.py has no row."""

    def run(line: str, *, shown: bool = True) -> Any:
        return openstack(*line.split(), *(("-f", "json") if shown else ()))

    router = made("router")["id"]
    fixed = f"--fixed-ip subnet={subnet['id']},ip-address=10.9.0.9"
    port = run(f"port create --network {net['id']} {fixed} clip")["id"]
    assert [each["Name"] for each in run("port list --fixed-ip ip-address=10.9.0.9")] == ["clip"]
    run(f"router add subnet {router} {subnet['id']}", shown=False)
    run(f"router set --external-gateway public --tag blue {router}", shown=False)
    shown = run(f"router show {router}")
    assert (shown["interfaces_info"][0]["ip_address"], shown["tags"]) == ("10.9.0.1", ["blue"])
    floating = run(f"floating ip create --port {port} public")
    assert floating["fixed_ip_address"] == "10.9.0.9"
    neutron.delete_floatingip(floating["id"])
    neutron.delete_port(port)
    run(f"router remove subnet {router} {subnet['id']}", shown=False)
    assert run("extension list --network")
