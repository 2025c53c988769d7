"""Kinds of events: facts survive the way through an event, and the type checker knows them."""

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest
from mypy import api

import hotplate
from hotplate.events import kinds
from hotplate.events.event import Event
from hotplate.events.kinds import EventFacts, ServiceRequest, StackResource
from hotplate.events.log import EventLog

PACKAGE = Path(hotplate.__file__).parent
KINDS = [
    each
    for each in vars(kinds).values()
    if isinstance(each, type) and issubclass(each, EventFacts) and hasattr(each, "KIND")
]
VALUES = {"str": "x", "int": 1, "float": 0.5, "bool": True, "list[str]": ["x"]}
WRONG = {
    "a name when it is made": ("MachineExit(colour=0)", "colour"),
    "a type when it is made": ("MachineExit(status='0')", "status"),
    "a name when it is read": ("exit.colour", "colour"),
    "a name of another kind": ("exit.path", "path"),
    "facts past the classes": ("EventLog().emit('machine', 'exit', status=0)", "Never"),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kind_reads_its_emitted_facts(kind: type[EventFacts]) -> None:
    values = {
        each.name: VALUES.get(str(each.type).split(" | ")[0], [{"id": "x"}])
        for each in fields(kind)
    }
    source = min(kind.SOURCES)
    event = EventLog().add(kind(**values), source=source, server="a")
    assert (event.source, event.kind, event.server) == (source, kind.KIND, "a")
    assert event.detail == json.loads(json.dumps(event.detail)) == values
    assert kind.of(event) == kind(**values)
    assert kind.of(Event("another", kind.KIND, "a", values)) is None
    assert kind.of(Event(source, "another", "a", values)) is None


def test_missing_fact_is_omitted():
    event = EventLog().add(ServiceRequest("GET", status=200), source="cfn")
    assert event.detail == {"method": "GET", "status": 200}


def test_facts_of_another_version_are_read_where_known():
    """``events.json`` of another version has fewer facts, or more."""
    event = Event("stack", "resource", "", {"resource": "web", "colour": "red"})
    assert StackResource.of(event) == StackResource(resource="web")


def test_kind_with_several_services_requires_source():
    with pytest.raises(ValueError, match="unpack"):
        EventLog().add(ServiceRequest("GET"))


def test_kinds_are_distinct():
    names = [(source, kind.KIND) for kind in KINDS for source in kind.SOURCES]
    assert len(KINDS) > 15
    assert len(names) == len(set(names))


def test_rooms_read_facts_by_their_kind():
    """``detail`` is for writing to a file; the type checker does not know its names."""
    readers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "detail"
        and ast.unparse(node.value).endswith(("event", "ended"))
    }
    assert readers == {"events/classify.py", "events/kinds.py", "report/artifacts.py"}


def test_type_checker_rejects_unknown_facts(tmp_path: Path) -> None:
    lines = [
        "from hotplate.events.kinds import MachineExit",
        "from hotplate.events.log import EventLog",
        "exit = MachineExit(status=0)",
        *(line for line, _ in WRONG.values()),
    ]
    program = tmp_path / "wrong.py"
    program.write_text("\n".join(lines) + "\n")
    report, _, status = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(program)])
    assert status == 1
    errors = [line for line in report.splitlines() if ": error: " in line]
    for number, (_, word) in enumerate(WRONG.values(), 4):
        assert any(f"wrong.py:{number}:" in line and word in line for line in errors)
