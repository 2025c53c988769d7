"""An image with upstream's unmodified agent from the distribution."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.boots


@pytest.mark.long
def test_upstreams_agent_runs_a_deployment(images, test_image):
    image = images.get("trixie", "partition", "script", "--install-type", "package")
    done = test_image(image)
    assert done.status == 0, done.last_line
    assert done.verdict["noticed"] == []
