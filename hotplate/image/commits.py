"""Commits of elements, from their checkout or their package.

Sources: git-rev-parse(1) and git-status(1); ``pbr.json`` of distributions made by pbr, such as
diskimage-builder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

SECONDS = 30.0
"""Limit of git for one answer."""

CHANGED = "-dirty"
"""Suffix for the commit of an element with uncommitted changes, as in git-describe(1)."""


def commits_of(
    elements: Mapping[str, Path], *, dib_elements: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the commits of elements by name, without those that have none.

    :param elements: name -> directory.
    :param dib_elements: diskimage-builder's own elements, whose distribution records its commit.
    :param environment: environment of git, with ``PATH``.
    """
    packaged = _packaged("diskimage-builder")
    commits = {}
    for name, directory in elements.items():
        from_package = packaged if directory.parent == dib_elements else ""
        if commit := _checked_out(directory, environment) or from_package:
            commits[name] = commit
    return commits


def _packaged(distribution: str) -> str:
    """Return the commit recorded by pbr, "" when there is none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        text = importlib.metadata.distribution(distribution).read_text("pbr.json")
        document = json.loads(text or "{}")
        if isinstance(document, dict):
            return str(document.get("git_version", ""))
    return ""


def _checked_out(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the commit of a directory in git, "" for an untracked one."""
    # The second revision fails for an untracked directory in a checkout, such as a virtual
    # environment.
    commit = _git(directory, environment, "rev-parse", "HEAD", "HEAD:./").partition("\n")[0]
    if commit and _git(directory, environment, "status", "--porcelain", "--", "."):
        return f"{commit}{CHANGED}"
    return commit


def _git(directory: Path, environment: Mapping[str, str], *words: str) -> str:
    """Return the output of git, "" when it fails or is missing."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            # Run no program of a stranger's checkout.
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
