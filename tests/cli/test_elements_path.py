"""``hotplate elements-path``: the paths of the elements and the hooks."""

from pathlib import Path

import pytest

from hotplate.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("words", "name"), [((), "elements"), (("--hooks",), "hooks")])
def test_directory_is_printed_in_one_line(capsys, words, name):
    assert main(["elements-path", *words]) == 0
    assert capsys.readouterr().out == f"{ROOT / name}\n"
