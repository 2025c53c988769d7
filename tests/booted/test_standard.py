"""The standard checks of a booted guest, in a container.

``tests/verdict/test_guest_standard.py`` skips some of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.boots

TEMPLATES = Path(__file__).parent / "templates"

#: A unit that fails, and an id that is gone; unmounted first, as systemd may have mounted one.
SPOIL = """\
#!/bin/sh
mkdir -p /run/systemd/system
printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n' > /run/systemd/system/site.service
systemctl daemon-reload
systemctl start site.service
umount /etc/machine-id 2> /dev/null
echo uninitialized > /etc/machine-id
"""


def test_faults_of_a_guest_fail_a_strict_run(all_hooks_trixie, test_image, plain):
    done = test_image(all_hooks_trixie, "-t", plain(SPOIL), "--strict")
    assert done.status == 1, done.stdout
    noticed = {each["kind"]: each["sentence"] for each in done.verdict["noticed"]}
    assert set(noticed) == {"failed-unit", "machine-id-not-set"}
    assert '"uninitialized"' in noticed["machine-id-not-set"]


def test_image_of_ours_passes_all_checks(all_hooks_trixie, test_image, nothing_left):
    """Its user data signals a wait condition."""
    done = test_image(all_hooks_trixie, "-t", TEMPLATES / "wait-condition.yaml", "--strict")
    assert done.status == 0, done.stdout
    (server,) = done.verdict["servers"]
    assert all(stage["seconds"] is not None for stage in server["stages"])
    assert server["deployments"] == []
    timeline = json.loads((done.folder / "timeline.json").read_text())
    answers = [each["detail"] for each in timeline if each["detail"].get("probe") == "standard"]
    assert [each["text"].rstrip().endswith("=== end") for each in answers] == [True]
