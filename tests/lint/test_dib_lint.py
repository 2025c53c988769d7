"""dib-lint as a process: each message is read, and those that are wrong are left out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.lint.collection import Collection
from hotplate.lint.dib_lint import RULES, dib_lint_findings
from hotplate.lint.finding import LintFinding, NotRun
from hotplate.lint.programs import Programs

HEAD = (
    "#!/bin/bash\nif [ ${DIB_DEBUG_TRACE:-0} -gt 0 ]; then set -x; fi\nset -eu\nset -o pipefail\n"
)

WRONG = {
    "source-repository-x": ("git x", {"source-repository": None}),
    "static/x": (HEAD, {"executable": None}),
    "install.d/10-indent!": (f"{HEAD}if true; then\n  true\n  true\nfi\n", {"indent": 6}),
    "install.d/11-env!": ("#!/usr/bin/env bash\n", {"interpreter": 1}),
    "install.d/12-none!": (
        "#!/bin/bash\n",
        {"sete": None, "setu": None, "setpipefail": None, "dibdebugtrace": None},
    ),
    "environment.d/10-x.bash": ("# why\nset -x\n", {"environment-trace": 2}),
    "environment.d/11-x.bash!": ("export X=1\n", {"environment-mode": None}),
    "install.d/13-export!": (f"{HEAD}export X=$(id)\n", {"export": 5}),
    "cleanup.d/14-sudo!": (f"{HEAD}true && sudo rm /x\n", {"safe_sudo": 5}),
    "install.d/15-which!": (f"{HEAD}X=$(which id)\nwhich ls\n", {"which": 5}),
    "bin/tab!": (f"{HEAD}\ttrue\n", {"tabindent": 5}),
    "bin/no-end!": (f"{HEAD}true", {"newline": None}),
    "static/page.md": ("# x\n", {"mddocs": None}),
    "static/page2.md": ("# x\n", {"mddocs": None}),
    "static/x.yaml": ("x: [\n", {"yaml": None}),
}
"""A file, its text, and the rules and lines that it breaks."""

RIGHT = {
    "README": "a page\nwhich in turn says something\n",
    "install.d/20-prose!": f'{HEAD}echo "a file, which is there"  # which that\n',
    "install.d/21-short!": (
        "#!/bin/bash\nset -euo pipefail\n[ ${DIB_DEBUG_TRACE:-0} = 0 ] || set -x\n"
    ),
    "install.d/22-sum!": f'{HEAD}export X="$((1 + 1))"\n',
    "environment.d/20-x.bash": "#!/bin/bash\nexport X=1\n",
    "os-refresh-config/configure.d/20-guest!": "#!/bin/bash\nset -eu\nset -o pipefail\n",
    "static/two.yaml": "x: 1\n---\ny: 2\n",
    "static/sudo!": f'{HEAD}echo "needs sudo "\n',
}
"""Files that dib-lint has something against, wrongly, and does not have to."""


def write(element: Path, name: str, text: str) -> None:
    path = element / name.rstrip("!")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755 if name.endswith("!") else 0o644)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[LintFinding]:
    """What is left of one run over all of them."""
    elements = tmp_path_factory.mktemp("dib") / "elements"
    for name, (text, _) in WRONG.items():
        write(elements / "wrong", name, text)
    for name, text in RIGHT.items():
        write(elements / "right", name, text)
    write(elements / "right", "README.rst", "right\n")
    write(elements / "__pycache__", "x.pyc", "which is\n")
    listed, not_run = dib_lint_findings(Collection(elements), Programs.of(os.environ))
    assert not_run == []
    return listed


def rules_of(findings: list[LintFinding], name: str) -> Iterator[tuple[str, int | None]]:
    for each in findings:
        if str(each.file).endswith(f"/wrong/{name.rstrip('!')}"):
            yield each.rule.removeprefix("dib-lint/"), each.line


@pytest.mark.parametrize("name", WRONG)
def test_each_message_is_read(findings: list[LintFinding], name: str):
    # Each line with "which" counts.
    expected = [*WRONG[name][1].items(), *([("which", 6)] if "which" in name else [])]
    assert sorted(rules_of(findings, name), key=str) == sorted(expected, key=str)


def test_no_rule_is_without_a_case(findings: list[LintFinding]):
    tried = {word for _, words in WRONG.values() for word in words}
    assert {rule.word for rule in RULES} == {"order", *tried}
    assert all(each.reason and each.mend for each in findings)


def test_where_it_is_wrong_there_is_no_finding(findings: list[LintFinding]):
    right = [each for each in findings if "/wrong" not in str(each.file)]
    assert right == []


def test_a_missing_page_is_one_of_the_element(findings: list[LintFinding]):
    (finding,) = (each for each in findings if each.rule == "dib-lint/readme")
    assert finding.file.name == "wrong"


@pytest.mark.parametrize(
    ("text", "rules"), [("# none\n", {"stopped"}), ("vm\nbase\n", {"order", "stopped"})]
)
def test_a_file_at_which_dib_lint_stops(tmp_path: Path, text: str, rules: set[str]):
    """It has ``set -e``, and what it compares the names with ends with 1."""
    write(tmp_path / "a", "README.rst", "a\n")
    write(tmp_path / "a", "element-deps", text)
    listed, _ = dib_lint_findings(Collection(tmp_path), Programs.of(os.environ))
    assert {each.rule for each in listed} == {f"dib-lint/{rule}" for rule in rules}
    assert {each.file.name for each in listed} == {"element-deps"}


def test_what_a_plug_in_of_flake8_says_is_left_out(tmp_path: Path):
    """neutron-lib's, "N534: Untranslated exception message", has a colon."""
    write(tmp_path / "a", "README.rst", "a\n")
    write(tmp_path / "a", "bin/x!", '#!/usr/bin/env python3\nraise ValueError("a word")\n')
    full = Programs.of(os.environ)
    flake8 = full.find("flake8")
    assert flake8
    printed = full.run([flake8, tmp_path / "a" / "bin" / "x"], cwd=tmp_path).stdout
    assert ": N534: " in printed
    assert dib_lint_findings(Collection(tmp_path), full) == ([], [])


def test_where_it_stops_it_stops_for_one_element(tmp_path: Path):
    for name in "abc":
        write(tmp_path / name, "README.rst", "a page\n")
        write(tmp_path / name, "element-deps", "vm\nbase\n")
        write(tmp_path / name, "bin/x!", "#!/usr/bin/env bash\n")
    listed, not_run = dib_lint_findings(Collection(tmp_path), Programs.of(os.environ))
    stopped = [each.file.parent.name for each in listed if each.rule == "dib-lint/stopped"]
    assert (sorted(stopped), not_run) == (["a", "b", "c"], [])


def test_an_element_of_which_it_reads_no_file(tmp_path: Path):
    """It stops there by itself: "exclusions: unbound variable"."""
    write(tmp_path / "a", "README.rst", "a\n")
    assert dib_lint_findings(Collection(tmp_path), Programs.of(os.environ)) == ([], [])


def test_what_git_ignores_is_not_held_to_the_settings_of_the_checkout(tmp_path: Path):
    """W504 is off unless a project asks for it, as this one's tox.ini does."""
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    (tmp_path / ".gitignore").write_text("/venv\n")
    (tmp_path / "tox.ini").write_text("[flake8]\nselect = W\n[dib-lint]\nignore = tabindent\n")
    rules = []
    for name in ("venv", "mine"):
        write(tmp_path / name / "a", "README.rst", "a\n")
        write(tmp_path / name / "a", "bin/x!", "#!/usr/bin/env python3\nprint(1 +\n      1)\n")
        write(tmp_path / name / "a", "bin/y!", f"{HEAD}\ttrue\n")
        listed, _ = dib_lint_findings(Collection(tmp_path / name), Programs.of(os.environ))
        rules.append(sorted(each.rule for each in listed))
    assert rules == [["dib-lint/tabindent"], ["flake8/W504"]]


def test_a_collection_that_git_ignores_is_looked_at(tmp_path: Path):
    """One that is installed below a checkout is; a single file that git ignores is not."""
    subprocess.run(["git", "-C", tmp_path, "init", "-q"], check=True)
    (tmp_path / ".gitignore").write_text("/venv\nleft-*\n")
    rules = []
    for name in ("venv", "mine"):
        write(tmp_path / name / "a", "README.rst", "a\n")
        write(tmp_path / name / "a", "bin/x!", "#!/usr/bin/env bash\n")
        write(tmp_path / name / "a", "bin/left-x!", "#!/usr/bin/env bash\n")
        listed, not_run = dib_lint_findings(Collection(tmp_path / name), Programs.of(os.environ))
        assert not_run == []
        rules.append(sorted(each.file.name for each in listed))
    assert rules == [["left-x", "x"], ["x"]]


def refusal(elements: Path, programs: Programs) -> NotRun:
    listed, (not_run,) = dib_lint_findings(Collection(elements), programs)
    assert listed == []
    return not_run


def test_it_is_said_when_it_is_not_run(tmp_path: Path):
    missing = Programs(path=str(tmp_path), home="/")
    assert "is not installed" in refusal(tmp_path, missing).reason
    blank = tmp_path / "two words"
    blank.mkdir()
    assert "without blanks" in refusal(blank, Programs.of(os.environ)).reason


BESIDE = (
    *("dib-lint", "python", "git", "file", "find", "head", "tail", "grep", "sed", "sort", "diff"),
    *("mktemp", "rm", "dirname"),
)
"""Programs that dib-lint runs, beside flake8."""


@pytest.fixture
def without_flake8(tmp_path: Path) -> Programs:
    """All of the programs that dib-lint runs but one."""
    full = Programs.of(os.environ)
    for name in BESIDE:
        program = full.find(name)
        if program is None:
            pytest.skip(f'"{name}" is not on this host')
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "basename", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    return Programs(path=str(tmp_path), home="/")


def test_python_is_not_looked_at_without_flake8(tmp_path: Path, without_flake8: Programs):
    elements = tmp_path / "elements"
    write(elements / "a", "README.rst", "a\n")
    write(elements / "a", "bin/x!", "#!/usr/bin/env python3\nimport os\n")
    assert "pip install flake8" in refusal(elements, without_flake8).reason
    listed, _ = dib_lint_findings(Collection(elements), Programs.of(os.environ))
    assert [(each.rule, each.line) for each in listed] == [("flake8/F401", 2)]
