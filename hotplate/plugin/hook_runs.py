"""A hook in its own unit tests: run as the runner in an image would, and its answer checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotplate.hookkit import run
from hotplate.hookkit.findings import OWN_NAMES, findings


@dataclass(frozen=True)
class HookAnswer:
    """What Heat would get of a hook, and what else it left.

    :param status: ``deploy_status_code``.
    :param stdout: ``deploy_stdout``.
    :param stderr: ``deploy_stderr``.
    :param outputs: the declared outputs that it gave, by name.
    :param log: what the hook itself wrote to stderr.
    :param problems: what is wrong with how it answered, a sentence each; an output that was
        declared and not given is among them.
    """

    status: int
    stdout: str
    stderr: str
    outputs: Mapping[str, Any]
    log: str
    problems: Sequence[str]

    @property
    def complete(self) -> bool:
        """Whether the deployment would be COMPLETE."""
        return self.status == 0


class HookRuns:
    """The fixture ``run_hook``: calling it runs a hook and returns a :class:`HookAnswer`.

    All runs of a test share their directories, so that an UPDATE finds what CREATE has left.

    :param scratch: where hooks work, see :func:`hotplate.hookkit.run.scratch_directory`.
    :param root: what relative paths of hooks begin at.
    :param environ: where PATH and settings of hooks come from.
    """

    def __init__(self, scratch: Path, root: Path, environ: Mapping[str, str]) -> None:
        self._scratch = scratch
        self._root = root
        self._environ = environ

    def __call__(
        self, hook: str | Path, config: object = "", *, check: bool = True, **deployment: Any
    ) -> HookAnswer:
        """Run a hook to its end.

        :param hook: its file; a relative path begins at pytest's root directory.
        :param config: what a template has as its config.
        :param check: fail the test when something is wrong with how the hook answered; without it
            ``problems`` has that. That a tool has failed is no such thing: see ``status``.
        :param deployment: ``inputs`` and ``options`` (by name), ``outputs`` (names), ``action``,
            ``group``, ``key`` (the deployment's id), ``timeout`` (seconds).
        """
        # Nothing is looked for on the host: a unit test has its own ways to see what was changed.
        task = run.HookTask(
            self._root / hook, config, environ=self._environ, roots=(), **deployment
        )
        run.check_task(task)
        with run.RunningHook(task, self._scratch) as running:
            report = running.report()
        problems = [str(each) for each in findings(task, report)]
        if check and problems:
            lines = [f'the hook "{task.hook}" did not answer as the runner expects:', *problems]
            pytest.fail("\n".join(lines), pytrace=False)
        return HookAnswer(
            report.status,
            str(report.answer["deploy_stdout"]),
            str(report.answer["deploy_stderr"]),
            {name: each for name, each in report.answer.items() if name not in OWN_NAMES},
            report.log,
            problems,
        )

    def environment(self, hook: str | Path, *, group: str = "") -> dict[str, str]:
        """Return the environment that the runner has, and by that a hook.

        It has no more than PATH, HOME, where the library is, and the settings of hooks
        (``HEAT_*``), of which those for directories name some of this test's own.

        :param hook: its file; a relative path begins at pytest's root directory.
        :param group: the deployment's; by default that of the file's name.
        """
        task = run.HookTask(self._root / hook, "", group=group, environ=self._environ)
        return run.environment(task, self._scratch)


def deployment(
    config: object = "", *, group: str = "script", name: str = "", **more: Any
) -> dict[str, Any]:
    """Return a deployment as Heat's metadata has it, and as a hook reads it on stdin.

    :param config: what a template has as its config.
    :param name: the deployment's, of any characters.
    :param more: as for :class:`HookRuns`: ``inputs``, ``options``, ``outputs``, ``action``,
        ``key`` (the id).
    """
    made = run.deployment(run.HookTask(Path(group), config, group=group, **more))
    return {**made, "name": name or made["name"]}
