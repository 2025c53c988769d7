"""A verdict as JUnit XML, the dialect that CI systems read.

Each image is a test suite and each stage of each server a test case: the stage at fault fails, the
stages behind it are skipped with the reason.  Each of the user's own checks is a test case, too,
with its output; a known failure is a skipped one, as pytest's reports have it.

Format: the JUnit XML schema that the readers of Jenkins and GitLab share (testsuites, testsuite,
testcase, failure, error, skipped, system-out).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from hotplate.checks.check import CheckResult, CheckStatus, failed
from hotplate.errors import Outcome
from hotplate.text import clean
from hotplate.verdict.verdict import ServerResult, Verdict

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
    placed = [_stages(suite, verdict, each) for each in verdict.by_server()]
    # The case of the stack took the time after the last stage.
    last = max((each.seconds or 0.0 for each in verdict.stages), default=0.0)
    case = _case(suite, verdict, "stack", max(0.0, verdict.seconds - last))
    if verdict.passed or failed(verdict.checks):
        # Checks run only where everything else had passed.
        ET.SubElement(case, "system-out").text = _text(verdict.status)
    elif any(placed):
        ET.SubElement(case, "skipped", message="see the stage that failed")
    else:
        _failure(case, verdict)
    for each in verdict.checks:
        _check(suite, verdict, each)
    if verdict.noticed:
        lines = ["noticed:", *map(str, verdict.noticed)]
        ET.SubElement(suite, "system-out").text = _text("\n".join(lines))
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite.findall("testcase"))))
    for attribute, tag in counts.items():
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{_seconds(verdict):.3f}")
    return suite


def _stages(suite: ET.Element, verdict: Verdict, server: ServerResult) -> bool:
    """Add the stages of one server; return True when the fault is one of them."""
    decides = server.id == verdict.decided_by
    at_fault = verdict.diagnosis.stage if verdict.diagnosis and decides else None
    name = server.name if len(verdict.servers) > 1 else ""
    before = 0.0
    for each in server.stages:
        # Stages may be reached out of order: no time is negative.
        took = 0.0 if each.seconds is None else max(0.0, each.seconds - before)
        before += took
        case = _case(suite, verdict, str(each.stage), took, server=name)
        if each.stage == at_fault:
            _failure(case, verdict)
        elif each.said:
            # These do not depend on one another, so that each of them fails by itself.
            ET.SubElement(case, "failure", message=_text(each.absence))
        elif each.seconds is None:
            ET.SubElement(case, "skipped", message=_text(each.absence))
        else:
            ET.SubElement(case, "system-out").text = _text(each.evidence)
    return any(each.stage == at_fault for each in server.stages)


def _seconds(verdict: Verdict) -> float:
    return verdict.seconds + sum(each.seconds for each in verdict.checks)


def _check(suite: ET.Element, verdict: Verdict, result: CheckResult) -> None:
    """Add one of the user's own checks."""
    case = _case(suite, verdict, f"check {result.name}", result.seconds, server=result.server)
    message = _text(result.reason)
    if result.status is CheckStatus.FAILED:
        ET.SubElement(case, "failure", type="check", message=message)
    elif result.status is not CheckStatus.PASSED:
        kind = str(result.status)
        ET.SubElement(case, "skipped", type=kind, message=message)
    if result.output:
        ET.SubElement(case, "system-out").text = _text(result.output)


def _case(
    suite: ET.Element, verdict: Verdict, name: str, seconds: float, *, server: str = ""
) -> ET.Element:
    """Return a new test case; the name of the server is part of it where there are several."""
    return ET.SubElement(
        suite,
        "testcase",
        classname=_text(".".join(filter(None, ["hotplate", str(verdict.subject), server]))),
        name=_text(name),
        time=f"{seconds:.3f}",
    )


def _failure(case: ET.Element, verdict: Verdict) -> None:
    # For readers of JUnit a failure is the subject's, an error somebody else's.
    tag = "failure" if verdict.outcome is Outcome.FAILED else "error"
    kind = verdict.diagnosis.fault if verdict.diagnosis else str(verdict.outcome)
    node = ET.SubElement(case, tag, type=_text(kind), message=_text(verdict.last_line()))
    evidence = verdict.diagnosis.evidence if verdict.diagnosis else ()
    lines = [*verdict.reasons, *evidence]
    if verdict.artifacts:
        lines.append(f"artifacts: {verdict.artifacts}")
    node.text = _text("\n".join(lines))


#: The counts over all suites of the document.
COUNTED = ("tests", "failures", "errors", "skipped")


def to_xml(verdicts: Sequence[Verdict]) -> bytes:
    """Return the verdicts as one JUnit document, UTF-8."""
    root = ET.Element("testsuites", name="hotplate")
    root.extend([_suite(verdict) for verdict in verdicts])
    for name in COUNTED:
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(map(_seconds, verdicts)):.3f}")
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
