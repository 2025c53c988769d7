"""shellcheck over elements: its findings, and files that it cannot parse."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hotplate.lint.collection import Collection
from hotplate.lint.finding import LintFinding, NotRun
from hotplate.lint.shellcheck import shellcheck_findings

needed = pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason='"shellcheck" is not on this host'
)


def look(
    elements: Path, files: dict[str, str], severity: str = "error"
) -> tuple[list[LintFinding], list[NotRun]]:
    for name, text in files.items():
        path = elements / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return shellcheck_findings(Collection(elements), os.environ, severity=severity)


@needed
def test_defect_is_a_finding_at_its_line(tmp_path: Path):
    (finding,), _ = look(tmp_path, {"install.d/50-x": "#!/bin/bash\nset -e\nls $@\n"})
    assert (finding.file.name, finding.line, finding.rule) == ("50-x", 3, "shellcheck/SC2068")
    assert "disable=SC2068" in finding.mend


@needed
def test_matter_of_taste_is_a_finding_on_request(tmp_path: Path):
    files = {"install.d/50-x": "#!/bin/sh\nexport X=$(id)\necho $X\n"}
    assert look(tmp_path, files) == ([], [])
    rules = {each.rule for each in look(tmp_path, files, "info")[0]}
    assert {"shellcheck/SC2155", "shellcheck/SC2086"} <= rules


@needed
def test_environment_file_is_bash(tmp_path: Path):
    (finding,), _ = look(tmp_path, {"environment.d/10-x.bash": "export X=1\necho $@\n"})
    assert finding.rule == "shellcheck/SC2068"


@needed
def test_parser_error_is_no_finding_when_bash_accepts_the_file(tmp_path: Path):
    """Seven of diskimage-builder's own scripts are such files."""
    text = "#!/bin/bash\neval declare -A x=($(cat /x))\necho ${x[*]}\n"
    findings, (unread,) = look(tmp_path, {"root.d/50-x": text})
    assert (findings, unread.reason) == ([], "it cannot read line 2")


@needed
def test_parser_error_is_a_finding_when_bash_rejects_the_file(tmp_path: Path):
    findings, not_run = look(tmp_path, {"root.d/50-x": "#!/bin/bash\nif true; then\n"})
    assert (bool(findings), not_run) == (True, [])
    assert all(each.rule.startswith("shellcheck/SC1") for each in findings)


@needed
def test_programs_of_other_interpreters_are_skipped(tmp_path: Path):
    assert look(tmp_path, {"bin/x": "#!/usr/bin/python3\nls $@\n", "y": "ls $@\n"}) == ([], [])


def test_missing_shellcheck_is_reported(tmp_path: Path):
    environ = {"PATH": str(tmp_path)}
    _, (not_run,) = shellcheck_findings(Collection(tmp_path), environ, severity="error")
    assert (not_run.lint, "apt-get install" in not_run.reason) == ("shellcheck", True)
