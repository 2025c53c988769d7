"""Progress of a ``disk-image-create`` run, read from its output."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Pattern of the first line of a step -> its name, in the order of the steps.
STEPS = (
    (re.compile(r"Building elements:"), "start"),
    (re.compile(r"Running hooks from \S+/root\.d$"), "base system"),
    (re.compile(r"Running hooks from \S+/extra-data\.d$"), "gather files"),
    (re.compile(r"dib-run-parts Running \S+/pre-install\.d/"), "prepare"),
    (re.compile(r"dib-run-parts Running \S+/install\.d/"), "install"),
    (re.compile(r"dib-run-parts Running \S+/post-install\.d/"), "configure"),
    (re.compile(r"Calculating image size"), "measure"),
    (re.compile(r"create\(\) called"), "copy to disk"),
    (re.compile(r"dib-run-parts Running \S+/finalise\.d/"), "finish"),
    (re.compile(r"Running hooks from \S+/cleanup\.d$"), "clean up"),
    (re.compile(r"Converting image using qemu-img"), "compress"),
)

SCRIPT = re.compile(r"dib-run-parts Running (?:\S*/)?([\w-]+\.d/\S+)$")
SCRIPT_DONE = re.compile(r"dib-run-parts (\S+) completed$")
EXPANDED = re.compile(r"Expanded element dependencies to: (.*)$")
#: A warning of an element. Other programs write such lines, too, among them dpkg, which is also the
#: name of an element.
WARNING = re.compile(r"((?:heat|os)-[\w-]+): warning: ")
TIMESTAMP = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \| ")


@dataclass
class BuildProgress:
    """Follows a build line by line.

    :param on_step: called with the name of each step that begins, and the seconds since the start.
    :param on_warning: called with each line in which one of our elements warns.
    :ivar script: the running hook, as ``phase.d/name``, or "".
    :ivar steps: (name, seconds) of each step that has begun; the last one is still counting.
    """

    on_step: Callable[[str, float], None] = lambda _name, _seconds: None
    on_warning: Callable[[str], None] = lambda _line: None
    script: str = ""
    elements: tuple[str, ...] = ()
    steps: list[tuple[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Return the seconds since the build began."""
        return time.monotonic() - self.began

    @property
    def step(self) -> str:
        """Return the current step."""
        return self.steps[-1][0] if self.steps else "start"

    def feed(self, line: str) -> None:
        """Process one line of the build's output."""
        text = TIMESTAMP.sub("", line.rstrip())
        if match := SCRIPT.search(text):
            self.script = match.group(1)
        elif SCRIPT_DONE.search(text):
            self.script = ""
        elif match := EXPANDED.search(text):
            self.elements = tuple(match.group(1).split())
        elif (match := WARNING.match(text)) and match.group(1) in self.elements:
            self.on_warning(text)
        for pattern, name in STEPS:
            if name != self.step and pattern.search(text):
                self.steps.append((name, self.elapsed))
                self.on_step(name, self.elapsed)

    def durations(self) -> dict[str, float]:
        """Return the seconds of each step, for the last one until now."""
        ends = [start for _, start in self.steps[1:]] + [self.elapsed]
        result: dict[str, float] = {}
        for (name, start), end in zip(self.steps, ends, strict=True):
            result[name] = round(result.get(name, 0.0) + end - start, 1)
        return result
