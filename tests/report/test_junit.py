from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hotplate.errors import Outcome
from hotplate.report import junit
from hotplate.verdict.verdict import StageTime, Subject, Verdict


def verdict_of(story, status, image="a.qcow2"):
    return story.result(status, image=image, facts={"accelerator": "tcg"})


def test_good_run_has_no_failure(passed):
    root = ET.fromstring(junit.to_xml([verdict_of(passed, "CREATE_COMPLETE")]))
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("10", "0", "0")
    assert suite.find("testcase/failure") is None
    assert suite.find("properties/property[@name='accelerator']").get("value") == "tcg"


def test_stage_at_fault_fails_once_and_rest_is_skipped(story):
    story.up()
    story.poll(403)
    root = ET.fromstring(junit.to_xml([verdict_of(story, "CREATE_FAILED")]))
    failed = root.findall(".//failure/..")
    assert [case.get("name") for case in failed] == ["deployment delivered"]
    assert failed[0].find("failure").get("type") == "poll-refused"
    assert root.get("failures") == "1"
    assert len(root.findall(".//skipped")) == int(root.get("skipped")) == 5


def test_lost_machine_is_an_error(story):
    story.up()
    story.emit("machine", "exit", status=-9, reason="lost", message="")
    root = ET.fromstring(junit.to_xml([verdict_of(story, "")]))
    assert (root.get("failures"), root.get("errors")) == ("0", "1")


def test_failure_without_stage_fails_the_stack(passed):
    verdict = replace(verdict_of(passed, "CREATE_COMPLETE"), outcome=Outcome.FAILED, reasons=("x",))
    root = ET.fromstring(junit.to_xml([verdict]))
    assert [case.get("name") for case in root.findall(".//failure/..")] == ["stack"]


def test_matrix_is_one_document(passed, story):
    verdicts = [verdict_of(passed, "CREATE_COMPLETE", "a"), verdict_of(story, "", "b")]
    root = ET.fromstring(junit.to_xml(verdicts))
    assert [suite.get("name") for suite in root] == ["hotplate a", "hotplate b"]
    assert root.get("tests") == "20"


@given(st.text(st.characters()), st.text(st.characters()))
def test_xml_is_valid_for_any_text(text, more):
    verdict = Verdict(
        subject=Subject(image=text, facts={text: more, "x": text}),
        outcome=Outcome.FAILED,
        status=text,
        reasons=(more, text),
        stages=tuple(StageTime(stage, 1.0, text) for stage in list(passed_stages())),
        artifacts=more,
    )
    ET.fromstring(junit.to_xml([verdict]))


def passed_stages():
    from hotplate.verdict.stages import ORDER

    return ORDER
