"""Allocate addresses and MACs of ports: set arithmetic, without HTTP or a database.

As Neutron's IPAM does, except that it gives the lowest free address and not a random one, so that
two runs of a template get the same.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import netaddr  # type: ignore[import-untyped]
from neutron_lib import exceptions
from neutron_lib.utils import net
from oslo_utils import netutils

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Neutron's ``[DEFAULT] base_mac``.
BASE_MAC = ["fa", "16", "3e", "00", "00", "00"]


@dataclass(frozen=True)
class Pool:
    """The addresses from ``first`` to ``last``, inclusive."""

    first: Address
    last: Address

    def __contains__(self, address: object) -> bool:
        return isinstance(address, type(self.first)) and int(self.first) <= int(address) <= int(
            self.last
        )

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __iter__(self) -> Iterator[Address]:
        return map(type(self.first), range(int(self.first), int(self.last) + 1))

    def __reversed__(self) -> Iterator[Address]:
        return map(type(self.first), range(int(self.last), int(self.first) - 1, -1))


def lowest_free(pools: Iterable[Pool], taken: Collection[Address]) -> Address | None:
    """Return the lowest address of the pools that is not ``taken``; None when all are.

    It takes at most one step for each taken address, however large the pools are.
    """
    return next((each for pool in pools for each in pool if each not in taken), None)


def highest_free(pools: Iterable[Pool], taken: Collection[Address]) -> Address | None:
    """Return the highest free address of the first pool with a free one; None when all are taken.

    >>> network = ipaddress.ip_network("10.0.0.0/29")
    >>> str(highest_free([hosts(network)], [ipaddress.ip_address("10.0.0.6")]))
    '10.0.0.5'
    """
    return next((each for pool in pools for each in reversed(pool) if each not in taken), None)


def hosts(network: Network) -> Pool:
    """Return the addresses for hosts: all except the network's own and the broadcast address.

    >>> str(hosts(ipaddress.ip_network("10.0.0.0/29")))
    '10.0.0.1-10.0.0.6'
    """
    first, last = network.network_address, network.broadcast_address
    # One or two addresses (RFC 3021) are all hosts'.
    if network.max_prefixlen - network.prefixlen <= 1:
        return Pool(first, last)
    # IPv6 has no broadcast: the last address of a network can be a host's.
    return Pool(first + 1, last if network.version == 6 else last - 1)


def default_pools(network: Network, gateway: Address | None) -> list[Pool]:
    """Return the default pools of a subnet: every host except the gateway.

    >>> pools = default_pools(ipaddress.ip_network("10.0.0.0/29"), ipaddress.ip_address("10.0.0.3"))
    >>> [str(pool) for pool in pools]
    ['10.0.0.1-10.0.0.2', '10.0.0.4-10.0.0.6']
    """
    every = hosts(network)
    if gateway is None or gateway not in every:
        return [every]
    parts = []
    if gateway > every.first:  # type: ignore[operator]
        parts.append(Pool(every.first, gateway - 1))
    if gateway < every.last:  # type: ignore[operator]
        parts.append(Pool(gateway + 1, every.last))
    return parts


def read_pools(network: Network, given: Iterable[tuple[str, str]]) -> list[Pool]:
    """Return the requested pools, in the order of their addresses.

    :param given: pairs of first and last address.
    :raises neutron_lib.exceptions.NeutronException: for an invalid pool, one that is not within the
        subnet's hosts, and two that overlap.
    """
    every = hosts(network)
    pools = sorted((_read_pool(*each) for each in given), key=lambda pool: int(pool.first))
    for pool in pools:
        if pool.first not in every or pool.last not in every:
            raise exceptions.OutOfBoundsAllocationPool(pool=pool, subnet_cidr=network)
    for lower, upper in itertools.pairwise(pools):
        if int(upper.first) <= int(lower.last):
            raise exceptions.OverlappingAllocationPools(
                pool_1=lower, pool_2=upper, subnet_cidr=network
            )
    return pools


def _read_pool(start: str, end: str) -> Pool:
    try:
        pool = Pool(ipaddress.ip_address(start), ipaddress.ip_address(end))
    except ValueError:
        raise exceptions.InvalidAllocationPool(pool=f"{start}-{end}") from None
    if pool.first.version != pool.last.version or int(pool.first) > int(pool.last):
        raise exceptions.InvalidAllocationPool(pool=pool)
    return pool


def first_free_subnet(
    prefixes: Iterable[Network | str], length: int, taken: Iterable[Network | str]
) -> Network | None:
    """Return the first subnet of the prefixes that does not overlap with a ``taken`` one.

    :param length: prefix length of the subnet.

    >>> prefix, taken = ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("10.0.0.0/15")
    >>> str(first_free_subnet([prefix], 16, [taken]))
    '10.2.0.0/16'
    """
    free = netaddr.IPSet(map(str, prefixes)) - netaddr.IPSet(map(str, taken))
    for each in free.iter_cidrs():
        if each.prefixlen <= length:
            return ipaddress.ip_network(str(next(each.subnet(length))))
    return None


def slaac_address(network: Network, mac: str) -> Address:
    """Return the address that a host with this MAC configures itself (RFC 4291, appendix A).

    >>> str(slaac_address(ipaddress.ip_network("2001:db8::/64"), "fa:16:3e:00:00:01"))
    '2001:db8::f816:3eff:fe00:1'
    """
    return ipaddress.ip_address(str(netutils.get_ipv6_addr_by_EUI64(str(network), mac)))


def new_mac(taken: Collection[str]) -> str:
    """Return a random MAC address that is not ``taken``, as Neutron does.

    :raises OverflowError: when almost none is free.
    """
    for _ in range(64):
        mac: str = net.get_random_mac(BASE_MAC)
        if mac not in taken:
            return mac
    raise OverflowError("no MAC address is left")
