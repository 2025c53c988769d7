"""Resources that a template assumes in its own cloud, created when Heat looks them up.

A template names networks, subnets, security groups, routers and pools of the cloud that it was
written for.  Clients of Neutron get Neutron's 404 for them; only Heat's look-ups use this module.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from oslo_utils import uuidutils

from hotplate.cloud.neutron import allocation
from hotplate.cloud.neutron.attributes import KINDS
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.records import Values
from hotplate.cloud.neutron.resources import GRANTED
from hotplate.cloud.neutron.subnets import network_of

Address: TypeAlias = allocation.Address

#: Subnets are created as a /16 of it where no other subnet is.
PRIVATE = ipaddress.ip_network("10.128.0.0/9")
LENGTH = 16
#: Prefix lengths of a subnet around an address that a template requests, by IP version.
NEAR = {4: (24, 16), 6: (64,)}
#: Kinds that can be created: Heat's name -> collection.
COLLECTIONS = {
    "network": "networks",
    "subnet": "subnets",
    "security_group": "security_groups",
    "router": "routers",
    "port": "ports",
    "subnetpool": "subnetpools",
}
#: Set in the record of a network that no template names: it exists only for a subnet.
_LONE = "granted_for_subnet"


class TakenForGranted:
    """Creates missing resources, once for each name, and remembers them.

    :param project: the owner of the created resources.
    """

    def __init__(self, networking: Networking, *, project: str) -> None:
        self._networking = networking
        self._records = networking.records
        self._subnets = networking.subnets
        self._project = project

    def give(self, kind: str, name_or_id: str) -> str:
        """Return the id of a resource by its name or id; create it when it is missing.

        Among several with that name, one that was not created here is preferred.

        :param kind: one of :data:`COLLECTIONS`.
        """
        with self._networking.transaction():
            present = self.present(kind, name_or_id)
            if present:
                return present
            values = {"name": name_or_id, GRANTED: True}
            # A template may name an id; the resource gets this very id.
            if uuidutils.is_uuid_like(name_or_id):
                values["id"] = name_or_id
            made = getattr(self, f"_make_{kind}")(values)
            return str(made["id"])

    def present(self, kind: str, name_or_id: str) -> str:
        """Return the id of an existing resource; "" when none or several match."""
        with self._networking.transaction():
            everything = self._records.all(COLLECTIONS[kind])
            for record in everything:
                if record["id"] == name_or_id:
                    return name_or_id
            named = [each for each in everything if each["name"] == name_or_id]
            named = [each for each in named if not each.get(GRANTED)] or named
            return str(named[0]["id"]) if len(named) == 1 else ""

    def inner(self, name: str) -> str:
        """Return the id of a network for servers by its name; "" for that of the way out."""
        network_id = self.give("network", name)
        return "" if network_id == self._networking.external_network else network_id

    def names(self) -> list[tuple[str, str]]:
        """Return the created resources: the kind in words, and the template's name or id for it."""
        with self._networking.transaction():
            return sorted(
                (kind.replace("_", " "), str(record["name"]))
                for kind, collection in COLLECTIONS.items()
                for record in self._records.all(collection)
                if record.get(GRANTED) and not record.get(_LONE)
            )

    def made_network(self, network_id: str) -> bool:
        """Return True when a network was created here."""
        network = self._records.get("networks", network_id)
        return network is not None and bool(network.get(GRANTED))

    def goes_with_any(self, subnet_id: str) -> bool:
        """Return True when a subnet was created here, and its network is still open."""
        with self._networking.transaction():
            return self._lone_network(subnet_id) is not None

    def fit(self, network_id: str, fixed_ips: Iterable[Values]) -> None:
        """Give a network created here the subnets and addresses that a port on it requests.

        :param fixed_ips: as in a port's body; missing subnets are created.
        """
        with self._networking.transaction():
            if not self.made_network(network_id):
                return
            for wanted in fixed_ips:
                subnet_id, address = wanted.get("subnet_id"), wanted.get("ip_address")
                if subnet_id:
                    self._move(subnet_id, network_id)
                if address:
                    self._hold(network_id, ipaddress.ip_address(address), subnet_id or "")

    # -- each kind --------------------

    def _create(self, kind: str, body: Values, own: Values) -> Values:
        collection = COLLECTIONS[kind]
        values = KINDS[collection].new({"name": own["name"], **body}, self._project)
        return self._networking.kinds[collection].create({**values, **own})

    def _make_network(self, values: Values) -> Values:
        # External too: a template may request floating addresses of it.
        network = self._create("network", {"shared": True, "router:external": True}, values)
        self._add_subnet(network["id"], self._free(), {"name": values["name"], _LONE: True})
        return network

    def _make_subnet(self, values: Values) -> Values:
        own = {"name": values["name"], GRANTED: True, _LONE: True}
        network = self._create("network", {"shared": True, "router:external": True}, own)
        return self._add_subnet(network["id"], self._free(), values)

    def _make_security_group(self, values: Values) -> Values:
        return self._create("security_group", {}, values)

    def _make_router(self, values: Values) -> Values:
        gateway = {"network_id": self._networking.external_network}
        return self._create("router", {"external_gateway_info": gateway}, values)

    def _make_port(self, values: Values) -> Values:
        return self._create("port", {"network_id": self._networking.default_network}, values)

    def _make_subnetpool(self, values: Values) -> Values:
        lengths = {"default_prefixlen": 24, "min_prefixlen": 8}
        return self._create("subnetpool", {"prefixes": ["10.64.0.0/10"], **lengths}, values)

    # -- subnets --------------------

    def _free(self) -> allocation.Network:
        taken = [network_of(each) for each in self._records.all("subnets")]
        return allocation.first_free_subnet([PRIVATE], LENGTH, taken) or PRIVATE

    def _add_subnet(self, network_id: str, cidr: allocation.Network, own: Values) -> Values:
        body = {"network_id": network_id, "cidr": str(cidr), "ip_version": cidr.version}
        return self._create("subnet", body, {GRANTED: True, **own})

    def _lone_network(self, subnet_id: str) -> Values | None:
        subnet = self._records.get("subnets", subnet_id)
        network = self._records.get("networks", subnet["network_id"]) if subnet else None
        return network if network and network.get(_LONE) else None

    def _move(self, subnet_id: str, network_id: str) -> None:
        lone = self._lone_network(subnet_id)
        if lone is None or lone["id"] == network_id or self._subnets.ports(subnet_id):
            return
        self._drop_unused(network_id)
        subnet = self._records.get("subnets", subnet_id)
        if subnet is not None:
            self._records.change("subnets", subnet, {"network_id": network_id})
        self._records.remove("networks", lone["id"])

    def _hold(self, network_id: str, address: Address, subnet_id: str) -> None:
        """Make a network created here contain an address: add a subnet, or move the one named."""
        subnets = self._records.where("subnets", network_id=network_id)
        if any(address in allocation.hosts(network_of(each)) for each in subnets):
            return
        cidr = _around(address)
        gateway = allocation.hosts(cidr).first
        # The requested address may be the one that a gateway has by default.
        if gateway == address:
            gateway = allocation.hosts(cidr).last
        own: Values = {"name": str(cidr), _LONE: True}
        if subnet_id:
            subnet = self._records.get("subnets", subnet_id)
            if subnet is None or not subnet.get(GRANTED) or self._subnets.ports(subnet_id):
                return
            # Made anew with its id and name, since the CIDR of a subnet cannot be changed.
            own = {name: subnet[name] for name in ("id", "name", GRANTED)}
            self._records.remove("subnets", subnet_id)
        self._drop_unused(network_id)
        body = {
            "network_id": network_id,
            "cidr": str(cidr),
            "ip_version": cidr.version,
            "gateway_ip": str(gateway),
        }
        self._create("subnet", body, {GRANTED: True, **own})

    def _drop_unused(self, network_id: str) -> None:
        """Remove subnets of a network created here that no template names and no port uses."""
        for subnet in self._records.where("subnets", network_id=network_id):
            if subnet.get(_LONE) and not self._subnets.ports(subnet["id"]):
                self._records.remove("subnets", subnet["id"])


def _around(address: Address) -> allocation.Network:
    """Return a subnet in which the address can be a host's."""
    for length in NEAR[address.version]:
        network = ipaddress.ip_network(f"{address}/{length}", strict=False)
        if address in allocation.hosts(network):
            return network
    return network
