"""The facts of events: what is read of one is a fact that some event has."""

import ast
from pathlib import Path

import hotplate
from hotplate.events.detail import Detail

PACKAGE = Path(hotplate.__file__).parent
DECLARED = set(Detail.__annotations__)


def test_what_is_asked_of_an_event_is_declared():
    """The type checker sees this for ``detail["x"]``, and not for ``detail.get("x")``."""
    asked = {
        node.args[0].value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("detail.get", "event.detail.get", "ended.detail.get")
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(asked) > 10
    assert asked <= DECLARED


def test_facts_are_told_apart_from_the_events_own_fields():
    assert not DECLARED & {"source", "kind", "server", "at", "wall"}
