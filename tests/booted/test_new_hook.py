"""A hook's author in an empty repository: from ``hook new`` to COMPLETE, as the page has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
]

SECONDS = 900
COMMAND = re.compile(r"^    \$ (.+)$", re.MULTILINE)


def commands(language: str) -> list[str]:
    """What a person types, from the page, in order."""
    text = (ROOT / "docs" / "first-hook.rst").read_text()
    part = text.split(f".. transcript {language}\n")[1].split(".. transcript end\n")[0]
    return COMMAND.findall(part)


class Author:
    """Types commands in an empty repository; a context manager that ends what is left running."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.output = ""
        beside = str(Path(sys.executable).parent)
        self._environ = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
        self._behind: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Author:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._behind:
            child.terminate()
            child.wait(60)
        print((self.repository / "up.log").read_text())

    def type(self, command: str) -> str:
        """Run a command of the page; one with ``&`` runs on, and is waited for until it is up."""
        began = time.monotonic()
        if command.endswith("&"):
            return self._leave_behind(command.removesuffix("&"))
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.repository,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        print(f"$ {command}\n{done.stdout}[{time.monotonic() - began:.1f} s]")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _leave_behind(self, command: str) -> str:
        output = (self.repository / "up.log").open("ab")
        child = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.repository,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=output,
        )
        self._behind.append(child)
        assert child.stdout is not None
        for line in child.stdout:
            output.write(line)
            output.flush()
            if line.startswith(b"hotplate down"):
                return ""
        raise AssertionError((self.repository / "up.log").read_text())

    def answers(self, typed: list[str], word: str) -> list[str]:
        """Type them all; return what those printed that have a word."""
        answers = []
        for each in typed:
            text = self.type(each)
            if word in each:
                answers.append(text)
        return answers


@pytest.fixture
def author(tmp_path):
    with Author(tmp_path) as someone:
        yield someone


@pytest.mark.parametrize("language", ["python", "shell"])
def test_the_page_from_new_to_complete(bookworm, author, language):
    """Its build is tried dry: the image is one that other tests boot too, without the hook."""
    (author.repository / "greet.qcow2").symlink_to(bookworm)
    typed = commands(language)
    assert len(typed) <= 10
    (build,) = [each for each in typed if each.startswith("hotplate build ")]
    typed[typed.index(build)] = f"{build} --dry-run"
    first, second = author.answers(typed, " hook push ")
    assert first.startswith("pushed  greet: /usr/libexec/heat-config/hooks/greet  [")
    assert "result  COMPLETE, deploy_status_code 0" in first
    assert "deploy_stdout:\n    hello\n" in first
    assert "/greet, in place of another" in second
    assert "result  COMPLETE, deploy_status_code 0" in second
    assert "    + echo hello\n" in second
