"""JUnit and JSON documents of verdicts equal those in the folder ``documents``."""

from __future__ import annotations

import errno
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from hotplate.cases.last import LastCases
from hotplate.cases.table import Case, TemplateChoice
from hotplate.checks.check import CheckResult, CheckStatus
from hotplate.errors import HostError, Outcome, UsageError
from hotplate.report.files import ResultFiles
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.noticed import Noticed
from hotplate.verdict.stages import DEPLOYED, Stage
from hotplate.verdict.verdict import (
    DeploymentResult,
    ServerResult,
    StageTime,
    Subject,
    Verdict,
)

EXPECTED = Path(__file__).parent / "documents"
DELIVERED = Stage("deployment delivered")
SOME_STAGES = DEPLOYED[: DEPLOYED.index(DELIVERED) + 1]
#: Text that a guest may write: beyond ASCII, markup, controls, half a surrogate, no character.
STRANGE = 'caf\u00e9 <a href="x">&\x1b[31m\x00 \U0001f600 \udc80 \ufffe'


def stages(reached: int, evidence: str = "evidence") -> tuple[StageTime, ...]:
    return tuple(
        StageTime(stage, number * 1.25 if number < reached else None, evidence)
        for number, stage in enumerate(SOME_STAGES)
    )


def passed(name: str) -> Verdict:
    subject = Subject(f"/images/{name}", "web.yaml", facts={"worker": "tcp://10.0.0.1:1"})
    return Verdict(
        subject,
        Outcome.PASSED,
        "CREATE_COMPLETE",
        (),
        stages(len(SOME_STAGES)),
        seconds=20.5,
        artifacts=f"/artifacts/{name}",
    )


def sample() -> list[Verdict]:
    """One verdict of each kind, in the order of their cases."""
    diagnosis = Diagnosis(
        "poll-refused",
        DELIVERED,
        f"Heat refused it: {STRANGE}",
        "look at the agent",
        evidence=("a line", STRANGE),
        among='server "db"',
    )
    servers = (
        ServerResult("1", "web", stages(len(SOME_STAGES))),
        ServerResult(
            "2", "db", stages(4), (DeploymentResult("one", "script", "CFN_SIGNAL", DELIVERED),)
        ),
    )
    return [
        passed("good.raw"),
        Verdict(
            Subject("/images/bad.raw", STRANGE, stand_ins=("a stand-in",), case="bad.raw ec2"),
            Outcome.FAILED,
            "CREATE_FAILED",
            ("Heat says CREATE_FAILED", str(diagnosis)),
            stages(4),
            outputs={"text": STRANGE, "list": [1, {"no": float("nan")}], "nothing": None},
            diagnosis=diagnosis,
            seconds=61.0,
            servers=servers,
            decided_by="2",
            noticed=(Noticed("ran-twice", STRANGE, "db"),),
            checks=(
                CheckResult(
                    "dns", CheckStatus.PASSED, 1.25, "", STRANGE, "db", "checks/01-dns.txt"
                ),
                CheckResult("web", CheckStatus.SKIPPED, reason=STRANGE),
            ),
        ),
        Verdict(
            Subject("/images/lost.raw"), Outcome.LOST, "", ("the machine went away",), stages(2)
        ),
        Verdict(Subject("/images/none.raw"), Outcome.INTERRUPTED, "", ("ended",), (), signal=2),
    ]


def written(folder: Path, verdicts: list[Verdict], *, several: bool = True) -> list[bytes]:
    files = ResultFiles(folder / "j.xml", folder / "v.json", several=several)
    files.begin()
    files.write(verdicts)
    return [(folder / name).read_bytes() for name in ("j.xml", "v.json")]


def expected(name: str) -> list[bytes]:
    return [(EXPECTED / f"{name}.{suffix}").read_bytes() for suffix in ("xml", "json")]


def test_several_verdicts_are_written_as_expected_junit_and_json(tmp_path):
    assert written(tmp_path, sample()) == expected("several")


def test_one_verdict_is_written_without_a_list(tmp_path):
    xml, json_ = written(tmp_path, sample()[1:2], several=False)
    assert json.loads(json_) == json.loads(expected("several")[1])[1]
    (suite,) = ET.fromstring(xml)
    every = ET.fromstring(expected("several")[0]).findall("testsuite")
    assert ET.tostring(suite).strip() == ET.tostring(every[1]).strip()


def test_no_verdict_is_an_empty_list(tmp_path):
    xml, json_ = written(tmp_path, [])
    assert (len(ET.fromstring(xml)), json_) == (0, b"[]\n")


def test_results_of_last_cases_are_written(tmp_path):
    last = LastCases(tmp_path)
    for each in sample()[:3]:
        case = Case(str(each.subject), Path(each.subject.image), TemplateChoice(Path("t.yaml")))
        last.remember(case, each)
    last.write()
    assert (tmp_path / "cases.json").read_bytes() == (EXPECTED / "cases.json").read_bytes()


def test_results_replace_those_written_before(tmp_path):
    files = ResultFiles(tmp_path / "j.xml", None, several=True)
    files.write(sample()[:1])
    files.write(sample())
    assert (tmp_path / "j.xml").read_bytes() == expected("several")[0]
    assert [each.name for each in tmp_path.iterdir()] == ["j.xml"]


def test_old_file_stays_when_new_one_cannot_be_written(tmp_path, monkeypatch):
    file = tmp_path / "v.json"
    files = ResultFiles(None, file, several=True)
    files.write(sample()[:1])
    before = file.read_bytes()

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(HostError, match="cannot be written: No space left on device"):
        files.write(sample())
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("regular", [True, False])
def test_open_file_of_process_is_written_and_kept(tmp_path, regular):
    """As /dev/stdout, which leads to /proc/self/fd/1."""
    output = tmp_path / "output"
    if not regular:
        os.mkfifo(output)
    descriptor = os.open(output, os.O_RDWR | os.O_CREAT)
    try:
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{descriptor}")
        files = ResultFiles(link, None, several=True)
        files.begin()
        files.write(sample()[:1])
        assert link.is_symlink()
        assert os.read(descriptor, 5) == b"<?xml"
    finally:
        os.close(descriptor)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["output", "stdout"]


def test_users_link_is_replaced_by_file(tmp_path):
    old = tmp_path / "old.xml"
    old.write_text("old")
    link = tmp_path / "j.xml"
    link.symlink_to(old)
    files = ResultFiles(link, None, several=True)
    files.begin()
    assert not link.is_symlink()
    files.write(sample()[:1])
    assert link.read_bytes().startswith(b"<?xml")
    assert old.read_text() == "old"


def test_link_at_temporary_name_is_not_followed(tmp_path):
    """Others may write to the folder, as to /tmp."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".j.xml.new").symlink_to(victim)
    ResultFiles(tmp_path / "j.xml", None, several=True).write(sample()[:1])
    assert victim.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["j.xml", "victim"]


@pytest.mark.parametrize("option", ["junit", "tap"])
def test_standard_output_is_for_json_alone(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ResultFiles(**{"junit": None, "json": None, "several": False, option: Path("-")})
    with pytest.raises(UsageError, match='"-" names no file here: only --json writes to the'):
        files.begin()
    assert not list(tmp_path.iterdir())
