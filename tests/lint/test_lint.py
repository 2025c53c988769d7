"""All lints together: what depends on what, and where programs of hooks are looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotplate.lint.finding import LintResult
from hotplate.lint.lint import LintTask, lint
from hotplate.paths import elements_dir

ROOT = Path(__file__).parents[2]


def look(*paths: Path, **more: object) -> LintResult:
    task = {"lints": ("element",)} | more
    return lint(LintTask(paths, os.environ, **task))  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_our_own_elements_are_clean():
    assert look(elements_dir()).findings == ()


def test_the_line_of_the_page_on_hooks_finds_nothing():
    """docs/writing-hooks.rst has it."""
    result = look(ROOT / "docs" / "examples" / "hook" / "elements", lints=("element", "shellcheck"))
    assert (result.findings, result.elements) == ((), 1)


def test_elements_elsewhere_may_depend_on_ours_and_use_our_programs(tmp_path: Path):
    write(tmp_path / "elements/mine/element-deps", "heat-config\nvm\n")
    write(tmp_path / "elements/mine/heat-config-hooks", "mine script.py\n")
    assert look(tmp_path / "elements").findings == ()


def test_a_mistake_in_them_is_reported_too(tmp_path: Path):
    write(tmp_path / "elements/mine/element-deps", "heat-confgi\n")
    write(tmp_path / "elements/mine/heat-config-hooks", "mine none.py\n")
    reasons = [each.reason for each in look(tmp_path / "elements" / "mine").findings]
    assert 'there is no element "heat-confgi"' in reasons
    assert any('there is no program "none.py"' in reason for reason in reasons)


def test_programs_of_hooks_are_those_beside_the_elements(tmp_path: Path):
    write(tmp_path / "elements/mine/heat-config-hooks", "mine script.py\n")
    write(tmp_path / "hooks/mine.py", "")
    assert len(look(tmp_path / "elements").findings) == 1
    assert not look(tmp_path / "elements", hooks_directory=ROOT / "hooks").findings


def test_several_may_depend_on_each_other_and_on_others(tmp_path: Path):
    one = write(tmp_path / "1/a/element-deps", "b\n").parents[1]
    two = write(tmp_path / "2/b/element-deps", "c\n").parents[1]
    three = write(tmp_path / "3/c/element-deps", "vm\n").parents[1]
    assert len(look(one, two).findings) == 1
    assert look(one, two, others=[three]) == LintResult((), (), 2)


@pytest.mark.parametrize("hooks", [False, True])
def test_hooks_are_run_only_when_it_is_asked_for(tmp_path: Path, hooks: bool):
    write(tmp_path / "elements/mine/heat-config-hooks", "mine mine.sh\n")
    hook = write(tmp_path / "hooks/mine.sh", f"#!/bin/sh\n: > {tmp_path}/ran\necho '{{}}'\n")
    hook.chmod(0o755)
    write(tmp_path / "hooks/mine.check.yaml", "configs: {ok: x}\nmay-change: [/]\n")
    result = look(tmp_path / "elements", hooks=hooks)
    assert (tmp_path / "ran").exists() is hooks
    assert bool(result.findings) is hooks
