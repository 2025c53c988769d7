"""The commits that elements are of, as far as their checkout or their package says.

Sources: git-rev-parse(1) and git-status(1); ``pbr.json`` of the distributions that pbr makes, among
which is diskimage-builder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

SECONDS = 30.0
"""How long git may take for one answer."""

CHANGED = "-dirty"
"""Behind the commit of an element with files that are not as they were committed; as
git-describe(1) has it."""


def commits_of(
    elements: Mapping[str, Path], *, dib_elements: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the commits of elements by their names, without those for which nothing has one.

    :param elements: name -> directory.
    :param dib_elements: diskimage-builder's own elements, whose distribution names its commit.
    :param environment: what git is run with; it has ``PATH``.
    """
    packaged = _packaged("diskimage-builder")
    commits = {}
    for name, directory in elements.items():
        from_package = packaged if directory.parent == dib_elements else ""
        if commit := _checked_out(directory, environment) or from_package:
            commits[name] = commit
    return commits


def _packaged(distribution: str) -> str:
    """Return the commit that pbr wrote down, "" when it did not."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        text = importlib.metadata.distribution(distribution).read_text("pbr.json")
        document = json.loads(text or "{}")
        if isinstance(document, dict):
            return str(document.get("git_version", ""))
    return ""


def _checked_out(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the commit of a directory that git has, "" for one that it does not have."""
    # The second word fails for what only lies in a checkout, such as a virtual environment.
    commit = _git(directory, environment, "rev-parse", "HEAD", "HEAD:./").partition("\n")[0]
    if commit and _git(directory, environment, "status", "--porcelain", "--", "."):
        return f"{commit}{CHANGED}"
    return commit


def _git(directory: Path, environment: Mapping[str, str], *words: str) -> str:
    """Return what git prints, "" when it fails or is not there."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            # Of somebody else's checkout no program is run.
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *words],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
