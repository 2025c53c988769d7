"""The hooks of elements, run and checked against the contract."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from hotplate.hookkit.trials import CheckTask
from hotplate.lint import hooks
from hotplate.lint.collection import Collection
from hotplate.lint.hooks import hook_findings, hooks_of

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
    monkeypatch.setattr(hooks, "CheckTask", partial(CheckTask, roots=(tmp_path,)))
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
