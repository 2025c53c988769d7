"""Documents of many verdicts, written in pieces, equal those that were made whole.

The files in ``documents`` were written by the code that made them whole.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotplate.cases.last import LastCases
from hotplate.cases.table import Case, TemplateChoice
from hotplate.errors import Outcome
from hotplate.report import html, junit
from hotplate.report.artifacts import Folder, json_list
from hotplate.report.files import ResultFiles
from hotplate.report.html import RunReport
from hotplate.report.kept_runs import KeptRuns
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.noticed import Noticed
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import (
    DeploymentResult,
    ServerResult,
    StageTime,
    Subject,
    Verdict,
)

EXPECTED = Path(__file__).parent / "documents"
DELIVERED = Stage("deployment delivered")
STRANGE = 'caf\u00e9 <a href="x">&\x1b[31m\x00 \U0001f600 \udc80 \ufffe'
"""Text that a guest may write: beyond ASCII, markup, controls, half a surrogate, no character."""


def stages(reached: int, evidence: str = "evidence") -> tuple[StageTime, ...]:
    return tuple(
        StageTime(stage, number * 1.25 if number < reached else None, evidence)
        for number, stage in enumerate(Stage)
    )


def passed(name: str) -> Verdict:
    subject = Subject(f"/images/{name}", "web.yaml", facts={"worker": "tcp://10.0.0.1:1"})
    return Verdict(
        subject,
        Outcome.PASSED,
        "CREATE_COMPLETE",
        (),
        stages(len(Stage)),
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
        ServerResult("1", "web", stages(len(Stage))),
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
        ),
        Verdict(
            Subject("/images/lost.raw"), Outcome.LOST, "", ("the machine went away",), stages(2)
        ),
        Verdict(Subject("/images/none.raw"), Outcome.INTERRUPTED, "", ("ended",), (), signal=2),
        passed("last.raw"),
    ]


def kept(verdicts: list[Verdict], **words: Path) -> KeptRuns:
    """Keep verdicts in the order in which cases end: the last one first."""
    names = [str(each.subject) for each in verdicts]
    runs = KeptRuns(names, **words)
    for name, verdict in reversed([*zip(names, verdicts, strict=True)]):
        runs.add(name, RunReport(verdict, (), page=f"{name}/report.html"))
    return runs


def written(folder: Path, verdicts: list[Verdict], *, several: bool = True) -> list[bytes]:
    files = ResultFiles(folder / "j.xml", folder / "v.json", several=several)
    files.begin()
    files.write(kept(verdicts).verdicts)
    return [(folder / name).read_bytes() for name in ("j.xml", "v.json")]


def expected(name: str) -> list[bytes]:
    return [(EXPECTED / f"{name}.{suffix}").read_bytes() for suffix in ("xml", "json")]


def test_several_verdicts_are_written_as_expected_junit_and_json(tmp_path):
    assert written(tmp_path, sample()) == expected("several")


def test_one_verdict_is_written_as_expected_junit_and_json(tmp_path):
    assert written(tmp_path, sample()[1:2], several=False) == expected("one")


def test_no_verdict_is_written_as_expected_junit_and_json(tmp_path):
    assert written(tmp_path, []) == expected("none")


@pytest.mark.parametrize("number", [0, 1, 3])
def test_results_of_last_cases_are_written(tmp_path, number):
    last = LastCases(tmp_path)
    for each in sample()[:number]:
        case = Case(str(each.subject), Path(each.subject.image), TemplateChoice(Path("t.yaml")))
        last.remember(case, each)
    last.write()
    assert (tmp_path / "cases.json").read_bytes() == (EXPECTED / f"cases{number}.json").read_bytes()


def test_matrix_pieces_equal_the_rendered_template(monkeypatch):
    monkeypatch.setattr(html, "PIECES", 10)
    runs = kept(sample())
    pieces = [*html.matrix_pieces(runs)]
    assert len(pieces) > 10
    page = html._pages().get_template("runs.html")
    whole = page.render(title="5 runs", word="failed", passed=2, runs=html._Runs(runs))
    assert b"".join(pieces) == whole.encode("utf-8", "replace")


def test_reader_sees_old_file_while_new_one_is_written(tmp_path):
    file = tmp_path / "j.xml"
    files = ResultFiles(file, None, several=True)
    files.begin()
    files.write(sample()[:1])
    before = file.read_bytes()

    class Looking(list):
        def __iter__(self) -> Iterator[Verdict]:
            for each in sample():
                assert file.read_bytes() == before
                yield each

    files.write(Looking())
    assert file.read_bytes() == expected("several")[0]
    assert [*tmp_path.iterdir()] == [file]


def test_old_file_stays_when_new_one_fails(tmp_path):
    file = tmp_path / "v.json"
    files = ResultFiles(None, file, several=True)
    files.write(sample()[:1])
    before = file.read_bytes()
    with pytest.raises(AttributeError):
        files.write([*sample(), None])
    assert file.read_bytes() == before
    assert [*tmp_path.iterdir()] == [file]


class Alive(Sequence):
    """Verdicts made on demand; notes how many exist at a time."""

    def __init__(self, number: int, *, verdicts: bool) -> None:
        self.number = number
        self.verdicts = verdicts
        self.most = 0
        self.there: weakref.WeakValueDictionary[int, Verdict] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index):
        verdict = passed(f"{index}.raw")
        self.there[id(verdict)] = verdict
        self.most = max(self.most, len(self.there))
        return verdict if self.verdicts else RunReport(verdict, ())

    def __iter__(self):
        return (self[index] for index in range(self.number))


@pytest.mark.parametrize("what", ["JUnit", "JSON", "page"])
def test_document_keeps_few_verdicts_in_memory(tmp_path, what):
    runs = Alive(200, verdicts=what != "page")
    if what == "page":
        Folder(tmp_path).write_pieces("matrix.html", html.matrix_pieces(runs))
    else:
        file = tmp_path / "file"
        xml, json = (file, None) if what == "JUnit" else (None, file)
        ResultFiles(xml, json, several=True).write(runs)
    (written,) = tmp_path.iterdir()
    assert written.read_bytes().count(b"199.raw") > 1
    assert runs.most < 10


def test_document_is_made_in_small_pieces():
    runs = Alive(200, verdicts=False)
    verdicts = Alive(200, verdicts=True)
    for pieces in (
        html.matrix_pieces(runs),
        junit.pieces(verdicts),
        json_list(each.to_json() for each in verdicts),
    ):
        sizes = [*map(len, pieces)]
        assert max(sizes) < sum(sizes) / 10


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
