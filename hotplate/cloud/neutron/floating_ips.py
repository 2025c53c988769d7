"""Floating addresses: addresses of an external network, each mapped to a port."""

from __future__ import annotations

from neutron_lib import exceptions
from neutron_lib.exceptions import l3 as l3_exceptions

from hotplate.cloud.neutron.ports import UNMAPPED, Ports
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import FLOATING_IP, GRANTED, Resources, bad
from hotplate.cloud.neutron.routers import Routers

#: Attributes of the mapped port that a floating address shows.
_OF_PORT = (
    "name",
    "network_id",
    "mac_address",
    "admin_state_up",
    "status",
    "device_id",
    "device_owner",
)


class FloatingIPs(Resources):
    """The floating addresses of one cloud; none is reachable."""

    NAME = "floatingips"
    MISSING = (l3_exceptions.FloatingIPNotFound, "floatingip_id")

    def __init__(self, records: Records, ports: Ports, routers: Routers) -> None:
        super().__init__(records)
        self._ports = ports
        self._routers = routers

    def create(self, values: Values) -> Values:
        """Allocate an address of an external network, and map it to a port if one is named."""
        network = self._external(values["floating_network_id"])
        # Only an administrator asks for an address.
        subnet = values.get("subnet_id")
        asked = {"fixed_ips": [{"subnet_id": subnet}]} if subnet else {}
        # A port that belongs to no project holds the address.
        own = self._routers.own_port(network["id"], "", FLOATING_IP, **asked)
        if not own["fixed_ips"]:
            raise exceptions.ExternalIpAddressExhausted(net_id=network["id"])
        record = {
            **values,
            "floating_ip_address": own["fixed_ips"][0]["ip_address"],
            "floating_port": own["id"],
        }
        made = super().create({**record, **self._association(record)})
        # The id did not exist when the port was created.
        self.records.change("ports", own, {"device_id": made["id"]})
        return made

    def change(self, record: Values, changes: Values) -> Values:
        """Map an address to another port, or to none."""
        if "port_id" in changes or "fixed_ip_address" in changes:
            # Unless the request names a fixed address, it is chosen again for the new port.
            wanted = {**record, "fixed_ip_address": None, **changes}
            changes = {**changes, **self._association(wanted)}
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Release an address."""
        port = self.records.get("ports", record["floating_port"])
        if port is not None:
            self._ports.remove(port)
        super().delete(record)

    def view(self, record: Values) -> Values:
        """Return a floating address with the main attributes of its port."""
        port = self.records.get("ports", record["port_id"]) if record["port_id"] else None
        shown = None
        if port is not None:
            whole = self._ports.view(port)
            shown = {name: whole[name] for name in _OF_PORT}
        return super().view({**record, "port_details": shown})

    def _external(self, network_id: str) -> Values:
        network = self.network(network_id)
        if not network["router:external"]:
            raise bad("floatingip", f"Network {network_id} is not a valid external network")
        return network

    def _association(self, wanted: Values) -> Values:
        """Return the attributes that follow from the requested port."""
        port_id, fixed = wanted.get("port_id"), wanted.get("fixed_ip_address")
        if not port_id:
            if fixed:
                raise bad("floatingip", "fixed_ip_address cannot be specified without a port_id")
            return UNMAPPED
        port = self._ports.get(port_id)
        ip = _inner_address(port, fixed)
        for other in self.where(port_id=port_id, fixed_ip_address=ip["ip_address"]):
            if other["id"] != wanted.get("id"):
                raise l3_exceptions.FloatingIPPortAlreadyAssociated(
                    floating_ip_address=wanted["floating_ip_address"],
                    fip_id=other["id"],
                    port_id=port_id,
                    fixed_ip=ip["ip_address"],
                    net_id=wanted["floating_network_id"],
                )
        return {
            "port_id": port_id,
            "fixed_ip_address": ip["ip_address"],
            "router_id": self._router(wanted["floating_network_id"], port, ip["subnet_id"]),
            "status": "ACTIVE",
        }

    def _router(self, external: str, port: Values, subnet_id: str) -> str | None:
        # The router with a gateway there and an interface on the port's subnet.
        for router in self._routers.all():
            gateway = router["external_gateway_info"] or {}
            if gateway.get("network_id") != external:
                continue
            for interface in self._routers.interfaces(router["id"]):
                if any(ip["subnet_id"] == subnet_id for ip in interface["fixed_ips"]):
                    return str(router["id"])
        network = self.records.get("networks", port["network_id"]) or {}
        if network.get("role") or network.get(GRANTED):
            # The cloud that a template was written for has a router there.
            return None
        raise l3_exceptions.ExternalGatewayForFloatingIPNotFound(
            external_network_id=external, subnet_id=subnet_id, port_id=port["id"]
        )


def _inner_address(port: Values, fixed: str | None) -> Values:
    inner: list[Values] = [ip for ip in port["fixed_ips"] if ":" not in ip["ip_address"]]
    if fixed:
        for ip in inner:
            if ip["ip_address"] == fixed:
                return ip
        raise bad("floatingip", f"Port {port['id']} does not have fixed ip {fixed}")
    if not inner:
        raise bad(
            "floatingip",
            f"Cannot add floating IP to port {port['id']} that has no fixed IPv4 addresses",
        )
    if len(inner) > 1:
        raise bad(
            "floatingip",
            f"Port {port['id']} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 "
            "address when assigning a floating IP",
        )
    return inner[0]
