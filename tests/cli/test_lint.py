"""``hotplate lint``: its output and exit status."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hotplate.cli import main

FAST = ("--without", "shellcheck")


@pytest.fixture
def elements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one mistake, in a file with a name that needs escapes."""
    # In a folder of its own: a test tries "..", where other tests' folders may be.
    directory = tmp_path / "repository" / "elements"
    (directory / "a,b").mkdir(parents=True)
    monkeypatch.chdir(directory.parent)
    monkeypatch.delenv("ELEMENTS_PATH", raising=False)
    monkeypatch.delenv("DIB_HEAT_HOOKS_DIR", raising=False)
    (directory / "a,b" / "element-deps").write_text("vm\n100%\x1b[31m\n")
    return directory


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["lint", *FAST, *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_finding_is_printed_as_text(elements, capsys):
    status, out, _ = run(capsys)
    first, mend, last = out.splitlines()
    assert status == 1
    assert first == 'elements/a,b/element-deps:2: there is no element "100%" [element/element-deps]'
    assert mend.startswith("    mend: ")
    assert last == "1 finding in 1 elements"


@pytest.mark.parametrize(("name", "live"), [("dumb", False), ("xterm", True)])
def test_only_a_capable_terminal_gets_a_live_line(elements, capsys, monkeypatch, name, live):
    monkeypatch.setenv("TERM", name)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ("\x1b[K" in run(capsys)[2]) is live


def test_finding_is_printed_as_json(elements, capsys):
    status, out, _ = run(capsys, "--format", "json", elements)
    document = json.loads(out)
    assert (status, document["format"], document["elements"]) == (1, 1, 1)
    (finding,) = document["findings"]
    assert finding.keys() == {"file", "line", "rule", "reason", "mend"}
    assert (finding["file"], finding["line"]) == ("elements/a,b/element-deps", 2)


def test_finding_is_printed_for_github(elements, capsys):
    """By the escapes of GitHub's documentation of workflow commands."""
    status, out, _ = run(capsys, "--format", "github", elements / "a,b")
    (line,) = out.splitlines()
    assert status == 1
    assert line.startswith(
        "::error file=elements/a%2Cb/element-deps,line=2,title=element/element-deps::"
        'there is no element "100%25" Mend: '
    )


def test_lint_without_findings_passes(elements, capsys):
    (elements / "a,b" / "element-deps").write_text("vm\n")
    assert run(capsys) == (0, "no findings in 1 elements\n", "")


def test_skipped_linter_is_named(elements, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (elements / "a,b" / "element-deps").write_text("vm\n")
    assert main(["lint"]) == 0
    assert capsys.readouterr().out.startswith("not run: shellcheck: it is not installed; apt-get")
    assert main(["lint", "--format", "github"]) == 0
    assert capsys.readouterr().out.startswith("::notice::not run: shellcheck: ")


@pytest.mark.parametrize("words", [("none",), ("..",), ("--format", "xml"), ("--without", "x")])
def test_wrong_usage_is_refused(elements, capsys, words):
    (elements.parent / "hooks").mkdir()
    try:
        status = run(capsys, *words)[0]
    except SystemExit as error:
        status = error.code
    assert status == 2


def test_other_directories_come_from_the_environment(elements, capsys, monkeypatch, tmp_path):
    (elements / "a,b" / "element-deps").write_text("elsewhere\n")
    (elements / "a,b" / "heat-config-hooks").write_text("x x.py\n")
    (tmp_path / "more" / "elsewhere").mkdir(parents=True)
    (elements.parent / "programs").mkdir()
    (elements.parent / "programs" / "x.py").touch()
    assert run(capsys)[0] == 1
    monkeypatch.setenv("ELEMENTS_PATH", f"{tmp_path}/more:")
    monkeypatch.setenv("DIB_HEAT_HOOKS_DIR", "programs")
    assert run(capsys)[0] == 0
    monkeypatch.setenv("DIB_HEAT_HOOKS_DIR", "none")
    assert run(capsys)[0] == 2
