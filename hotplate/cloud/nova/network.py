"""The network that every server is on: what it is called, and its addresses."""

from __future__ import annotations

import hashlib

#: The only network there is.
NETWORK = "hotplate"

#: The address a guest gets from the only DHCP server it can see.
GUEST_IP = "169.254.169.15"


def mac_address(server_id: str) -> str:
    """Return the MAC address of a server: QEMU's prefix and a part of the id."""
    digest = hashlib.sha256(server_id.encode()).digest()
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in digest[:3])
