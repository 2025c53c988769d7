"""Run the commands of the tutorials in docs/ in order, with one image for all four."""

import os
import sys
from pathlib import Path

import pytest
from tutorial_page import Command, play, steps

pytestmark = [
    pytest.mark.long,
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
]


def test_tutorials_run_as_written(tmp_path, nothing_left):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    first = tmp_path / "tutorial-image"
    for page in ("tutorial-image", "tutorial-hook", "tutorial-ci", "tutorial-template"):
        directory = tmp_path / page
        directory.mkdir()
        if directory != first:
            (directory / "web.qcow2").symlink_to(first / "web.qcow2")
            (directory / "web.manifest.json").symlink_to(first / "web.manifest.json")
        listed = steps(page)
        assert any(isinstance(each, Command) for each in listed)
        play(listed, directory, environment)
