"""Ports: the addresses and the MAC of a machine on a network."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from neutron_lib import constants, exceptions
from neutron_lib.exceptions import allowedaddresspairs, port_security

from hotplate.cloud.neutron import allocation
from hotplate.cloud.neutron.allocation import Address
from hotplate.cloud.neutron.errors import (
    AllocationOnAutoAddressSubnet,
    IpAddressAlreadyAllocated,
    named_error,
)
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import (
    FLOATING_IP,
    ROUTER_GATEWAY,
    ROUTER_INTERFACE,
    Resources,
    invalid,
)
from hotplate.cloud.neutron.security_groups import SecurityGroups
from hotplate.cloud.neutron.subnets import Subnets, is_automatic, network_of, pools_of

#: Neutron's ``[DEFAULT] max_fixed_ips_per_port`` before the option was removed.
MAX_FIXED_IPS = 5
#: Maximum number of allowed address pairs, DHCP options or groups of a port.
MAX_ENTRIES = 64
#: The attributes of a floating address without a port.
UNMAPPED = {"port_id": None, "fixed_ip_address": None, "router_id": None, "status": "DOWN"}


class Ports(Resources):
    """The ports of one cloud."""

    NAME = "ports"
    MISSING = (exceptions.PortNotFound, "port_id")

    def __init__(self, records: Records, subnets: Subnets, groups: SecurityGroups) -> None:
        super().__init__(records)
        self._subnets = subnets
        self._groups = groups

    def create(self, values: Values) -> Values:
        """Create a port with the requested addresses, or one of each IP version of its network."""
        network = self.network(values["network_id"])
        mac = self._mac(network["id"], values.get("mac_address"))
        own = values["device_owner"].startswith("network:")
        # Neutron's own ports are in no group.
        secured = not own and network["port_security_enabled"]
        record = {
            "port_security_enabled": secured,
            "binding:host_id": "",
            "binding:profile": {},
            **values,
            "allowed_address_pairs": _with_mac(values.get("allowed_address_pairs", []), mac),
            "extra_dhcp_opts": values.get("extra_dhcp_opts") or [],
            "mac_address": mac,
            "fixed_ips": self._addresses(
                network["id"], values.get("fixed_ips"), mac, values["device_owner"]
            ),
        }
        # Not given is not the same as an empty list, which means no group.
        if "security_groups" not in values:
            project = record["project_id"]
            groups = [self._groups.default(project)["id"]] if secured and project else []
            record["security_groups"] = groups
        self._check(record)
        return super().create(record)

    def change(self, record: Values, changes: Values) -> Values:
        """Change a port, which may keep its addresses."""
        changes = dict(changes)
        network_id = record["network_id"]
        # Only an administrator changes it.
        mac: str = record["mac_address"]
        if "fixed_ips" in changes:
            kept, added = self._compared(record, changes["fixed_ips"] or [])
            if len(kept) + len(added) > MAX_FIXED_IPS:
                raise invalid("Exceeded maximum amount of fixed ips per port.")
            # A port may have an address again that it gives up.
            self.records.change(self.NAME, record, {"fixed_ips": kept})
            owner: str = {**record, **changes}["device_owner"]
            changes["fixed_ips"] = self._addresses(network_id, added, mac, owner, kept)
        if "allowed_address_pairs" in changes:
            pairs = _with_mac(changes["allowed_address_pairs"], mac)
            changes["allowed_address_pairs"] = pairs
        if "extra_dhcp_opts" in changes:
            changes["extra_dhcp_opts"] = _options(record, changes["extra_dhcp_opts"] or [])
        self._check({**record, **changes})
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a port, unless a router or a floating address owns it; unmap its own addresses."""
        owner = record["device_owner"]
        if owner in (ROUTER_INTERFACE, ROUTER_GATEWAY, FLOATING_IP):
            raise exceptions.ServicePortInUse(
                port_id=record["id"], reason=f"has device owner {owner}"
            )
        if refusal := self.trunk_error(record["id"]):
            raise refusal
        for floating in self.records.where("floatingips", port_id=record["id"]):
            self.records.change("floatingips", floating, UNMAPPED)
        self.remove(record)

    def remove(self, record: Values) -> None:
        """Remove a port regardless of its owner."""
        super().delete(record)

    def view(self, record: Values) -> Values:
        """Return a port with the attributes that follow from its user."""
        bound = bool(record["binding:host_id"])
        used = bound or record["device_owner"].startswith("network:")
        shown = {
            **record,
            "status": "ACTIVE" if used else "DOWN",
            "binding:vif_type": "ovs" if bound else "unbound",
            "binding:vif_details": {"port_filter": False} if bound else {},
            "ip_allocation": "immediate",
            "dns_assignment": [
                {
                    "ip_address": ip["ip_address"],
                    "hostname": _host_name(record, ip["ip_address"]),
                    "fqdn": _host_name(record, ip["ip_address"]) + ".hotplate.",
                }
                for ip in record["fixed_ips"]
            ],
        }
        visible = super().view(shown)
        # Neutron shows it for the port of a trunk only.
        del visible["trunk_details"]
        for trunk in self.records.where("trunks", port_id=record["id"]):
            subports = [
                {**each, "mac_address": self.get(each["port_id"])["mac_address"]}
                for each in trunk["sub_ports"]
            ]
            visible["trunk_details"] = {"trunk_id": trunk["id"], "sub_ports": subports}
        return visible

    def trunk_error(self, port_id: str) -> Exception | None:
        """Return the error of deleting a port that belongs to a trunk, None without a trunk."""
        for trunk in self.records.all("trunks"):
            values = {"port_id": port_id, "trunk_id": trunk["id"]}
            if port_id == trunk["port_id"]:
                return named_error("PortInUseAsTrunkParent", **values)
            if any(each["port_id"] == port_id for each in trunk["sub_ports"]):
                return named_error("PortInUseAsSubPort", **values)
        return None

    # -- addresses --------------------

    def _mac(self, network_id: str, wanted: str | None) -> str:
        taken = {port["mac_address"] for port in self.where(network_id=network_id)}
        if not wanted:
            return allocation.new_mac(taken)
        if wanted in taken:
            raise exceptions.MacAddressInUse(net_id=network_id, mac=wanted)
        return wanted

    def _compared(
        self, record: Values, wanted: list[Values]
    ) -> tuple[list[dict[str, str]], list[Values]]:
        """Return the addresses that a port keeps when these are wanted, and the entries to add.

        An entry without an address keeps the present one on its subnet
        (``_get_changed_ips_for_port`` of Neutron's ``db/ipam_backend_mixin.py``).
        """
        present = {ip["ip_address"]: ip for ip in record["fixed_ips"]}
        kept, added = [], []
        # Requested addresses come first, so that no other entry keeps them.
        for each in sorted(wanted, key=lambda each: not each.get("ip_address")):
            if address := each.get("ip_address"):
                same = present.pop(str(ipaddress.ip_address(address)), None)
            else:
                here = (ip for ip in present.values() if ip["subnet_id"] == each.get("subnet_id"))
                if (same := next(here, None)) is not None:
                    del present[same["ip_address"]]
            if same is None:
                added.append(each)
            elif not self._follows_mac(same["subnet_id"]):
                kept.append(same)
        return kept, added

    def _follows_mac(self, subnet_id: str) -> bool:
        return is_automatic(self._subnets.get(subnet_id))

    def _addresses(
        self,
        network_id: str,
        wanted: list[Values] | None,
        mac: str,
        owner: str,
        kept: Sequence[dict[str, str]] = (),
    ) -> list[dict[str, str]]:
        """Return the addresses of a port: those that it keeps, and new ones.

        :param wanted: entries of ``fixed_ips``; None for an address of each IP version.
        """
        subnets = self._subnets.where(network_id=network_id)
        given = list(kept)
        if wanted is None:
            given += self._any_addresses(network_id, subnets)
        elif len(wanted) > MAX_FIXED_IPS:
            raise invalid("Exceeded maximum amount of fixed ips per port.")
        automatic = [
            subnet
            for subnet in subnets
            if is_automatic(subnet) and owner not in constants.ROUTER_INTERFACE_OWNERS_SNAT
        ]
        # Requested addresses come first, so that no automatic one takes them.
        for each in sorted(wanted or (), key=lambda each: not each.get("ip_address")):
            subnet = _subnet_for(network_id, subnets, each)
            mine = {ipaddress.ip_address(ip["ip_address"]) for ip in given}
            if each.get("ip_address"):
                address = self._asked(subnet, ipaddress.ip_address(each["ip_address"]), mine)
                if subnet in automatic:
                    if address != allocation.slaac_address(network_of(subnet), mac):
                        raise AllocationOnAutoAddressSubnet(ip=address, subnet_id=subnet["id"])
                    continue
            elif subnet in automatic:
                continue
            elif (free := self._next(subnet, mine)) is not None:
                address = free
            else:
                raise exceptions.IpAddressGenerationFailure(net_id=network_id)
            given.append({"subnet_id": subnet["id"], "ip_address": str(address)})
        # Every host on such a subnet gives itself an address, so every port has it.
        for subnet in automatic:
            address = self._asked(subnet, allocation.slaac_address(network_of(subnet), mac), set())
            given.append({"subnet_id": subnet["id"], "ip_address": str(address)})
        return given

    def _any_addresses(self, network_id: str, subnets: list[Values]) -> list[dict[str, str]]:
        given = []
        # One address of each IP version.
        for version in (4, 6):
            candidates = [
                subnet
                for subnet in subnets
                if subnet["ip_version"] == version and not is_automatic(subnet)
            ]
            for subnet in candidates:
                address = self._next(subnet, set())
                if address is not None:
                    given.append({"subnet_id": subnet["id"], "ip_address": str(address)})
                    break
            else:
                # There are subnets of that version, and all are full.
                if candidates:
                    raise exceptions.IpAddressGenerationFailure(net_id=network_id)
        return given

    def _asked(self, subnet: Values, address: Address, mine: set[Address]) -> Address:
        if address in mine or address in self._subnets.taken(subnet["id"]):
            raise IpAddressAlreadyAllocated(ip=address, subnet_id=subnet["id"])
        return address

    def _next(self, subnet: Values, mine: set[Address]) -> Address | None:
        return allocation.lowest_free(pools_of(subnet), self._subnets.taken(subnet["id"]) | mine)

    # -- groups and options --------------------

    def _check(self, record: Values) -> None:
        for group_id in record["security_groups"]:
            self._groups.get(group_id)
        for name in ("security_groups", "allowed_address_pairs", "extra_dhcp_opts"):
            if len(record[name]) > MAX_ENTRIES:
                raise invalid(f"{name} has more than {MAX_ENTRIES} entries")
        if not record["port_security_enabled"]:
            if record["security_groups"]:
                raise port_security.PortSecurityAndIPRequiredForSecurityGroups
            if record["allowed_address_pairs"]:
                raise allowedaddresspairs.AddressPairAndPortSecurityRequired


def _subnet_for(network_id: str, subnets: list[Values], wanted: Values) -> Values:
    """Return the subnet that an entry of ``fixed_ips`` refers to."""
    address = wanted.get("ip_address")
    if wanted.get("subnet_id"):
        chosen = [subnet for subnet in subnets if subnet["id"] == wanted["subnet_id"]]
        if not chosen:
            raise invalid(
                f"Failed to create port on network {network_id}, because fixed_ips included "
                f"invalid subnet {wanted['subnet_id']}"
            )
        if address and not _fits(address, chosen[0]):
            raise exceptions.InvalidIpForSubnet(ip_address=address)
        return chosen[0]
    if not address:
        raise invalid("IP allocation requires subnet_id or ip_address")
    for subnet in subnets:
        if _fits(address, subnet):
            return subnet
    raise exceptions.InvalidIpForNetwork(ip_address=address)


def _fits(address: str, subnet: Values) -> bool:
    network = network_of(subnet)
    return ipaddress.ip_address(address) in allocation.hosts(network)


def _with_mac(pairs: list[Values], mac: str) -> list[Values]:
    """Return address pairs with MACs: the port's own by default."""
    return [{"mac_address": mac, **pair} for pair in pairs]


def _options(record: Values, changes: list[Values]) -> list[Values]:
    """Return the DHCP options after a change: by name; the value None removes one."""
    kept = {(each["opt_name"], each["ip_version"]): each for each in record["extra_dhcp_opts"]}
    for each in changes:
        key = (each["opt_name"], each.get("ip_version", 4))
        if each.get("opt_value") is None:
            kept.pop(key, None)
        else:
            kept[key] = {"ip_version": 4, **each}
    return list(kept.values())


def _host_name(record: Values, address: str) -> str:
    name: str = record.get("dns_name") or ""
    return name or "host-" + address.replace(".", "-").replace(":", "-")
