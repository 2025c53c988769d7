"""Images with upstream's agent, from the index and from the distribution, run as it is."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root]


@pytest.mark.long
@pytest.mark.parametrize("install_type", ["venv", "package"])
def test_upstreams_agent_runs_a_deployment(images, test_image, install_type):
    image = images.get("trixie", "partition", "script", "--install-type", install_type)
    done = test_image(image, name=install_type)
    assert done.status == 0, done.last_line
    assert done.verdict["noticed"] == []
