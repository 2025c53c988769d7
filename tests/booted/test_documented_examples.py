"""Run the examples of the documentation as the pages describe."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.boots

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "docs" / "examples"


@pytest.fixture
def run(without_cloud_init, tmp_path) -> Callable[..., None]:
    """Return a function that runs pytest on the image with more options; no test may fail."""

    def start(*words: object, cwd: Path) -> None:
        options = ("-p", "no:cacheprovider", "--image", without_cloud_init)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", *options),
                *("--artifacts", tmp_path / "artifacts", *words),
            ],
            capture_output=True,
            text=True,
            timeout=3600,
            cwd=cwd,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    return start


def test_documented_examples_pass(run, tmp_path, nothing_left):
    report = tmp_path / "report.xml"
    folders = (EXAMPLES / "plugin", EXAMPLES / "hook" / "tests")
    run("--junit-xml", report, *folders, cwd=REPOSITORY)
    names = {case.get("name", "") for case in ElementTree.parse(report).iter("testcase")}
    written = {
        line.removeprefix("def ").partition("(")[0]
        for path in EXAMPLES.rglob("test_*.py")
        for line in path.read_text().splitlines()
        if line.startswith("def test_")
    }
    assert {name.partition("[")[0] for name in names} == written


def test_expectations_in_yaml_hold_without_a_kernel_beside_the_image(
    without_cloud_init, test_image, nothing_left
):
    """A container needs none (docs/containers.rst)."""
    # A hard link, so that the caches know it.
    with tempfile.TemporaryDirectory(dir=without_cloud_init.parent) as folder:
        alone = Path(folder) / "root.qcow2"
        alone.hardlink_to(without_cloud_init)
        done = test_image(alone, "-t", EXAMPLES / "expect" / "greeting.yaml")
    assert done.status == 0, done.last_line
    assert "seen before the boot" not in done.stdout


DOCSTRINGS = """
import doctest

import pytest

import hotplate.guest.driver
import hotplate.plugin.server

EXAMPLES = [
    example
    for module in (hotplate.guest.driver, hotplate.plugin.server)
    for example in doctest.DocTestFinder().find(module)
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_docstring(booted_server, example):
    example.globs["server"] = booted_server
    assert doctest.DocTestRunner().run(example).failed == 0


def test_there_are_some():
    assert len(EXAMPLES) >= 10
"""


def test_docstring_examples_hold(run, tmp_path, nothing_left):
    path = tmp_path / "test_docstrings.py"
    path.write_text(DOCSTRINGS)
    run("--rootdir", tmp_path, path, cwd=tmp_path)
