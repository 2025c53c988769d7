"""The network that each machine has of its own: its name and its addresses."""

from __future__ import annotations

import hashlib

#: The network of every server without a port of Neutron, and the name of Neutron's default network.
NETWORK = "hotplate"

#: The address that a guest gets from the only DHCP server it can see.
GUEST_IP = "169.254.169.15"


LINK = "169.254.169.0/24"
"""The subnet of the network that each machine has of its own."""


def host_name(name: str) -> str:
    """Return the host name that Nova's ``sanitize_hostname`` derives from a server's name.

    >>> host_name("My web_1")
    'my-web-1'
    """
    kept = "".join(c if c.isalnum() and c.isascii() else "-" if c in " _.-" else "" for c in name)
    return (kept.strip("-").lower() or "server")[:63]


def mac_address(server_id: str) -> str:
    """Return the MAC address of a server: QEMU's prefix and bytes of the id's hash."""
    digest = hashlib.sha256(server_id.encode()).digest()
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in digest[:3])
