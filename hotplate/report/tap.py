"""Verdicts as a document of the Test Anything Protocol, version 14.

Each verdict is a test point with a subtest, whose points are those of
:mod:`hotplate.report.points`.  Stages that were not reached are skipped, and a known failure
is one to do, which fails no run.  A point that is not ok has its reason as a YAML block.

Format: TAP 14 Specification, testanything.org.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import yaml

from hotplate.report.points import Point, PointStatus, all_seconds, points_of
from hotplate.text import clean_all, clean_line
from hotplate.verdict.verdict import Verdict, one_line

VERSION = "TAP version 14"
INDENT = " " * 4


class _Dumper(yaml.SafeDumper):
    """Writes each string quoted, on one line: none can look like the end of a block."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)

#: The two directives of TAP 14; a test that is known to fail is one "to do".
_DIRECTIVES = {PointStatus.SKIPPED: "SKIP", PointStatus.KNOWN: "TODO"}
_OK = (PointStatus.PASSED, PointStatus.SKIPPED)


def to_tap(verdicts: Sequence[Verdict]) -> bytes:
    """Return the verdicts as one TAP document, UTF-8."""
    lines = [VERSION, f"1..{len(verdicts)}" if verdicts else "1..0 # skip no case ran"]
    for number, verdict in enumerate(verdicts, 1):
        lines += [INDENT + line for line in _subtest(verdict)]
        about: dict[str, object] = {}
        if not verdict.passed:
            about["message"] = verdict.last_line()
        about |= {
            "outcome": str(verdict.outcome),
            "exit_status": verdict.exit_status,
            "seconds": round(all_seconds(verdict), 3),
            "image": verdict.subject.image,
            "template": verdict.subject.template,
            "artifacts": verdict.artifacts,
            "noticed": [str(each) for each in verdict.noticed],
        }
        lines.append(_line(number, str(verdict.subject), ok=verdict.passed))
        lines += _block(about)
    return "".join(f"{line}\n" for line in lines).encode()


def _subtest(verdict: Verdict) -> list[str]:
    points = points_of(verdict)
    lines = [f"# Subtest: {_escaped(str(verdict.subject))}", f"1..{len(points)}"]
    for number, point in enumerate(points, 1):
        lines += _point(number, point)
    return lines


def _point(number: int, point: Point) -> list[str]:
    name = f"{point.name} on {point.server}" if point.server else point.name
    line = _line(number, name, ok=point.status in _OK)
    if directive := _DIRECTIVES.get(point.status):
        line += f" # {directive} {_escaped(one_line(point.message))}"
    if point.status in _OK:
        return [line]
    more = {
        "message": point.message,
        "severity": str(point.status),
        "kind": point.kind,
        "seconds": round(point.seconds, 3),
        "detail": point.detail,
        "output": point.output,
    }
    return [line, *_block(more)]


def _line(number: int, name: str, *, ok: bool) -> str:
    return f"{'ok' if ok else 'not ok'} {number} - {_escaped(name)}"


def _escaped(text: str) -> str:
    r"""Return text for a description, or for the reason of a directive.

    >>> _escaped("a # b")
    'a \\# b'
    """
    return clean_line(text).replace("\\", "\\\\").replace("#", "\\#").strip()


def _block(values: Mapping[str, object]) -> list[str]:
    """Return the YAML block of a point; empty values are left out."""
    kept = {name: clean_all(value) for name, value in values.items() if value not in ("", [])}
    text = yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=inf)
    return [f"  {line}" for line in ("---", *text.rstrip("\n").split("\n"), "...")]
