"""The two os-apply-configs side by side: upstream's, installed with the tests, and ours."""

import json
import os
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOOKS = Path(__file__).resolve().parents[4] / "hooks"

OURS = HOOKS / "os-apply-config"
THEIRS = Path(sys.executable).with_name("os-apply-config")
TIME = re.compile(r"^\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d [AP]M\] ", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The result of a program: its status, its output, and the tree that it left."""

    status: int
    stdout: str
    tree: dict[str, tuple[str, bytes]]
    stderr: str

    @property
    def lines(self) -> list[str]:
        """Return the lines of standard error without their times, in the order of their bytes."""
        return sorted(TIME.sub("", self.stderr).splitlines())


class Side:
    """A folder with templates and metadata, and a way to apply them."""

    def __init__(self, program: Path, root: Path) -> None:
        self.program = program
        self.root = root
        self.templates = root / "templates"
        self.output = root / "output"
        self.metadata = root / "metadata.json"
        for folder in (self.templates, self.output):
            folder.mkdir(parents=True)
        self.metadata.write_text("{}")

    def run(self, *words: str, umask: int = 0o022, **environment: str) -> Outcome:
        done = subprocess.run(
            [self.program, *words],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "LC_ALL": "C.UTF-8",
                "HEAT_CONFIG_LIB": str(HOOKS),
                **environment,
            },
            capture_output=True,
            timeout=60,
            umask=umask,
        )
        return Outcome(
            done.returncode,
            done.stdout.decode(),
            tree(self.output),
            done.stderr.decode(),
        )

    def apply(self, *words: str, **environment: Any) -> Outcome:
        paths = ["-t", "templates", "-o", "output", "-m", "metadata.json", "--fallback-metadata"]
        return self.run(*paths, *words, **environment)


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return each path below *root* with its type, mode and owner, and its bytes or target."""
    paths = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        about = f"{stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid}"
        body = b"" if path.is_dir() else path.read_bytes() if path.is_file() else b"?"
        paths[str(path.relative_to(root))] = (about, body)
    return paths


class Pair:
    """The same on both sides."""

    def __init__(self, root: Path) -> None:
        self.ours = Side(OURS, root / "ours")
        self.theirs = Side(THEIRS, root / "theirs")

    def metadata(self, document: Any) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        self.write("metadata.json", text)

    def template(self, name: str, text: str | bytes, control: str | None = None) -> None:
        self.write(f"templates/{name}", text)
        if control is not None:
            self.write(f"templates/{name}.oac", control)

    def write(self, name: str, text: str | bytes, *, mode: int = 0o644) -> None:
        for side in (self.ours, self.theirs):
            path = side.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            path.chmod(mode)

    def apply(self, *words: str, **environment: Any) -> tuple[Outcome, Outcome]:
        """Apply on both sides; return the Outcomes of ours and theirs."""
        return self.ours.apply(*words, **environment), self.theirs.apply(*words, **environment)

    def run(self, *words: str, **environment: Any) -> tuple[Outcome, Outcome]:
        """Run a command line of the caller's own on both sides."""
        return self.ours.run(*words, **environment), self.theirs.run(*words, **environment)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Upstream's program and ours, without templates yet."""
    return Pair(tmp_path)
