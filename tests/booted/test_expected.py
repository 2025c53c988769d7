"""Expectations derived from the template: one kind, in booted guests.

``tests/trial/test_expected.py`` covers all kinds with played guests.  Templates without a
deployment, and with one that sends no signal, boot in ``test_many.py``; one with a wait condition
boots in ``test_standard.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.booted.disks import planted

pytestmark = [pytest.mark.boots, pytest.mark.root]

TEMPLATES = Path(__file__).parent / "templates"


UNIT = "etc/systemd/system/os-collect-config.service"


@pytest.mark.long
def test_masked_agent_names_the_server_with_the_deployment(
    without_cloud_init, test_image, tmp_path, nothing_left
):
    """The helper server has no deployment and only has to boot."""
    disk = planted(without_cloud_init, tmp_path / "web.raw", f"ln -sf /dev/null {UNIT}")
    done = test_image(disk, "-t", TEMPLATES / "one-of-two.yaml", "--patience", "20")
    assert done.status == 1, done.stdout
    diagnosis = done.verdict["diagnosis"]
    assert (diagnosis["stage"], diagnosis["server"]) == ("agent polled", "worker")
    assert '(server "worker")' in done.last_line
