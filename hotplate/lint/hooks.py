"""Contract check of the hooks of elements, which runs them on this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.hookkit.check import check
from hotplate.hookkit.contract_file import contract_file
from hotplate.hookkit.trials import CheckTask
from hotplate.lint.collection import Collection, uncommented
from hotplate.lint.finding import LintFinding, NotRun


def hook_findings(
    collection: Collection, environ: Mapping[str, str]
) -> tuple[list[LintFinding], list[NotRun]]:
    """Run each hook in each situation of the contract; return its failures.

    :param environ: source of PATH and of the settings of hooks.
    """
    findings: list[LintFinding] = []
    not_run: list[NotRun] = []
    for group, hook in hooks_of(collection):
        try:
            findings += _findings(group, hook, environ)
        except (UsageError, HostError) as error:
            hint = f"; {error.hint}" if error.hint else ""
            not_run.append(NotRun(f'the contract of "{hook.name}"', f"{error.message}{hint}"))
    return findings, not_run


def hooks_of(collection: Collection) -> Iterator[tuple[str, Path]]:
    """Yield the group and the file of each hook."""
    for element in collection.elements:
        file = element / "heat-config-hooks"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for given in (uncommented(line).split() for line in lines):
            if collection.hooks and len(given) == 2 and given[0] not in ("bin", "lib"):
                hook = collection.hooks / given[1]
                if hook.is_file():
                    yield given[0], hook


def _findings(group: str, hook: Path, environ: Mapping[str, str]) -> Iterator[LintFinding]:
    results = check(CheckTask(hook, group, contract_file(hook, group), environ))
    for each in results:
        for fault in each.faults:
            mend = fault.mend or each.line.mend
            yield LintFinding(hook, f"contract/{each.line.name}", fault.reason, mend)
