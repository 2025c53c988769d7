"""Neutron as servers use it: their ports, and the routers between their networks.

Ports are created, bound and released as in ``nova/network/neutron.py``, but synchronously: a
refusal by Neutron is the answer to the request, not a fault of a server that fails later.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from neutron_lib import exceptions

from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.neutron import allocation
from hotplate.cloud.neutron.attributes import KINDS
from hotplate.cloud.neutron.errors import IpAddressAlreadyAllocated, http_error
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.records import Values
from hotplate.cloud.neutron.resources import DHCP
from hotplate.cloud.neutron.subnets import is_automatic, network_of, pools_of
from hotplate.cloud.nova.compute import (
    Compute,
    PortAddress,
    RouterInterface,
    RouterSpec,
    ServerPort,
    ServerSpec,
)
from hotplate.cloud.nova.interfaces import (
    Interface,
    RequestedNetwork,
    Wanted,
    host_name,
    physical_links,
)
from hotplate.cloud.nova.server_records import HOST

OWNER = "compute:nova"
#: Set in the record of a port that is deleted with its server.
_MADE = "made_by_nova"
_FREE = {"device_id": "", "device_owner": "", "binding:host_id": ""}


class ServerPorts:
    """Gives servers ports of Neutron, and takes them back.

    A refusal by Neutron is raised as Nova's :class:`~hotplate.cloud.http.rest.HttpError`.

    :param project: the owner of the ports that are created.
    :param network_data: server name -> a ``network_data.json`` that needs as many ports as it has
        links of the machine.
    """

    def __init__(
        self,
        networking: Networking,
        *,
        project: str,
        network_data: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._links = {
            host_name(name): len(physical_links(each)) for name, each in network_data.items()
        }
        self._networking = networking
        self._records = networking.records
        self._project = project

    def give(self, wanted: Wanted) -> tuple[ServerPort, ...]:
        """Create or bind the ports of a new server: all of them, or none."""
        if wanted.networks == "none":
            return ()
        # One port on the default network, unless networks are named.
        entries: list[dict[str, Any]] = [{}]
        if not isinstance(wanted.networks, str) and wanted.networks:
            entries = list(wanted.networks)
        needed = self._links.get(wanted.host_name, len(entries))
        if needed != len(entries):
            raise HttpError(
                400,
                f"The network data of {wanted.host_name} has links for {needed} ports, and the "
                f"server has {len(entries)}.",
            )
        with self._networking.transaction():
            return tuple(self._one(wanted, entry) for entry in entries)

    def attach(self, wanted: Wanted) -> ServerPort:
        """Give a server another port."""
        with self._networking.transaction():
            entries = [{}] if isinstance(wanted.networks, str) else wanted.networks
            return self._one(wanted, entries[0])

    def detach(self, spec: ServerSpec, port_id: str) -> None:
        """Take a port away from a server.

        :raises HttpError: 404, when the server does not have it.
        """
        with self._networking.transaction():
            port = self._records.get("ports", port_id)
            if port is None or port["device_id"] != spec.id:
                raise HttpError(404, f"Port id {port_id} could not be found.")
            self._take(port)

    def add_group(self, server_id: str, name_or_id: str) -> None:
        """Add those ports of a server that have addresses and port security to a security group.

        As ``add_to_instance`` of ``nova/network/security_group_api.py``.

        :raises HttpError: 404 when there is no such group, 409 when several have that name.
        """
        with self._networking.transaction():
            group = self._group(name_or_id, missing=404)
            for port in self._of(server_id):
                if port["fixed_ips"] and port["port_security_enabled"]:
                    self._set_groups(port, [*port["security_groups"], group])

    def remove_group(self, server_id: str, name_or_id: str) -> None:
        """Remove a server's ports from a security group.

        :raises HttpError: as :meth:`add_group`, and 404 when no port is in it.
        """
        with self._networking.transaction():
            group = self._group(name_or_id, missing=404)
            inside = [port for port in self._of(server_id) if group in port["security_groups"]]
            if not inside:
                raise HttpError(
                    404,
                    f"Security group {name_or_id} not associated with the instance {server_id}",
                )
            for port in inside:
                self._set_groups(port, [each for each in port["security_groups"] if each != group])

    def _of(self, server_id: str) -> list[Values]:
        ports = self._records.all("ports")
        return [port for port in ports if port["device_id"] == server_id]

    def _set_groups(self, port: Values, groups: list[str]) -> None:
        changes = {"security_groups": list(dict.fromkeys(groups))}
        self._networking.kinds["ports"].change(port, changes)

    def release(self, server_id: str) -> None:
        """Take all ports of a server away, and delete those that were made for it."""
        with self._networking.transaction():
            for port in self._records.all("ports"):
                if port["device_id"] == server_id and port["device_owner"].startswith("compute:"):
                    self._take(port)

    def shown(self, spec: ServerSpec) -> list[Interface]:
        """Return the current interfaces: a port may have been changed or deleted."""
        with self._networking.transaction():
            ports = [self._records.get("ports", each.id) for each in spec.ports]
            floating = self._records.all("floatingips") if any(ports) else []
            return [
                self._interface(port, before, floating)
                for port, before in zip(ports, spec.ports, strict=True)
                if port is not None and port["device_id"] == spec.id
            ]

    # -- one port --------------------

    def _one(self, wanted: Wanted, entry: dict[str, Any]) -> ServerPort:
        with _as_nova(entry):
            if entry.get("port"):
                port = self._bound(wanted, str(entry["port"]))
            else:
                port = self._made(wanted, entry)
            return self._server_port(port, wanted.host_name)

    def _bound(self, wanted: Wanted, port_id: str) -> Values:
        ports = self._networking.kinds["ports"]
        port = ports.get(port_id)
        if port["device_id"]:
            raise HttpError(409, f"Port {port_id} is still in use.")
        changes = _of_server(wanted.server_id)
        if not port.get("dns_name"):
            changes["dns_name"] = wanted.host_name
        return ports.change(port, changes)

    def _made(self, wanted: Wanted, entry: dict[str, Any]) -> Values:
        network_id = str(entry.get("uuid") or self._networking.default_network)
        network = self._networking.kinds["networks"].get(network_id)
        if not any(each["network_id"] == network_id for each in self._records.all("subnets")):
            raise HttpError(
                400, f"Network {network_id} requires a subnet in order to boot instances on."
            )
        body: Values = {
            "network_id": network_id,
            "dns_name": wanted.host_name,
            **_of_server(wanted.server_id),
        }
        if entry.get("fixed_ip"):
            body["fixed_ips"] = [{"ip_address": str(entry["fixed_ip"])}]
        if wanted.groups and network["port_security_enabled"]:
            body["security_groups"] = [self._group(each, missing=400) for each in wanted.groups]
        self._networking.quotas.check(KINDS["ports"], self._project)
        values = KINDS["ports"].new(body, self._project)
        return self._networking.kinds["ports"].create({**values, _MADE: True})

    def _group(self, name_or_id: str, *, missing: int) -> str:
        self._networking.groups.default(self._project)
        groups = self._records.all("security_groups")
        fitting = [each for each in groups if name_or_id in (each["id"], each["name"])]
        if not fitting:
            raise HttpError(
                missing, f"Security group {name_or_id} not found for project {self._project}."
            )
        if len(fitting) > 1:
            raise HttpError(
                409, f"Multiple security groups found matching '{name_or_id}'. Use an ID."
            )
        return str(fitting[0]["id"])

    def _take(self, port: Values) -> None:
        ports = self._networking.ports
        # A port of a trunk stays, which Neutron does not delete for Nova either.
        if port.get(_MADE) and ports.trunk_error(port["id"]) is None:
            ports.delete(port)
        else:
            ports.change(port, dict(_FREE))

    # -- as the compute sees it --------------------

    def _interface(self, port: Values, before: ServerPort, floating: list[Values]) -> Interface:
        groups = [self._records.get("security_groups", each) for each in port["security_groups"]]
        return Interface(
            self._server_port(port, before.names[0] if before.names else ""),
            tuple(
                each["floating_ip_address"] for each in floating if each["port_id"] == port["id"]
            ),
            tuple(group["name"] for group in groups if group),
            group_ids=tuple(group["id"] for group in groups if group),
        )

    def _server_port(self, port: Values, name: str) -> ServerPort:
        network = self._networking.kinds["networks"].get(port["network_id"])
        given = (name, port.get("dns_name") or "")
        # Its own network knows a guest by the first label of a name with a domain.
        labels = (host_name(each.partition(".")[0]) for each in given if each)
        names = dict.fromkeys(labels)
        return ServerPort(
            id=port["id"],
            network_id=network["id"],
            network_name=network["name"],
            mac=port["mac_address"].lower(),
            addresses=tuple(self._address(ip) for ip in port["fixed_ips"]),
            names=tuple(names),
            mtu=network["mtu"],
            secured=port["port_security_enabled"],
        )

    def _address(self, ip: Values) -> PortAddress:
        subnet = self._networking.kinds["subnets"].get(ip["subnet_id"])
        return PortAddress(
            address=ip["ip_address"],
            subnet_id=subnet["id"],
            cidr=subnet["cidr"],
            gateway=subnet["gateway_ip"] or "",
            host_routes=tuple(
                (each["destination"], each["nexthop"]) for each in subnet["host_routes"]
            ),
            name_servers=tuple(subnet["dns_nameservers"]),
            enable_dhcp=subnet["enable_dhcp"],
            dhcp_server=self._dhcp_server(subnet) if subnet["enable_dhcp"] else "",
            ipv6_address_mode=subnet.get("ipv6_address_mode") or "",
            ipv6_ra_mode=subnet.get("ipv6_ra_mode") or "",
        )

    def _dhcp_server(self, subnet: Values) -> str:
        """Return the address of a subnet's DHCP; its port is created for the first server."""
        subnets = self._networking.subnets
        network_id, fixed = subnet["network_id"], {"subnet_id": subnet["id"]}
        own = [port for port in subnets.ports(subnet["id"]) if port["device_owner"] == DHCP]
        if not own and is_automatic(subnet):
            own = [self._networking.routers.own_port(network_id, HOST, DHCP, fixed_ips=[fixed])]
        if own:
            return next(
                str(ip["ip_address"])
                for ip in own[0]["fixed_ips"]
                if ip["subnet_id"] == subnet["id"]
            )
        taken = subnets.taken(subnet["id"])
        if subnet["gateway_ip"]:
            taken.add(ipaddress.ip_address(subnet["gateway_ip"]))
        # Any address of the subnet when its pools are full.
        pools = [*pools_of(subnet), allocation.hosts(network_of(subnet))]
        # From the top, because servers get the lowest addresses.
        address = allocation.highest_free(pools, taken)
        if address is None:
            raise exceptions.IpAddressGenerationFailure(net_id=network_id)
        fixed["ip_address"] = str(address)
        self._networking.routers.own_port(network_id, HOST, DHCP, fixed_ips=[fixed])
        return str(address)


def requested_networks(networking: Networking, wanted: Wanted) -> list[RequestedNetwork]:
    """Return the existing networks among those that a server without ports asks for."""
    entries = [{}] if isinstance(wanted.networks, str) else wanted.networks
    requested = []
    with networking.transaction():
        for entry in entries:
            port = networking.records.get("ports", str(entry.get("port") or "")) or {}
            network_id = port.get("network_id") or entry.get("uuid") or networking.default_network
            if network := networking.records.get("networks", str(network_id)):
                requested.append(
                    RequestedNetwork(network["id"], network["name"], port.get("id", ""))
                )
    return requested


def _of_server(server_id: str) -> Values:
    return {"device_id": server_id, "device_owner": OWNER, "binding:host_id": HOST}


_OUTSIDE = (
    "Invalid input received: Fixed IP {fixed_ip} is not a valid ip address for network {uuid}."
)
#: Refusals by Neutron, and Nova's words for them, which name the requested network's fields.
_REFUSALS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.NetworkNotFound, "Network {uuid} could not be found."),
    (exceptions.PortNotFound, "Port id {port} could not be found."),
    (exceptions.InvalidIpForNetwork, _OUTSIDE),
    (exceptions.InvalidIpForSubnet, _OUTSIDE),
    (IpAddressAlreadyAllocated, "Fixed IP address {fixed_ip} is already in use."),
    (
        exceptions.IpAddressGenerationFailure,
        "No fixed IP addresses available for network: {network}",
    ),
)


@contextmanager
def _as_nova(entry: dict[str, Any]) -> Iterator[None]:
    """Raise refusals by Neutron in Nova's words.

    :param entry: the requested network.
    """
    try:
        yield
    except HttpError:
        # It is in Nova's words already.
        raise
    except Exception as error:
        fields = {name: entry.get(name) for name in ("uuid", "port", "fixed_ip")}
        for kind, words in _REFUSALS:
            if isinstance(error, kind):
                text = words.format(**fields, network=entry.get("uuid") or "default")
                raise HttpError(400, text) from error
        answer = http_error(error)
        if answer is None:
            raise
        raise HttpError(answer.status, str(answer)) from error


class RouterUpdates:
    """Reports the routers to a compute each time that they change.

    Gateways and floating addresses, which lead outside, are stored by Neutron and carry no traffic.
    """

    def __init__(self, networking: Networking, compute: Compute) -> None:
        self._networking = networking
        self._compute = compute
        self._lock = threading.Lock()
        self._last: tuple[RouterSpec, ...] = ()

    def update(self) -> None:
        """Report the current routers, if they have changed."""
        # The lock covers the report, too: the last one must be the newest.
        with self._lock:
            routers = self._routers()
            if routers != self._last:
                self._last = routers
                self._compute.route(routers)

    def _routers(self) -> tuple[RouterSpec, ...]:
        with self._networking.transaction():
            routers = self._networking.records.all("routers")
            return tuple(self._spec(each) for each in routers if each["admin_state_up"])

    def _spec(self, router: Values) -> RouterSpec:
        ports = self._networking.routers.interfaces(router["id"])
        interfaces = (
            RouterInterface(port["network_id"], port["mac_address"].lower(), ip["ip_address"])
            for port in ports
            for ip in port["fixed_ips"]
        )
        routes = ((each["destination"], each["nexthop"]) for each in router["routes"])
        return RouterSpec(router["id"], router["name"], tuple(interfaces), tuple(routes))
