"""Neutron without HTTP: networks, all other kinds of resources, and the initial networks.

Code in this process that needs a port (Nova for a server, the QEMU side for its DHCP) uses this
module::

    port = networking.create("ports", {"network_id": networking.default_network}, project)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from neutron_lib import constants, exceptions
from neutron_lib.exceptions import external_net

from hotplate.cloud.database.store import Store
from hotplate.cloud.neutron.attributes import KINDS
from hotplate.cloud.neutron.floating_ips import FloatingIPs
from hotplate.cloud.neutron.ports import Ports
from hotplate.cloud.neutron.quotas import Quotas
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import DHCP, FLOATING_IP, ROUTER_GATEWAY, Resources, invalid
from hotplate.cloud.neutron.routers import Routers
from hotplate.cloud.neutron.security_groups import SecurityGroupRules, SecurityGroups
from hotplate.cloud.neutron.subnets import SubnetPools, Subnets
from hotplate.cloud.neutron.trunks import Trunks

DEFAULT_NETWORK = "hotplate"
DEFAULT_CIDR = "10.0.0.0/24"
EXTERNAL_NETWORK = "public"
#: Addresses of the external network, reserved for documentation (RFC 5737).
EXTERNAL_CIDR = "203.0.113.0/24"
#: The id of the default network's subnet, fixed because some Heat types do not accept a name.
DEFAULT_SUBNET = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"subnet.{DEFAULT_NETWORK}"))

#: Of a project's network: that of Ethernet without the headers of VXLAN, the usual overlay
#: (``[ml2] overlay_ip_version`` 4, ``[DEFAULT] global_physnet_mtu`` 1500).
MTU = 1450
#: Of a provider's network, which has no overlay.
EXTERNAL_MTU = 1500


class Networks(Resources):
    """The networks of one cloud."""

    NAME = "networks"
    MISSING = (exceptions.NetworkNotFound, "net_id")

    def create(self, values: Values) -> Values:
        """Create a network, which is active at once."""
        external = values["router:external"]
        mtu = _mtu(values.get("mtu")) or (EXTERNAL_MTU if external else MTU)
        return super().create({**values, "status": "ACTIVE", "mtu": mtu})

    def change(self, record: Values, changes: Values) -> Values:
        """Change a network; it stays external while a router or a floating address uses it."""
        internal = changes.get("router:external") is False and record["router:external"]
        ports = self.records.where("ports", network_id=record["id"])
        if internal and {each["device_owner"] for each in ports} & {ROUTER_GATEWAY, FLOATING_IP}:
            raise external_net.ExternalNetworkInUse(net_id=record["id"])
        if "mtu" in changes:
            changes = {**changes, "mtu": _mtu(changes["mtu"]) or MTU}
            six = self.records.where("subnets", network_id=record["id"], ip_version=6)
            if six and changes["mtu"] < constants.IPV6_MIN_MTU:
                raise exceptions.NetworkMTUSubnetConflict(
                    net_id=record["id"], mtu=constants.IPV6_MIN_MTU
                )
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a network with its subnets, unless ports are on it."""
        ports = self.records.where("ports", network_id=record["id"])
        # Neutron's own DHCP port goes with the network.
        used = [port["id"] for port in ports if port["device_owner"] != DHCP]
        if used:
            raise exceptions.NetworkInUse(
                net_id=record["id"],
                reason="There are one or more ports still in use on the network, "
                f"id for these ports is: {','.join(used)}",
            )
        for port in ports:
            self.records.remove("ports", port["id"])
        for subnet in self.records.where("subnets", network_id=record["id"]):
            self.records.remove("subnets", subnet["id"])
        super().delete(record)

    def view(self, record: Values) -> Values:
        """Return a network with the ids of its subnets."""
        shown = {
            "availability_zones": ["nova"],
            "provider:network_type": "local",
            **record,
            "subnets": [
                each["id"] for each in self.records.where("subnets", network_id=record["id"])
            ],
        }
        view = super().view(shown)
        # Neutron keeps it in a table of external networks.
        if not record["router:external"]:
            del view["is_default"]
        return view


def _mtu(asked: int | None) -> int:
    """Return the requested MTU; 0 for none."""
    if not asked:
        return 0
    # 68 is the smallest MTU of IPv4 (RFC 791).
    if not 68 <= asked <= 9000:
        raise invalid("Requested MTU is not from 68 to 9000")
    return asked


class Networking:
    """The networks of one cloud.  Thread-safe: each change is one transaction.

    :param project: the owner of the network ``hotplate``.
    :param operator: the project that owns the external network.
    """

    def __init__(self, store: Store, *, project: str, operator: str) -> None:
        self.records = Records(store)
        self.transaction = store.transaction
        # Each of these knows only those above it.
        pools = SubnetPools(self.records)
        self.subnets = Subnets(self.records, pools)
        rules = SecurityGroupRules(self.records)
        self.groups = SecurityGroups(self.records, rules)
        self.ports = Ports(self.records, self.subnets, self.groups)
        self.routers = Routers(self.records, self.subnets, self.ports)
        self.trunks = Trunks(self.records, self.ports)
        self.quotas = Quotas(self.records)
        self.kinds: dict[str, Resources] = {
            each.NAME: each
            for each in (
                Networks(self.records),
                pools,
                self.subnets,
                self.ports,
                self.routers,
                FloatingIPs(self.records, self.ports, self.routers),
                self.groups,
                rules,
                self.trunks,
            )
        }
        self.default_network = self._network(
            "default_network", DEFAULT_NETWORK, DEFAULT_CIDR, project
        )
        self.external_network = self._network(
            "external_network", EXTERNAL_NETWORK, EXTERNAL_CIDR, operator
        )

    def create(self, name: str, body: Mapping[str, object], project: str) -> Values:
        """Create a resource as a client requests it; return it as a client sees it.

        :param name: the collection: ``ports``.
        :raises neutron_lib.exceptions.NeutronException: when Neutron refuses it.
        :raises webob.exc.HTTPException: when the body is invalid.
        """
        values = KINDS[name].new(body, project)
        with self.transaction():
            self.quotas.check(KINDS[name], values["project_id"])
            return self.kinds[name].view(self.kinds[name].create(values))

    def get(self, name: str, record_id: str) -> Values:
        """Return a resource as a client sees it.

        :raises neutron_lib.exceptions.NotFound: when there is none with that id.
        """
        with self.transaction():
            return self.kinds[name].view(self.kinds[name].get(record_id))

    def all(self, name: str) -> list[Values]:
        """Return all resources of a kind as clients see them, oldest first."""
        with self.transaction():
            kind = self.kinds[name]
            return [kind.view(record) for record in kind.all()]

    def change(self, name: str, record_id: str, body: Mapping[str, object]) -> Values:
        """Change a resource as a client requests it; return it as a client sees it.

        :raises neutron_lib.exceptions.NeutronException: when Neutron refuses it.
        :raises webob.exc.HTTPException: when the body is invalid.
        """
        changes = KINDS[name].changes(body)
        with self.transaction():
            kind = self.kinds[name]
            return kind.view(kind.change(kind.get(record_id), changes))

    def delete(self, name: str, record_id: str) -> None:
        """Remove a resource.

        :raises neutron_lib.exceptions.NeutronException: when Neutron refuses it.
        """
        with self.transaction():
            if name == "networks" and record_id in (self.default_network, self.external_network):
                raise exceptions.NetworkInUse(
                    net_id=record_id, reason="It is a network that each cloud of hotplate has"
                )
            self.kinds[name].delete(self.kinds[name].get(record_id))

    def _network(self, setting: str, network_name: str, cidr: str, owner: str) -> str:
        """Return the id of a network that every cloud has; create it in a new database."""
        with self.transaction():
            for network in self.records.all("networks"):
                if network.get("role") == setting:
                    return str(network["id"])
            external = setting == "external_network"
            body = {"name": network_name, "router:external": external, "is_default": external}
            values = KINDS["networks"].new(body, owner)
            made = self.kinds["networks"].create({**values, "role": setting})
            subnet = {
                "name": network_name,
                "network_id": made["id"],
                "ip_version": 4,
                "cidr": cidr,
                "enable_dhcp": not external,
            }
            own = {} if external else {"id": DEFAULT_SUBNET}
            self.kinds["subnets"].create({**KINDS["subnets"].new(subnet, owner), **own})
            return str(made["id"])
