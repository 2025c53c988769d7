"""Subnets, and pools of prefixes from which subnets without a CIDR of their own are allocated."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping

import netaddr  # type: ignore[import-untyped]
from neutron_lib import constants, exceptions

from hotplate.cloud.neutron import allocation
from hotplate.cloud.neutron.allocation import Address, Network, Pool, first_free_subnet
from hotplate.cloud.neutron.records import Records, Values
from hotplate.cloud.neutron.resources import (
    DHCP,
    ROUTER_INTERFACE,
    Resources,
    bad,
    invalid,
)

#: Neutron: ``[DEFAULT] max_dns_nameservers`` and ``max_subnet_host_routes``.
MAX_NAMESERVERS = 5
MAX_HOST_ROUTES = 20
#: Maximum number of prefixes in a pool.
MAX_PREFIXES = 64
MAX_LENGTH = {4: 32, 6: 128}
#: Neutron's defaults of ``max_prefixlen`` and ``min_prefixlen``, by the IP version.
MIN_LENGTH = {4: 8, 6: 64}


class SubnetPools(Resources):
    """The subnet pools of one cloud."""

    NAME = "subnetpools"
    MISSING = (exceptions.SubnetPoolNotFound, "subnetpool_id")

    def create(self, values: Values) -> Values:
        """Create a pool whose prefixes and lengths fit."""
        return super().create({"default_quota": None, **values, **_checked(values)})

    def change(self, record: Values, changes: Values) -> Values:
        """Change a pool; its prefixes can only grow."""
        checked = _checked({**record, **changes})
        if not netaddr.IPSet(record["prefixes"]) <= netaddr.IPSet(checked["prefixes"]):
            raise exceptions.IllegalSubnetPoolPrefixUpdate(
                msg="Existing prefixes must be a subset of the new prefixes"
            )
        return super().change(record, {**changes, **checked})

    def delete(self, record: Values) -> None:
        """Remove a pool from which no subnet was allocated."""
        if self._used(record["id"]):
            raise exceptions.SubnetPoolInUse(
                subnet_pool_id=record["id"], reason="Subnet pool has existing allocations"
            )
        super().delete(record)

    def allocate(self, record: Values, values: Values) -> Network:
        """Return the CIDR of a new subnet: the requested one, or the first that is free.

        :param values: the request for the subnet (``cidr``, ``prefixlen``).
        :raises neutron_lib.exceptions.NeutronException: when the pool does not have it.
        """
        used = self._used(record["id"])
        if values.get("cidr"):
            asked = ipaddress.ip_network(values["cidr"], strict=False)
            free = netaddr.IPSet(record["prefixes"]) - netaddr.IPSet(used)
            if netaddr.IPNetwork(str(asked)) not in free:
                raise exceptions.SubnetAllocationError(
                    reason=f"Cannot allocate requested subnet {asked} from the subnet pool"
                )
            return asked
        length = values.get("prefixlen")
        length = record["default_prefixlen"] if length is None else int(length)
        _check_length(record, length)
        first = first_free_subnet(record["prefixes"], length, used)
        if first is None:
            raise exceptions.SubnetAllocationError(
                reason=f"Insufficient prefix space to allocate subnet size /{length}"
            )
        return first

    def _used(self, pool_id: str) -> list[str]:
        return [each["cidr"] for each in self.records.where("subnets", subnetpool_id=pool_id)]


def _check_length(record: Values, length: int) -> None:
    if length < record["min_prefixlen"]:
        raise exceptions.MinPrefixSubnetAllocationError(
            prefixlen=length, min_prefixlen=record["min_prefixlen"]
        )
    if length > record["max_prefixlen"]:
        raise exceptions.MaxPrefixSubnetAllocationError(
            prefixlen=length, max_prefixlen=record["max_prefixlen"]
        )


def _checked(values: Values) -> Values:
    """Return the values that follow from the requested prefixes and lengths."""
    prefixes = [ipaddress.ip_network(each, strict=False) for each in values.get("prefixes") or []]
    if not prefixes or len(prefixes) > MAX_PREFIXES:
        raise exceptions.EmptySubnetPoolPrefixList()
    versions = {each.version for each in prefixes}
    if len(versions) > 1:
        raise exceptions.PrefixVersionMismatch()
    version = versions.pop()
    shortest = values.get("min_prefixlen")
    shortest = MIN_LENGTH[version] if shortest is None else int(shortest)
    longest = values.get("max_prefixlen")
    longest = MAX_LENGTH[version] if longest is None else int(longest)
    default = values.get("default_prefixlen")
    default = shortest if default is None else int(default)
    # Each length must not be above the next one, nor the last above the version's.
    bounds = (("min_prefixlen", shortest), ("default_prefixlen", default))
    for (low, least), (high, most) in itertools.pairwise((*bounds, ("max_prefixlen", longest))):
        if least > most or most > MAX_LENGTH[version]:
            raise exceptions.IllegalSubnetPoolPrefixBounds(
                prefix_type=low, prefixlen=least, base_prefix_type=high, base_prefixlen=most
            )
    return {
        "prefixes": [str(each) for each in ipaddress.collapse_addresses(prefixes)],  # type: ignore[type-var]
        "ip_version": version,
        "min_prefixlen": shortest,
        "max_prefixlen": longest,
        "default_prefixlen": default,
    }


class Subnets(Resources):
    """The subnets of one cloud."""

    NAME = "subnets"
    MISSING = (exceptions.SubnetNotFound, "subnet_id")

    def __init__(self, records: Records, pools: SubnetPools) -> None:
        super().__init__(records)
        self._pools = pools

    def create(self, values: Values) -> Values:
        """Create a subnet that overlaps with no other of its network."""
        network = self.network(values["network_id"])
        cidr = self._cidr(values)
        if cidr.version == 6 and network["mtu"] < constants.IPV6_MIN_MTU:
            raise exceptions.NetworkMTUSubnetConflict(
                net_id=network["id"], mtu=constants.IPV6_MIN_MTU
            )
        self._check_overlap(cidr, network["id"])
        gateway = _gateway(cidr, values)
        pools = _pools(cidr, values.get("allocation_pools"), gateway)
        _check_modes(cidr, values)
        record = {
            **values,
            "cidr": str(cidr),
            "ip_version": cidr.version,
            "gateway_ip": None if gateway is None else str(gateway),
            "allocation_pools": _shown_pools(pools),
            "dns_nameservers": values.get("dns_nameservers") or [],
            "host_routes": values.get("host_routes") or [],
        }
        _check_lists(cidr, record)
        made = super().create(record)
        if is_automatic(made):
            self._add_to_ports(made)
        return made

    def _add_to_ports(self, subnet: Values) -> None:
        """Give the present ports of a network the addresses that their hosts make themselves."""
        for port in self.records.where("ports", network_id=subnet["network_id"]):
            if port["device_owner"] in constants.ROUTER_INTERFACE_OWNERS_SNAT:
                continue
            address = str(allocation.slaac_address(network_of(subnet), port["mac_address"]))
            added = {"subnet_id": subnet["id"], "ip_address": address}
            self.records.change("ports", port, {"fixed_ips": [*port["fixed_ips"], added]})

    def change(self, record: Values, changes: Values) -> Values:
        """Change a subnet; its CIDR stays."""
        cidr = network_of(record)
        merged = {**record, **changes}
        if merged["enable_dhcp"] and not record["enable_dhcp"]:
            _check_dhcp(cidr)
        if "gateway_ip" in changes:
            self._check_gateway_free(record, changes["gateway_ip"])
        gateway = _gateway(cidr, merged)
        # An empty list counts as not given, in Neutron too.
        given = changes.get("allocation_pools", record["allocation_pools"])
        changes = {**changes, "allocation_pools": _shown_pools(_pools(cidr, given, gateway))}
        for name in ("dns_nameservers", "host_routes"):
            if name in changes:
                changes[name] = changes[name] or []
        _check_lists(cidr, {**record, **changes})
        return super().change(record, changes)

    def delete(self, record: Values) -> None:
        """Remove a subnet of which no port has an address, except one that it made itself."""
        owners = {port["device_owner"] for port in self.ports(record["id"])} - {DHCP}
        if is_automatic(record):
            owners &= set(constants.ROUTER_INTERFACE_OWNERS_SNAT)
        if owners:
            raise exceptions.SubnetInUse(
                subnet_id=record["id"],
                reason="One or more ports have an IP allocation from this subnet",
            )
        # These are ports for DHCP, and those with an automatic address.
        for port in self.ports(record["id"]):
            kept = [ip for ip in port["fixed_ips"] if ip["subnet_id"] != record["id"]]
            self.records.change("ports", port, {"fixed_ips": kept})
        super().delete(record)

    def _cidr(self, values: Values) -> Network:
        pool_id = values.get("subnetpool_id")
        if pool_id:
            cidr = self._pools.allocate(self._pools.get(pool_id), values)
        elif values.get("cidr"):
            cidr = ipaddress.ip_network(values["cidr"], strict=False)
        else:
            raise bad("subnets", "a subnetpool must be specified in the absence of a cidr")
        _check_cidr(cidr, values)
        return cidr

    # -- its addresses --------------------

    def taken(self, subnet_id: str) -> set[Address]:
        """Return the addresses of a subnet that are in use by ports."""
        return {
            ipaddress.ip_address(ip["ip_address"])
            for port in self.ports(subnet_id)
            for ip in port["fixed_ips"]
            if ip["subnet_id"] == subnet_id
        }

    def ports(self, subnet_id: str) -> list[Values]:
        """Return the ports that have addresses of a subnet."""
        return [
            port
            for port in self.records.all("ports")
            if any(ip["subnet_id"] == subnet_id for ip in port["fixed_ips"])
        ]

    def _check_overlap(self, cidr: Network, network_id: str) -> None:
        for other in self.where(network_id=network_id):
            if network_of(other).overlaps(cidr):
                raise invalid(
                    f"Requested subnet with cidr: {cidr} for network: {network_id} "
                    "overlaps with another subnet"
                )

    def _check_gateway_free(self, record: Values, wanted: object) -> None:
        present = record["gateway_ip"]
        if present is None or wanted == present:
            return
        for port in self.ports(record["id"]):
            addresses = [ip["ip_address"] for ip in port["fixed_ips"]]
            if port["device_owner"] == ROUTER_INTERFACE and present in addresses:
                raise exceptions.GatewayIpInUse(ip_address=present, port_id=port["id"])


def network_of(subnet: Mapping[str, object]) -> Network:
    """Return a subnet's CIDR."""
    return ipaddress.ip_network(str(subnet["cidr"]))


def is_automatic(subnet: Mapping[str, object]) -> bool:
    """Return True for a subnet whose hosts make their addresses of their MACs."""
    modes = {subnet.get("ipv6_address_mode"), subnet.get("ipv6_ra_mode")}
    return bool(modes & {constants.IPV6_SLAAC, constants.DHCPV6_STATELESS})


def pools_of(subnet: Values) -> list[Pool]:
    """Return a subnet's allocation pools."""
    return [
        Pool(ipaddress.ip_address(each["start"]), ipaddress.ip_address(each["end"]))
        for each in subnet["allocation_pools"]
    ]


def _check_cidr(cidr: Network, values: Values) -> None:
    if cidr.version != values["ip_version"]:
        raise invalid(f"cidr '{cidr}' does not match the ip_version '{values['ip_version']}'")
    if cidr.prefixlen == 0:
        raise invalid("0 is not allowed as CIDR prefix length")
    if values["enable_dhcp"]:
        _check_dhcp(cidr)


def _check_dhcp(cidr: Network) -> None:
    if cidr.prefixlen > cidr.max_prefixlen - 2:
        raise invalid("Subnet has a prefix length that is incompatible with DHCP service enabled")
    if cidr.is_multicast:
        raise invalid("Multicast IP subnet is not supported if enable_dhcp is True")
    if cidr.is_loopback:
        raise invalid("Loopback IP subnet is not supported if enable_dhcp is True")


def _gateway(cidr: Network, values: Values) -> Address | None:
    if "gateway_ip" not in values:
        return cidr.network_address + 1
    if values["gateway_ip"] is None:
        return None
    gateway = ipaddress.ip_address(values["gateway_ip"])
    if gateway.version != cidr.version:
        raise invalid(f"gateway_ip '{gateway}' does not match the ip_version '{cidr.version}'")
    # A gateway outside of the subnet is allowed.
    if gateway in cidr and gateway not in allocation.hosts(cidr):
        raise invalid("Gateway is not valid on subnet")
    return gateway


def _pools(cidr: Network, given: list[Values] | None, gateway: Address | None) -> list[Pool]:
    if given is None:
        return allocation.default_pools(cidr, gateway)
    pools = allocation.read_pools(cidr, [(each["start"], each["end"]) for each in given])
    for pool in pools:
        if gateway is not None and gateway in pool:
            raise exceptions.GatewayConflictWithAllocationPools(pool=pool, ip_address=gateway)
    return pools


def _shown_pools(pools: list[Pool]) -> list[dict[str, str]]:
    return [{"start": str(pool.first), "end": str(pool.last)} for pool in pools]


def _check_modes(cidr: Network, values: Values) -> None:
    modes = {
        name: values[name] for name in ("ipv6_ra_mode", "ipv6_address_mode") if values.get(name)
    }
    if not modes:
        return
    if cidr.version == 4:
        raise invalid(f"{next(iter(modes))} is not valid when ip_version is 4")
    if not values["enable_dhcp"]:
        raise invalid(
            "ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False"
        )
    if len(set(modes.values())) > 1:
        raise invalid(
            f"ipv6_ra_mode set to '{modes['ipv6_ra_mode']}' with ipv6_address_mode set to "
            f"'{modes['ipv6_address_mode']}' is not valid. If both attributes are set, they must "
            "be the same value"
        )
    if "dhcpv6-stateful" not in modes.values() and cidr.prefixlen != 64:
        raise invalid(
            f"Invalid CIDR {cidr} for IPv6 address mode. OpenStack uses the EUI-64 address "
            "format, which requires the prefix to be /64"
        )


def _check_lists(cidr: Network, record: Values) -> None:
    subnet_id = record.get("id", "new subnet")
    if len(record["dns_nameservers"]) > MAX_NAMESERVERS:
        raise exceptions.DNSNameServersExhausted(subnet_id=subnet_id, quota=MAX_NAMESERVERS)
    if len(record["host_routes"]) > MAX_HOST_ROUTES:
        raise exceptions.HostRoutesExhausted(subnet_id=subnet_id, quota=MAX_HOST_ROUTES)
    for route in record["host_routes"]:
        if ipaddress.ip_network(route["destination"], strict=False).version != cidr.version:
            raise invalid(f"Invalid route: {route}")
