"""Run one hook with the runner's own code, and report the result as JSON.

A program, run in a process of its own with ``HEAT_CONFIG_LIB`` naming the directory that holds
``heat_config``.  It reads on stdin an object with ``hook`` (a path), ``deployment``, ``timeout``
(seconds, 0 for ever), ``grace`` (seconds from SIGTERM to SIGKILL, also when this program is ended
itself), ``state`` and ``logs`` (directories), and prints one object, see
:class:`hotplate.hookkit.run.HookReport`.  How a hook is called, and how its answer is read, is
``heat_config.execution`` and ``heat_config.result``, as in an image.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import files, process, result, transport, values
from heat_config.execution import Execution
from heat_config.item import Item
from heat_config.journal import Journal
from heat_config.settings import Settings, seconds
from heat_config.state import Record, Store

#: The exit status of this program when the disk is full.
FULL = 3

#: The umask of the agent's unit, which hooks get; the runner's own is narrower.
AGENT_UMASK = 0o022

#: The most bytes of the hook's stderr in the report.
LOG_LIMIT = 1 << 20

#: Time for a forked process to note its id.
NOTE_SECONDS = 1.0

#: The most lines beginning with a brace that are tried as the start of an answer.
CANDIDATES = 50


class HookRun:
    """One deployment, and the hook that runs it.

    :param request: the object on stdin, see the module.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._path: str = request["hook"]
        self._grace: float = request["grace"]
        self._item = Item(request["deployment"])
        # /dev/null: the deployments of this host are not read, and nothing goes to its console.
        environ = {
            "HEAT_CONFIG_FILE": os.devnull,
            "HEAT_CONFIG_DEPLOYED": request["state"],
            "HEAT_CONFIG_LOGS": request["logs"],
            "HEAT_CONFIG_CONSOLE": os.devnull,
        }
        settings = Settings(environ, umask=AGENT_UMASK)
        settings.kill_after = self._grace
        self._store = Store(settings.state)
        self._store.open()
        self._record = Record.new(self._item.key, self._item.element)
        self._journal = Journal(settings, self._store.directory)
        self._opened = False
        limit = seconds(self._item.options.get("timeout"))
        self._execution = Execution(
            self._record,
            hook=self._item.group,
            seconds=request["timeout"] if limit is None else limit,
            store=self._store,
            journal=self._journal,
            settings=settings,
        )

    def run(self) -> dict[str, Any]:
        """Run the hook to its end; return the report."""
        begin = time.monotonic()
        try:
            answer = self._answer()
        # After an exception, too, no process of the hook outlives this program.
        finally:
            left_running = self._end()
        data = files.read_bounded(self._path_of(".response"), result.ANSWER_LIMIT + 2) or b""
        log = files.read_bounded(self._journal.path(self._record.key, "log"), LOG_LIMIT) or b""
        where = "the whole would be on the server"
        limit = transport.limit(self._record.inputs)
        return {
            "answer": values.decode(result.trim(answer, limit, lambda _field: where)),
            "seconds": round(time.monotonic() - begin, 3),
            "started": self._execution.exit_status is not None or self._execution.was_cut,
            "exit_status": self._execution.exit_status,
            "left_running": left_running,
            "log": log.decode("utf-8", "replace"),
            **reading(data),
        }

    def _answer(self) -> dict[str, Any]:
        if self._item.refusal is not None:
            return dict(result.failure(self._item.refusal))
        if not os.access(self._path, os.X_OK):
            return dict(result.failure(f'The hook at "{self._path}" is not executable.'))
        self._execution.open()
        self._opened = True
        try:
            return dict(self._execution.run(self._path, self._item.element))
        except OSError as error:  # the runner in a guest retries these
            return dict(result.failure(f"The hook cannot be started now: {error.strerror}."))
        finally:
            self._execution.close()

    def _path_of(self, suffix: str) -> str:
        return str(self._store.path(self._record.key, suffix))

    def _note(self) -> bytes:
        """Return the note of the hook's process, which may be late when it was just forked."""
        end = time.monotonic() + NOTE_SECONDS
        while True:
            note: bytes = files.read_bounded(self._path_of(".pid"), 256) or b""
            if note or not self._opened or time.monotonic() > end:
                return note
            time.sleep(0.02)

    def _end(self) -> bool:
        """End the hook's remaining process group; return whether there was any."""
        pid = self._note().partition(b" ")[0]
        # Signal 0 only asks whether the group has a process.
        if not pid.isdigit() or not process.kill_group(int(pid), 0):
            return False
        process.end_group(int(pid), self._grace)
        return True


def reading(data: bytes) -> dict[str, Any]:
    """Return an analysis of a hook's stdout.

    :return: ``names``: the keys of the answer, None without one. ``problem``: empty; ``silent``,
        ``large``, ``not-object``, ``not-json`` or ``text-beside-json``. ``line``, ``text``: the
        line of stdout concerned, from 1, and its text.
    """
    nothing: dict[str, Any] = {"names": None, "problem": "", "line": 0, "text": ""}
    if len(data) > result.ANSWER_LIMIT:
        return {**nothing, "problem": "large"}
    if not data.strip():
        return {**nothing, "problem": "silent"}
    try:
        answer = values.decode(data)
    except ValueError as error:
        text = data.decode("utf-8", "replace")
        # The first one is enough for a finding.
        for line, stray in stray_lines(text):
            return {**nothing, "problem": "text-beside-json", "line": line, "text": stray}
        line = getattr(error, "lineno", 1)
        lines = text.split("\n")
        return {
            **nothing,
            "problem": "not-json",
            "line": line,
            "text": lines[min(line, len(lines)) - 1],
        }
    if not isinstance(answer, dict):
        return {**nothing, "problem": "not-object", "line": 1}
    return {**nothing, "names": sorted(answer)}


def stray_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a hook's stdout besides its answer, with their numbers.

    Yield none when there is no answer in it.
    """
    decoder = json.JSONDecoder()
    starts = [at for at in _line_starts(text) if text.startswith("{", at)]
    # Of many candidates those at both ends, because each attempt may read all of the text.
    for start in starts[:CANDIDATES] + starts[CANDIDATES:][-CANDIDATES:]:
        try:
            answer, end = decoder.raw_decode(text, start)
        # Deeply nested JSON ends in a RecursionError.
        except (ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and not {result.STATUS, result.STDOUT}.isdisjoint(answer):
            first = text.count("\n", 0, end)
            before, after = text[:start].split("\n"), text[end:].split("\n")
            for offset, lines in ((1, before), (first + 1, after)):
                for number, line in enumerate(lines, offset):
                    if line.strip():
                        yield number, line
            return


def _line_starts(text: str) -> Iterator[int]:
    at = 0
    while True:
        yield at
        at = text.find("\n", at) + 1
        if not at:
            return


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Read a request, run its hook, print the report."""
    signal.signal(signal.SIGTERM, _terminated)
    request = json.loads(sys.stdin.buffer.read())
    os.umask(0o077)
    # The directory in which an image's agent runs hooks.
    os.chdir("/")
    try:
        report = HookRun(request).run()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(FULL)
    # A parent that is gone reads no report.
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(report))


if __name__ == "__main__":
    main()
