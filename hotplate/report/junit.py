"""A verdict as JUnit XML, the dialect that CI systems read.

Each image is a test suite and each point (:mod:`hotplate.report.points`) a test case, with its
output; a known failure is a skipped one, as pytest's reports have it.

Format: the JUnit XML schema that the readers of Jenkins and GitLab share (testsuites, testsuite,
testcase, failure, error, skipped, system-out).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from hotplate.report.points import Point, PointStatus, all_seconds, points_of
from hotplate.text import clean
from hotplate.verdict.verdict import Verdict

#: For readers of JUnit a failure is the subject's, an error somebody else's.
TAGS = {
    PointStatus.FAILED: "failure",
    PointStatus.ERROR: "error",
    PointStatus.SKIPPED: "skipped",
    PointStatus.KNOWN: "skipped",
}

# Characters that XML 1.0 cannot carry, not even as a character reference.
_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(value: object) -> str:
    lines = str(value).split("\n")
    return _FORBIDDEN.sub("\ufffd", "\n".join(clean(line) for line in lines))


def _suite(verdict: Verdict) -> ET.Element:
    suite = ET.Element("testsuite", name=_text(f"hotplate {verdict.subject}"))
    properties = ET.SubElement(suite, "properties")
    facts = {
        "image": verdict.subject.image,
        "template": verdict.subject.template,
        "outcome": str(verdict.outcome),
        "exit status": str(verdict.exit_status),
        "status": verdict.status,
        "artifacts": verdict.artifacts,
        **verdict.subject.facts,
    }
    for name, value in facts.items():
        if value:
            ET.SubElement(properties, "property", name=_text(name), value=_text(value))
    for each in points_of(verdict):
        _case(suite, verdict, each)
    if verdict.noticed:
        lines = ["noticed:", *map(str, verdict.noticed)]
        ET.SubElement(suite, "system-out").text = _text("\n".join(lines))
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in counts.items():
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{all_seconds(verdict):.3f}")
    return suite


def _case(suite: ET.Element, verdict: Verdict, point: Point) -> None:
    """Add a test case; the name of the server is part of it where there are several."""
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_text(".".join(filter(None, ["hotplate", str(verdict.subject), point.server]))),
        name=_text(point.name),
        time=f"{point.seconds:.3f}",
    )
    if tag := TAGS.get(point.status):
        kind = {"type": _text(point.kind)} if point.kind else {}
        node = ET.SubElement(case, tag, kind, message=_text(point.message))
        if point.detail:
            node.text = _text(point.detail)
    if point.output:
        ET.SubElement(case, "system-out").text = _text(point.output)


#: The counts over all suites of the document.
COUNTED = ("tests", "failures", "errors", "skipped")


def to_xml(verdicts: Sequence[Verdict]) -> bytes:
    """Return the verdicts as one JUnit document, UTF-8."""
    root = ET.Element("testsuites", name="hotplate")
    root.extend([_suite(verdict) for verdict in verdicts])
    for name in COUNTED:
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(map(all_seconds, verdicts)):.3f}")
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
