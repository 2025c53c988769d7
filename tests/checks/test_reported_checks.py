"""The results of checks in a verdict, and in each form of it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from hotplate.cases.cluster.transfer import CaseResult
from hotplate.checks.check import CheckResult, CheckStatus, UserCheck, UserChecks
from hotplate.errors import HotplateError, Outcome
from hotplate.report import html, junit
from hotplate.report.artifacts import Folder
from hotplate.report.terminal import summary
from hotplate.trial.user_checks import CheckedGuest, with_checks

RESULTS = (
    CheckResult("net/dns", CheckStatus.PASSED, 1.5),
    CheckResult("web", CheckStatus.FAILED, 2, "it ended with status 1", "<no\x1b luck>", "db"),
    CheckResult("old", CheckStatus.KNOWN, 0, "known until 2030-01-01: https://example.org/1"),
    CheckResult("arm", CheckStatus.SKIPPED, 0, "another architecture"),
)
WHY = 'the check "web on db" failed: it ended with status 1'


@pytest.fixture
def verdict(passed):
    return replace(passed.result("CREATE_COMPLETE"), checks=RESULTS)


@pytest.fixture
def failed(verdict):
    return replace(verdict, outcome=Outcome.FAILED, reasons=(WHY,))


def test_terminal_has_a_row_for_each_check_and_no_output(failed):
    text = summary(failed)
    rows = text.partition("\nchecks\n")[2].splitlines()[:4]
    assert rows == [
        "     1.5 s  net/dns  passed",
        "     2.0 s  web on db  failed: it ended with status 1",
        "     0.0 s  old  known failure: known until 2030-01-01: https://example.org/1",
        "     0.0 s  arm  skipped: another architecture",
    ]
    assert text.splitlines()[-1] == f"FAILED: {WHY}"
    assert "luck" not in text


def test_json_has_each_check_and_no_output(failed):
    document = failed.to_json()
    assert [each["status"] for each in document["checks"]] == [
        *("passed", "failed", "known failure", "skipped")
    ]
    assert "luck" not in json.dumps(document)


def test_junit_has_a_case_for_each_check_with_its_output(failed):
    root = ET.fromstring(junit.to_xml([failed]))
    cases = {each.get("name"): each for each in root.iter("testcase")}
    assert cases["check web"].get("classname").endswith(".db")
    assert cases["check web"].find("failure").get("message") == "it ended with status 1"
    assert cases["check web"].findtext("system-out") == "<no luck>"
    assert cases["check old"].find("skipped").get("type") == "known failure"
    assert cases["check net/dns"].get("time") == "1.500"
    assert float(root.get("time")) == pytest.approx(failed.seconds + 3.5, abs=0.001)
    # The stack itself was as wanted.
    assert [each.get("name") for each in root.findall(".//failure/..")] == ["check web"]
    assert root.find("testsuite").get("failures") == "1"


def test_report_has_each_check_with_its_output(failed):
    page = html.report(failed, [])
    assert "<h2>Checks</h2>" in page
    assert "web on db" in page
    assert "&lt;no luck&gt;" in page


def test_results_return_whole_from_a_worker(failed):
    result = CaseResult(failed, "tcp://10.0.0.1:1")
    assert CaseResult.from_bytes(result.to_bytes()).verdict.checks == RESULTS


def checked(verdict, folder, guests):
    checks = UserChecks(
        (UserCheck("a/b", "b", b"#!/bin/sh\n"), UserCheck("a-b", "b", b"#!/bin/sh\n"))
    )
    said: list[str] = []
    done = with_checks(verdict, checks, guests, folder=Folder(folder), patience=1, say=said.append)
    return done, said


def test_checks_of_a_failed_run_are_skipped(passed, tmp_path):
    verdict = replace(passed.result("CREATE_COMPLETE"), outcome=Outcome.FAILED, reasons=("x",))

    def no_guests():
        pytest.fail("a guest was asked")
        yield

    done, _ = checked(verdict, tmp_path, no_guests())
    assert [(each.name, str(each.status)) for each in done.checks] == [
        *(("a/b", "skipped"), ("a-b", "skipped"))
    ]
    assert (done.outcome, done.reasons) == (Outcome.FAILED, ("x",))


class Unreachable:
    running = True

    def connect(self, seconds):
        raise HotplateError("nobody is there")

    def drop(self):
        pass


def test_guest_that_cannot_be_asked_fails_the_first_check(passed, tmp_path):
    verdict = passed.result("CREATE_COMPLETE")
    done, said = checked(verdict, tmp_path, [CheckedGuest(Unreachable())])
    assert done.outcome is Outcome.FAILED
    assert done.decisive == (
        'the check "a/b" failed: the guest could not be asked: nobody is there'
    )
    assert done.checks[1].reason == 'the guest could not be asked after the check "a/b"'
    assert len(said) == 2


@pytest.mark.root
def test_outputs_are_in_files_of_the_user_without_tokens(passed, tmp_path, guest):
    programs = (
        UserCheck("a/b", "b", b"#!/bin/sh\necho 'http://x/?signature=abc'\n"),
        UserCheck("a-b", "b", b"#!/bin/sh\necho two\n"),
    )
    done = with_checks(
        passed.result("CREATE_COMPLETE"),
        UserChecks(programs),
        [CheckedGuest(guest, name="web")],
        folder=Folder(tmp_path / "run"),
        patience=5,
        say=print,
    )
    assert done.outcome is Outcome.PASSED
    files = [tmp_path / "run" / each.file for each in done.checks]
    assert [each.name for each in files] == ["01-a-b.txt", "02-a-b.txt"]
    assert [each.stat().st_mode & 0o777 for each in files] == [0o600, 0o600]
    assert files[0].read_text() == ("check a/b on web: passed: \n\nhttp://x/?signature=REDACTED\n")
    assert done.checks[0].output == "http://x/?signature=REDACTED"
