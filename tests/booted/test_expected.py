"""Expectations derived from the template: a few kinds, in booted guests.

``tests/trial/test_expected.py`` covers all kinds with played guests.  Templates
without a deployment, and with one that sends no signal, boot in ``test_many.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
]

TEMPLATES = Path(__file__).parent / "templates"


def test_user_data_that_signals_a_wait_condition_passes(trixie, test_image, nothing_left):
    done = test_image(trixie, "-t", TEMPLATES / "wait-condition.yaml")
    assert done.status == 0, done.stdout
    servers = done.verdict["servers"]
    assert all(stage["seconds"] is not None for each in servers for stage in each["stages"])
    assert all(each["missing"] is None for server in servers for each in server["deployments"])


@pytest.mark.qemu
@pytest.mark.long
def test_masked_agent_names_the_server_with_the_deployment(
    without_cloud_init, test_image, nothing_left
):
    """The helper server has no deployment and only has to boot."""
    mask = "systemd.mask=os-collect-config.service"
    done = test_image(without_cloud_init, "-t", TEMPLATES / "one-of-two.yaml", "--append", mask)
    assert done.status == 1, done.stdout
    diagnosis = done.verdict["diagnosis"]
    assert (diagnosis["stage"], diagnosis["server"]) == ("agent polled", "worker")
    assert '(server "worker")' in done.last_line
