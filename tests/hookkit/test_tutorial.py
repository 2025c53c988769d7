"""docs/tutorial-hook.rst: the steps that need no guest, as printed."""

import os
import sys
from pathlib import Path

from tutorial_page import Command, File, play, steps


def test_tutorial_hook_is_made_and_runs(tmp_path):
    listed = [each for each in steps("tutorial-hook") if each.section in ("Make it", "Run it here")]
    assert len([each for each in listed if isinstance(each, Command)]) == 5
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    play(listed, tmp_path, {**os.environ, "PATH": path})


def test_tutorial_page_is_parsed_into_files_and_commands():
    listed = steps("tutorial-hook")
    files = {each.name: each.text for each in listed if isinstance(each, File)}
    assert files.keys() == {"greet.awk", "broken.awk", "hooks/awk.check.yaml"}
    assert files["broken.awk"] == 'BEGIN { print "hello"\n'
    commands = [each for each in listed if isinstance(each, Command)]
    assert commands[0].words == "hotplate hook new awk --tool awk"
    assert commands[0].seen[1] == "check  hotplate hook check hooks/awk.py"
    assert commands[0].section == "Make it"
