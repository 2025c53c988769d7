"""A build with its progress on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from hotplate.history import FILE, History
from hotplate.image.build import Build, BuildError, BuildResult
from hotplate.image.progress import BuildProgress
from hotplate.output import LiveLine, usually

#: The end of a build, beside its steps in the history.
DONE = "done"


def build_shown(build: Build, *, quiet: bool = False) -> BuildResult:
    """Build an image, showing its progress, and the last lines when it fails.

    The times of the steps are recorded in the cache, by the name and the kind of the image.

    :param quiet: do not show the progress.
    :raises HotplateError: as :meth:`~hotplate.image.build.Build.run` does.
    """
    request = build.request
    kind = f"{request.release}-{request.layout.value}-{request.arch}"
    history, key = History(request.cache / FILE), f"build-{request.image.name}-{kind}"
    try:
        with Display(build.progress, sys.stdout, expected=history.expected(key), quiet=quiet):
            result = build.run()
    except BuildError as error:
        for line in error.lines:
            print(f"  | {line}", file=sys.stderr)
        raise
    # Of a step that began twice, the first time.
    history.record(key, {**dict(reversed(build.progress.steps)), DONE: result.seconds})
    return result


class Display:
    """Shows the progress of a build: lines for steps and warnings, and on a terminal the action.

    :param stream: the output; only a terminal gets the changing line.
    :param expected: seconds from the start to each step in earlier builds, and to :data:`DONE`.
    """

    def __init__(
        self,
        progress: BuildProgress,
        stream: TextIO,
        *,
        expected: Mapping[str, float],
        quiet: bool = False,
    ) -> None:
        self._progress = progress
        self._expected = expected
        self._lines = LiveLine(stream, self._now, quiet=quiet)

    def __enter__(self) -> Display:
        self._progress.on_step = self._step
        self._progress.on_warning = self._lines.say
        self._lines.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.__exit__(*exc)

    def _step(self, name: str, seconds: float) -> None:
        usual = self._expected.get(name)
        estimate = f"  (usually {usual:.0f} s)" if usual else ""
        self._lines.say(f"{seconds:7.1f} s  {name}{estimate}")

    def _now(self) -> str:
        seconds = self._progress.elapsed
        doing = self._progress.script or self._progress.step
        return f"{seconds:7.1f} s  ... {doing}{usually(seconds, self._expected.get(DONE))}"
