"""Faults as users make them, planted in images and booted; each diagnosis names the fix.

The list was made before the verdict's rules: see ``test_planted_in_guests.py``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import pytest

from tests.booted.disks import planted

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.long,
]

AGENT = "os-collect-config"
UNITS = "/etc/systemd/system"


@dataclass(frozen=True)
class UserFault:
    """One fault.

    :param plant: shell commands, run in the root directory of the image's file system.
    :param says: regular expressions that match the last line, ignoring case.
    :param harmless: deployments still succeed, so the fault must not be named.
    :param image: the fixture of the image.
    :param fault: its name in the verdict, when that is to be compared as well.
    :param append: options to add to the kernel command line.
    :param memory: the guest's memory in MiB.
    :param patience: seconds after which no more output is expected.
    """

    name: str
    plant: str
    says: tuple[str, ...]
    image: str = "trixie"
    harmless: bool = False
    fault: str = ""
    append: str = ""
    memory: int = 0
    patience: int = 20

    def __str__(self) -> str:
        return self.name


def offline_unit(name: str, lines: str, wanted_by: str = "multi-user.target") -> str:
    """Return commands that add a site's own unit to an image."""
    return (
        f"printf '{lines}' > .{UNITS}/{name}; mkdir -p .{UNITS}/{wanted_by}.wants; "
        f"ln -s ../{name} .{UNITS}/{wanted_by}.wants/{name}"
    )


#: Faults planted in an image before it is booted and tested.
IN_AN_IMAGE = (
    UserFault(
        "agent-disabled-by-a-preset",
        f"rm .{UNITS}/multi-user.target.wants/{AGENT}.service; "
        "mkdir -p etc/systemd/system-preset; "
        f"echo 'disable {AGENT}.service' > etc/systemd/system-preset/10-site.preset",
        (r"os-collect-config", "not enabled|disabled"),
        image="bookworm",
    ),
    UserFault(
        "networkd-masked",
        f"ln -sf /dev/null .{UNITS}/systemd-networkd.service",
        (r"systemd-networkd\.service", "masked"),
    ),
    UserFault(
        "cloud-init-masked",
        f"ln -sf /dev/null .{UNITS}/cloud-init-local.service; "
        f"ln -sf /dev/null .{UNITS}/cloud-init.service",
        (r"cloud-init(-local)?\.service", "masked"),
        image="bookworm",
    ),
    UserFault(
        "cloud-init-disabled-by-a-file",
        "touch etc/cloud/cloud-init.disabled",
        (r"/etc/cloud/cloud-init\.disabled",),
    ),
    UserFault(
        "cloud-init-disabled-by-a-word",
        "true",
        ("cloud-init=disabled",),
        append="cloud-init=disabled",
    ),
    UserFault(
        "other-datasource",
        "echo 'datasource_list: [ NoCloud ]' > etc/cloud/cloud.cfg.d/99-site.cfg",
        ("datasource_list", r"99-site\.cfg"),
        image="bookworm",
    ),
    UserFault(
        "no-datasource",
        "echo 'datasource: None' > etc/cloud/ds-identify.cfg",
        ("metadata served", r"/etc/cloud/ds-identify\.cfg"),
        fault="no-datasource",
    ),
    UserFault(
        "cloud-config-broken",
        "printf 'users:\\n- name: ops\\n   shell: [\\n' > etc/cloud/cloud.cfg.d/99-site.cfg; "
        "printf 'datasource_list: [ OpenStack\\n' >> etc/cloud/cloud.cfg.d/99-site.cfg",
        (),
        # cloud-init 25.1 skips such a file and logs that.
        harmless=True,
    ),
    UserFault(
        "python-gone",
        "rm usr/bin/python3",
        ("/usr/bin/python3",),
        image="bookworm",
    ),
    UserFault(
        "half-upgraded",
        "rm usr/lib/x86_64-linux-gnu/libexpat.so.1*; "
        "sed -i '/^Package: libexpat1$/,/^$/s/^Status: .*/Status: install ok half-installed/' "
        "var/lib/dpkg/status",
        (r"libexpat",),
    ),
    UserFault(
        "link-switched-off-after-the-boot",
        "echo 'for d in /sys/class/net/e*; do ip link set ${d##*/} down; done' > etc/lockdown.sh; "
        + offline_unit(
            "site-lockdown.service",
            "[Unit]\\nAfter=network-online.target cloud-init-local.service cloud-init.service "
            "cloud-init-network.service\\n[Service]\\nType=oneshot\\n"
            "ExecStartPre=/bin/sleep 2\\nExecStart=/bin/sh /etc/lockdown.sh\\n",
        ),
        ("down|switched off",),
    ),
    UserFault(
        "missing-disk-in-fstab",
        # Too long for the console, which cuts it in the middle.
        "echo 'UUID=0f6e1c2a-7b1d-4c55-9d0e-2f2b8a6c1d11 /data ext4 defaults 0 2' >> etc/fstab",
        ("booted: /etc/fstab", "UUID=0f6e1c2a-7b1d-4c55-9d0e-2f2b8a6c1d11", "/data"),
        image="without_cloud_init",
        # Longer than systemd waits for a device.
        patience=110,
    ),
    UserFault(
        "ordering-cycle",
        # Required, so that systemd breaks the cycle at another unit.
        offline_unit(
            "site-setup.service",
            "[Unit]\\nDefaultDependencies=no\\nAfter=cloud-init-network.service\\n"
            "Before=systemd-networkd.service cloud-init-local.service\\n[Service]\\n"
            "Type=oneshot\\nExecStart=/bin/true\\n",
        )
        + f"; mkdir .{UNITS}/multi-user.target.requires; "
        f"mv .{UNITS}/multi-user.target.wants/site-setup.service "
        f".{UNITS}/multi-user.target.requires/",
        ("ordering cycle of .*site-setup.service", "deleted"),
    ),
    UserFault(
        "rescue-by-default",
        f"ln -sf /usr/lib/systemd/system/rescue.target .{UNITS}/default.target",
        (r"rescue\.target", "default"),
        image="bookworm",
    ),
    UserFault(
        "unit-that-hangs-in-the-boot",
        offline_unit(
            "site-setup.service",
            "[Unit]\\nBefore=cloud-init-network.service cloud-init.service\\n"
            "DefaultDependencies=no\\n[Service]\\nType=oneshot\\nTimeoutStartSec=infinity\\n"
            "ExecStart=/bin/sleep infinity\\n",
            "sysinit.target",
        ),
        (r"site-setup\.service",),
    ),
    UserFault(
        "other-interface",
        "printf '[Match]\\nName=ens192\\n[Network]\\nDHCP=yes\\n' "
        "> etc/systemd/network/90-heat-config.network",
        # cloud-init renders its own file for the existing device.
        ("ens192|matches no|no .network file",),
        harmless=True,
    ),
    UserFault(
        "old-state-baked-in",
        "printf '[DEFAULT]\\ncommand = os-refresh-config\\ncollectors = cfn\\n\\n[cfn]\\n"
        "metadata_url = http://192.0.2.7:8000/v1/\\nstack_name = old\\npath = s.Metadata\\n"
        "access_key_id = old\\nsecret_access_key = old\\n' > etc/os-collect-config.conf; "
        "mkdir -p var/lib/heat-cfntools; echo '{}' > var/lib/heat-cfntools/cfn-init-data",
        (r"192\.0\.2\.7", r"os-collect-config\.conf"),
        image="bookworm",
    ),
    UserFault(
        "little-memory",
        "true",
        ("memory",),
        image="without_cloud_init",
        memory=96,
    ),
)

#: What a container has from its host: the kernel's command line, disks, memory.
QEMU = frozenset(
    (
        "cloud-init-disabled-by-a-word",
        "little-memory",
        "missing-disk-in-fstab",
    )
)


@pytest.fixture
def judge(request, test_image, monkeypatch, tmp_path):
    """Return a function that plants a fault, boots the image and compares the last line."""

    def run(fault: UserFault) -> None:
        disk = tmp_path / f"{fault}.raw"
        planted(request.getfixturevalue(fault.image), disk, fault.plant)
        monkeypatch.setenv("HOTPLATE_PATIENCE", str(fault.patience))
        if fault.append:
            monkeypatch.setenv("HOTPLATE_APPEND", fault.append)
        if fault.memory:
            monkeypatch.setenv("HOTPLATE_MEMORY", str(fault.memory))
        began = time.monotonic()
        done = test_image(disk)
        print(f"{fault}: {time.monotonic() - began:.0f} s")
        if fault.harmless:
            assert done.status == 0
            return
        assert done.status == 1
        assert fault.fault in ("", done.verdict["diagnosis"]["fault"])
        for pattern in fault.says:
            assert re.search(pattern, done.last_line, re.IGNORECASE), pattern

    return run


@pytest.mark.parametrize("fault", [each for each in IN_AN_IMAGE if each.name not in QEMU], ids=str)
def test_fault_planted_in_an_image_is_named(judge, fault):
    judge(fault)


@pytest.mark.qemu
@pytest.mark.parametrize("fault", [each for each in IN_AN_IMAGE if each.name in QEMU], ids=str)
def test_fault_of_a_disk_or_a_kernel_in_an_image_is_named(judge, fault):
    judge(fault)
