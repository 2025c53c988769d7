"""Good images whose user data breaks the network or reboots at the end of the boot."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.boots

SWITCH_OFF = """\
#!/bin/sh
systemctl stop systemd-networkd.socket systemd-networkd.service
for device in /sys/class/net/e*; do ip link set "${device##*/}" down; done
"""
REBOOT = """\
#cloud-config
power_state: {mode: reboot}
"""


def fails_without_network(image, test_image, plain, *words):
    done = test_image(image, "-t", plain(SWITCH_OFF), *words)
    assert done.status == 1, done.stdout
    reached = {each["stage"]: each["seconds"] for each in done.verdict["stages"]}
    assert reached["network up"] is None
    # The guest fetched its metadata over that network before.
    assert reached["metadata served"]
    assert done.last_line.startswith("FAILED: not reached: network up: ")


def test_network_switched_off_at_end_of_boot_fails(all_hooks_bookworm, test_image, plain):
    fails_without_network(all_hooks_bookworm, test_image, plain)


@pytest.mark.qemu
@pytest.mark.long
def test_network_of_an_isolated_guest_switched_off_fails(all_hooks_bookworm, test_image, plain):
    fails_without_network(all_hooks_bookworm, test_image, plain, "--wiring", "namespace")


def test_reboot_by_user_data_passes(all_hooks_bookworm, test_image, plain):
    """cloud-init's cc_power_state_change reboots some seconds after its last stage."""
    done = test_image(all_hooks_bookworm, "-t", plain(REBOOT))
    assert done.status == 0, done.stdout
    # The run may end before the reboot is seen.
    assert {each["kind"] for each in done.verdict["noticed"]} <= {"guest-rebooted", "failed-unit"}
