"""TAP 14: the documents that perl's TAP::Parser reads, and their subtests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hotplate.checks.check import CheckResult, CheckStatus
from hotplate.errors import Outcome
from hotplate.report import tap
from hotplate.verdict.stages import ORDER
from hotplate.verdict.verdict import StageTime, Subject, Verdict

#: Prints the points of a document, with the errors that the parser found.
PARSER = """
use TAP::Parser; use JSON::PP;
local $/; binmode STDIN, ":utf8";
my $parser = TAP::Parser->new({ tap => <STDIN> });
my (@points, @blocks, @unknown);
while (my $result = $parser->next) {
    push @points, [$result->number, $result->is_actual_ok ? 1 : 0, $result->description,
                   $result->directive, $result->explanation] if $result->is_test;
    push @blocks, $result->raw if $result->is_yaml;
    push @unknown, $result->raw if $result->is_unknown;
}
print encode_json({ points => \\@points, blocks => \\@blocks, unknown => \\@unknown,
                    errors => [$parser->parse_errors], plan => $parser->plan });
"""


def parsed(lines: list[str]) -> dict[str, object]:
    """Return perl's reading of a document without its version.

    The parser of Test::Harness 3.44 (Debian 12) takes versions up to 13, which has the same points
    and YAML blocks; a subtest it reads as a document of its own.
    """
    if shutil.which("perl") is None:
        pytest.skip("no perl")
    text = "".join(f"{line}\n" for line in ["TAP version 13", *lines])
    done = subprocess.run(
        ["perl", "-e", PARSER], input=text.encode(), capture_output=True, timeout=60, check=True
    )
    read: dict[str, object] = json.loads(done.stdout)
    assert read["errors"] == []
    return read


def split(document: bytes) -> tuple[list[str], list[list[str]]]:
    """Return the lines of a document without its version, and those of each subtest."""
    version, *lines = document.decode().removesuffix("\n").split("\n")
    assert version == "TAP version 14"
    outer, subtests = [], []
    for line in lines:
        if not line.startswith("    "):
            outer.append(line)
        elif line.startswith("    # Subtest: "):
            subtests.append([])
        else:
            subtests[-1].append(line[4:])
    return outer, subtests


def verdict_of(story, status, image="a.qcow2"):
    return story.result(status, image=image)


def test_passed_runs_are_ok_with_all_their_points(passed):
    verdict = verdict_of(passed, "CREATE_COMPLETE")
    outer, subtests = split(tap.to_tap([verdict, verdict]))
    read = parsed(outer)
    assert read["plan"] == "1..2"
    assert [point[:3] for point in read["points"]] == [[1, 1, "- a.qcow2"], [2, 1, "- a.qcow2"]]
    for each in map(parsed, subtests):
        assert len(each["points"]) == 10
        assert {point[1] for point in each["points"]} == {1}
        assert each["blocks"] == []


def test_stage_at_fault_is_not_ok_and_the_rest_is_skipped(story):
    story.up()
    story.poll(403)
    outer, (subtest,) = split(tap.to_tap([verdict_of(story, "CREATE_FAILED")]))
    (whole,) = parsed(outer)["points"]
    assert whole[:3] == [1, 0, "- a.qcow2"]
    read = parsed(subtest)
    assert [each[2] for each in read["points"] if not each[1]] == ["- deployment delivered"]
    assert [each[3] for each in read["points"]].count("SKIP") == 5
    (block,) = read["blocks"]
    reason = yaml.safe_load(re.sub("(?m)^  ", "", block).partition("\n...")[0])
    assert (reason["kind"], reason["severity"]) == ("poll-refused", "failed")


def test_known_failure_is_a_todo_and_its_output_is_kept_for_no_passed_check():
    checks = (
        CheckResult("dns", CheckStatus.KNOWN, 1.0, "until 2027 # bug 1", "said"),
        CheckResult("web", CheckStatus.PASSED, 1.0, output="secret"),
    )
    verdict = Verdict(Subject("a.raw"), Outcome.PASSED, "CREATE_COMPLETE", (), (), checks=checks)
    ((*lines,),) = split(tap.to_tap([verdict]))[1]
    points = parsed(lines)["points"]
    assert points[1] == [2, 0, "- check dns", "TODO", "until 2027 \\# bug 1"]
    assert "secret" not in "\n".join(lines)


def test_document_without_a_case_skips_all():
    assert tap.to_tap([]) == b"TAP version 14\n1..0 # skip no case ran\n"
    assert parsed(split(tap.to_tap([]))[0])["points"] == []


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_text_adds_a_line_or_ends_a_block(text, more):
    verdict = Verdict(
        Subject(text, more, case=more),
        Outcome.FAILED,
        text,
        (more, text),
        tuple(StageTime(stage, None, text, said=more) for stage in ORDER[:2]),
        artifacts=more,
    )
    outer, (subtest,) = split(tap.to_tap([verdict]))
    assert [line for line in outer if not line.startswith("  ")] == [
        "1..1",
        f"not ok 1 - {tap._escaped(str(verdict.subject))}",
    ]
    blocks = "\n".join(line[2:] for line in subtest if line.startswith("  ")).split("\n...")
    assert len(blocks) - 1 == sum(line.startswith("not ok") for line in subtest)
    assert all(yaml.safe_load(block) for block in blocks[:-1])
