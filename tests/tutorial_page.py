"""A tutorial of ``docs/`` as the reader's steps: write files, type commands, compare.

A file is a block of code after a paragraph that ends with its name in quotes and a colon::

    A template, ``greeting.yaml``:

    .. code-block:: yaml

A command is a line ``$ ...`` of a block ``console``; the lines below it are its expected output, in
this order, with ``...`` for any text.  The comment ``.. in a terminal of its own`` before a block
marks a command that keeps running; the lines below it are waited for.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"

_PART = re.compile(
    r"^(?P<title>.+)\n(?P<line>[-=])(?P=line){3,}$"
    r"|^(?P<alone>\.\. in a terminal of its own\n\n)?"
    r"\.\. code-block:: (?P<language>\w+)\n\n(?P<body>(?:(?: {4}.*)?\n)+)",
    re.MULTILINE,
)
_NAME = re.compile(r"``([\w./-]+)``[^`]*:$")


@dataclass(frozen=True)
class File:
    """A file that the reader writes."""

    section: str
    name: str
    text: str

    def script(self) -> str:
        """Return the step as commands for bash."""
        folder = os.path.dirname(self.name) or "."  # noqa: PTH120
        return f"mkdir -p {folder}\ncat > {self.name} <<'END-OF-FILE'\n{self.text}END-OF-FILE\n"


@dataclass(frozen=True)
class Command:
    """A command that the reader types, and its expected output.

    :param alone: it keeps running, in a terminal of its own.
    """

    section: str
    words: str
    seen: tuple[str, ...]
    alone: bool = False

    def script(self) -> str:
        """Return the step as commands for bash, which wait for a running command's output."""
        if not self.alone:
            return f"{self.words}\n"
        last = shlex.quote(self.seen[-1])
        return (
            # Made before: tail may be faster than the command's shell.
            ": > alone.out\n"
            f"{self.words} >> alone.out 2>&1 &\n"
            f"timeout {SECONDS} grep -q -m1 -F -- {last} <(tail -n +1 -f --pid=$! alone.out)\n"
            "cat alone.out\n"
        )


Step = File | Command
SECONDS = 1500
END = "=====ended"


def steps(page: str) -> list[Step]:
    """Return the steps of a page's reader."""
    section, listed = "", []
    text = (DOCS / f"{page}.rst").read_text()
    for part in _PART.finditer(text):
        if part["title"]:
            section = part["title"]
        elif part["language"] == "console":
            listed += _commands(section, _body(part), alone=bool(part["alone"]))
        elif name := _NAME.search(text[: part.start()].rstrip()):
            listed.append(File(section, name[1], _body(part)))
    return listed


def _body(part: re.Match[str]) -> str:
    lines = part["body"].rstrip("\n").split("\n")
    return "".join(f"{line[4:]}\n" for line in lines)


def _commands(section: str, body: str, *, alone: bool) -> list[Step]:
    texts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    listed: list[Step] = []
    for text in texts:
        first, *seen = text.rstrip("\n").split("\n")
        while first.endswith("\\"):
            first = first[:-1] + seen.pop(0).strip()
        listed.append(Command(section, first, tuple(line for line in seen if line), alone))
    return listed


def play(listed: list[Step], directory: Path, environment: Mapping[str, str]) -> None:
    """Run all steps in a directory, in one shell.

    :raises AssertionError: when a command exits other than 0 without an ``echo $?`` after it, or
        when the output differs.
    """
    done = subprocess.run(
        ["bash", "-c", _script(listed)],
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=4 * SECONDS,
    )
    sys.stdout.write(done.stdout)
    outputs = re.split(rf"^{END}\n", done.stdout, flags=re.MULTILINE)
    for each, output in zip(listed, outputs, strict=False):
        if isinstance(each, Command):
            assert not (missing := unseen(each.seen, output)), (each.words, missing, output)
    assert len(outputs) == len(listed) + 1, f"ended early:\n{outputs[-1]}"


def _script(listed: list[Step]) -> str:
    lines = []
    for each, following in zip(listed, [*listed[1:], None], strict=True):
        shown = isinstance(following, Command) and following.words.startswith("echo $?")
        lines.append(f"{each.script()}status=$?\n")
        if not shown:
            lines.append("[ $status -eq 0 ] || { kill $(jobs -p) 2>/dev/null; exit 1; }\n")
        lines.append(f"printf '%s\\n' {END}\n(exit $status)\n")
    return "".join(lines)


def unseen(shown: tuple[str, ...], output: str) -> str:
    """Return the first line of a page that the output lacks after the lines before it."""
    lines = iter(output.split("\n"))
    for line in shown:
        if line.strip() == "...":
            continue
        pattern = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        if not any(re.fullmatch(rf"\s*{pattern}\s*", " ".join(each.split())) for each in lines):
            return line
    return ""
