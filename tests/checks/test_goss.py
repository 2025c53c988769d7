"""The document of goss as results, and files that goss refuses; from the real goss 0.4.10."""

from __future__ import annotations

import json

import pytest

from hotplate.checks import goss
from hotplate.checks.check import CheckResult, CheckStatus
from hotplate.errors import UsageError


def one(name: str, result: int, line: str, **more: object) -> dict[str, object]:
    kind, identity, key = name.split(": ")
    return {
        "duration": 537861,
        "property": key,
        "resource-id": identity,
        "resource-type": kind,
        "result": result,
        "skipped": result == 2,
        "successful": result != 1,
        "summary-line": line,
        **more,
    }


DOCUMENT = {
    "results": [
        one("Command: echo hi: stdout", 2, "Command: echo hi: stdout: skipped"),
        one("File: /etc/passwd: exists", 0, "File: /etc/passwd: exists: matches expectation: true"),
        one(
            "File: /nope: exists",
            1,
            "File: /nope: exists:\nExpected\n    false\nto equal\n    true",
        ),
    ],
    "summary": {"failed-count": 1},
}


def done(output: str, reason: str = "it ended with status 1") -> CheckResult:
    return CheckResult("goss", CheckStatus.FAILED, reason=reason, output=output)


@pytest.mark.parametrize("indent", [None, 4], ids=["goss 0.4", "goss 0.3"])
@pytest.mark.parametrize("before", ["", "2026/11/28 [WARN] deprecated\n"])
def test_each_test_of_the_document_is_a_result(indent, before):
    results = goss.results(done(before + json.dumps(DOCUMENT, indent=indent)), file="g.yaml")
    assert [(each.name, str(each.status), each.reason) for each in results] == [
        ("goss: Command: echo hi: stdout", "skipped", "goss skipped it"),
        ("goss: File: /etc/passwd: exists", "passed", ""),
        ("goss: File: /nope: exists", "failed", "Expected false to equal true"),
    ]
    assert results[0].seconds == pytest.approx(0.000537861)


@pytest.mark.parametrize(
    ("output", "status", "sentence"),
    [
        (
            "Error: invalid Attribute for File:/etc/passwd: exist",
            78,
            'goss refuses the file "g.yaml": Error: invalid Attribute for File:/etc/passwd: exist',
        ),
        ("Error: found 0 tests, source: g.yaml", 78, "found 0 tests"),
        ("{broken", 1, 'goss refuses the file "g.yaml": {broken'),
        ("goss: Exec format error", 126, "the goss program cannot run in the guest"),
    ],
)
def test_goss_without_a_document_is_wrong_usage(output, status, sentence):
    with pytest.raises(UsageError) as error:
        goss.results(done(output, f"it ended with status {status}"), file="g.yaml")
    assert sentence in error.value.message


def test_goss_that_was_killed_is_a_failed_check():
    result = done("", "it did not end within 600 s, and was killed")
    assert goss.results(result, file="g.yaml") == [result]
