"""Trials of a hook: its runs as the runner would call it, and the traces of each."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.hookkit.contract_configs import ROLES, ContractFile, filled_in, has
from hotplate.hookkit.findings import FindingKind, HookFinding, findings
from hotplate.hookkit.run import HookReport, HookTask, RunningHook
from hotplate.hookkit.traces import (
    ROOTS,
    FileChange,
    Look,
    changes,
    command_lines_with,
    files_with,
    look,
    open_to_all,
)
from hotplate.paths import hooks_dir
from hotplate.text import clean_line

#: The default directories in which to look for changed files.
CHECK_ROOTS = (*ROOTS, Path("/tmp"), Path("/var/tmp"))  # noqa: S108  looked at, not used

#: The fixes for findings, where they differ from the line's own.
MENDS = {
    FindingKind.NOT_EXECUTABLE: "chmod 0755 the hook",
    FindingKind.NO_INTERPRETER: "begin the file with #! and the path of its interpreter",
    FindingKind.TEXT_BESIDE_JSON: "send all other output of the hook and its tools to stderr",
    FindingKind.NO_STATUS: "put deploy_status_code, a number, in each answer",
    FindingKind.EXIT_STATUS: "end with exit status 0 after each answer",
    FindingKind.CRASH: "catch the error, and answer with a sentence about it",
    FindingKind.OUTPUT_MISSING: "hand back each declared output under its name",
    FindingKind.TIMEOUT: "find what it waits for; --timeout SECONDS gives it longer",
}


@dataclass(frozen=True)
class ContractFault:
    """The reason that a hook fails a line.

    :param reason: one sentence, without the value of an input.
    :param mend: the fix; empty for that of the line.
    :param exception: the name in :data:`~hotplate.hookkit.contract.EXCEPTIONS` of the one that
        excuses it; empty for none.
    """

    reason: str
    mend: str = ""
    exception: str = ""


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

    def require_config(self) -> None:
        """Check that the config exists that all tests need.

        :raises UsageError: when there is none.
        """
        if "ok" not in self.given.configs:
            raise UsageError(
                f'there is no config to try the hook of the group "{self.group}" with',
                hint=f"--config ok=FILE, or {self.hook.stem}.check.yaml beside the hook",
            )

    def wants(self, line: str) -> bool:
        """Return True for the name of a selected line, and of the one that all others need."""
        return not self.lines or line in (*self.lines, "answer")


@dataclass
class HookTrial:
    """One run: its task and its report.

    :param word: is new in each run.
    :param prints_word: whether the config has its tool print the word.
    :param secret: the value of an input, which must not be seen anywhere.
    """

    role: str
    task: HookTask
    word: str
    prints_word: bool
    secret: str
    report: HookReport | None = None

    @property
    def done(self) -> HookReport:
        """Return the report of a run that has ended."""
        assert self.report is not None
        return self.report

    def text(self, name: str) -> str:
        """Return one text of the answer."""
        return str(self.done.answer[name])

    def printed(self, name: str) -> bool:
        """Return True when the tool's output is in a text of the answer."""
        return self.prints_word and self.word in self.text(name)

    def lost_word(self, name: str, mend: str = "") -> Iterator[ContractFault]:
        """Yield a fault when the tool's output is missing in a text of the answer.

        :param mend: the fix, when it is not that of the line.
        """
        if self.prints_word and not self.printed(name):
            yield ContractFault(
                f"what the tool printed, with the config {self.role}, is not in {name}", mend
            )

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
class HookTrials:
    """The runs of a hook, and their traces.

    :ivar done: all runs so far.
    :ivar disclosed: places where every user could read inputs, during and after runs.
    :ivar changed: changes on this host during the first run of the hook.
    :ivar all_inputs: a run with the inputs of several lines, when it succeeded.
    """

    task: CheckTask
    scratch: Path
    done: list[HookTrial] = field(default_factory=list)
    disclosed: dict[str, ContractFault] = field(default_factory=dict)
    changed: list[FileChange] = field(default_factory=list)
    all_inputs: HookTrial | None = None

    def missing_config(self, role: str) -> str:
        """Return the reason that a line cannot be tried; empty when there is a config for it."""
        if self.task.given.configs.get(role) is not None:
            return ""
        return (
            f'no config "{role}", which {ROLES[role]}: --config {role}=FILE or '
            f"{self.task.hook.stem}.check.yaml"
        )

    def prepare(self, role: str, *, inputs: Mapping[str, object] | None = None) -> HookTrial:
        """Return a prepared run.

        :raises NotTried: without a config for it.
        """
        missing = self.missing_config(role)
        if missing:
            raise NotTried(missing)
        config = self.task.given.configs[role]
        word, secret = f"w{secrets.token_hex(6)}", f"input-{secrets.token_hex(8)}"
        values = {"word": word, "dir": str(self.scratch / "made"), "ready": str(self.fifo)}
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
        return HookTrial(role, task, word, has(config, "word"), secret)

    @property
    def fifo(self) -> Path:
        """Return the FIFO to which the config slow writes."""
        path = self.scratch / "ready"
        if not path.exists():
            os.mkfifo(path, 0o600)
        return path

    def run(self, trial: HookTrial) -> HookTrial:
        """Run the hook to its end, and look for inputs that it left."""
        with RunningHook(trial.task, self.scratch) as running:
            trial.report = running.report()
        self.done.append(trial)
        self.look_for_inputs(trial)
        return trial

    def own_places(self) -> tuple[Path, ...]:
        """Return the directories of the hook: scratch ones, and its directory in images."""
        base = Path("/var/lib/heat-config") / f"heat-config-{self.task.group}"
        return self.scratch / "hook", self.scratch / "home", self.scratch / "made", base

    def look_for_inputs(self, trial: HookTrial, changed: Sequence[FileChange] = ()) -> None:
        """Note world-readable files and command lines that contain the run's input."""
        tops = {each: each for each in self.own_places() if each != self.scratch / "made"}
        tops |= {Path(each.path): Path("/") for each in changed if not each.path.endswith("/")}
        for place, top in tops.items():
            for path in files_with(trial.secret, [place]):
                if open_to_all(path, top):
                    self._disclose(f'the file "{self.short(path)}" holds an input', trial)
        for program in command_lines_with(trial.secret, self.scratch):
            name = Path(program).name
            fault = ContractFault(
                f'an input is an argument of the program "{clean_line(name)}", which every user '
                f"sees in /proc, with the config {trial.role}",
                "hand inputs to programs on stdin, in the environment or in a private file",
            )
            self.disclosed.setdefault(fault.reason, fault)

    def _disclose(self, what: str, trial: HookTrial) -> None:
        reason = f"{what}, and every user can read it, with the config {trial.role}"
        self.disclosed.setdefault(reason, ContractFault(reason.replace(trial.task.key, "<id>")))

    def short(self, path: Path) -> str:
        """Return a path to show, with the variable of its setting for a scratch directory."""
        if path.is_relative_to(self.scratch / "hook"):
            parts = path.relative_to(self.scratch / "hook").parts
            return clean_line("/".join((f"${parts[0].upper()}", *parts[1:])))
        return clean_line(str(path))

    def look(self) -> Look:
        """Note the files of this host, except the hook's own and those of its tool."""
        own = (self.scratch, self.task.library, *self.own_places(), *self.task.given.may_change)
        return look(self.task.roots, without=own)

    def run_and_look(self, trial: HookTrial) -> list[FileChange]:
        """Run a trial, and return the changes on this host meanwhile."""
        before = self.look()
        self.run(trial)
        listed = changes(before, self.look())
        self.look_for_inputs(trial, listed)
        return listed
