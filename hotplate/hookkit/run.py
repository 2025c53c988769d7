"""Run a hook on this host as the runner in a guest would, and return a report."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from hotplate.errors import HostError, HotplateError, SubjectError, UsageError
from hotplate.hookkit.traces import ROOTS, FileChange, changes, look
from hotplate.paths import hooks_dir

#: Time for the runner to end a hook that took too long, and to report that, in seconds.
GRACE = 20.0

#: The exit status of ``guest_runner.py`` when the disk is full.
FULL = 3

#: Seconds from SIGTERM to SIGKILL for an interrupted hook; the runner's ``kill_after``.
END_GRACE = 10.0

#: The bytes at the start of a hook that are searched for the names of its settings.
HOOK_LIMIT = 4 << 20

_DIRECTORY_SETTING = re.compile(rb"\b(?:HEAT|SALT)_[A-Z0-9_]*_(?:WORKING|OUTPUTS|[A-Z]*DIR)\b")
_GROUP = re.compile(r"[0-9A-Za-z_-]+")


@dataclass(frozen=True)
class HookTask:
    """A hook and its deployment.

    :param hook: the hook's file.
    :param config: the config as in a template, of any JSON type.
    :param group: that of the deployment; by default the name of the file without its suffix, with
        ``-`` for ``_``, as elements name them.
    :param inputs: by name; the type of each is Heat's type for such a value.
    :param outputs: the declared outputs.
    :param options: of the config, by name.
    :param action: Heat's.
    :param key: the deployment's id; by default a new one each time.
    :param timeout: seconds that the hook may take, unless its option ``timeout`` differs.
    :param environ: the source of PATH and of the hooks' settings.
    :param roots: the directories below which to look for changed files.
    :param library: the directory of ``heat_config``, which runs the hook.
    """

    hook: Path
    config: object
    group: str = ""
    inputs: Mapping[str, object] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    action: str = "CREATE"
    key: str = ""
    timeout: float = 300.0
    environ: Mapping[str, str] = field(default_factory=dict)
    roots: Sequence[Path] = ROOTS
    library: Path = field(default_factory=hooks_dir)

    @property
    def group_name(self) -> str:
        """Return the group, as given or by the name of the file."""
        return self.group or self.hook.stem.replace("_", "-")


@dataclass(frozen=True)
class HookReport:
    """The result of a hook's run.

    :param answer: as Heat would get it: ``deploy_stdout``, ``deploy_stderr``,
        ``deploy_status_code`` and the declared outputs.
    :param names: the keys of the hook's own answer; None when it gave none.
    :param problem: the fault of its stdout, see
        :func:`hotplate.hookkit.guest_runner.reading`; empty when there is none.
    :param line: the line of its stdout concerned, from 1.
    :param text: that line.
    :param started: False when it could not be started.
    :param exit_status: the hook's own, 128 + n when signal n ended it; None when it did not run or
        was stopped because it took too long.
    :param left_running: True when something in its process group outlived it.
    :param log: its stderr.
    :param seconds: how long it took.
    :param changed: changes on the host outside the hook's own directories.
    :param whole: False when not all of the roots could be searched for changes.
    """

    answer: Mapping[str, Any]
    names: Sequence[str] | None
    problem: str
    line: int
    text: str
    started: bool
    exit_status: int | None
    left_running: bool
    log: str
    seconds: float
    changed: Sequence[FileChange] = ()
    whole: bool = True

    @property
    def status(self) -> int:
        """Return the status by which Heat decides whether the deployment failed."""
        return int(self.answer["deploy_status_code"])


def run_hook(task: HookTask) -> HookReport:
    """Run a hook to its end.

    :raises UsageError: when its file does not exist, or its group cannot be one.
    :raises SubjectError: when the runner could not end it in time.
    """
    check_task(task)
    with scratch_directory() as scratch:
        own = (scratch, task.library)
        before = look(task.roots, without=own)
        with RunningHook(task, scratch) as running:
            report = running.report()
        after = look(task.roots, without=own)
    return replace(report, changed=changes(before, after), whole=before.whole and after.whole)


def check_task(task: HookTask) -> None:
    """Check a task before its hook is run.

    :raises UsageError: when its file does not exist, or its group cannot be one.
    """
    if not task.hook.is_file():
        raise UsageError(f'the hook "{task.hook}" does not exist or is not a file')
    if not _GROUP.fullmatch(task.group_name):
        raise UsageError(
            f'the group "{task.group_name}" can have no hook; expected letters, digits, - and _',
            hint="--group NAME",
        )


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a private directory for runs of a hook, and remove it at the end."""
    # A process that the hook has left may still be writing there.
    with tempfile.TemporaryDirectory(prefix="hotplate-hook-", ignore_cleanup_errors=True) as name:
        # mkdtemp may return a relative path from TMPDIR; hooks get absolute ones.
        scratch = Path(name).resolve()
        for each in ("home", "hook"):
            (scratch / each).mkdir(mode=0o700)
        yield scratch


def heat_type(value: object) -> str:
    """Return the type of an input with such a value (heat/engine/software_config_io.py).

    >>> heat_type(True), heat_type(7), heat_type([1]), heat_type({}), heat_type(None)
    ('Boolean', 'Number', 'Json', 'Json', 'String')
    """
    # bool before int, of which it is a subclass.
    kinds = (bool, "Boolean"), (int | float, "Number"), (list | dict, "Json")
    return next((name for kind, name in kinds if isinstance(value, kind)), "String")


def deployment(task: HookTask) -> dict[str, Any]:
    """Return the deployment in the format of Heat's metadata.

    Inputs that Heat derives are included, except those of a signal, for which nobody waits.
    """
    derived = {
        "deploy_server_id": str(uuid.uuid4()),
        "deploy_action": task.action,
        "deploy_stack_id": f"stack/{uuid.uuid4()}",
        "deploy_resource_name": "deployment",
        "deploy_signal_transport": "NO_SIGNAL",
    }
    inputs = {**derived, **task.inputs}
    return {
        "id": task.key or str(uuid.uuid4()),
        "name": "hotplate-hook-run",
        "group": task.group_name,
        "config": task.config,
        "inputs": [
            {"name": name, "type": heat_type(value), "value": value}
            for name, value in inputs.items()
        ],
        "outputs": [
            {"name": name, "type": "String", "error_output": False} for name in task.outputs
        ],
        "options": dict(task.options),
        "creation_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def environment(task: HookTask, scratch: Path) -> dict[str, str]:
    """Return the environment of the runner, and so of the hook.

    The settings of hooks (``HEAT_*``, ``SALT_*``) are those of the task. Each directory setting
    named in the hook's text, and those usual for its group, point below a scratch directory unless
    the task sets them.
    """
    with task.hook.open("rb") as stream:
        text = stream.read(HOOK_LIMIT)
    prefix = "HEAT_" + task.group_name.upper().replace("-", "_")
    names = {each.decode("ascii") for each in _DIRECTORY_SETTING.findall(text)}
    names |= {f"{prefix}_WORKING", f"{prefix}_OUTPUTS"}
    # Not HEAT_CONFIG_...: these belong to the runner, which has directories of its own here.
    given = {
        name: value
        for name, value in task.environ.items()
        if name.startswith(("HEAT_", "SALT_")) and not name.startswith("HEAT_CONFIG_")
    }
    return {
        "PATH": task.environ.get("PATH", os.defpath),
        "HOME": str(scratch / "home"),
        # Below the scratch directory, unless the task has a value.
        **{name: str(scratch / "hook" / name.lower()) for name in names},
        **given,
        "HEAT_CONFIG_LIB": str(task.library),
    }


class RunningHook:
    """A hook run by the runner; a context manager, at whose end all its processes have ended.

    :param scratch: a :func:`scratch_directory`; several runs may share one.
    """

    def __init__(self, task: HookTask, scratch: Path) -> None:
        self._task = task
        self._scratch = scratch
        self._stack = contextlib.ExitStack()
        self._request = json.dumps(
            {
                "hook": str(task.hook.absolute()),
                "deployment": deployment(task),
                "timeout": task.timeout,
                "grace": END_GRACE,
                "state": str(scratch / "state"),
                "logs": str(scratch / "logs"),
            }
        ).encode()
        self._environment = environment(task, scratch)

    def __enter__(self) -> Self:
        self._errors = self._stack.enter_context(tempfile.TemporaryFile())
        # In memory, because it contains inputs.
        request = self._stack.enter_context(os.fdopen(os.memfd_create("request"), "w+b"))
        request.write(self._request)
        request.seek(0)
        self._child = subprocess.Popen(
            # -I and -S: only the standard library, as in an image.
            [sys.executable, "-IS", Path(__file__).with_name("guest_runner.py")],
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment,
            # A terminal's interrupt goes to this process only, which ends the hook and its
            # children.
            start_new_session=True,
        )
        self._stack.callback(self._close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def report(self) -> HookReport:
        """Wait for the end of the run, and return the report.

        :raises SubjectError: when the runner could not end it in time.
        :raises HostError: when the disk is full.
        """
        timeout = self._task.timeout + GRACE if self._task.timeout else None
        try:
            report, _ = self._child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise SubjectError(
                f'the hook "{self._task.hook}" was ended: its own option timeout is longer than '
                f"{self._task.timeout:g} seconds",
                hint="--timeout SECONDS",
            ) from None
        if self._child.returncode == FULL:
            raise HostError(
                f'there is no space left on the disk of "{self._scratch}"',
                hint="another place for temporary files: TMPDIR=DIR; "
                f"df -h {shlex.quote(str(self._scratch.parent))}",
            )
        if self._child.returncode:
            raise HotplateError(
                f"the runner ended with exit status {self._child.returncode}: "
                f"{_last_line(self._errors)}"
            )
        facts: dict[str, Any] = json.loads(report)
        return HookReport(**facts)

    def interrupt(self) -> float:
        """Let the runner end the hook by SIGTERM, as in a guest that is shut down.

        :return: the time taken, in seconds; :data:`END_GRACE` when the hook had to be killed.
        """
        begin = time.monotonic()
        self._end()
        return time.monotonic() - begin

    def _close(self) -> None:
        self._end()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _end(self) -> None:
        """End the runner, which ends its hook first; ignore interrupts meanwhile."""
        if self._child.poll() is not None:
            return
        self._child.terminate()
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            try:
                self._child.wait(end - time.monotonic())
                break
            # A second Ctrl-C must not leave the hook running.
            except KeyboardInterrupt:
                continue
            except subprocess.TimeoutExpired:
                break
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()


def _last_line(errors: Any) -> str:
    """Return the end of the runner's own output; the type of an error, not its message."""
    errors.seek(0)
    lines = errors.read(1 << 20).decode("utf-8", "replace").strip().splitlines() or [""]
    # The message may have the value of an input.
    return str(lines[-1].partition(":")[0])
