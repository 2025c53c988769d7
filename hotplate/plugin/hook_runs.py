"""Run a hook in its own unit tests as an image's runner would, and check its answer."""

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
    """The answer of a hook as Heat would get it, and its other results.

    :param status: ``deploy_status_code``.
    :param stdout: ``deploy_stdout``.
    :param stderr: ``deploy_stderr``.
    :param outputs: the declared outputs that it returned, by name.
    :param log: the hook's own messages on stderr.
    :param problems: the faults of the answer, a sentence each; a declared output that was not
        returned is one of them.
    """

    status: int
    stdout: str
    stderr: str
    outputs: Mapping[str, Any]
    log: str
    problems: Sequence[str]

    @property
    def complete(self) -> bool:
        """Return True when the deployment would be COMPLETE."""
        return self.status == 0


class HookRuns:
    """The fixture ``run_hook``: calling it runs a hook and returns a :class:`HookAnswer`.

    All runs of a test share their directories, so that an UPDATE finds the files of CREATE.

    :param scratch: where hooks work, see :func:`hotplate.hookkit.run.scratch_directory`.
    :param root: the base of hooks' relative paths.
    :param environ: the source of PATH and of the hooks' settings.
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
        :param config: the config as in a template.
        :param check: fail the test when the hook's answer is faulty; without it the faults are in
            ``problems``.  A failed tool is no fault of the answer: see ``status``.
        :param deployment: ``inputs`` and ``options`` (by name), ``outputs`` (names), ``action``,
            ``group``, ``key`` (the deployment's id), ``timeout`` (seconds).
        """
        # Changes on the host are not looked for: a unit test checks them itself.
        task = run.HookTask(
            self._root / hook, config, environ=self._environ, roots=(), **deployment
        )
        run.check_task(task)
        with run.RunningHook(task, self._scratch) as running:
            report = running.report()
        problems = [str(each) for each in findings(task, report)]
        if check and problems:
            # No traceback: it would have lines of the plug-in, and none of the hook.
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
        """Return the environment of the runner, and so of a hook.

        It contains only PATH, HOME, the path of the library, and the settings of hooks
        (``HEAT_*``); those for directories name some of this test's own.

        :param hook: its file; a relative path begins at pytest's root directory.
        :param group: the deployment's; by default that of the file's name.
        """
        task = run.HookTask(self._root / hook, "", group=group, environ=self._environ)
        return run.environment(task, self._scratch)


def deployment(
    config: object = "", *, group: str = "script", name: str = "", **more: Any
) -> dict[str, Any]:
    """Return a deployment as in Heat's metadata, and as a hook reads it on stdin.

    :param config: the config as in a template.
    :param name: the deployment's; any characters are allowed.
    :param more: as for :class:`HookRuns`: ``inputs``, ``options``, ``outputs``, ``action``,
        ``key`` (the id).
    """
    made = run.deployment(run.HookTask(Path(group), config, group=group, **more))
    return {**made, "name": name or made["name"]}
