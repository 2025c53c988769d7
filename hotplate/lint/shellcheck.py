"""shellcheck over the shell programs of elements."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotplate.errors import HostError
from hotplate.lint.collection import Collection
from hotplate.lint.finding import LintFinding, NotRun

#: Severities of shellcheck, from certain defects to matters of taste.
SEVERITIES = ("error", "warning", "info", "style")

#: Number of files on one command line.
AT_ONCE = 100

#: Codes of shellcheck's parser errors.
PARSER_CODES = range(1000, 2000)

#: Seconds for one command line.
LIMIT = 600.0

_SHELL = re.compile(rb"#!\s*/\S*?(?:env\s+)?\b(bash|dash|ksh|sh)\b[^\n]*")


def shellcheck_findings(
    collection: Collection, environ: Mapping[str, str], *, severity: str
) -> tuple[list[LintFinding], list[NotRun]]:
    """Run shellcheck; return its findings, and the files that it did not check.

    :param environ: its ``PATH`` has the programs, and its ``HOME`` shellcheck's settings.
    :param severity: the least of :data:`SEVERITIES` that counts.
    :raises HostError: when it ends without an answer.
    """
    program = shutil.which("shellcheck", path=_path(environ))
    if program is None:
        reason = "it is not installed; apt-get install --no-install-recommends shellcheck"
        return [], [NotRun("shellcheck", reason)]
    comments: dict[Path, list[dict[str, Any]]] = {}
    words = [program, "--format=json1", f"--severity={severity}", "--color=never"]
    for dialect, files in _files(collection).items():
        # Without it shellcheck takes the shell from the interpreter line, if there is one.
        shell = [f"--shell={dialect}"] if dialect else []
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            done = _run([*words, *shell, "--", *some], environ, cwd=collection.path)
            for comment in _comments(done.stdout, done.stderr):
                comments.setdefault(Path(comment["file"]), []).append(comment)
    return _sorted_out(comments, environ)


def _files(collection: Collection) -> dict[str, list[Path]]:
    """Return the files to check, by the shell to pass to shellcheck."""
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
    comments: dict[Path, list[dict[str, Any]]], environ: Mapping[str, str]
) -> tuple[list[LintFinding], list[NotRun]]:
    """Return the findings; a parser error is none when the shell accepts the file."""
    findings: list[LintFinding] = []
    unread: list[NotRun] = []
    for path, listed in comments.items():
        parsing = [each for each in listed if int(each["code"]) in PARSER_CODES]
        stopped = any(each["level"] == "error" for each in parsing)
        if stopped and _shell_reads(path, environ):
            listed = [each for each in listed if each not in parsing]
            line = parsing[0]["line"]
            unread.append(NotRun(f'shellcheck on "{path}"', f"it cannot read line {line}"))
        findings.extend(_findings(path, listed))
    return findings, unread


def _shell_reads(path: Path, environ: Mapping[str, str]) -> bool:
    """Return True when the shell of a file accepts its syntax."""
    shell = shutil.which(shell_of(path) or "bash", path=_path(environ))
    # -n reads the commands, and runs none.
    return shell is not None and _run([shell, "-n", path], environ, cwd=path.parent).returncode == 0


def _path(environ: Mapping[str, str]) -> str:
    """Return ``PATH`` with the programs of this Python's environment in front."""
    return f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"


def _run(
    words: Sequence[str | Path], environ: Mapping[str, str], *, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run a program in an environment of its own.

    :raises HostError: when it takes longer than :data:`LIMIT`, or cannot be run.
    """
    # A locale with UTF-8: the messages quote characters beyond ASCII.
    given = {"PATH": _path(environ), "HOME": environ.get("HOME", "/"), "LC_ALL": "C.UTF-8"}
    try:
        return subprocess.run(
            words,
            cwd=cwd,
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(f'"{words[0]}" took longer than {LIMIT:.0f} seconds') from error
    except OSError as error:
        raise HostError(f'"{words[0]}" cannot be run: {error.strerror}') from error


def _findings(path: Path, comments: Sequence[dict[str, Any]]) -> Iterator[LintFinding]:
    for each in comments:
        code = f"SC{each['code']}"
        mend = f"https://www.shellcheck.net/wiki/{code}; or exempt it: # shellcheck disable={code}"
        yield LintFinding(path, f"shellcheck/{code}", each["message"], mend, int(each["line"]))
