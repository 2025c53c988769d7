"""The units that a container of ours gets beside the image's own, in a folder of its own.

systemd reads them before the image's, because the folder comes first in ``SYSTEMD_UNIT_PATH``
(systemd.unit(5)); nothing in the image changes.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence

from hotplate.guest.shell import DIRECTORY, UNIT

#: The folder in the guest; nspawn keeps /run/host for the host's files.
FOLDER = "/run/host/hotplate"
#: The folder of programs in it that systemd runs before it applies presets
#: (systemd.environment-generator(7)).
GENERATORS = "generators"
#: The folder in which generated files of systemd-networkd are (systemd.network(5)).
NETWORK = "/run/systemd/network"
#: Units of images that need a disk, and so fail in a container.
NEED_A_DISK = (
    # Before systemd 256 without ConditionVirtualization; a container's root is mounted already.
    "systemd-remount-fs.service",
    "systemd-growfs-root.service",
    # Images of ours that were built before these units had a condition.
    "heat-config-growfs.service",
)
#: cloud-init's units of all versions.
CLOUD_INIT = (
    "cloud-init-main.service",
    "cloud-init-local.service",
    "cloud-init-network.service",
    "cloud-init.service",
    "cloud-config.service",
    "cloud-final.service",
)

_SOCKET = """\
[Unit]
Description=hotplate's shell
DefaultDependencies=no
[Socket]
ListenStream={path}
Accept=yes
MaxConnections=16
"""
# The dash: a shell that ends with an error is no failed unit. KillMode=process: programs that
# commands left running survive their connection.
_SERVICE = """\
[Unit]
Description=hotplate's shell
DefaultDependencies=no
[Service]
ExecStart=-/bin/sh {folder}/shell
StandardInput=socket
StandardOutput=socket
StandardError=null
KillMode=process
# That of the template's instances stops at the beginning of a shutdown.
Slice=-.slice
"""
#: A drop-in: the unit is skipped, and not masked, which would look like a fault of the image.
_SKIPPED = """\
[Unit]
ConditionVirtualization=!container
"""
# A drop-in: netplan has networkd match an interface by its permanent address (its networkd.c,
# append_match_section()), and the kernel gives a veth none (register_netdevice(), NET_ADDR_SET).
_MATCH = """\
[Service]
ExecStartPre=-+/bin/sh -c 'sed -i s/^PermanentMACAddress=/MACAddress=/ {network}/*.network 2>&-'
"""
_PROGRAM = """\
umask 077
mkdir -p {directory}
printf %s {nonce} >{directory}/nonce
umask 022
exec sh
"""
# systemd of some distributions applies all presets, and of others only those that enable a unit, so
# that each unit is named. The file name sorts before those of the image's presets.
_KEEP_PRESETS = """\
#!/bin/sh
umask 022
mkdir -p /run/systemd/system-preset && cp {folder}/presets '/run/systemd/system-preset/!.preset'
exit 0
"""


def units(
    nonce: str, *, listener: str, restored: bool = False, kept: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the folder's files for the helper: base64 by path, or ``->`` and a link's target.

    :param nonce: proves that the guest that answers is the one started.
    :param listener: the path of the socket that the guest's init is given, on which the shell is
        started for each connection.
    :param restored: leave cloud-init out.
    :param kept: the units that stay enabled, and no others are; None to apply the image's presets.
    """
    texts = {
        f"{UNIT}.socket": _SOCKET.format(path=listener),
        f"{UNIT}@.service": _SERVICE.format(folder=FOLDER),
        "systemd-networkd.service.d/hotplate.conf": _MATCH.format(network=NETWORK),
        "shell": _PROGRAM.format(directory=DIRECTORY, nonce=shlex.quote(nonce)),
    }
    if kept is not None:
        texts["presets"] = "".join([*(f"enable {unit}\n" for unit in kept), "disable *\n"])
        texts[f"{GENERATORS}/hotplate"] = _KEEP_PRESETS.format(folder=FOLDER)
    for unit in (*NEED_A_DISK, *(CLOUD_INIT if restored else ())):
        texts[f"{unit}.d/hotplate.conf"] = _SKIPPED
    return {
        **{name: encoded(text.encode()) for name, text in texts.items()},
        f"sysinit.target.wants/{UNIT}.socket": f"->../{UNIT}.socket",
    }


def seed(files: Mapping[str, bytes], *, folder: str) -> dict[str, str]:
    """Return a drive's files for the helper.

    :param files: by path.
    :param folder: the one to put them in.
    """
    return {f"{folder}/{name}": encoded(data) for name, data in files.items()}


def encoded(data: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(data).decode()
