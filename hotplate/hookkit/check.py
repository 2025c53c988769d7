"""Check a hook against the contract, by running it as the runner would in each situation."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.hookkit.changes import ROOTS, FileChange, Look, changes, look
from hotplate.hookkit.contract import (
    LINES,
    MENDS,
    NOT_ASKED,
    ContractFault,
    ContractLine,
    LineResult,
    LineState,
)
from hotplate.hookkit.contract_configs import ROLES, ContractFile, filled_in, has
from hotplate.hookkit.findings import FindingKind, HookFinding, findings
from hotplate.hookkit.run import (
    END_GRACE,
    HOOK_LIMIT,
    HookReport,
    HookTask,
    RunningHook,
    check_task,
    scratch_directory,
)
from hotplate.hookkit.traces import (
    command_lines_with,
    files_with,
    held_open,
    open_to_all,
    stay_behind,
)
from hotplate.paths import hooks_dir
from hotplate.text import clean_line

CHECK_ROOTS = (*ROOTS, Path("/tmp"), Path("/var/tmp"))  # noqa: S108  looked at, not used
"""The default directories in which to look for changed files."""

LARGE = 1 << 16
"""The capacity of a pipe in bytes (pipe(7)); a large answer must exceed it."""

SHORTEST_LIMIT = 2.0
LONGEST_LIMIT = 60.0
"""The shortest and the longest time limit of a hook in the test of that limit, in seconds."""

DYING = 5.0
"""Time for a process to end after the hook, in seconds."""

NOT_FOUND = 127

STRAYS = 10
"""The most files named outside of the hook's directories."""

INPUTS: Mapping[str, object] = {
    "a_string": "plain",
    "a_number": 7,
    "a_list": ["a", "b c"],
    "a_map": {"a": {"b": [False, None]}},
    "a_boolean": True,
    "an_empty_string": "",
}
UNICODE: Mapping[str, object] = {"a_text": "x 'y' \"z\" \\ $HOME\nü☃🍲"}
"""Inputs that a config returns as outputs of these names."""

_PROGRAM_SETTING = re.compile(rb"\bHEAT_[A-Z0-9_]*_CMD\b")


@dataclass(frozen=True)
class CheckTask:
    """A hook to check, with the configs and the bounds of its runs.

    :param hook: the hook's file.
    :param group: of its deployments.
    :param given: its configs.
    :param environ: the source of PATH and of the hooks' settings.
    :param timeout: seconds that one run may take.
    :param roots: the directories below which changed files are looked for.
    :param lines: the names of the lines to try besides ``answer``; empty for all.
    :param library: the directory of ``heat_config``, which runs the hook.
    """

    hook: Path
    group: str
    given: ContractFile
    environ: Mapping[str, str]
    timeout: float = 120.0
    roots: Sequence[Path] = CHECK_ROOTS
    lines: Sequence[str] = ()
    library: Path = field(default_factory=hooks_dir)

    def at(self, hook: Path) -> CheckTask:
        """Return the same for a hook at another path."""
        return replace(self, hook=hook)

    def require_config(self) -> None:
        """Check that the config exists that all tests need.

        :raises UsageError: when there is none.
        """
        if "ok" not in self.given.configs:
            raise UsageError(
                f'there is no config to try the hook of the group "{self.group}" with',
                hint=f"--config ok=FILE, or {self.hook.stem}.check.yaml beside the hook",
            )

    def wants(self, line: ContractLine) -> bool:
        """Return True for a selected line, and for the one that all others need."""
        return not self.lines or line.name in (*self.lines, "answer")


@dataclass
class _Trial:
    """One run: its task and its report."""

    role: str
    task: HookTask
    word: str
    secret: str
    report: HookReport | None = None

    @property
    def done(self) -> HookReport:
        assert self.report is not None
        return self.report

    def text(self, name: str) -> str:
        """Return one text of the answer."""
        return str(self.done.answer[name])

    def problems(self) -> Iterator[ContractFault]:
        """Yield the faults in the hook's own behaviour, not the tool's."""
        for each in self._findings():
            yield ContractFault(
                self.shown(f"with the config {self.role}: {each}"), MENDS.get(each.kind, "")
            )

    def _findings(self) -> list[HookFinding]:
        """Return the findings, except undeclared outputs, which the runner drops."""
        listed = findings(self.task, self.done)
        return [each for each in listed if each.kind is not FindingKind.OUTPUT_UNDECLARED]

    def failed(self) -> Iterator[ContractFault]:
        """Yield the faults of a run that should have succeeded."""
        yield from self.problems()
        if self.done.status and not self._findings():
            last = (self.text("deploy_stderr").strip().splitlines() or ["nothing"])[-1]
            yield ContractFault(
                self.shown(
                    f"with the config {self.role} the deployment fails with status "
                    f"{self.done.status}, and deploy_stderr ends with: {clean_line(last)[:300]}"
                )
            )

    def shown(self, sentence: str) -> str:
        """Return a sentence without the secret input."""
        return sentence.replace(self.secret, "<password>")


class ToolMissingError(HostError):
    """The tool of a group is missing, so its hook cannot be tried.

    :param words: the hook's answer without it.
    """

    def __init__(self, tool: str, group: str, words: str) -> None:
        self._missing = f'the tool "{tool}" of the group {group} is not'
        self._words = f"so its hook cannot be tried: {clean_line(words)[:300]}"
        super().__init__(
            f"{self._missing} on this host, {self._words}",
            hint=f"install {tool}, or try the hook in an image: --image IMAGE",
        )

    def in_image(self) -> str:
        """Return the sentence for a hook that is tried in an image."""
        return f"{self._missing} in the image, {self._words}"


class NotTried(Exception):
    """A line cannot be tried for this hook; the message has the reason."""


@dataclass
class _Checker:
    """Runs the hook; each line is one method that yields faults.

    :ivar trials: all runs so far.
    :ivar disclosed: places where every user could read inputs, during and after runs.
    :ivar changed: changes on this host during the first run of the hook.
    """

    task: CheckTask
    scratch: Path
    trials: list[_Trial] = field(default_factory=list)
    disclosed: dict[str, ContractFault] = field(default_factory=dict)
    changed: list[FileChange] = field(default_factory=list)

    def trial(self, role: str, *, inputs: Mapping[str, object] | None = None) -> _Trial:
        """Return a prepared run.

        :raises NotTried: without a config for it.
        """
        config = self.task.given.configs.get(role)
        if config is None:
            raise NotTried(
                f'no config "{role}", which {ROLES[role]}: --config {role}=FILE or '
                f"{self.task.hook.stem}.check.yaml"
            )
        word, secret = f"w{secrets.token_hex(6)}", f"input-{secrets.token_hex(8)}"
        values = {"word": word, "dir": str(self.scratch / "made"), "ready": str(self._fifo())}
        task = HookTask(
            self.task.hook,
            filled_in(config, values),
            group=self.task.group,
            inputs={"password": secret, **(inputs or {})},
            outputs=tuple(inputs or ()),
            options=self.task.given.options,
            timeout=self.task.timeout,
            environ=self.task.environ,
            key=str(uuid.uuid4()),
            library=self.task.library,
        )
        return _Trial(role, task, word, secret)

    def _fifo(self) -> Path:
        path = self.scratch / "ready"
        if not path.exists():
            os.mkfifo(path, 0o600)
        return path

    def run(self, trial: _Trial) -> _Trial:
        """Run the hook to its end, and look for inputs that it left."""
        with RunningHook(trial.task, self.scratch) as running:
            trial.report = running.report()
        self.trials.append(trial)
        self.look_for_inputs(trial)
        return trial

    def own_places(self) -> tuple[Path, ...]:
        """Return the directories of the hook: scratch ones, and its directory in images."""
        base = Path("/var/lib/heat-config") / f"heat-config-{self.task.group}"
        return self.scratch / "hook", self.scratch / "home", self.scratch / "made", base

    def look_for_inputs(self, trial: _Trial, changed: Sequence[FileChange] = ()) -> None:
        """Note world-readable files and command lines that contain the run's input."""
        tops = {each: each for each in self.own_places() if each != self.scratch / "made"}
        tops |= {Path(each.path): Path("/") for each in changed if not each.path.endswith("/")}
        for place, top in tops.items():
            for path in files_with(trial.secret, [place]):
                if open_to_all(path, top):
                    self._disclose(f'the file "{self._short(path)}" holds an input', trial)
        for program in command_lines_with(trial.secret, self.scratch):
            name = Path(program).name
            fault = ContractFault(
                f'an input is an argument of the program "{clean_line(name)}", which every user '
                f"sees in /proc, with the config {trial.role}",
                "hand inputs to programs on stdin, in the environment or in a private file",
            )
            self.disclosed.setdefault(fault.reason, fault)

    def _disclose(self, what: str, trial: _Trial) -> None:
        reason = f"{what}, and every user can read it, with the config {trial.role}"
        self.disclosed.setdefault(reason, ContractFault(reason.replace(trial.task.key, "<id>")))

    def _short(self, path: Path) -> str:
        if path.is_relative_to(self.scratch / "hook"):
            parts = path.relative_to(self.scratch / "hook").parts
            return clean_line("/".join((f"${parts[0].upper()}", *parts[1:])))
        return clean_line(str(path))

    def answer(self) -> Iterator[ContractFault]:
        """Try the config ok; when the hook fails here, no other line is tried."""
        trial = self.trial("ok")
        self.changed = self._changed_by(trial)
        tool = self.task.given.tool
        if trial.done.status == NOT_FOUND and tool and not self._on_path(tool):
            raise ToolMissingError(tool, self.task.group, trial.text("deploy_stderr"))
        yield from trial.failed()
        yield from self._word(trial, "deploy_stdout")

    def _on_path(self, tool: str) -> bool:
        return shutil.which(tool, path=self.task.environ.get("PATH", os.defpath)) is not None

    def _word(self, trial: _Trial, name: str) -> Iterator[ContractFault]:
        """Yield a fault when the tool's output is missing in a text of the answer."""
        if self._has_word(trial) and not self._printed(trial, name):
            yield ContractFault(
                f"what the tool printed, with the config {trial.role}, is not in {name}"
            )

    def _has_word(self, trial: _Trial) -> bool:
        return has(self.task.given.configs[trial.role], "word")

    def _printed(self, trial: _Trial, name: str) -> bool:
        return self._has_word(trial) and trial.word in trial.text(name)

    def inputs(self) -> Iterator[ContractFault]:
        """Try inputs of each type, which must be accepted and, by a config for that, passed on."""
        yield from self._arrive(INPUTS)

    def unicode(self) -> Iterator[ContractFault]:
        """Try an input that is hard to pass on."""
        yield from self._arrive(UNICODE)

    def _arrive(self, inputs: Mapping[str, object]) -> Iterator[ContractFault]:
        if "inputs" not in self.task.given.configs:
            trial = self.trial("ok")
            trial = replace(trial, task=replace(trial.task, inputs={**trial.task.inputs, **inputs}))
            yield from self.run(trial).failed()
            return
        trial = self.run(self.trial("inputs", inputs=inputs))
        yield from trial.failed()
        for name, value in inputs.items():
            answer = trial.done.answer.get(name)
            if answer is not None and not _same(value, answer):
                yield ContractFault(
                    f"the input {name}, {json.dumps(value, ensure_ascii=False)}, came back as "
                    f"{clean_line(json.dumps(answer, ensure_ascii=False))[:200]}"
                )

    def large_output(self) -> Iterator[ContractFault]:
        """Try a tool with large output."""
        trial = self.run(self.trial("large"))
        yield from trial.failed()
        if not trial.done.status and len(trial.text("deploy_stdout")) <= LARGE:
            size = len(trial.text("deploy_stdout"))
            yield ContractFault(f"of a large output {size} characters are in deploy_stdout")

    def binary_output(self) -> Iterator[ContractFault]:
        """Try a tool that prints bytes."""
        trial = self.run(self.trial("binary"))
        yield from trial.failed()
        yield from self._word(trial, "deploy_stdout")

    def failure(self) -> Iterator[ContractFault]:
        """Try a tool that fails."""
        trial = self.run(self.trial("fails"))
        yield from trial.problems()
        if not trial.done.status:
            yield ContractFault(
                "a config that fails gives deploy_status_code 0, so Heat takes it for a success"
            )
        elif self._printed(trial, "deploy_stdout") and not self._printed(trial, "deploy_stderr"):
            yield ContractFault(
                "what the tool printed, with the config fails, is in deploy_stdout, not in "
                "deploy_stderr",
                exception="words-on-stdout",
            )
        elif not trial.text("deploy_stderr").strip():
            yield ContractFault("a config that fails gives an empty deploy_stderr")
        else:
            yield from self._word(trial, "deploy_stderr")

    def missing_tool(self) -> Iterator[ContractFault]:
        """Take the tool away: from PATH, and from the settings that name it."""
        tool = self.task.given.tool
        if not tool:
            raise NotTried("no tool is named: --tool PROGRAM")
        with self.task.hook.open("rb") as stream:
            settings = _PROGRAM_SETTING.findall(stream.read(HOOK_LIMIT))
        absent = self.scratch / "absent" / tool
        environ = {**self.task.environ, "PATH": self._path_without(tool)}
        environ |= {each.decode("ascii"): str(absent) for each in settings}
        role = "without-tool" if "without-tool" in self.task.given.configs else "ok"
        trial = self.trial(role)
        trial = self.run(replace(trial, task=replace(trial.task, environ=environ)))
        yield from trial.problems()
        if not trial.done.status:
            yield ContractFault(f'without "{tool}" on PATH it gives deploy_status_code 0')
        elif tool.casefold() not in trial.text("deploy_stderr").casefold():
            yield ContractFault(f'without "{tool}" on PATH its deploy_stderr does not name it')

    def _path_without(self, tool: str) -> str:
        """Return a PATH with links to all programs but one, where a directory has that one."""
        folders = []
        for number, name in enumerate(self.task.environ.get("PATH", os.defpath).split(os.pathsep)):
            if not Path(name, tool).exists():
                folders.append(name)
                continue
            folder = self.scratch / f"path-{number}"
            folder.mkdir(exist_ok=True)
            for entry in os.scandir(name):
                if entry.name != tool and not (folder / entry.name).is_symlink():
                    (folder / entry.name).symlink_to(Path(entry.path).absolute())
            folders.append(str(folder))
        return os.pathsep.join(folders)

    def again(self) -> Iterator[ContractFault]:
        """Run one deployment twice, and an UPDATE of it."""
        trial = self.trial("ok")
        yield from self.run(trial).failed()
        for action, key in (("CREATE", trial.task.key), ("UPDATE", str(uuid.uuid4()))):
            task = replace(trial.task, action=action, key=key)
            second = self.run(replace(trial, task=task, report=None))
            for each in second.failed():
                which = "a second run of it" if action == "CREATE" else "an UPDATE after it"
                yield replace(each, reason=f"{which}: {each.reason}")

    def at_once(self) -> Iterator[ContractFault]:
        """Run two deployments side by side."""
        role = "inputs" if "inputs" in self.task.given.configs else "ok"
        pair = [
            self.trial(role, inputs={"a_string": secrets.token_hex(6)} if role == "inputs" else {})
            for _ in range(2)
        ]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self.run, pair))
        for mine, other in (pair, pair[::-1]):
            yield from mine.failed()
            seen = json.dumps(dict(mine.done.answer)) + mine.done.log
            theirs = [other.word, *(str(other.task.inputs[name]) for name in other.task.outputs)]
            if any(each in seen for each in theirs):
                yield ContractFault("the answer of one deployment has what belongs to the other")
            elif not mine.done.status:
                yield from self._word(mine, "deploy_stdout")
                wanted = {name: mine.task.inputs[name] for name in mine.task.outputs}
                for name, value in wanted.items():
                    if not _same(value, mine.done.answer.get(name)):
                        yield ContractFault(f"the output {name} of one deployment is lost")

    def time_limit(self) -> Iterator[ContractFault]:
        """Let the runner stop the hook at its time limit."""
        first = self.trials[0].done.seconds
        limit = min(LONGEST_LIMIT, max(SHORTEST_LIMIT, 2 * first))
        while True:
            trial = self.trial("slow")
            trial = replace(trial, task=replace(trial.task, timeout=limit))
            with _Ready(self._fifo()) as ready:
                self.run(trial)
                began = ready.has_come(0)
            if began or limit >= LONGEST_LIMIT:
                break
            limit = min(LONGEST_LIMIT, limit * 3)
        if trial.done.exit_status is not None:
            yield ContractFault(
                f"with the config slow it ended by itself, before {limit:.0f} seconds"
            )
            return
        if not began:
            yield _never_began(limit)
            return
        killed = trial.done.seconds >= limit + END_GRACE
        yield from self._left(trial, killed=killed)

    def interruption(self) -> Iterator[ContractFault]:
        """Interrupt the hook while its tool runs."""
        trial = self.trial("slow")
        before = self._look()
        with _Ready(self._fifo()) as ready, RunningHook(trial.task, self.scratch) as running:
            if not ready.has_come(trial.task.timeout):
                yield _never_began(trial.task.timeout)
                return
            self.look_for_inputs(trial, changes(before, self._look()))
            took = running.interrupt()
        yield from self._left(trial, killed=took >= END_GRACE)

    def _left(self, trial: _Trial, *, killed: bool) -> Iterator[ContractFault]:
        """Yield the processes, and the files with an input, that an ended hook left."""
        if killed:
            yield ContractFault(
                f"it does not end on SIGTERM, and was killed after {END_GRACE:.0f} seconds",
                exception="ignores-sigterm",
            )
        for name in stay_behind(self.scratch, DYING):
            # The runner has ended the hook's process group.
            yield ContractFault(
                f'its program "{clean_line(name)}" still runs', exception="own-session"
            )
        for path in files_with(trial.secret, self.own_places()):
            name = self._short(path).replace(trial.task.key, "<id>")
            yield ContractFault(f'the file "{name}" still holds an input')

    def log(self) -> Iterator[ContractFault]:
        """Look for the secret input in the logs and answers of all runs."""
        roles = dict.fromkeys(
            (each.role, name) for each in self.trials for name in _places_of(each)
        )
        for role, name in roles:
            yield ContractFault(f"the input password is in {name}, with the config {role}")

    def private(self) -> Iterator[ContractFault]:
        """Yield the disclosures noted during the runs."""
        yield from self.disclosed.values()

    def outside(self) -> Iterator[ContractFault]:
        """Tell the changes of the config ok from those of other programs.

        A change is the hook's when it contains a mark of the run; or when the file changes in each
        of three runs, not between them, and no other program has it open.
        """
        marks = [self.trials[0].word, self.trials[0].secret, self.trials[0].task.key]
        listed = {each.path: each for each in self.changed}
        marked = {path for path in listed if _is_marked(path, marks)}
        suspects = set(listed) - marked
        for _ in range(2):
            if not suspects:
                break
            suspects -= {each.path for each in changes(self._look(), self._look())}
            suspects &= {each.path for each in self._changed_by(self.trial("ok"))}
        suspects -= held_open(suspects, self.scratch)
        for path in sorted(marked | suspects)[:STRAYS]:
            kind, name = listed[path].kind, path.replace(self.trials[0].task.key, "<id>")
            yield ContractFault(self.trials[0].shown(f'it {kind} "{clean_line(name)}"'))

    def _look(self) -> Look:
        own = (self.scratch, self.task.library, *self.own_places(), *self.task.given.may_change)
        return look(self.task.roots, without=own)

    def _changed_by(self, trial: _Trial) -> list[FileChange]:
        """Run a trial, and return the changes on this host meanwhile."""
        before = self._look()
        self.run(trial)
        listed = changes(before, self._look())
        self.look_for_inputs(trial, listed)
        return listed


def _is_marked(path: str, marks: Sequence[str]) -> bool:
    """Return True when a file or its name contains a mark of a run."""
    return any(
        mark in path or any(files_with(mark, [Path(path)] if path[-1] != "/" else []))
        for mark in marks
    )


def _never_began(seconds: float) -> ContractFault:
    return ContractFault(
        f"the config slow wrote nothing to its FIFO within {seconds:.0f} seconds",
        "have the config write a line to @ready@ once the tool runs; on a busy host, try again",
    )


def _places_of(trial: _Trial) -> Iterator[str]:
    """Yield the places in which the secret input of a run was printed."""
    if trial.secret in trial.done.log:
        yield "its log (its stderr)"
    for name, value in trial.done.answer.items():
        if trial.secret in json.dumps(value):
            yield clean_line(name)


class _Ready:
    """A FIFO to which a config writes when its tool runs; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Ready:
        self._reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)

    def has_come(self, seconds: float) -> bool:
        """Wait until something is written; return True when it was."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        end = time.monotonic() + seconds
        while True:
            for _, event in poll.poll(max(0.0, end - time.monotonic()) * 1000):
                if event & select.POLLIN:
                    return True
            if time.monotonic() >= end:
                return False


def _same(value: object, answer: object) -> bool:
    """Return True when an output equals an input's value: as it is, as text, or as JSON text."""
    if answer == value:
        return True
    if not isinstance(answer, str):
        return False
    text = answer.removesuffix("\n")
    if isinstance(value, str):
        return text == value.removesuffix("\n")
    try:
        return bool(json.loads(text.lower() if isinstance(value, bool) else text) == value)
    except ValueError:
        return False


TRIED_LAST = ("log", "private", "outside")
"""The lines that need all runs."""


def check(
    task: CheckTask, *, on_line: Callable[[ContractLine], None] = lambda _: None
) -> list[LineResult]:
    """Check a hook against the contract; return a result for each of its lines, in order.

    :param on_line: called with each line before it is tried.
    :raises UsageError: without the hook, or without a config to try it with.
    :raises HostError: when its tool is not on this host.
    """
    check_task(HookTask(task.hook, "", group=task.group, library=task.library))
    task.require_config()
    with scratch_directory() as scratch:
        (scratch / "made").mkdir()
        checker = _Checker(task, scratch)
        results: dict[str, LineResult] = {}
        for line in sorted(LINES, key=lambda each: each.name in TRIED_LAST):
            if not task.wants(line):
                results[line.name] = LineResult(line, LineState.NOT_TRIED, reason=NOT_ASKED)
                continue
            on_line(line)
            usable = not results or results["answer"].state is LineState.PASSED
            results[line.name] = _result(checker, line, usable)
        stay_behind(scratch, 0)
    return [results[line.name] for line in LINES]


def _result(checker: _Checker, line: ContractLine, usable: bool) -> LineResult:
    """Try one line.

    :param usable: False when the hook failed the first line.
    """
    reason = checker.task.given.not_tried.get(line.name, "")
    unusable = "" if usable else 'the hook fails "answer"'
    if reason or (unusable and line.name not in TRIED_LAST):
        return LineResult(line, LineState.NOT_TRIED, reason=reason or unusable)
    try:
        faults = tuple(dict.fromkeys(getattr(checker, line.name.replace("-", "_"))()))
    except NotTried as error:
        return LineResult(line, LineState.NOT_TRIED, reason=str(error))
    if unusable and not faults:
        return LineResult(line, LineState.NOT_TRIED, reason=unusable)
    given = checker.task.given.exceptions
    excepted = {each.exception: given[each.exception] for each in faults if each.exception in given}
    counted = tuple(each for each in faults if each.exception not in given)
    state = LineState.FAILED if counted else LineState.PASSED
    return LineResult(line, state, counted, excepted=excepted)
