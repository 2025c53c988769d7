"""All lints over some elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.hookkit.check import check
from hotplate.hookkit.contract_file import contract_file
from hotplate.hookkit.trials import CheckTask
from hotplate.image.plan import dib_elements_dir
from hotplate.lint.collection import Collection, uncommented
from hotplate.lint.elements import element_findings
from hotplate.lint.finding import LintFinding, LintResult, NotRun
from hotplate.lint.shellcheck import shellcheck_findings
from hotplate.paths import elements_dir, hooks_dir

#: The lints that only read; the contract lint is separate, as it runs hooks.
LINTS = ("element", "shellcheck")


@dataclass(frozen=True)
class LintTask:
    """Targets and options of a lint.

    :param paths: elements, and directories of elements.
    :param environ: source of PATH, HOME and the settings of hooks.
    :param lints: some of :data:`LINTS`.
    :param severity: the least severity of shellcheck's findings that counts.
    :param hooks: whether the hooks are run and checked against the contract.
    :param hooks_directory: directory of the programs named by ``heat-config-hooks``; by default
        ``hooks`` beside a directory of elements, else hotplate's own.
    :param others: directories of possible dependencies, in addition to the elements themselves,
        hotplate's and diskimage-builder's.
    """

    paths: Sequence[Path]
    environ: Mapping[str, str]
    lints: Sequence[str] = LINTS
    severity: str = "error"
    hooks: bool = False
    hooks_directory: Path | None = None
    others: Sequence[Path] = ()


def lint(task: LintTask, *, on_lint: Callable[[str], None] = lambda _: None) -> LintResult:
    """Run all lints; return their findings.

    :param on_lint: called with the name of each lint before it begins.
    :raises UsageError: when a path has no elements.
    :raises HostError: when a program takes too long, or gives no answer.
    """
    collections = _collections(task)
    # The named paths may overlap; each finding counts once.
    findings: set[LintFinding] = set()
    not_run: list[NotRun] = []
    for collection in collections:
        for name, run in _lints(task, collection).items():
            on_lint(f"{name}: {collection.path}")
            listed, left_out = run()
            findings.update(listed)
            not_run += left_out
    return LintResult(
        tuple(sorted(findings, key=lambda each: each.place)),
        tuple(dict.fromkeys(not_run)),
        sum(len(each.elements) for each in collections),
    )


def _collections(task: LintTask) -> list[Collection]:
    """Return the requested collections; the elements of each may depend on those of the others."""
    given = [each.resolve() for each in task.paths]
    others = (*given, *task.others, elements_dir(), dib_elements_dir())
    collections = []
    for path in given:
        # Besides those of the collection itself, which it looks up anyway.
        beside = tuple(each for each in others if each != path and each.is_dir())
        each = Collection.at(path, hooks=None, others=beside)
        hooks = task.hooks_directory or each.directory.parent / "hooks"
        each.hooks = hooks if task.hooks_directory or hooks.is_dir() else hooks_dir()
        collections.append(each)
    return collections


Answer = tuple[list[LintFinding], list[NotRun]]


def _lints(task: LintTask, collection: Collection) -> dict[str, Callable[[], Answer]]:
    """Return the requested lints by name."""
    all_of_them: dict[str, Callable[[], Answer]] = {
        "element": lambda: (element_findings(collection), []),
        "shellcheck": lambda: shellcheck_findings(collection, task.environ, severity=task.severity),
    }
    chosen = {name: run for name, run in all_of_them.items() if name in task.lints}
    if task.hooks:
        chosen["contract"] = lambda: hook_findings(collection, task.environ)
    return chosen


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
            findings += _contract_findings(group, hook, environ)
        # Without the tool, or without a config, the hook is not at fault.
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


def _contract_findings(group: str, hook: Path, environ: Mapping[str, str]) -> Iterator[LintFinding]:
    results = check(CheckTask(hook, group, contract_file(hook, group), environ))
    for each in results:
        for fault in each.faults:
            mend = fault.mend or each.line.mend
            yield LintFinding(hook, f"contract/{each.line.name}", fault.reason, mend)
