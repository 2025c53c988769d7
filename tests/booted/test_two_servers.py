"""Two servers in one stack, each in its own machine; the second needs the first's output.

``test_transports.py`` has them under QEMU too.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.boots

TEMPLATE = Path(__file__).parent / "templates" / "two-servers.yaml"


def test_second_server_receives_the_output_of_the_first(
    without_cloud_init, test_image, nothing_left
):
    done = test_image(without_cloud_init, "-t", TEMPLATE, "-P", "word=greeting")
    assert done.status == 0, done.stdout
    outputs = done.verdict["outputs"]
    first, second = outputs["first_id"], outputs["second_id"]
    assert outputs["answer"] == f"{second} heard: greeting of {first}"
    assert outputs["names"] == {"first": first, "second": second}
    timeline = json.loads((done.folder / "timeline.json").read_text())
    on = {event["server"] for event in timeline if event["kind"] == "power-on"}
    assert on == {first, second}
    for name in ("first", "second"):
        assert (done.folder / "servers" / name / "console.log").stat().st_size > 0
