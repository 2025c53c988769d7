"""All lints over some elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.image.plan import dib_elements_dir
from hotplate.lint.collection import Collection
from hotplate.lint.elements import element_findings
from hotplate.lint.finding import LintFinding, LintResult, NotRun
from hotplate.lint.hooks import hook_findings
from hotplate.lint.shellcheck import shellcheck_findings
from hotplate.paths import elements_dir, hooks_dir

LINTS = ("element", "shellcheck")
"""The lints that only read; the contract lint is separate, as it runs hooks."""


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
        beside = tuple(each for each in others if each != path and each.is_dir())
        each = Collection.at(path, hooks=None, others=beside)
        each.hooks = task.hooks_directory or _hooks_beside(each.directory)
        collections.append(each)
    return collections


def _hooks_beside(elements: Path) -> Path:
    beside = elements.parent / "hooks"
    return beside if beside.is_dir() else hooks_dir()


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
