"""The units that a container gets beside the image's own."""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

from hotplate.container import guest_files

#: As netplan 0.100 and later writes it where cloud-init names an interface by its MAC address
#: (append_match_section() in src/networkd.c).
NETPLAN = "[Match]\nPermanentMACAddress=fa:16:3e:00:00:01\nName=ens4\n\n[Network]\nDHCP=yes\n"


def test_networkd_matches_interfaces_by_their_present_address(tmp_path: Path):
    """A veth has no permanent one: the kernel's register_netdevice() leaves it out."""
    files = guest_files.units("nonce", listener="/shell")
    text = base64.b64decode(files["systemd-networkd.service.d/hotplate.conf"]).decode()
    (command,) = re.findall(r"^ExecStartPre=-\+/bin/sh -c '(.*)'$", text, re.M)
    assert guest_files.NETWORK in command
    written = tmp_path / "10-netplan-ens4.network"
    written.write_text(NETPLAN)
    subprocess.run(["sh", "-c", command.replace(guest_files.NETWORK, str(tmp_path))], check=True)
    assert written.read_text() == NETPLAN.replace("PermanentMACAddress", "MACAddress")
