"""The faults of ``test_planted_in_guests.py`` that only upstream's agent can have.

A file of its own, because a process runs one cloud and so has servers of one image only.
"""

from __future__ import annotations

import pytest

from tests.booted.user_faults import RESTART, UserFault, is_named

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.long,
    pytest.mark.xdist_group("planted_with_upstreams_agent"),
]

WITH_UPSTREAMS_AGENT = (
    UserFault(
        "venv-interpreter-gone",
        f"ln -sfn /usr/bin/python3.9 /opt/heat-agent/bin/python3; {RESTART}",
        (r"/opt/heat-agent/bin/python", r"/usr/bin/python3\.9"),
    ),
    UserFault(
        "python-upgraded",
        f"cd /opt/heat-agent/lib; mv python3.1? python3.7; {RESTART}",
        ("/opt/heat-agent", r"python ?3\.7"),
    ),
    UserFault(
        "venv-library-gone",
        f"rm /opt/heat-agent/lib/python3*/site-packages/requests/__init__.py; {RESTART}",
        ("requests|cannot import|No module",),
    ),
)


@pytest.fixture(scope="module")
def pool(images, pool_of):
    return pool_of(images.get("trixie", "partition", "script", "--install-type", "venv"))


@pytest.mark.parametrize("fault", WITH_UPSTREAMS_AGENT, ids=str)
def test_planted_in_a_guest(pool, fault):
    is_named(pool, fault)
