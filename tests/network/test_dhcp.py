"""dnsmasq's options and files."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from hotplate.host_tools import find_tool
from hotplate.network import dhcp
from hotplate.network.dhcp import Lease, Subnet

SUBNET = Subnet(IPv4Network("10.1.0.0/20"), IPv4Address("10.1.0.2"))
OTHER = Subnet(IPv4Network("10.2.0.0/24"), IPv4Address("10.2.0.2"))
FILES = {"interfaces": "h*", "hosts": "/hosts", "names": "/names"}
LEASES = [
    Lease("fa:16:3e:00:00:05", (IPv4Address("10.1.0.5"), IPv4Address("10.1.0.15")), ("web", "www")),
    Lease("fa:16:3e:00:00:06", (IPv4Address("10.1.0.6"),)),
]


def test_dhcp_serves_only_the_listed_ports() -> None:
    assert "--dhcp-range=set:subnet0,10.1.0.0,static,255.255.240.0,86400s" in dhcp.command(
        "dnsmasq", [SUBNET], **FILES
    )


def test_subnet_without_a_gateway_has_no_default_route() -> None:
    options = dhcp.command("dnsmasq", [SUBNET], **FILES)
    # An empty option, or dnsmasq would hand out its own address.
    assert "--dhcp-option=tag:subnet0,option:router" in options
    assert (
        "--dhcp-option=tag:subnet0,option:classless-static-route,169.254.169.254/32,10.1.0.2"
        in options
    )


def test_name_servers_of_the_subnet_replace_the_segments() -> None:
    servers = (IPv4Address("10.1.0.8"), IPv4Address("10.1.0.9"))
    subnet = Subnet(SUBNET.network, SUBNET.server, name_servers=servers)
    options = dhcp.command("dnsmasq", [subnet], **FILES)
    assert "--dhcp-option=tag:subnet0,option:dns-server,10.1.0.8,10.1.0.9" in options


def test_subnet_without_dhcp_has_only_names() -> None:
    options = dhcp.command("dnsmasq", [replace(SUBNET, dhcp=False)], **FILES)
    assert not [each for each in options if each.startswith("--dhcp")]
    assert "--addn-hosts=/names" in options


def test_each_subnet_has_its_own_options() -> None:
    options = dhcp.command("dnsmasq", [SUBNET, OTHER], **FILES)
    assert "--dhcp-option=tag:subnet0,option:dns-server,10.1.0.2" in options
    assert "--dhcp-option=tag:subnet1,option:dns-server,10.2.0.2" in options
    assert options.count("--dhcp-hostsfile=/hosts") == 1
    options = dhcp.command("dnsmasq", [replace(SUBNET, dhcp=False), OTHER], **FILES)
    assert [each for each in options if "dhcp-range" in each] == [
        "--dhcp-range=set:subnet1,10.2.0.0,static,255.255.255.0,86400s"
    ]


@pytest.mark.parametrize(
    ("mtu", "wanted"),
    [
        (1400, ["--dhcp-option=tag:subnet0,option:mtu,1400"]),
        (9000, ["--dhcp-option=tag:subnet0,option:mtu,9000"]),
        (1500, []),
    ],
)
def test_only_an_mtu_other_than_ethernets_is_handed_out(mtu: int, wanted: list[str]) -> None:
    options = dhcp.command("dnsmasq", [replace(SUBNET, mtu=mtu)], **FILES)
    assert [each for each in options if "mtu" in each] == wanted


@pytest.mark.tool("dnsmasq")
@pytest.mark.parametrize(
    "subnets",
    [
        [SUBNET],
        [replace(SUBNET, gateway=IPv4Address("10.1.0.1"), mtu=1400)],
        [replace(SUBNET, dhcp=False)],
        [SUBNET, OTHER],
    ],
)
def test_dnsmasq_accepts_the_options(subnets: list[Subnet]) -> None:
    command = dhcp.command(find_tool("dnsmasq"), subnets, **FILES)
    done = subprocess.run([*command, "--test"], capture_output=True, text=True)
    assert (done.returncode, "OK" in done.stderr) == (0, True), done.stderr


def test_hosts_and_names_files() -> None:
    assert dhcp.hosts(LEASES) == ("fa:16:3e:00:00:05,10.1.0.5,web\nfa:16:3e:00:00:06,10.1.0.6\n")
    assert dhcp.names(LEASES, "novalocal") == (
        "10.1.0.5 web.novalocal web www.novalocal www\n"
        "10.1.0.15 web.novalocal web www.novalocal www\n"
    )


def test_release_is_a_dhcp_message() -> None:
    message = dhcp.release(b"\xfa\x16\x3e\0\0\5", IPv4Address("10.1.0.5"), SUBNET.server)
    assert len(message) == 240 + 10
    assert message[12:16] == b"\x0a\x01\x00\x05"
    assert message[28:34] == b"\xfa\x16\x3e\0\0\5"
    assert message[236:] == bytes.fromhex("63825363 350107 36040a010002 ff")
