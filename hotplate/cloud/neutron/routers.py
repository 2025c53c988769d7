"""Routers, which connect networks to each other and to the outside; stored and shown."""

from __future__ import annotations

import ipaddress

from neutron_lib import exceptions
from neutron_lib.exceptions import extraroute
from neutron_lib.exceptions import l3 as l3_exceptions

from hotplate.cloud.neutron.attributes import KINDS, inside
from hotplate.cloud.neutron.ports import Ports
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import ROUTER_GATEWAY, ROUTER_INTERFACE, Resources, bad
from hotplate.cloud.neutron.subnets import Subnets, network_of

#: Neutron: ``[DEFAULT] max_routes``.
MAX_ROUTES = 30


class Routers(Resources):
    """The routers of one cloud."""

    NAME = "routers"
    MISSING = (l3_exceptions.RouterNotFound, "router_id")

    def __init__(self, records: Records, subnets: Subnets, ports: Ports) -> None:
        super().__init__(records)
        self._subnets = subnets
        self._ports = ports

    def create(self, values: Values) -> Values:
        """Create a router, with a gateway if requested."""
        gateway = values.get("external_gateway_info")
        empty = {
            "routes": [],
            "availability_zones": [],
            **values,
            "status": "ACTIVE",
            "external_gateway_info": None,
        }
        # Stored first: the gateway's port needs the router's id.
        router = super().create(empty)
        if not gateway:
            return router
        return self.records.change(
            self.NAME, router, {"external_gateway_info": self._gateway(router, gateway)}
        )

    def change(self, record: Values, changes: Values) -> Values:
        """Change a router; a new gateway gets a new address."""
        if "external_gateway_info" in changes:
            gateway = changes["external_gateway_info"] or None
            changes = {**changes, "external_gateway_info": self._changed(record, gateway)}
        if len(changes.get("routes") or ()) > MAX_ROUTES:
            raise extraroute.RoutesExhausted(router_id=record["id"], quota=MAX_ROUTES)
        if "routes" in changes:
            changes = {**changes, "routes": changes["routes"] or []}
            self._check_routes(record, changes["routes"])
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a router without interfaces, and its gateway."""
        if self.interfaces(record["id"]):
            raise l3_exceptions.RouterInUse(router_id=record["id"], reason="still has ports")
        # This removes the gateway's port, unless a floating address uses it.
        self._changed(record, None)
        super().delete(record)

    # -- gateway --------------------

    def _changed(self, record: Values, wanted: Values | None) -> Values | None:
        present = record["external_gateway_info"]
        leaves = present and (not wanted or present["network_id"] != wanted["network_id"])
        if leaves and self.records.where("floatingips", router_id=record["id"]):
            raise l3_exceptions.RouterExternalGatewayInUseByFloatingIp(
                router_id=record["id"], net_id=present["network_id"]
            )
        if present and wanted and _same_gateway(present, wanted):
            return {**present, "enable_snat": wanted.get("enable_snat", True)}
        for port in self._ports.where(device_id=record["id"], device_owner=ROUTER_GATEWAY):
            self._ports.remove(port)
        return self._gateway(record, wanted) if wanted else None

    def _gateway(self, router: Values, wanted: Values) -> Values:
        network = self.network(wanted["network_id"])
        if not network["router:external"]:
            raise bad("router", f"Network {network['id']} is not an external network")
        asked = wanted.get("external_fixed_ips")
        port = self.own_port(
            network["id"], router["id"], ROUTER_GATEWAY, **({"fixed_ips": asked} if asked else {})
        )
        return {
            "network_id": network["id"],
            "external_fixed_ips": port["fixed_ips"],
            "enable_snat": wanted.get("enable_snat", True),
        }

    def own_port(self, network_id: str, device: str, owner: str, **more: object) -> Values:
        """Create a port that belongs to Neutron and to no project."""
        body = {"network_id": network_id, "device_id": device, "device_owner": owner, **more}
        # new() wants a project; in Neutron, ports of gateways and floating addresses have none.
        values = KINDS["ports"].new(body, "none")
        return self._ports.create({**values, "project_id": "", "tenant_id": ""})

    # -- interfaces --------------------

    def interfaces(self, router_id: str) -> list[Values]:
        """Return the ports of a router on inner networks."""
        return self._ports.where(device_id=router_id, device_owner=ROUTER_INTERFACE)

    def add_interface(self, router: Values, body: Values) -> Values:
        """Give a router an interface on a subnet, or on an existing port.

        :raises neutron_lib.exceptions.NeutronException: when it already has one there, the port is
            in use, or the addresses overlap with those of another of its subnets.
        """
        subnet_id, port_id = _one_of(body)
        if port_id:
            port = self._taken_port(router, self._ports.get(port_id))
        else:
            port = self._subnet_port(router, self._subnets.get(subnet_id))
        return self._interface(router, port)

    def remove_interface(self, router: Values, body: Values) -> Values:
        """Remove an interface with its port.

        :raises neutron_lib.exceptions.NeutronException: when there is none, or a floating address
            or a route needs it.
        """
        subnet_id, port_id = body.get("subnet_id") or "", body.get("port_id") or ""
        if not subnet_id and not port_id:
            raise bad("router", "Either subnet_id or port_id must be specified")
        port = self._interface_port(router, subnet_id, port_id)
        for ip in port["fixed_ips"]:
            self._check_unused(router, ip["subnet_id"])
        self._ports.remove(port)
        return self._interface(router, port)

    def _interface_port(self, router: Values, subnet_id: str, port_id: str) -> Values:
        for port in self.interfaces(router["id"]):
            subnets = [ip["subnet_id"] for ip in port["fixed_ips"]]
            if port_id in ("", port["id"]) and (not subnet_id or subnet_id in subnets):
                return port
        if port_id:
            raise l3_exceptions.RouterInterfaceNotFound(router_id=router["id"], port_id=port_id)
        raise l3_exceptions.RouterInterfaceNotFoundForSubnet(
            router_id=router["id"], subnet_id=subnet_id
        )

    def _check_unused(self, router: Values, subnet_id: str) -> None:
        subnet = self._subnets.get(subnet_id)
        cidr = network_of(subnet)
        for floating in self.records.where("floatingips", router_id=router["id"]):
            if ipaddress.ip_address(floating["fixed_ip_address"]) in cidr:
                raise l3_exceptions.RouterInterfaceInUseByFloatingIP(
                    router_id=router["id"], subnet_id=subnet_id
                )
        for route in router["routes"]:
            if ipaddress.ip_address(route["nexthop"]) in cidr:
                raise extraroute.RouterInterfaceInUseByRoute(
                    router_id=router["id"], subnet_id=subnet_id
                )

    def _taken_port(self, router: Values, port: Values) -> Values:
        if port["device_id"]:
            raise exceptions.PortInUse(
                port_id=port["id"], net_id=port["network_id"], device_id=port["device_id"]
            )
        if not port["fixed_ips"]:
            raise bad("router", "Router port must have at least one fixed IP")
        for ip in port["fixed_ips"]:
            self._check_subnet(router, self._subnets.get(ip["subnet_id"]))
        owner = {"device_id": router["id"], "device_owner": ROUTER_INTERFACE}
        return self.records.change("ports", port, owner)

    def _subnet_port(self, router: Values, subnet: Values) -> Values:
        if not subnet["gateway_ip"]:
            raise bad("router", "Subnet for router interface must have a gateway IP")
        self._check_subnet(router, subnet)
        body = {
            "network_id": subnet["network_id"],
            "device_id": router["id"],
            "device_owner": ROUTER_INTERFACE,
            "fixed_ips": [{"subnet_id": subnet["id"], "ip_address": subnet["gateway_ip"]}],
        }
        return self._ports.create(KINDS["ports"].new(body, router["project_id"]))

    def _check_subnet(self, router: Values, subnet: Values) -> None:
        cidr = network_of(subnet)
        for port in self.interfaces(router["id"]):
            for ip in port["fixed_ips"]:
                other = self._subnets.get(ip["subnet_id"])
                if other["id"] == subnet["id"]:
                    raise bad("router", f"Router already has a port on subnet {subnet['id']}")
                present = network_of(other)
                if present.overlaps(cidr):
                    raise bad(
                        "router",
                        f"Cidr {cidr} of subnet {subnet['id']} overlaps with cidr {present} of "
                        f"subnet {other['id']}",
                    )

    @staticmethod
    def _interface(router: Values, port: Values) -> Values:
        subnets = [ip["subnet_id"] for ip in port["fixed_ips"]]
        return {
            "id": router["id"],
            "tenant_id": router["project_id"],
            "port_id": port["id"],
            "network_id": port["network_id"],
            "subnet_id": subnets[0],
            "subnet_ids": subnets,
        }

    # -- routes --------------------

    def add_routes(self, router: Values, body: Values) -> Values:
        """Add routes to the existing ones; return the response."""
        new = [route for route in _routes(body) if route not in router["routes"]]
        return self._shown(self.change(router, {"routes": router["routes"] + new}))

    def remove_routes(self, router: Values, body: Values) -> Values:
        """Remove routes, of which a missing one is no error; return the response."""
        unwanted = _routes(body)
        kept = [route for route in router["routes"] if route not in unwanted]
        return self._shown(self.change(router, {"routes": kept}))

    def _shown(self, router: Values) -> Values:
        return {"router": self.view(router)}

    def _check_routes(self, router: Values, routes: list[Values]) -> None:
        # With the gateway's port: a next hop may be on the external network.
        networks = [
            network_of(self._subnets.get(ip["subnet_id"]))
            for port in self._ports.where(device_id=router["id"])
            for ip in port["fixed_ips"]
        ]
        for route in routes:
            hop = ipaddress.ip_address(route["nexthop"])
            if not any(hop in network for network in networks):
                raise extraroute.InvalidRoutes(
                    routes=routes, reason="the nexthop is not connected with router"
                )


def _routes(body: Values) -> list[Values]:
    """Return the routes of a request, after a check."""
    given = inside(body, "router").get("routes")
    return KINDS["routers"].changes({"routes": given})["routes"] or []


def _one_of(body: Values) -> tuple[str, str]:
    subnet_id, port_id = body.get("subnet_id"), body.get("port_id")
    if not subnet_id and not port_id:
        raise bad("router", "Either subnet_id or port_id must be specified")
    if subnet_id and port_id:
        raise bad("router", "Cannot specify both subnet-id and port-id")
    for name, value in (("subnet_id", subnet_id), ("port_id", port_id)):
        if value is not None and not isinstance(value, str):
            raise bad("router", f"Invalid input for {name}. Reason: '{value}' is not a valid UUID.")
    return subnet_id or "", port_id or ""


def _same_gateway(present: Values, wanted: Values) -> bool:
    if present["network_id"] != wanted["network_id"]:
        return False
    asked = wanted.get("external_fixed_ips")
    return not asked or asked == present["external_fixed_ips"]
