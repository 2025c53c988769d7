"""All lints together: dependencies, directories of programs, and hooks held to the contract."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from hotplate.hookkit.trials import CheckTask
from hotplate.lint import lint as lint_module
from hotplate.lint.collection import Collection
from hotplate.lint.finding import LintResult
from hotplate.lint.lint import LintTask, hook_findings, hooks_of, lint
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


def test_hook_of_the_documentation_has_no_findings():
    """It is the example of docs/writing-hooks.rst."""
    result = look(ROOT / "docs" / "examples" / "hook" / "elements", lints=("element", "shellcheck"))
    assert (result.findings, result.elements) == ((), 1)


def test_other_collection_may_use_our_elements_and_programs(tmp_path: Path):
    write(tmp_path / "elements/mine/element-deps", "heat-config\nvm\n")
    write(tmp_path / "elements/mine/heat-config-hooks", "mine script.py\n")
    assert look(tmp_path / "elements").findings == ()


def test_mistake_in_another_collection_is_reported(tmp_path: Path):
    write(tmp_path / "elements/mine/element-deps", "heat-confgi\n")
    write(tmp_path / "elements/mine/heat-config-hooks", "mine none.py\n")
    reasons = [each.reason for each in look(tmp_path / "elements" / "mine").findings]
    assert 'there is no element "heat-confgi"' in reasons
    assert any('there is no program "none.py"' in reason for reason in reasons)


def test_hook_programs_are_those_beside_the_elements(tmp_path: Path):
    write(tmp_path / "elements/mine/heat-config-hooks", "mine script.py\n")
    write(tmp_path / "hooks/mine.py", "")
    assert len(look(tmp_path / "elements").findings) == 1
    assert not look(tmp_path / "elements", hooks_directory=ROOT / "hooks").findings


def test_collections_may_depend_on_each_other_and_on_others(tmp_path: Path):
    one = write(tmp_path / "1/a/element-deps", "b\n").parents[1]
    two = write(tmp_path / "2/b/element-deps", "c\n").parents[1]
    three = write(tmp_path / "3/c/element-deps", "vm\n").parents[1]
    assert len(look(one, two).findings) == 1
    assert look(one, two, others=[three]) == LintResult((), (), 2)


@pytest.mark.parametrize("hooks", [False, True])
def test_hooks_are_run_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooks: bool
):
    # The other directories of this host are large, and take seconds to look at.
    monkeypatch.setattr(lint_module, "CheckTask", partial(CheckTask, roots=(tmp_path / "none",)))
    write(tmp_path / "elements/mine/heat-config-hooks", "mine mine.sh\n")
    hook = write(tmp_path / "hooks/mine.sh", f"#!/bin/sh\n: > {tmp_path}/ran\necho '{{}}'\n")
    hook.chmod(0o755)
    write(tmp_path / "hooks/mine.check.yaml", "configs: {ok: x}\n")
    result = look(tmp_path / "elements", hooks=hooks)
    assert (tmp_path / "ran").exists() is hooks
    assert bool(result.findings) is hooks


HOOK = """#!/bin/sh
echo '{"deploy_status_code": 0}'
echo a line behind it
"""


def collection(root: Path, hook: str) -> Collection:
    element = root / "elements" / "mine"
    element.mkdir(parents=True)
    (element / "heat-config-hooks").write_text("lib lib\nmine mine.sh  # its hook\nno no.sh\n")
    (root / "hooks").mkdir()
    (root / "hooks" / "mine.sh").write_text(hook)
    (root / "hooks" / "mine.sh").chmod(0o755)
    return Collection(root / "elements", hooks=root / "hooks")


def test_only_existing_hooks_with_a_group_are_listed(tmp_path: Path):
    assert [*hooks_of(collection(tmp_path, HOOK))] == [("mine", tmp_path / "hooks" / "mine.sh")]


def test_broken_contract_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # The other directories of this host are large, and take seconds to look at.
    monkeypatch.setattr(lint_module, "CheckTask", partial(CheckTask, roots=(tmp_path,)))
    given = collection(tmp_path, HOOK)
    contract = "configs: {ok: '@word@'}\n"
    (tmp_path / "hooks" / "mine.check.yaml").write_text(contract)
    findings, not_run = hook_findings(given, os.environ)
    assert not_run == []
    assert {each.rule for each in findings} == {"contract/answer"}
    assert all(each.file.name == "mine.sh" and each.mend for each in findings)


def test_hook_without_a_contract_is_not_run(tmp_path: Path):
    findings, (not_run,) = hook_findings(collection(tmp_path, HOOK), os.environ)
    assert findings == []
    assert not_run.lint == 'the contract of "mine.sh"'
    assert "mine.check.yaml" in not_run.reason
