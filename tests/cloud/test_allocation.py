"""Allocation of addresses for ports, without a cloud."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neutron_lib import exceptions

from hotplate.cloud.neutron import allocation
from hotplate.cloud.neutron.allocation import Pool


@pytest.mark.parametrize(
    ("cidr", "pools"),
    [
        ("10.0.0.0/24", ["10.0.0.2-10.0.0.254"]),
        ("10.0.0.0/30", ["10.0.0.2-10.0.0.2"]),
        ("10.0.0.0/31", ["10.0.0.1-10.0.0.1"]),
        ("2001:db8::/64", ["2001:db8::2-2001:db8::ffff:ffff:ffff:ffff"]),
    ],
)
def test_default_pools_leave_the_gateway_out(cidr: str, pools: list[str]) -> None:
    network = ip_network(cidr)
    gateway = allocation.hosts(network).first
    assert [str(pool) for pool in allocation.default_pools(network, gateway)] == pools


def test_gateway_outside_the_subnet_takes_no_address() -> None:
    network = ip_network("10.0.0.0/29")
    for gateway in (None, ip_address("192.168.0.1")):
        (pool,) = allocation.default_pools(network, gateway)
        assert str(pool) == "10.0.0.1-10.0.0.6"


@pytest.mark.parametrize(
    ("given_pools", "error"),
    [
        ([("10.0.0.9", "10.0.0.4")], exceptions.InvalidAllocationPool),
        ([("10.0.0.4", "2001:db8::1")], exceptions.InvalidAllocationPool),
        ([("10.0.0.4", "next door")], exceptions.InvalidAllocationPool),
        ([("10.0.0.250", "10.0.0.255")], exceptions.OutOfBoundsAllocationPool),
        ([("10.0.0.0", "10.0.0.4")], exceptions.OutOfBoundsAllocationPool),
        (
            [("10.0.0.8", "10.0.0.9"), ("10.0.0.4", "10.0.0.8")],
            exceptions.OverlappingAllocationPools,
        ),
    ],
)
def test_bad_pools_are_refused(given_pools: list[tuple[str, str]], error: type[Exception]) -> None:
    with pytest.raises(error) as refused:
        allocation.read_pools(ip_network("10.0.0.0/24"), given_pools)
    assert type(refused.value) is error


def test_pools_are_used_in_order_of_their_addresses() -> None:
    pools = allocation.read_pools(
        ip_network("10.0.0.0/24"), [("10.0.0.20", "10.0.0.20"), ("10.0.0.4", "10.0.0.5")]
    )
    taken = set()
    while (address := allocation.lowest_free(pools, taken)) is not None:
        taken.add(address)
    assert [str(each) for each in sorted(taken)] == ["10.0.0.4", "10.0.0.5", "10.0.0.20"]


def test_huge_pool_costs_no_more_than_its_taken_addresses() -> None:
    network = ip_network("2001:db8::/32")
    (pool,) = allocation.default_pools(network, None)
    taken = {pool.first + number for number in range(500)}
    assert allocation.lowest_free([pool], taken) == pool.first + 500


@given(st.sets(st.integers(1, 14)))
def test_lowest_free_address_is_given_while_any_is_free(taken: set[int]) -> None:
    network = ip_network("10.0.0.0/28")
    addresses = {network.network_address + number for number in taken}
    address = allocation.lowest_free(allocation.default_pools(network, None), addresses)
    free = sorted(set(network.hosts()) - addresses)
    assert address == (free[0] if free else None)


def test_mac_addresses_differ() -> None:
    taken: set[str] = set()
    for _ in range(100):
        mac = allocation.new_mac(taken)
        assert mac.startswith("fa:16:3e:")
        assert mac not in taken
        taken.add(mac)


def test_pool_contains_its_addresses() -> None:
    pool = Pool(ip_address("10.0.0.4"), ip_address("10.0.0.9"))
    assert ip_address("10.0.0.9") in pool
    assert ip_address("10.0.0.10") not in pool
    assert ip_address("::a00:4") not in pool
