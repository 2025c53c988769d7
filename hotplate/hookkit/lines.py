"""The trials of the contract's lines, a function for each; it yields the faults of the hook."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hotplate.hookkit.run import END_GRACE, HOOK_LIMIT, RunningHook
from hotplate.hookkit.traces import changes, files_with, held_open, stay_behind
from hotplate.hookkit.trials import (
    ContractFault,
    HookTrial,
    HookTrials,
    NotTried,
    ToolMissingError,
)
from hotplate.text import clean_line

#: The capacity of a pipe in bytes (pipe(7)); a large answer must exceed it.
LARGE = 1 << 16

MIN_LIMIT = 2.0
#: The shortest and the longest time limit of a hook in the test of that limit, in seconds.
MAX_LIMIT = 60.0

#: Time for a process to end after the hook, in seconds.
DYING = 5.0

NOT_FOUND = 127

#: The most files named outside of the hook's directories.
STRAYS = 10

INPUTS: Mapping[str, object] = {
    "a_string": "plain",
    "a_number": 7,
    "a_list": ["a", "b c"],
    "a_map": {"a": {"b": [False, None]}},
    "a_boolean": True,
    "an_empty_string": "",
}
#: Inputs that a config returns as outputs of these names.
UNICODE: Mapping[str, object] = {"a_text": "x 'y' \"z\" \\ $HOME\nü☃🍲"}

_PROGRAM_SETTING = re.compile(rb"\bHEAT_[A-Z0-9_]*_CMD\b")


def answer(trials: HookTrials) -> Iterator[ContractFault]:
    """Try the config ok; when the hook fails here, no other line is tried."""
    trial = trials.prepare("ok")
    trials.changed = trials.run_and_look(trial)
    tool = trials.task.given.tool
    path = trials.task.environ.get("PATH", os.defpath)
    if trial.done.status == NOT_FOUND and tool and not shutil.which(tool, path=path):
        raise ToolMissingError(tool, trials.task.group, trial.text("deploy_stderr"))
    yield from trial.failed()
    yield from trial.lost_word(
        "deploy_stdout",
        "put what the tool prints into deploy_stdout; leave @word@ out of the config ok when the "
        "tool prints nothing",
    )


def inputs(trials: HookTrials) -> Iterator[ContractFault]:
    """Try inputs of each type, which must be accepted and, by a config for that, passed on.

    :raises NotTried: when they are accepted, and no config shows them.
    """
    # A tool takes seconds to start.  The next line has a run of its own after a failure only.
    if trials.task.wants("unicode") and "unicode" not in trials.task.given.not_tried:
        trial = _run_with(trials, {**INPUTS, **UNICODE})
        if not any(trial.failed()):
            trials.all_inputs = trial
    yield from _arrive(trials, INPUTS)


def unicode(trials: HookTrials) -> Iterator[ContractFault]:
    """Try an input that is hard to pass on."""
    yield from _arrive(trials, UNICODE)


def _arrive(trials: HookTrials, inputs: Mapping[str, object]) -> Iterator[ContractFault]:
    trial = trials.all_inputs or _run_with(trials, inputs)
    faults = list(trial.failed())
    yield from faults
    missing = trials.missing_config("inputs")
    if missing:
        if not faults:
            # A hook that ignores its inputs succeeds too.
            raise NotTried(f"the config ok accepts them, but does not show them: {missing}")
        return
    for name, value in inputs.items():
        answer = trial.done.answer.get(name)
        if answer is not None and not _same(value, answer):
            yield ContractFault(
                f"the input {name}, {json.dumps(value, ensure_ascii=False)}, came back as "
                f"{clean_line(json.dumps(answer, ensure_ascii=False))[:200]}"
            )


def _run_with(trials: HookTrials, inputs: Mapping[str, object]) -> HookTrial:
    """Run the config that shows inputs with these ones, or ok where there is none."""
    if not trials.missing_config("inputs"):
        return trials.run(trials.prepare("inputs", inputs=inputs))
    trial = trials.prepare("ok")
    return trials.run(
        replace(trial, task=replace(trial.task, inputs={**trial.task.inputs, **inputs}))
    )


def large_output(trials: HookTrials) -> Iterator[ContractFault]:
    """Try a tool with large output."""
    trial = trials.run(trials.prepare("large"))
    yield from trial.failed()
    if not trial.done.status and len(trial.text("deploy_stdout")) <= LARGE:
        size = len(trial.text("deploy_stdout"))
        yield ContractFault(f"of a large output {size} characters are in deploy_stdout")


def binary_output(trials: HookTrials) -> Iterator[ContractFault]:
    """Try a tool that prints bytes."""
    trial = trials.run(trials.prepare("binary"))
    yield from trial.failed()
    yield from trial.lost_word("deploy_stdout")


def failure(trials: HookTrials) -> Iterator[ContractFault]:
    """Try a tool that fails."""
    trial = trials.run(trials.prepare("fails"))
    yield from trial.problems()
    if not trial.done.status:
        yield ContractFault(
            "a config that fails gives deploy_status_code 0, so Heat takes it for a success"
        )
    elif trial.printed("deploy_stdout") and not trial.printed("deploy_stderr"):
        yield ContractFault(
            "what the tool printed, with the config fails, is in deploy_stdout, not in "
            "deploy_stderr",
            exception="words-on-stdout",
        )
    elif not trial.text("deploy_stderr").strip():
        yield ContractFault("a config that fails gives an empty deploy_stderr")
    else:
        yield from trial.lost_word("deploy_stderr")


def missing_tool(trials: HookTrials) -> Iterator[ContractFault]:
    """Take the tool away: from PATH, and from the settings that name it."""
    tool = trials.task.given.tool
    if not tool:
        raise NotTried("no tool is named: --tool PROGRAM")
    with trials.task.hook.open("rb") as stream:
        # Searched as bytes: a hook may be a compiled program.
        settings = _PROGRAM_SETTING.findall(stream.read(HOOK_LIMIT))
    absent = trials.scratch / "absent" / tool
    environ = {**trials.task.environ, "PATH": _path_without(trials, tool)}
    environ |= {each.decode("ascii"): str(absent) for each in settings}
    role = "without-tool" if "without-tool" in trials.task.given.configs else "ok"
    trial = trials.prepare(role)
    trial = trials.run(replace(trial, task=replace(trial.task, environ=environ)))
    yield from trial.problems()
    if not trial.done.status:
        yield ContractFault(f'without "{tool}" on PATH it gives deploy_status_code 0')
    elif tool.casefold() not in trial.text("deploy_stderr").casefold():
        yield ContractFault(f'without "{tool}" on PATH its deploy_stderr does not name it')


def _path_without(trials: HookTrials, tool: str) -> str:
    """Return a PATH with links to all programs but one, where a directory has that one."""
    folders = []
    for number, name in enumerate(trials.task.environ.get("PATH", os.defpath).split(os.pathsep)):
        if not Path(name, tool).exists():
            folders.append(name)
            continue
        folder = trials.scratch / f"path-{number}"
        folder.mkdir(exist_ok=True)
        for entry in os.scandir(name):
            if entry.name != tool and not (folder / entry.name).is_symlink():
                (folder / entry.name).symlink_to(Path(entry.path).absolute())
        folders.append(str(folder))
    return os.pathsep.join(folders)


def log(trials: HookTrials) -> Iterator[ContractFault]:
    """Look for the secret input in the logs and answers of all runs."""
    roles = dict.fromkeys((each.role, name) for each in trials.done for name in _places_of(each))
    for role, name in roles:
        yield ContractFault(f"the input password is in {name}, with the config {role}")


def private(trials: HookTrials) -> Iterator[ContractFault]:
    """Yield the disclosures noted during the runs."""
    yield from trials.disclosed.values()


def outside(trials: HookTrials) -> Iterator[ContractFault]:
    """Tell the changes of the config ok from those of other programs.

    A change is the hook's when it contains a mark of the run; or when the file changes in each
    of three runs, not between them, and no other program has it open.
    """
    marks = [trials.done[0].word, trials.done[0].secret, trials.done[0].task.key]
    listed = {each.path: each for each in trials.changed}
    marked = {path for path in listed if _is_marked(path, marks)}
    suspects = set(listed) - marked
    for _ in range(2):
        if not suspects:
            break
        # Changes without a run of the hook in between are another program's.
        suspects -= {each.path for each in changes(trials.look(), trials.look())}
        suspects &= {each.path for each in trials.run_and_look(trials.prepare("ok"))}
    suspects -= held_open(suspects, trials.scratch)
    for path in sorted(marked | suspects)[:STRAYS]:
        kind, name = listed[path].kind, path.replace(trials.done[0].task.key, "<id>")
        yield ContractFault(trials.done[0].shown(f'it {kind} "{clean_line(name)}"'))


def again(trials: HookTrials) -> Iterator[ContractFault]:
    """Run the first deployment a second time, and an UPDATE of it."""
    first = trials.done[0]
    for action, key in (("CREATE", first.task.key), ("UPDATE", str(uuid.uuid4()))):
        task = replace(first.task, action=action, key=key)
        second = trials.run(replace(first, task=task, report=None))
        for each in second.failed():
            which = "a second run of it" if action == "CREATE" else "an UPDATE after it"
            yield replace(each, reason=f"{which}: {each.reason}")


def at_once(trials: HookTrials) -> Iterator[ContractFault]:
    """Run two deployments side by side."""
    role = "inputs" if "inputs" in trials.task.given.configs else "ok"
    pair = [
        trials.prepare(role, inputs={"a_string": secrets.token_hex(6)} if role == "inputs" else {})
        for _ in range(2)
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(trials.run, pair))
    for mine, other in (pair, pair[::-1]):
        yield from mine.failed()
        seen = json.dumps(dict(mine.done.answer)) + mine.done.log
        theirs = [other.word, *(str(other.task.inputs[name]) for name in other.task.outputs)]
        if any(each in seen for each in theirs):
            yield ContractFault("the answer of one deployment has what belongs to the other")
        elif not mine.done.status:
            yield from mine.lost_word("deploy_stdout")
            wanted = {name: mine.task.inputs[name] for name in mine.task.outputs}
            for name, value in wanted.items():
                if not _same(value, mine.done.answer.get(name)):
                    yield ContractFault(f"the output {name} of one deployment is lost")


def time_limit(trials: HookTrials) -> Iterator[ContractFault]:
    """Let the runner stop the hook at its time limit."""
    first = trials.done[0].done.seconds
    # Twice as long as the first run took, in which the tool is likely to begin.
    limit = min(MAX_LIMIT, max(MIN_LIMIT, 2 * first))
    while True:
        trial = trials.prepare("slow")
        trial = replace(trial, task=replace(trial.task, timeout=limit))
        with _Ready(trials.fifo) as ready:
            trials.run(trial)
            began = ready.has_come(0)
        if began or limit >= MAX_LIMIT:
            break
        # On a busy host the tool has not begun by then: give it longer.
        limit = min(MAX_LIMIT, limit * 3)
    if trial.done.exit_status is not None:
        yield ContractFault(f"with the config slow it ended by itself, before {limit:.0f} seconds")
        return
    if not began:
        yield _never_began(limit)
        return
    # The runner sends SIGKILL so long after SIGTERM.
    killed = trial.done.seconds >= limit + END_GRACE
    yield from _left(trials, trial, killed=killed)


def interruption(trials: HookTrials) -> Iterator[ContractFault]:
    """Interrupt the hook while its tool runs."""
    trial = trials.prepare("slow")
    before = trials.look()
    with _Ready(trials.fifo) as ready, RunningHook(trial.task, trials.scratch) as running:
        if not ready.has_come(trial.task.timeout):
            yield _never_began(trial.task.timeout)
            return
        trials.look_for_inputs(trial, changes(before, trials.look()))
        took = running.interrupt()
    yield from _left(trials, trial, killed=took >= END_GRACE)


def _left(trials: HookTrials, trial: HookTrial, *, killed: bool) -> Iterator[ContractFault]:
    """Yield the processes, and the files with an input, that an ended hook left."""
    if killed:
        yield ContractFault(
            f"it does not end on SIGTERM, and was killed after {END_GRACE:.0f} seconds",
            exception="ignores-sigterm",
        )
    for name in stay_behind(trials.scratch, DYING):
        # The runner has ended the hook's process group.
        yield ContractFault(f'its program "{clean_line(name)}" still runs', exception="own-session")
    for path in files_with(trial.secret, trials.own_places()):
        name = trials.short(path).replace(trial.task.key, "<id>")
        yield ContractFault(f'the file "{name}" still holds an input')


def _is_marked(path: str, marks: Sequence[str]) -> bool:
    """Return True when a file or its name contains a mark of a run."""
    return any(
        # A directory has a slash at its end, and no content to search.
        mark in path or any(files_with(mark, [Path(path)] if path[-1] != "/" else []))
        for mark in marks
    )


def _never_began(seconds: float) -> ContractFault:
    return ContractFault(
        f"the config slow wrote nothing to its FIFO within {seconds:.0f} seconds",
        "have the config write a line to @ready@ once the tool runs; on a busy host, try again",
    )


def _places_of(trial: HookTrial) -> Iterator[str]:
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
        # Without O_NONBLOCK the open would wait for a writer (fifo(7)).
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
                # Not POLLHUP: a writer may have gone without a word.
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
        # Tools write a boolean in their language's case.
        return bool(json.loads(text.lower() if isinstance(value, bool) else text) == value)
    except ValueError:
        return False
