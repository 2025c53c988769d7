"""A step of a GitHub workflow: the commands that its runner reads, and the summary as shown.

The escapes and the grammar are those of the runner's ``ActionCommand.cs`` (TryParseV2).
"""

from __future__ import annotations

import html
import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from played_cases import Played

from hotplate.checks.check import CheckResult, CheckStatus
from hotplate.errors import HostError, Outcome
from hotplate.report import github
from hotplate.report.github import GithubStep
from hotplate.text import clean, clean_line
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.noticed import Noticed
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import StageTime, Subject, Verdict

DATA = {"%0D": "\r", "%0A": "\n", "%25": "%"}
PROPERTY = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
BOOTED = Stage("booted")


def unescaped(text: str, table: dict[str, str]) -> str:
    for escape, character in table.items():
        text = text.replace(escape, character)
    return text


def read(line: str) -> tuple[str, dict[str, str], str]:
    """Read a workflow command as the runner does: its name, properties and data."""
    assert "\n" not in line
    assert line.startswith("::")
    end = line.index("::", 2)
    name, _, given = line[2:end].partition(" ")
    pairs = [each.split("=", 1) for each in given.split(",") if each]
    return (
        name,
        {key: unescaped(value, PROPERTY) for key, value in pairs},
        unescaped(line[end + 2 :], DATA),
    )


def failed(text: str, *, more: str = "", case: str = "a.raw", template: str = "") -> Verdict:
    diagnosis = Diagnosis("poll-refused", BOOTED, text, more, evidence=(more, text))
    return Verdict(
        Subject("/images/a.raw", template, case=case),
        Outcome.FAILED,
        "CREATE_FAILED",
        (more, text),
        (StageTime(BOOTED, None, more),),
        diagnosis=diagnosis,
        artifacts="/artifacts/a",
        noticed=(Noticed("ran-twice", more),),
    )


PASSED = Verdict(
    Subject("/images/good.raw"),
    Outcome.PASSED,
    "CREATE_COMPLETE",
    (),
    (StageTime(BOOTED, 1.0, "evidence"),),
    outputs={"key": "an-output"},
    checks=(CheckResult("dns", CheckStatus.PASSED, 1.0, "", "check-output"),),
)


#: Shorter than what is shortened.
TEXTS = st.text(st.characters(), max_size=50)


@given(TEXTS, TEXTS)
def test_runner_reads_any_text_as_it_was(text, title):
    line = github._command("error", text, title=title, file="")
    name, properties, data = read(line)
    assert (name, data) == ("error", clean(text))
    assert properties.get("title", "") == clean_line(title)


def test_annotation_names_case_reason_and_template_in_the_repository(tmp_path):
    (tmp_path / "stacks").mkdir()
    inside = tmp_path / "stacks" / "web, db.yaml"
    inside.touch()
    verdicts = [failed("x: 50 %\ny", template=str(inside)), failed("x", template="/etc/passwd")]
    first, second, *_ = map(read, github.annotate(verdicts, tmp_path))
    assert first[:2] == ("error", {"file": "stacks/web, db.yaml", "title": "hotplate: a.raw"})
    assert first[2] == verdicts[0].last_line()
    assert "file" not in second[1]


def test_annotations_of_a_kind_are_as_many_as_github_shows_and_count_the_rest():
    verdicts = [replace(failed("x", more=f"note {n}"), noticed=()) for n in range(25)]
    lines = [*map(read, github.annotate(verdicts))]
    assert len(lines) == 10
    assert lines[-1][2].startswith("16 more")
    notes = [replace(PASSED, noticed=(Noticed("kind", f"note {n}"),)) for n in range(10)]
    assert [read(each)[0] for each in github.annotate(notes)] == ["warning"] * 10


def test_problem_noticed_in_several_cases_is_one_warning():
    noted = replace(PASSED, noticed=(Noticed("kind", "a hook ran twice"),))
    harmless = replace(PASSED, noticed=(Noticed("kind", "nothing", wrong=False),))
    (line,) = github.annotate([noted, noted, harmless])
    assert read(line)[2] == "a hook ran twice (in 2 cases)"


def test_runner_processes_no_command_of_others_while_the_step_runs():
    stream = io.StringIO()
    with GithubStep(stream, workspace=None, summary=None) as step:
        stream.write("::add-mask::o\n")
        step.report([failed("x"), PASSED])
    lines = stream.getvalue().splitlines()
    name, _, token = read(lines[0])
    # The documentation asks for a token that nobody can guess.
    assert name == "stop-commands" and re.fullmatch("[0-9a-f]{32}", token)
    assert lines[2] == f"::{token}::"
    assert read(lines[3])[0] == "error"


def test_error_that_ends_the_command_is_annotated():
    stream = io.StringIO()
    step = GithubStep(stream, workspace=None, summary=None)
    with pytest.raises(HostError), step:
        raise HostError("no QEMU", hint="apt install it")
    assert read(stream.getvalue().splitlines()[-1]) == (
        "error",
        {"title": "hotplate test"},
        "no QEMU\n  hint: apt install it",
    )


def test_step_is_that_of_githubs_runner_only(tmp_path):
    assert GithubStep.of({"CI": "true"}, io.StringIO()) is None
    assert GithubStep.of({"GITHUB_ACTIONS": "true"}, io.StringIO()) is not None


# -- the summary ---------------------------------------------------------------------------------


def shown(markdown: str) -> str:
    """Return the summary as HTML; GitHub's Markdown has tables and HTML in addition."""
    return MarkdownIt("commonmark").enable("table").render(markdown)


def words_in(page: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", page))


#: The elements of a summary, whatever it tells.
ELEMENTS = {
    *("h3", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "p", "ul", "li"),
    *("pre", "code"),
}


@given(st.text(st.characters()), st.text(st.sampled_from("`|<>*_[]()!&\\#:@ \n\t~-+=a1.\"'/$")))
def test_no_text_adds_markup_to_the_summary(text, markup):
    page = shown(github.summary([failed(text, more=markup, case=markup or "x")], 1 << 20))
    assert set(re.findall(r"<(\w+)", page)) <= ELEMENTS
    cell = " ".join(clean_line(failed(text, more=markup).last_line()).split())
    if len(cell) <= github.CELL_LENGTH:
        # markdown-it replaces a NUL; a cell has no such character after clean_line().
        assert " ".join(cell.split()) in " ".join(words_in(page).split())


def test_summary_has_the_failed_case_first_and_open_and_neither_outputs_nor_those_of_checks():
    text = github.summary([PASSED, failed("Heat refused it", more="look at the agent")], 1 << 20)
    page = shown(text)
    assert "1 of 2 passed" in page
    assert page.index("<td>a.raw</td>") < page.index("<td>good.raw</td>")
    assert re.findall(r"<details[^>]*>", page) == ["<details open>", "<details>"]
    assert "<pre><code>look at the agent\nHeat refused it\n</code></pre>" in page
    assert "check dns" in page
    assert "an-output" not in text and "check-output" not in text


def test_summary_of_many_cases_keeps_githubs_limit_and_counts_what_is_left_out(tmp_path):
    file = tmp_path / "summary"
    file.write_text("of another command\n")
    long = "\N{SNOWMAN}" * 1000
    many = [failed(long, more=long, case=f"{number}") for number in range(2000)]
    GithubStep(io.StringIO(), workspace=None, summary=file).report(many)
    data = file.read_bytes()
    assert 500_000 < len(data) <= 1024 * 1024
    text = data.decode()
    assert text.startswith("of another command\n### hotplate: 0 of 2000 passed\n")
    (left,) = re.findall(r"(\d+) more are in the log and the artifacts\.\n\Z", text)
    assert text.count("<details") == 2000 - int(left)
    # A second one would make GitHub drop both.
    GithubStep(io.StringIO(), workspace=None, summary=file).report(many)
    assert len(file.read_bytes()) <= 1024 * 1024


def test_summary_that_cannot_be_written_is_reported(tmp_path, capsys):
    GithubStep(io.StringIO(), workspace=None, summary=tmp_path).report([PASSED])
    assert f'the step summary "{tmp_path}" cannot be written' in capsys.readouterr().err


def test_command_in_a_workflow_annotates_its_cases_and_writes_their_summary(tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    played = Played(tmp_path)
    done = played.run(*played.images(good="pass", bad="fail"), "-j", "1", "--tap", "t.tap")
    assert done.returncode == 1, done
    lines = done.stdout.splitlines()
    token = read(lines[0])[2]
    after = lines[lines.index(f"::{token}::") + 1 :]
    assert [*map(read, after)] == [
        ("error", {"title": "hotplate: bad.raw"}, "FAILED: the image is bad")
    ]
    page = words_in(shown(summary.read_text()))
    assert "1 of 2 passed" in page
    assert "FAILED: the image is bad" in page


def test_streamed_verdicts_share_their_stream_with_no_command(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    played = Played(tmp_path)
    done = played.run(*played.images(bad="fail"), "--json", "-")
    assert done.stdout.startswith("{") and done.stdout.count("\n") == 1
    assert "::error title=hotplate%3A bad.raw::" in done.stderr
