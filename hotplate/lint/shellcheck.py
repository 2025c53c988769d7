"""shellcheck over the shell programs of elements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotplate.errors import HostError
from hotplate.lint.collection import Collection
from hotplate.lint.finding import LintFinding, NotRun
from hotplate.lint.programs import Programs

SEVERITIES = ("error", "warning", "info", "style")
"""shellcheck's, from the one that is a defect whatever was meant to those of taste."""

AT_ONCE = 100
"""Files on one command line."""

PARSER_CODES = range(1000, 2000)
"""Codes about what shellcheck cannot read."""

_SHELL = re.compile(rb"#!\s*/\S*?(?:env\s+)?\b(bash|dash|ksh|sh)\b[^\n]*")


def shellcheck_findings(
    collection: Collection, programs: Programs, *, severity: str
) -> tuple[list[LintFinding], list[NotRun]]:
    """Run shellcheck; return what it finds, and what was not run.

    :param severity: the least of :data:`SEVERITIES` that counts.
    :raises HostError: when it ends with no answer.
    """
    program = programs.find("shellcheck")
    if program is None:
        reason = "it is not installed; apt-get install --no-install-recommends shellcheck"
        return [], [NotRun("shellcheck", reason)]
    comments: dict[Path, list[dict[str, Any]]] = {}
    words = [program, "--format=json1", f"--severity={severity}", "--color=never"]
    for dialect, files in _files(collection).items():
        shell = [f"--shell={dialect}"] if dialect else []
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            done = programs.run([*words, *shell, "--", *some], cwd=collection.path)
            for comment in _comments(done.stdout, done.stderr):
                comments.setdefault(Path(comment["file"]), []).append(comment)
    return _sorted_out(comments, programs)


def _files(collection: Collection) -> dict[str, list[Path]]:
    """Return what shellcheck is to read, by the shell that it has to be told."""
    files: dict[str, list[Path]] = {"": [], "bash": []}
    for element in collection.elements:
        for path in sorted(element.rglob("*")):
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
                if shell_of(path):
                    files[""].append(path)
                elif path.parent == element / "environment.d":
                    files["bash"].append(path)
    return files


def shell_of(path: Path) -> str:
    """Return the name of the shell that runs a file; empty when none does."""
    with path.open("rb") as stream:
        match = _SHELL.match(stream.read(128))
    return match[1].decode() if match else ""


def _comments(text: str, errors: str) -> list[dict[str, Any]]:
    try:
        return list(json.loads(text)["comments"])
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(
            f'shellcheck gave no answer: "{errors.strip()[:200]}"',
            hint="hotplate lint --without shellcheck",
        ) from error


def _sorted_out(
    comments: dict[Path, list[dict[str, Any]]], programs: Programs
) -> tuple[list[LintFinding], list[NotRun]]:
    """Return the findings; what shellcheck cannot read and the shell can is none."""
    findings: list[LintFinding] = []
    unread: list[NotRun] = []
    for path, listed in comments.items():
        parsing = [each for each in listed if int(each["code"]) in PARSER_CODES]
        stopped = any(each["level"] == "error" for each in parsing)
        if stopped and _shell_reads(path, programs):
            listed = [each for each in listed if each not in parsing]
            line = parsing[0]["line"]
            unread.append(NotRun(f'shellcheck on "{path}"', f"it cannot read line {line}"))
        findings.extend(_findings(path, listed))
    return findings, unread


def _shell_reads(path: Path, programs: Programs) -> bool:
    """Return True when the shell of a file has nothing against its syntax."""
    shell = programs.find(shell_of(path) or "bash")
    return shell is not None and programs.run([shell, "-n", path], cwd=path.parent).status == 0


def _findings(path: Path, comments: Sequence[dict[str, Any]]) -> Iterator[LintFinding]:
    for each in comments:
        code = f"SC{each['code']}"
        mend = f"https://www.shellcheck.net/wiki/{code}; or exempt it: # shellcheck disable={code}"
        yield LintFinding(path, f"shellcheck/{code}", each["message"], mend, int(each["line"]))
