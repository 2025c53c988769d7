"""A first boot, and the presets of systemd that it applies, or cannot.

Source: machine-id(5), "First Boot Semantics"; ``manager_preset_all`` in systemd's
``src/core/manager.c``.  GRUB's menus on Debian have ``ro``, with which systemd says "Failed to
populate /etc with preset unit settings": seen in a virtual machine, as in gardenlinux #2474.
"""

from __future__ import annotations

import json

import pytest

from tests.booted.disks import planted

pytestmark = [pytest.mark.boots, pytest.mark.root]

UNITS = "etc/systemd/system"
#: A unit that its preset enables, and one that is for the first boot.
PLANT = f"""\
set -eu
echo uninitialized > etc/machine-id
cat > {UNITS}/preset.service <<END
[Service]
Type=oneshot
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
END
cat > {UNITS}/first.service <<END
[Unit]
ConditionFirstBoot=yes
[Service]
Type=oneshot
ExecStart=/bin/touch /first
END
mkdir -p {UNITS}/multi-user.target.wants
ln -s ../first.service {UNITS}/multi-user.target.wants/first.service
sed -i 's/ ro / {{mode}} /' boot/grub/grub.cfg
grep -q ' {{mode}} ' boot/grub/grub.cfg
"""


@pytest.mark.both_machines
@pytest.mark.parametrize(("mode", "enabled"), [("ro", False), ("rw", True)])
def test_first_boot_applies_presets_where_it_can_write(
    all_hooks_bookworm, test_image, plain, tmp_path, mode, enabled
):
    disk = planted(all_hooks_bookworm, tmp_path / "web.raw", PLANT.format(mode=mode))
    expect = {
        "services": {
            "preset": {"enabled": enabled},
            "os-collect-config": {"enabled": True, "running": True},
        },
        "files": {"/first": "present"},
    }
    run_file = tmp_path / "first.yaml"
    template = str(plain("#!/bin/sh\n:\n"))
    run_file.write_text(json.dumps({"template": template, "expect": expect}))
    done = test_image(disk, "-t", run_file)
    assert done.status == 0, done.stdout
