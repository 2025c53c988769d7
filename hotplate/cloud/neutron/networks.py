"""Networks: groups of subnets and ports."""

from __future__ import annotations

from neutron_lib import exceptions
from neutron_lib.exceptions import external_net

from hotplate.cloud.neutron.records import Values
from hotplate.cloud.neutron.resources import DHCP, FLOATING_IP, ROUTER_GATEWAY, Resources, invalid

MTU = 1500


class Networks(Resources):
    """The networks of one cloud."""

    NAME = "networks"
    MISSING = (exceptions.NetworkNotFound, "net_id")

    def create(self, values: Values) -> Values:
        """Create a network, which is active at once."""
        return super().create({**values, "status": "ACTIVE", "mtu": _mtu(values.get("mtu"))})

    def change(self, record: Values, changes: Values) -> Values:
        """Change a network.

        :raises external_net.ExternalNetworkInUse: when it is in use and shall become internal.
        """
        internal = changes.get("router:external") is False and record["router:external"]
        ports = self.records.where("ports", network_id=record["id"])
        if internal and {each["device_owner"] for each in ports} & {ROUTER_GATEWAY, FLOATING_IP}:
            raise external_net.ExternalNetworkInUse(net_id=record["id"])
        if "mtu" in changes:
            changes = {**changes, "mtu": _mtu(changes["mtu"])}
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a network with its subnets.

        :raises neutron_lib.exceptions.NetworkInUse: when ports are on it.
        """
        ports = self.records.where("ports", network_id=record["id"])
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
        return super().view(shown)


def _mtu(asked: int | None) -> int:
    if not asked:
        return MTU
    if not 68 <= asked <= 9000:
        raise invalid("Requested MTU is not from 68 to 9000")
    return asked
