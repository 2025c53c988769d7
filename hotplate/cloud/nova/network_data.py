"""``network_data.json``: the guest's interface configuration (``nova/virt/netutils.py``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from hotplate.cloud.nova.compute import PortAddress, ServerPort

TAP = 14
"""Length of the name of a port's interface on a host (``nova/network/model.py``)."""


def of(ports: Sequence[ServerPort], *, emulated: bool) -> dict[str, object]:
    """Return the document for a server's ports.

    :param emulated: True for ports of Neutron, False for the link that each machine has of its own.
    """
    links: list[dict[str, object]] = []
    networks: list[dict[str, object]] = []
    services: list[dict[str, object]] = []
    for number, port in enumerate(ports):
        link = f"tap{port.id}"[:TAP] if emulated else f"tap{number}"
        links.append(
            {
                "id": link,
                "vif_id": port.id,
                "type": "ovs" if emulated else "phy",
                "mtu": port.mtu,
                "ethernet_mac_address": port.mac,
            }
        )
        for address in port.addresses:
            network = {"id": f"network{len(networks)}", "link": link, "network_id": port.network_id}
            networks.append({**network, **_network(address)})
            services += [each for each in _services(address) if each not in services]
    return {"links": links, "networks": networks, "services": services}


def _network(address: PortAddress) -> dict[str, object]:
    own = ipaddress.ip_interface(f"{address.address}/{address.cidr.partition('/')[2]}")
    kind = f"ipv{own.version}"
    if address.enable_dhcp:
        return {"type": f"{kind}_dhcp"}
    return {
        "type": kind,
        "ip_address": address.address,
        "netmask": str(own.netmask),
        "routes": _routes(address, own.version),
        "services": _services(address),
    }


def _routes(address: PortAddress, version: int) -> list[dict[str, str]]:
    everything = "0.0.0.0/0" if version == 4 else "::/0"
    default = [(everything, address.gateway)] if address.gateway else []
    shown = []
    for destination, gateway in (*default, *address.host_routes):
        network = ipaddress.ip_network(destination)
        shown.append(
            {
                "network": str(network.network_address),
                "netmask": str(network.netmask),
                "gateway": gateway,
            }
        )
    return shown


def _services(address: PortAddress) -> list[dict[str, object]]:
    return [{"type": "dns", "address": each} for each in address.name_servers]
