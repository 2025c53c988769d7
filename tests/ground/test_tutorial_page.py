"""tests/tutorial_page.py runs the typed commands and compares their output."""

import os

import pytest
from tutorial_page import Command, File, play, unseen


def test_shown_output_is_matched_in_order():
    assert unseen(("one", "t...o"), "one\ntwo\n") == ""
    assert unseen(("two", "one"), "one\ntwo\n") == "one"
    assert unseen(("...", "a    b"), "x\n  a b\n") == ""
    assert unseen(("a.c",), "abc\n") == "a.c"


def test_files_and_commands_share_one_session(tmp_path):
    listed = [
        File("", "in/a.txt", "it's $HOME\n"),
        Command("", "cd in", ()),
        Command("", "cat a.txt", ("it's $HOME",)),
        Command("", "false", ()),
        Command("", "echo $?", ("1",)),
    ]
    play(listed, tmp_path, os.environ)


def test_output_of_background_command_is_waited_for(tmp_path):
    listed = [
        Command("", "sh -c 'echo begun; sleep 600'", ("begun",), alone=True),
        Command("", "kill %1", ()),
    ]
    play(listed, tmp_path, os.environ)


@pytest.mark.parametrize(
    "listed",
    [
        [Command("", "false", ()), Command("", "true", ())],
        [Command("", "echo one", ("two",))],
        [Command("", "exit 0", ()), Command("", "true", ())],
    ],
    ids=["status", "output", "ended"],
)
def test_failing_command_or_output_is_an_error(listed, tmp_path):
    with pytest.raises(AssertionError):
        play(listed, tmp_path, os.environ)
