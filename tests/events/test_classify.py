from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.events import classify
from hotplate.events.event import Event


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'heat-config: started id=abc-1 group=script name="web server"',
            classify.Marker("started", "abc-1", "script", "web server"),
        ),
        (
            '[  40.1] heat-config: finished id=abc group=cfn-init name="a \\"b\\" \\u00e9" '
            'status=-9 reason="killed by signal 9"\r',
            classify.Marker("finished", "abc", "cfn-init", 'a "b" é', -9, "killed by signal 9"),
        ),
        (
            'heat-config: signal-failed id=a group=script name="n" reason="no route"',
            classify.Marker("signal-failed", "a", "script", "n", None, "no route"),
        ),
        ('heat-config: rejected id= group= name=""', classify.Marker("rejected", "", "", "")),
    ],
)
def test_marker_is_parsed(line, expected):
    assert classify.marker_in(line) == expected


RUNNER = Path(__file__).parents[2] / "hooks" / "heat_config"


def written_by_the_runner() -> set[str]:
    """The words with which the runner begins its progress lines."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in RUNNER.glob("*.py")]
    calls = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Call)]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "event"
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def listed_by_the_runner() -> set[str]:
    """The same words from the runner's own list, ``journal.EVENTS``."""
    tree = ast.parse((RUNNER / "journal.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EVENTS":
            return set(ast.literal_eval(node.value))
    raise LookupError("EVENTS")


def test_marker_is_parsed_for_each_word_of_the_runner():
    words = written_by_the_runner()
    assert words == listed_by_the_runner()
    for word in words:
        marker = classify.marker_in(f'heat-config: {word} id=a group=script name="n"')
        assert marker == classify.Marker(word, "a", "script", "n")
    assert set(classify.MARKED) <= words


@pytest.mark.parametrize("line", ["", "heat-config", "heat-config: dancing id=1 group=2 name=3"])
def test_other_line_has_no_marker(line):
    assert classify.marker_in(line) is None


@given(st.text())
def test_any_console_text_is_classified_without_error(text):
    event = Event("console", "line", "s", {"text": "heat-config: " + text})
    assert "\x1b" not in classify.describe(event)
    classify.marker(event)
