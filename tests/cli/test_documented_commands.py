"""Every command line of README and docs is valid for hotplate or the openstack command."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from hotplate import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.rst", *sorted((ROOT / "docs").glob("*.rst"))]
TYPED = re.compile(r"^ {4,}(?:\$ |(?:- )?(?:run: )?)((?:hotplate|openstack) .*)$", re.MULTILINE)


def typed(program: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command line of a program, with its page."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in TYPED.findall(text):
            with contextlib.suppress(ValueError):
                words = shlex.split(re.split(r" [|;<>] ?| && | > | &$", line)[0], comments=True)
                if words[0] == program and len(words) > 1 and not _is_prose(words):
                    yield page.name, words[1:]


def _is_prose(words: list[str]) -> bool:
    """Return True for the output of a command, or a verb named without its arguments."""
    return (words[1] == "build" and words[2:] == ["can", "run", "here"]) or "..." in words


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """Return the reason that a parser rejects the words, or ""."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser.parse_args(words)
        except SystemExit as end:
            return errors.getvalue() if end.code else ""
    return ""


def test_documented_hotplate_commands_are_valid():
    lines = list(typed("hotplate"))
    assert len(lines) > 40
    wrong = [
        (page, words, why) for page, words in lines if (why := refusal(cli._parser(words), words))
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def commands() -> dict[str, EntryPoint]:
    """The openstack command's commands from its plug-ins, by their words."""
    wanted = re.compile(r"openstack\.(orchestration|compute|network|image|cli|common)(\.|$)")
    groups = (group for group in entry_points().groups if wanted.match(group))
    return {
        each.name.replace("_", " "): each for group in groups for each in entry_points(group=group)
    }


def test_documented_openstack_commands_are_valid(commands):
    lines = list(typed("openstack"))
    assert len(lines) > 20
    for page, words in lines:
        count = next((n for n in range(len(words), 0, -1) if " ".join(words[:n]) in commands), 0)
        assert count, (page, words)
        command = commands[" ".join(words[:count])].load()
        parser = command(None, None).get_parser("openstack")
        assert refusal(parser, words[count:]) == "", (page, words)
