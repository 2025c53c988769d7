"""Cases side by side, a process each: output, artifacts, and ends."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import xml.etree.ElementTree as ET
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace

import played_cases
import pytest
from played_cases import Played, runs, wait_until

from hotplate import cli
from hotplate.cases import process, side_by_side
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import SideBySide
from hotplate.cases.table import Case
from hotplate.errors import Outcome
from hotplate.interrupts import Interrupts
from hotplate.machine import admission
from hotplate.report.board import Board
from hotplate.settings import Settings


@pytest.fixture
def played(tmp_path: Path) -> Played:
    return Played(tmp_path)


def left_in(folder: str | Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((Path(folder) / "verdict.json").read_text())
    return document


def test_fault_of_one_case_does_not_affect_others(played):
    images = played.images(good="pass", dead="die", bad="fail", fine="pass")
    done = played.run(*images, "-j", "2", "--json", "v.json", "--junit", "j.xml", "--tap", "t")
    assert done.returncode == 4, done
    verdicts = played.verdicts()
    assert [*verdicts] == images
    outcomes = [each["outcome"] for each in verdicts.values()]
    assert outcomes == ["passed", "machine lost", "failed", "passed"]
    dead = verdicts["dead.raw"]
    assert dead["reasons"][0].startswith("a first try lost its machine: the process of the case")
    assert dead["reasons"][1].startswith("the process of the case was ended by SIGKILL")
    assert len(played.tries("dead")) == 2
    for each in verdicts.values():
        assert left_in(each["artifacts"]) == each
    suites = ET.parse(played.folder / "j.xml").getroot().findall("testsuite")
    assert [each.get("name") for each in suites] == [f"hotplate {image}" for image in images]
    points = re.findall(r"(?m)^(ok|not ok) \d - (.*)$", (played.folder / "t").read_text())
    assert points == [*zip(("ok", "not ok", "not ok", "ok"), images, strict=True)]
    lines = done.stdout.splitlines()
    assert lines[0] == "4 cases, 2 at a time (by -j)"
    assert "good.raw: plays pass" in lines
    assert any(re.fullmatch(r"good\.raw: PASSED \(\d+ s\)", line) for line in lines)
    assert "bad.raw: FAILED: the image is bad" in lines
    page = played.folder / "artifacts" / "matrix.html"
    assert lines[-1] == f"2 of 4 images passed; all of them: {page}"
    links = re.findall(r'href="([^"#]+/report\.html)"', page.read_text())
    assert len(links) == 4
    there = [(page.parent / link).exists() for link in links]
    assert there == [True, False, True, True]
    # Each try had a process of its own.
    assert len({pid for name in ("good", "dead", "bad", "fine") for pid in played.tries(name)}) == 5


def test_full_disk_ends_only_cases_that_cannot_start(monkeypatch):
    def full(**_: object) -> tuple[int, str]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ends: list[side_by_side.CaseEnd] = []
    runner = side_by_side.SideBySide(
        SimpleNamespace(),
        2,
        interrupts=SimpleNamespace(came=0),
        board=SimpleNamespace(draw=lambda: None),
        on_end=ends.append,
    )
    monkeypatch.setattr(process.tempfile, "TemporaryFile", full)
    runner.run([Case(name, Path(name)) for name in ("a.raw", "b.raw")])
    assert [each.case.name for each in ends] == ["a.raw", "b.raw"]
    assert [each.verdict.outcome for each in ends] == [Outcome.HOST, Outcome.HOST]


def test_retries_of_a_lost_machine_are_limited(played):
    images = played.images(late="lost 2", never="lost 9")
    done = played.run(*images, "-j", "2", "--retry-lost", "2", "--json", "v.json")
    assert done.returncode == 4
    late, never = played.verdicts().values()
    assert (late["outcome"], never["outcome"]) == ("passed", "machine lost")
    assert late["reasons"] == [
        "a first try lost its machine: the machine went away",
        "a second try lost its machine: the machine went away",
    ]
    assert len(played.tries("late")) == len(played.tries("never")) == 3
    folder = Path(left_in(played.folder / "artifacts" / "last")["artifacts"])
    assert folder.name == "third-try"
    assert sorted(each.name for each in folder.parent.glob("*-try.json")) == [
        "first-try.json",
        "second-try.json",
    ]
    assert "late.raw: the machine was lost, which says nothing about the image" in done.stdout


def test_verdicts_are_streamed_as_lines(played):
    process = played.start(*played.images(one="wait", good="pass"), "-j", "2", "--json", "-")
    first = json.loads(process.stdout.readline())
    assert (first["case"], first["outcome"]) == ("good.raw", "passed")
    wait_until(lambda: played.tries("one"))
    process.terminate()
    out, err = process.communicate(timeout=played_cases.SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    (second,) = map(json.loads, out.splitlines())
    assert (second["case"], second["outcome"]) == ("one.raw", "interrupted")
    assert "one.raw: plays wait" in err
    assert err.splitlines()[-1].startswith("1 of 2 images passed; ")


def test_signal_that_came_just_before_a_wait_ends_the_cases(monkeypatch):
    """Python handles a signal between its instructions; the next call is not interrupted."""
    monkeypatch.setattr(side_by_side, "TICK_SECONDS", 0.01)
    interrupts, sent = Interrupts(), []
    board = Board(io.StringIO(), quiet=True)
    runner = SideBySide(Request(Settings()), 1, interrupts=interrupts, board=board, on_end=print)
    ours, theirs = Pipe()
    case, child = Case("one", Path("one.raw")), SimpleNamespace(send_signal=sent.append)
    runner._running[ours] = SimpleNamespace(case=case, child=child)
    board.begin("one")
    # It would last until the case has something to say.
    assert runner._ready() == []
    interrupts.came = signal.SIGTERM
    monkeypatch.setattr(process, "ENDING_SECONDS", 0.01)
    theirs.send("the end")
    assert runner._ready() == [ours]
    assert sent == [signal.SIGTERM]


def test_fail_fast_starts_no_case_after_a_failure(played):
    images = played.images(first="fail", second="fail", third="pass")
    done = played.run(*images, "-j", "2", "--fail-fast", "--json", "v.json")
    assert done.returncode == 1
    assert [*played.verdicts()] == images[:2]
    assert "not begun: third.raw" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("0 of 3 images passed; ")


def test_single_job_runs_cases_in_the_command_itself(played):
    images = played.images(good="pass", bad="fail")
    process = played.start(*images, "-j", "1", "--json", "v.json", "-q")
    out, err = process.communicate(timeout=played_cases.SECONDS)
    assert process.returncode == 1, err
    assert [each["outcome"] for each in played.verdicts().values()] == ["passed", "failed"]
    assert played.tries("good") == played.tries("bad") == [process.pid]
    assert "case: bad.raw" in out


def test_usage_error_starts_no_further_case(played):
    images = played.images(first="usage", second="usage", third="pass")
    done = played.run(*images, "-j", "2", "--json", "v.json")
    assert done.returncode == 2
    assert done.stderr == "hotplate test: that makes no sense\n" * 2
    assert played.tries("third") == []


@pytest.mark.parametrize(
    ("number", "closed"), [(signal.SIGINT, False), (signal.SIGHUP, True)], ids=str
)
def test_signal_ends_all_cases(played, number, closed):
    images = played.images(good="pass", one="wait", two="wait", three="wait")
    process = played.start(*images, "-j", "2", "--json", "v.json", "--junit", "j.xml")
    if closed:
        process.stdout.close()
    wait_until(lambda: played.tries("one") and played.tries("two"))
    process.send_signal(number)
    if closed:
        err = process.stderr.read()
        process.wait(played_cases.SECONDS)
    else:
        out, err = process.communicate(timeout=played_cases.SECONDS)
        assert "not begun: three.raw" in out
        assert out.splitlines()[-1].startswith("1 of 4 images passed; ")
    assert process.returncode == 128 + number
    assert err == ""
    outcomes = {name: each["outcome"] for name, each in played.verdicts().items()}
    assert outcomes == {"good.raw": "passed"} | dict.fromkeys(images[1:], "interrupted")
    for each in played.verdicts().values():
        assert left_in(each["artifacts"]) == each
    assert len(ET.parse(played.folder / "j.xml").getroot().findall("testsuite/testcase/error")) == 3
    assert not any(map(runs, [*played.tries("one"), *played.tries("two")]))
    assert played.tries("three") == []


def test_nothing_outlives_the_command(played, monkeypatch):
    temporary = played.folder / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = played.start(*played.images(one="wait", two="wait"), "-j", "2")
    wait_until(lambda: played.tries("one") and played.tries("two"))
    process.kill()
    process.communicate(timeout=played_cases.SECONDS)
    wait_until(lambda: not any(map(runs, [*played.tries("one"), *played.tries("two")])))
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--shard", "1/2"), '--shard "1/2" is not of the form hash:M/N with 1 <= M <= N'),
        (("-j", "0"), "-j 0 is too small; expected cases, at least 1"),
        (("--retry-lost", "-1"), "--retry-lost -1 is too small; expected times, or 0"),
        (("-j", "2", "--keep"), "--keep and --pause-on-fail wait for you at each case"),
    ],
)
def test_invalid_options_are_refused(played, monkeypatch, capsys, words, problem):
    monkeypatch.chdir(played.folder)
    assert cli.main(["test", *played.images(one="pass", two="pass"), *words]) == 2
    assert problem in capsys.readouterr().err
    assert not (played.folder / "artifacts").exists()


@pytest.mark.parametrize(
    ("cases", "cores", "mib", "expected"),
    [(8, 4, 64_000, 4), (3, 4, 64_000, 3), (8, 4, 4_500, 2), (8, 4, 1_000, 1), (8, 1, 64_000, 1)],
)
def test_jobs_are_limited_by_processors_and_memory(monkeypatch, cases, cores, mib, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(admission, "host_mib", lambda: mib)
    jobs, why = side_by_side.how_many(cases, Settings())
    assert jobs == expected
    assert why.startswith(f"{cores} processors, and memory for ")
