"""The commit of an element: in a checkout, changed since, untracked, and from a package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.image.build import commits_of
from hotplate.image.plan import dib_elements_dir

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
NAMED = ("-c", "user.name=me", "-c", "user.email=me@example.com")


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *NAMED, *words], cwd=directory, env=ENVIRONMENT, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the elements ``mine`` and ``other``."""
    if shutil.which("git") is None:
        pytest.skip("needs git on this host")
    for name in ("mine", "other"):
        (tmp_path / "elements" / name).mkdir(parents=True)
        (tmp_path / "elements" / name / "element-deps").write_text("vm\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "elements")
    return tmp_path


def of(directory: Path, **environment: str) -> str:
    commits = commits_of(
        {"mine": directory}, dib_elements=Path("/x"), environment=ENVIRONMENT | environment
    )
    return commits.get("mine", "")


def test_element_in_a_checkout_has_its_commit(checkout: Path):
    assert of(checkout / "elements" / "mine") == git(checkout, "rev-parse", "HEAD")


def test_changed_element_is_marked(checkout: Path):
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "elements" / "mine" / "new").touch()
    assert of(checkout / "elements" / "mine") == f"{head}-dirty"
    assert of(checkout / "elements" / "other") == head


def test_untracked_element_has_no_commit(checkout: Path):
    (checkout / ".gitignore").write_text(".venv\n")
    (checkout / ".venv" / "mine").mkdir(parents=True)
    assert of(checkout / ".venv" / "mine") == ""


def test_commit_is_missing_without_a_checkout_or_git(checkout: Path, tmp_path_factory):
    assert of(tmp_path_factory.mktemp("elements")) == ""
    assert of(checkout / "elements" / "mine", PATH="/nonexistent") == ""


def test_diskimage_builders_elements_have_its_packages_commit():
    folder = dib_elements_dir()
    commits = commits_of({"vm": folder / "vm"}, dib_elements=folder, environment=ENVIRONMENT)
    assert re.fullmatch(r"[0-9a-f]{7,40}", commits["vm"])
