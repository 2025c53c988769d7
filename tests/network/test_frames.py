"""Checks of a port's frames, byte by byte."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.network import frames
from hotplate.network.frames import refusal

MAC = bytes.fromhex("fa163e000005")
OTHER = bytes.fromhex("fa163e000006")
ADDRESS = IPv4Address("10.0.0.5")
OTHERS = IPv4Address("10.0.0.6")
NOBODY = IPv4Address("0.0.0.0")
OWNED = frozenset({ADDRESS.packed})


def udp(
    *,
    mac: bytes = MAC,
    sender: IPv4Address = ADDRESS,
    ports: tuple[int, int] = (5000, 5001),
    payload: bytes = b"x",
) -> bytes:
    return frames.datagram(payload, macs=(mac, OTHER), addresses=(sender, OTHERS), ports=ports)


def arp(*, mac: bytes = MAC, says: bytes = MAC, sender: IPv4Address = ADDRESS) -> bytes:
    head = b"\xff" * 6 + mac + frames.ARP + bytes.fromhex("00010800060400") + b"\x01"
    return head + says + sender.packed + bytes(6) + OTHERS.packed


def changed(frame: bytes, at: int, value: int) -> bytes:
    return frame[:at] + bytes([value]) + frame[at + 1 :]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (udp(), ""),
        (arp(), ""),
        (arp(sender=NOBODY), ""),
        (udp(sender=NOBODY, ports=(68, 67)), ""),
        (udp(ports=(68, 67)), ""),
        (udp(payload=bytes(1472)), ""),
        (udp(payload=bytes(1473)), "size"),
        (b"", "size"),
        (udp()[:13], "size"),
        (udp(mac=OTHER), "mac"),
        (udp(sender=OTHERS), "address"),
        (udp(sender=NOBODY), "address"),
        (udp(sender=OTHERS, ports=(68, 67)), "address"),
        (udp(ports=(67, 68)), "dhcp"),
        (udp(sender=NOBODY, ports=(67, 68)), "address"),
        (arp(mac=OTHER), "mac"),
        (arp(says=OTHER), "mac"),
        (arp(sender=OTHERS), "address"),
        (arp()[:41], "protocol"),
        (changed(arp(), 17, 1), "protocol"),
        (udp()[:33], "protocol"),
        (changed(udp(), 14, 0x65), "protocol"),
        # A header length below the minimum would move the ports to a wrong offset.
        (changed(udp(ports=(67, 68)), 14, 0x41), "protocol"),
        (changed(udp(), 14, 0x4F), "protocol"),
        (changed(changed(udp(), 12, 0x86), 13, 0xDD), "protocol"),
        (changed(udp(), 12, 0x81), "protocol"),
    ],
)
def test_refusal_of_frames(frame: bytes, reason: str) -> None:
    assert refusal(frame, MAC, OWNED) == reason


def test_later_fragment_has_no_ports() -> None:
    assert refusal(changed(udp(ports=(67, 68)), 21, 8), MAC, OWNED) == ""


@given(st.binary(max_size=80), st.sampled_from([frames.IPV4, frames.ARP, b"\x86\xdd"]))
def test_frames_with_a_spoofed_sender_are_refused(data: bytes, kind: bytes) -> None:
    """Random bytes: accepted frames have this sender, and each refusal is one word."""
    frame = OTHER + MAC + kind + data
    if not refusal(frame, MAC, OWNED):
        sender = frame[26:30] if kind == frames.IPV4 else frame[28:32]
        assert sender in (ADDRESS.packed, NOBODY.packed)
    assert refusal(OTHER + OTHER + kind + data, MAC, OWNED) in ("mac", "size")


BEYOND = frames.OutsideNetwork(IPv4Network("10.0.0.0/24"))


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (udp(), ""),
        (udp(sender=IPv4Address("10.0.1.6")), ""),
        (udp(sender=IPv4Address("10.0.0.0")), "address"),
        (udp(sender=OTHERS), "address"),
        (udp(sender=IPv4Address("10.0.0.255")), "address"),
        (udp(sender=NOBODY), "address"),
        (udp(sender=IPv4Address("10.0.1.6"), ports=(67, 68)), "dhcp"),
        (arp(sender=IPv4Address("10.0.1.6")), "address"),
    ],
)
def test_router_port_forwards_packets_from_outside(frame: bytes, reason: str) -> None:
    assert refusal(frame, MAC, OWNED, routed=BEYOND) == reason


def test_datagram_is_a_valid_ipv4_frame() -> None:
    frame = udp(payload=b"abc")
    words = struct.unpack("!10H", frame[14:34])
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
    assert struct.unpack("!H", frame[16:18])[0] == len(frame) - 14
    assert frame[42:] == b"abc"


def unreachable(frame: bytes, *networks: str) -> bytes:
    outside = [frames.OutsideNetwork(IPv4Network(each)) for each in networks]
    return frames.network_unreachable(frame, mac=OTHER, sender=OTHERS.packed, outside=outside)


def test_answer_to_a_packet_to_nowhere_quotes_its_beginning():
    """RFC 792: the packet's header and eight bytes, which have the ports."""
    asked = udp(payload=b"a question")
    answer = unreachable(asked)
    assert answer[:14] == MAC + OTHER + frames.IPV4
    assert (answer[26:30], answer[30:34]) == (OTHERS.packed, ADDRESS.packed)
    assert answer[34:36] == b"\x03\x00"
    assert answer[42:] == asked[14:42]
    # Sums with their checksum are all ones (RFC 1071).
    for part in (answer[14:34], answer[34:]):
        total = sum(struct.unpack(f"!{len(part) // 2}H", part))
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_packet_to_a_known_network_or_machine_is_no_packet_to_nowhere():
    assert unreachable(udp(), "10.1.0.0/24", "10.0.0.7/32")
    assert not unreachable(udp(), "10.1.0.0/24", "10.0.0.0/24")
    assert not unreachable(MAC + udp()[6:])
    assert not unreachable(arp())


def test_interface_of_ipv6_answers_no_packet_of_ipv4():
    """It would end the router's process."""
    sender = bytes(16)
    assert frames.network_unreachable(udp(), mac=OTHER, sender=sender, outside=[]) == b""


@pytest.mark.parametrize(
    "frame",
    [
        # An error about an error, a later fragment, a short header, a packet that is cut off.
        changed(udp(), 23, 1),
        changed(udp(), 21, 1),
        changed(udp(), 14, 0x44),
        udp()[:41],
        udp()[:14],
    ],
    ids=["icmp", "fragment", "header", "cut", "empty"],
)
def test_other_packets_to_nowhere_get_no_answer(frame):
    assert unreachable(frame) == b""
