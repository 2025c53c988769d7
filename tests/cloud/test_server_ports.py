"""Ports of servers, in Nova's API, Heat's plug-ins and a guest's metadata; and their routers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import tenacity
from heat.engine.clients.os.nova import NovaClientPlugin
from neutronclient.common import exceptions as neutron_failures
from novaclient import exceptions as nova_failures
from recording_cloud import attribute, hot, ref, resource
from wire_guest import guest

from hotplate.cloud.nova.compute import RouterInterface, ServerSpec
from hotplate.cloud.nova.metadata import check_network_data
from hotplate.cloud.options import CloudOptions
from hotplate.errors import HostError
from hotplate.events.event import Event
from hotplate.events.kinds import ServiceRequest
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

NOWHERE = "9392d605-90bd-4547-8c0a-2d3609fb667e"
BONDED: dict[str, Any] = {
    "links": [
        {"id": "a", "type": "phy"},
        {"id": "b", "type": "phy"},
        {"id": "bond0", "type": "bond", "bond_links": ["a", "b"], "bond_mode": "active-backup"},
        {"id": "vlan7", "type": "vlan", "vlan_link": "bond0", "vlan_id": 7},
    ],
    "networks": [{"id": "n", "link": "vlan7", "type": "ipv4_dhcp", "network_id": "n"}],
}


@pytest.fixture(scope="module")
def cloud_options() -> CloudOptions:
    return CloudOptions(own_network_data={"bonded": BONDED})


@pytest.fixture
def lan(neutron: Any, made: Any) -> Iterator[Any]:
    """Return a network of its own with a subnet."""
    network = made("network", name="lan")
    made("subnet", network_id=network["id"], ip_version=4, cidr="10.5.0.0/24",
         dns_nameservers=["10.5.0.3"],
         host_routes=[{"destination": "10.6.0.0/16", "nexthop": "10.5.0.7"}])  # fmt: skip
    yield network
    for port in neutron.list_ports(network_id=network["id"])["ports"]:
        neutron.delete_port(port["id"])


@pytest.fixture
def boot(nova: Any) -> Iterator[Callable[..., Any]]:
    """Create servers, and delete the remaining ones afterwards."""
    left: list[str] = []

    def make(nics: Any = "auto", **fields: Any) -> Any:
        server = nova.servers.create(
            fields.pop("name", "web"), "i", "m1.small", nics=nics, **fields
        )
        left.append(server.id)
        return nova.servers.get(server.id)

    yield make
    for each in left:
        with suppress(nova_failures.NotFound):
            nova.servers.delete(each)


def ports_of(neutron: Any, server: Any) -> list[Any]:
    ports: list[Any] = neutron.list_ports(device_id=server.id)["ports"]
    return ports


def spec_of(cloud: Any, server: Any) -> ServerSpec:
    spec: ServerSpec = cloud.servers.get(server.id).spec
    return spec


def test_server_without_networks_is_on_the_default_one(
    cloud: Any, neutron: Any, nova: Any, boot: Any, compute: Any
) -> None:
    server = boot(name="My web")
    (port,) = ports_of(neutron, server)
    address = port["fixed_ips"][0]["ip_address"]
    assert address.startswith("10.0.0.")
    assert server.networks == {"hotplate": [address]}
    assert server.addresses["hotplate"][0]["OS-EXT-IPS-MAC:mac_addr"] == port["mac_address"]
    assert (port["device_owner"], port["status"]) == ("compute:nova", "ACTIVE")
    (given,) = compute.specs[server.id].ports
    assert (given.id, given.mac, given.names) == (port["id"], port["mac_address"], ("my-web",))
    assert (given.network_name, given.addresses[0].cidr) == ("hotplate", "10.0.0.0/24")
    assert given.addresses[0].gateway == "10.0.0.1"
    (dhcp,) = neutron.list_ports(device_owner="network:dhcp")["ports"]
    assert given.addresses[0].dhcp_server == dhcp["fixed_ips"][0]["ip_address"] == "10.0.0.254"
    nova.servers.delete(server)
    assert ports_of(neutron, server) == []


def test_server_gets_the_requested_networks_port_and_address(
    cloud: Any, neutron: Any, nova: Any, boot: Any, made: Any, lan: Any
) -> None:
    own = made("port", network_id=lan["id"], name="own", fixed_ips=[{"ip_address": "10.5.0.20"}])
    server = boot(
        [
            {"port-id": own["id"]},
            {"net-id": lan["id"], "v4-fixed-ip": "10.5.0.21"},
            {"net-id": id_of(neutron, "hotplate")},
        ]
    )
    first, second, third = spec_of(cloud, server).ports
    assert (first.id, first.addresses[0].address) == (own["id"], "10.5.0.20")
    assert second.addresses[0].address == "10.5.0.21"
    assert second.addresses[0].host_routes == (("10.6.0.0/16", "10.5.0.7"),)
    assert second.addresses[0].name_servers == ("10.5.0.3",)
    assert third.network_name == "hotplate"
    assert server.networks["lan"] == ["10.5.0.20", "10.5.0.21"]
    floating = made("floatingip", floating_network_id=id_of(neutron, "public"))
    neutron.update_floatingip(floating["id"], {"floatingip": {"port_id": third.id}})
    shown = nova.servers.get(server.id).addresses["hotplate"]
    kinds = [(each["OS-EXT-IPS:type"], each["addr"]) for each in shown]
    assert ("floating", floating["floating_ip_address"]) in kinds
    nova.servers.delete(server)
    left = neutron.show_port(own["id"])["port"]
    assert (left["device_id"], left["device_owner"], left["status"]) == ("", "", "DOWN")
    ports = neutron.list_ports(network_id=lan["id"])["ports"]
    assert [each["id"] for each in ports if each["device_owner"] != "network:dhcp"] == [own["id"]]


def id_of(neutron: Any, network: str) -> str:
    return str(neutron.list_networks(name=network)["networks"][0]["id"])


def test_server_with_no_network_has_no_port(cloud: Any, neutron: Any, boot: Any) -> None:
    server = boot("none")
    assert (server.addresses, ports_of(neutron, server)) == ({}, [])
    assert spec_of(cloud, server).ports == ()


@pytest.mark.parametrize(
    ("nic", "status", "words"),
    [
        ({"net-id": NOWHERE}, 400, f"Network {NOWHERE} could not be found"),
        ({"port-id": NOWHERE}, 400, f"Port id {NOWHERE} could not be found"),
        ({"net-id": "lan", "v4-fixed-ip": "10.9.9.9"}, 400, "10.9.9.9 is not a valid ip address"),
        ({"net-id": "lan", "v4-fixed-ip": "10.5.0.20"}, 400, "10.5.0.20 is already in use"),
        ({"port-id": "own"}, 409, "is still in use"),
        ({"net-id": "bare"}, 400, "requires a subnet"),
    ],
)
def test_refusal_by_neutron_is_reported_by_nova(
    neutron: Any, made: Any, boot: Any, lan: Any, nic: dict[str, str], status: int, words: str
) -> None:
    own = made("port", network_id=lan["id"], fixed_ips=[{"ip_address": "10.5.0.20"}])["id"]
    boot([{"port-id": own}])
    before = len(neutron.list_ports()["ports"])
    ids = {"lan": lan["id"], "own": own, "bare": made("network", name="bare")["id"]}
    with pytest.raises(nova_failures.ClientException, match=words) as refused:
        boot([{"net-id": lan["id"]}, {name: ids.get(value, value) for name, value in nic.items()}])
    assert refused.value.code == status
    assert len(neutron.list_ports()["ports"]) == before


def test_servers_of_one_request_have_their_own_ports(nova: Any, boot: Any, lan: Any) -> None:
    boot([{"net-id": lan["id"]}], name="many", min_count=3)
    many = [each for each in nova.servers.list() if each.name.startswith("many-")]
    try:
        assert len({each.networks["lan"][0] for each in many}) == 3
        for nic in ({"port-id": NOWHERE}, {"net-id": lan["id"], "v4-fixed-ip": "10.5.0.9"}):
            with pytest.raises(nova_failures.BadRequest):
                boot([nic], min_count=2)
    finally:
        for each in many:
            nova.servers.delete(each)


@pytest.mark.parametrize("state", ["ACTIVE", "SHUTOFF"])
def test_interfaces_are_attached_and_detached(
    cloud: Any, neutron: Any, nova: Any, boot: Any, lan: Any, state: str
) -> None:
    server = boot()
    if state == "SHUTOFF":
        nova.servers.stop(server)
    made = nova.servers.interface_attach(server, None, lan["id"], "10.5.0.30")
    assert made.fixed_ips[0]["ip_address"] == "10.5.0.30"
    assert nova.servers.get(server.id).networks["lan"] == ["10.5.0.30"]
    assert [each.network_name for each in spec_of(cloud, server).ports] == ["hotplate", "lan"]
    assert cloud._compute.specs[server.id].ports == spec_of(cloud, server).ports
    assert len(nova.servers.interface_list(server)) == 2
    with pytest.raises(nova_failures.ClientException, match="still in use"):
        nova.servers.interface_attach(server, made.port_id, None, None)
    nova.servers.interface_detach(server, made.port_id)
    assert detached(nova, server) == "Success"
    with pytest.raises(neutron_failures.NotFound):
        neutron.show_port(made.port_id)
    assert [each.network_name for each in spec_of(cloud, server).ports] == ["hotplate"]
    with pytest.raises(nova_failures.NotFound, match="could not be found"):
        nova.servers.interface_detach(server, made.port_id)


def test_interface_change_in_a_wrong_state_is_refused(
    cloud: Any, neutron: Any, nova: Any, boot: Any, lan: Any
) -> None:
    server = boot()
    nova.servers.suspend(server)
    with pytest.raises(nova_failures.Conflict, match="while it is in vm_state suspended"):
        nova.servers.interface_attach(server, None, lan["id"], "10.5.0.30")
    nova.servers.resume(server)
    nova.servers.pause(server)
    with pytest.raises(nova_failures.Conflict, match="while it is in vm_state paused"):
        nova.servers.interface_detach(server, spec_of(cloud, server).ports[0].id)
    assert neutron.list_ports(network_id=lan["id"])["ports"] == []


def detached(nova: Any, server: Any, *, among: str = "") -> str:
    """Return the result of a server's newest action not ``among`` the given ones."""

    def result(_: bool) -> str | None:
        actions = nova.instance_action.list(server)
        newest = next(each for each in actions if each.action != among)
        assert newest.action == "detach_interface"
        (event,) = nova.instance_action.get(server, newest.request_id).events
        return event["result"]

    return retry(result, Deadline(120, "the end of an action"))


class Keeper:
    """A guest that is asked to release an interface; it answers on command, and keeps it.

    :ivar keeps: set it to False, and the guest releases the interface.
    """

    def __init__(self) -> None:
        self.keeps = True
        self.asked = threading.Event()
        self.answers = threading.Event()

    def replug(self, *_: Any) -> None:
        self.asked.set()
        self.answers.wait()
        if self.keeps:
            raise DeadlineExceeded("gave up waiting for the guest to let go")


@pytest.fixture
def keeper(compute: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    keeper = Keeper()
    monkeypatch.setattr(compute, "replug", keeper.replug)
    yield keeper
    keeper.answers.set()


def test_interface_stays_when_the_guest_keeps_it(
    cloud: Any, neutron: Any, nova: Any, boot: Any, keeper: Keeper
) -> None:
    """The caller is answered before the guest is (Nova: 202, and a cast to the compute host)."""
    server = boot()
    (port,) = spec_of(cloud, server).ports
    nova.servers.interface_detach(server, port.id)
    keeper.asked.wait()
    newest = nova.instance_action.list(server)[0]
    (event,) = nova.instance_action.get(server, newest.request_id).events
    assert (event["finish_time"], event["result"]) == (None, None)
    keeper.answers.set()
    assert detached(nova, server) == "Error"
    assert nova.instance_action.list(server)[0].message == "Error"
    assert [each.port_id for each in nova.servers.interface_list(server)] == [port.id]
    assert neutron.show_port(port.id)["port"]["device_id"] == server.id


def test_detach_keeps_concurrent_changes(nova: Any, boot: Any, keeper: Keeper) -> None:
    """As in Nova, whose detach_interface writes only the network information."""
    server = boot(meta={"before": "1"})
    (port_id,) = (each.port_id for each in nova.servers.interface_list(server))
    keeper.keeps = False
    nova.servers.interface_detach(server, port_id)
    keeper.asked.wait()
    nova.servers.update(server, name="renamed")
    nova.servers.set_meta(server, {"kept": "yes"})
    nova.servers.add_tag(server, "blue")
    nova.servers.resize(server, "m1.large")
    keeper.answers.set()
    assert detached(nova, server, among="resize") == "Success"
    after = nova.servers.get(server.id)
    assert (after.name, after.metadata) == ("renamed", {"before": "1", "kept": "yes"})
    assert (after.flavor["original_name"], after.tags) == ("m1.large", ["blue"])
    assert nova.servers.interface_list(server) == []


def test_number_of_a_deleted_server_is_not_reused(cloud: Any, nova: Any, boot: Any) -> None:
    """Nova derives the EC2 instance id from a row id of MySQL, which reuses none."""
    first = cloud.servers.get(boot().id)
    nova.servers.delete(first.spec.id)
    assert cloud.servers.get(boot().id).number > first.number


def test_server_has_the_groups_of_its_ports(cloud: Any, made: Any, boot: Any) -> None:
    group = made("security_group", name="web")
    server = boot(security_groups=["web", "default"])
    assert {each["name"] for each in server.security_groups} == {"web", "default"}
    ids = {each.name: each.id for each in server.list_security_group()}
    assert ids["web"] == group["id"]
    with guest(cloud, server.id) as vm:
        named = vm.get("/latest/meta-data/security-groups").text
    assert sorted(named.split("\n")) == ["default", "web"]
    with pytest.raises(nova_failures.BadRequest, match="group nothing not found"):
        boot(security_groups=["nothing"])
    server.delete()


def test_port_of_a_trunk_outlives_its_server(neutron: Any, made: Any, boot: Any) -> None:
    """Neutron refuses to delete it (``enforce_port_deletion_rules``)."""
    server = boot()
    (port,) = ports_of(neutron, server)
    trunk = made("trunk", port_id=port["id"])
    assert trunk["status"] == "ACTIVE"
    server.delete()
    shown = neutron.show_port(port["id"])["port"]
    assert (shown["device_id"], shown["trunk_details"]["trunk_id"]) == ("", trunk["id"])
    assert neutron.show_trunk(trunk["id"])["trunk"]["status"] == "DOWN"
    neutron.delete_trunk(trunk["id"])
    neutron.delete_port(port["id"])


def test_guest_metadata_describes_its_ports(cloud: Any, made: Any, boot: Any, lan: Any) -> None:
    still = made("subnet", network_id=lan["id"], ip_version=4, cidr="10.7.0.0/24",
                 enable_dhcp=False, dns_nameservers=["10.7.0.3"])  # fmt: skip
    addresses = [{"ip_address": "10.5.0.9"}, {"subnet_id": still["id"]}]
    port = made("port", network_id=lan["id"], fixed_ips=addresses)
    server = boot([{"port-id": port["id"]}])
    with guest(cloud, server.id) as vm:
        data = vm.get("/openstack/latest/network_data.json").json()
        assert vm.get("/latest/meta-data/local-ipv4").text == "10.5.0.9"
        assert vm.get("/latest/meta-data/public-ipv4").text == ""
    link = "tap" + port["id"][:11]
    about = {"type": "ovs", "mtu": 1450, "ethernet_mac_address": port["mac_address"]}
    assert data["links"] == [{"id": link, "vif_id": port["id"], **about}]
    by_type = {each["type"]: each for each in data["networks"]}
    dhcp, static = by_type["ipv4_dhcp"], by_type["ipv4"]
    assert (dhcp["link"], dhcp["network_id"]) == (link, lan["id"])
    assert (static["ip_address"], static["netmask"]) == ("10.7.0.2", "255.255.255.0")
    assert static["routes"] == [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.7.0.1"}]
    assert {each["address"] for each in data["services"]} == {"10.5.0.3", "10.7.0.3"}
    tree = cloud.metadata_tree(server.id)
    assert b"10.5.0.9" in tree["ec2/latest/meta-data.json"]
    assert link.encode() in tree["openstack/latest/network_data.json"]


def test_guest_whose_machine_has_none_of_its_ports_is_told_of_none(
    cloud: Any, boot: Any, lan: Any
) -> None:
    """On a host without networks; cloud-init fails on a MAC address that is not there."""
    server = boot([{"net-id": lan["id"]}])
    cloud.metadata.isolate(server.id)
    with guest(cloud, server.id) as vm:
        assert vm.get("/openstack/latest/network_data.json").status_code == 404
    assert "openstack/latest/network_data.json" not in cloud.metadata_tree(server.id)
    bonded = boot([{"net-id": lan["id"]}, {"net-id": lan["id"]}], name="bonded")
    with pytest.raises(HostError, match='network data of the server "bonded" need its ports'):
        cloud.metadata.isolate(bonded.id)


@pytest.mark.parametrize("mode", ["slaac", "dhcpv6-stateless", "dhcpv6-stateful"])
def test_guest_metadata_has_the_ipv6_mode(
    cloud: Any, neutron: Any, made: Any, boot: Any, mode: str
) -> None:
    """As ``_get_nets`` of ``nova/virt/netutils.py``: the address too, although it is automatic."""
    network = made("network", name=mode, mtu=1400)
    made("subnet", network_id=network["id"], ip_version=6, cidr="fd00:7::/64", ipv6_ra_mode=mode,
         ipv6_address_mode=mode)  # fmt: skip
    server = boot([{"net-id": network["id"]}])
    (port,) = neutron.list_ports(device_id=server.id)["ports"]
    with guest(cloud, server.id) as vm:
        data = vm.get("/openstack/latest/network_data.json").json()
    assert [each["mtu"] for each in data["links"]] == [1400]
    (shown,) = data["networks"]
    assert shown["type"] == f"ipv6_{mode}"
    assert shown["ip_address"] == port["fixed_ips"][0]["ip_address"]
    assert shown["netmask"] == "ffff:ffff:ffff:ffff::"
    assert shown["routes"] == [{"network": "::", "netmask": "::", "gateway": "fd00:7::1"}]
    server.delete()


def test_own_network_data_gets_the_macs_of_the_ports(
    cloud: Any, neutron: Any, boot: Any, lan: Any
) -> None:
    server = boot([{"net-id": lan["id"]}, {"net-id": lan["id"]}], name="bonded")
    with guest(cloud, server.id) as vm:
        data = vm.get("/openstack/latest/network_data.json").json()
    one, two = (each.mac for each in cloud.servers.get(server.id).spec.ports)
    assert data["links"] == [
        {"id": "a", "type": "phy", "ethernet_mac_address": one},
        {"id": "b", "type": "phy", "ethernet_mac_address": two},
        {**BONDED["links"][2], "ethernet_mac_address": one},
        {**BONDED["links"][3], "vlan_mac_address": one},
    ]
    assert data["networks"] == BONDED["networks"]
    server.delete()


def test_own_network_data_needs_as_many_ports_as_links(boot: Any, lan: Any) -> None:
    sentence = "network data of bonded has links for 2 ports, and the server has 1"
    with pytest.raises(nova_failures.BadRequest, match=sentence):
        boot([{"net-id": lan["id"]}], name="bonded")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "property name"),
        ("[]", "expected"),
        ('{"web": {"links": []}}', '"web" has no list of "links"'),
        ('{"web": {"links": [{"id": "a"}]}}', 'a link of "web" has no "id" and "type"'),
        (
            '{"web": {"links": [{"id": "b", "type": "bond", "bond_links": ["a"]}]}}',
            'the link "b" of "web" needs links named before it',
        ),
        (
            '{"web": {"links": [{"id": "b", "type": "bond", "bond_links": [["a"]]}]}}',
            'the link "b" of "web" needs links named before it',
        ),
        (
            '{"web": {"links": [{"id": "v", "type": "vlan"}]}}',
            'the link "v" of "web" needs links named before it',
        ),
    ],
)
def test_bad_network_data_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_network_data(text)


# -- by Heat --------------------


def server(*needed: str, **properties: Any) -> dict[str, Any]:
    always = {"image": "i", "flavor": "f", "user_data_format": "RAW"}
    return resource("Nova::Server", *needed, **{**always, **properties})


NET = resource("Neutron::Net", name="private")
SUBNET = resource("Neutron::Subnet", network=ref("net"), cidr="10.30.0.0/24")
ON_NET = [{"network": ref("net")}]


def test_address_of_a_server_is_input_of_another(cloud: Any, stacks: Any, compute: Any) -> None:
    address = {"ADDRESS": attribute("db", "first_address")}
    user_data = {"str_replace": {"template": "db=ADDRESS", "params": address}}
    fixed = {"subnet": ref("subnet"), "ip_address": "10.30.0.50"}
    template = hot(
        {
            "db": attribute("db", "first_address"),
            "web": attribute("web", "networks", "private", 0),
        },
        net=NET,
        subnet=SUBNET,
        port=resource("Neutron::Port", network=ref("net"), fixed_ips=[fixed]),
        db=server(networks=[{"port": ref("port")}]),
        web=server(networks=ON_NET, user_data=user_data),
    )
    made = stacks.complete(template)
    outputs = stacks.outputs(made)
    assert outputs["db"] == "10.30.0.50" != outputs["web"]
    web = stacks.client.resources.get(made, "web").physical_resource_id
    assert compute.specs[web].user_data == b"db=10.30.0.50"
    assert compute.specs[web].ports[0].addresses[0].address == outputs["web"]
    assert not {"OS::Neutron::Net", "OS::Neutron::Port"} & {
        each.kind for each in cloud.stand_ins(made)
    }
    stacks.delete(made)


def test_five_servers_of_a_group_have_five_addresses(stacks: Any) -> None:
    group = resource("Heat::ResourceGroup", "subnet", count=5, resource_def=server(networks=ON_NET))
    made = stacks.complete(
        hot({"ips": attribute("group", "first_address")}, net=NET, subnet=SUBNET, group=group)
    )
    addresses = stacks.outputs(made)["ips"]
    assert len(set(addresses)) == 5
    assert all(each.startswith("10.30.0.") for each in addresses)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (
            {"web": server(networks=[{**ON_NET[0], "fixed_ip": "10.99.0.1"}])},
            "10.99.0.1 is not a valid ip address for network",
        ),
        (
            {
                "port": resource("Neutron::Port", network=ref("net")),
                "one": server(networks=[{"port": ref("port")}]),
                "two": server("one", networks=[{"port": ref("port")}]),
            },
            "is still in use",
        ),
        (
            {"web": server(user_data="x" * 49_153)},
            "User data too large. User data must be no larger than 65535 bytes once base64 "
            "encoded. Your data is 65540 bytes",
        ),
    ],
    ids=["outside", "twice", "large"],
)
def test_refusal_by_nova_is_the_reason_of_the_stack(
    stacks: Any, resources: dict[str, Any], words: str
) -> None:
    made = stacks.create(hot(net=NET, subnet=SUBNET, **resources))
    assert words in stacks.wait(made, "CREATE_FAILED").stack_status_reason


def moved(stacks: Any) -> str:
    """Begin to move the only server of a stack to another network."""
    networks = {"networks": attribute("web", "networks")}
    template = hot(networks, net=NET, subnet=SUBNET, web=server(networks=ON_NET))
    made: str = stacks.create(template)
    stacks.wait(made, "CREATE_COMPLETE")
    template["resources"]["web"] = server(networks=[{"network": "hotplate"}])
    stacks.client.stacks.update(made, template=template)
    return made


def networks_of(cloud: Any, stacks: Any, made: str) -> list[str]:
    web = stacks.client.resources.get(made, "web").physical_resource_id
    return [each.network_name for each in cloud.servers.get(web).spec.ports]


def test_update_fails_when_the_guest_keeps_the_interface(
    cloud: Any, stacks: Any, keeper: Keeper
) -> None:
    keeper.answers.set()
    made = moved(stacks)
    failed = stacks.wait(made, "UPDATE_FAILED")
    assert "Failed to detach interface" in failed.stack_status_reason
    assert networks_of(cloud, stacks, made) == ["private"]


def test_update_waits_while_nova_asks_the_guest(
    cloud: Any, stacks: Any, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heat itself asks ten times in a minute (``max_interface_check_attempts``)."""
    once = tenacity.stop_after_attempt(1)
    monkeypatch.setattr(NovaClientPlugin.check_interface_detach.retry, "stop", once)  # type: ignore[attr-defined]
    keeper.keeps = False
    looks = threading.Semaphore(0)

    def see(event: Event) -> None:
        request = ServiceRequest.of(event)
        if request and event.source == "neutron" and request.path.startswith("/v2.0/ports/"):
            looks.release()

    made = moved(stacks)
    keeper.asked.wait()
    unsubscribe = cloud.events.subscribe(see)
    # Heat polls until the port is free.
    assert [looks.acquire(timeout=60) for _ in range(3)] == [True] * 3
    unsubscribe()
    assert stacks.client.stacks.get(made).stack_status == "UPDATE_IN_PROGRESS"
    keeper.answers.set()
    stacks.wait(made, "UPDATE_COMPLETE")
    assert networks_of(cloud, stacks, made) == ["hotplate"]
    networks = stacks.outputs(made)["networks"]
    assert "private" not in networks
    assert networks["hotplate"][0].startswith("10.0.0.")


# -- routers, whose packets tests/testbed tests --------------------


def test_router_changes_are_reported(neutron: Any, compute: Any, made: Any) -> None:
    one, other = (made("network", name=name)["id"] for name in ("n0", "n1"))
    subnets = [
        made("subnet", network_id=network, ip_version=version, cidr=cidr)
        for network, version, cidr in (
            *((one, 4, "10.6.0.0/24"), (other, 4, "10.6.1.0/24"), (one, 6, "fd00:6::/64")),
        )
    ]
    router = made("router", name="between")
    for subnet in subnets:
        neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    (seen,) = compute.routers
    assert (seen.id, seen.name, seen.routes) == (router["id"], "between", ())
    ports = neutron.list_ports(device_id=router["id"])["ports"]
    macs = {port["fixed_ips"][0]["ip_address"]: port["mac_address"] for port in ports}
    assert seen.interfaces == tuple(
        RouterInterface(subnet["network_id"], macs[address], address)
        for subnet, address in zip(subnets, ("10.6.0.1", "10.6.1.1", "fd00:6::1"), strict=True)
    )
    routes = (("192.168.9.0/24", "10.6.1.9"), ("fd00:9::/64", "fd00:6::9"))
    asked = [{"destination": to, "nexthop": by} for to, by in routes]
    neutron.add_extra_routes_to_router(router["id"], {"router": {"routes": asked}})
    assert compute.routers[0].routes == routes
    neutron.update_router(router["id"], {"router": {"routes": []}})
    neutron.update_router(router["id"], {"router": {"admin_state_up": False}})
    assert compute.routers == ()
    neutron.update_router(router["id"], {"router": {"admin_state_up": True}})
    assert compute.routers == (seen,)
    neutron.remove_interface_router(router["id"], {"subnet_id": subnets[1]["id"]})
    assert compute.routers[0].interfaces == (seen.interfaces[0], seen.interfaces[2])
    for subnet in (subnets[0], subnets[2]):
        neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    neutron.delete_router(router["id"])
    assert compute.routers == ()


def test_unchanged_routing_is_not_reported(neutron: Any, compute: Any, made: Any) -> None:
    router = made("router")
    compute.routers = None
    neutron.update_router(router["id"], {"router": {"description": "another"}})
    assert compute.routers is None
    neutron.delete_router(router["id"])
    assert compute.routers == ()
