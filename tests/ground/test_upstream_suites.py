"""``tools/upstream-suites`` without a cloud: its usage, and its table of a recorded run."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
TOOL = TOOLS / "upstream-suites"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    loader = importlib.machinery.SourceFileLoader("upstream_suites", str(TOOL))
    spec = importlib.util.spec_from_loader("upstream_suites", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_missing_session_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--session", str(tmp_path / "up"), "heat-api"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert f'no session runs in "{tmp_path}/up"' in done.stderr
    assert "hint: hotplate up IMAGE" in done.stderr


def test_image_without_an_agent_is_known_by_its_name(tool: ModuleType) -> None:
    """Heat's own gate has a CirrOS as ``minimal_image_ref``, which has no agent."""
    web, plain, later = ({"Name": name} for name in ("web", "minimal", "uploaded"))
    assert tool.session_images([web, later]) == (web, web)
    assert tool.session_images([plain, web, later]) == (web, plain)


@pytest.mark.parametrize(
    ("test_id", "names"),
    [
        ("tempest.api.image.a.A.test_b[id-1,smoke]", ("tempest.api.image.a.A", "test_b")),
        # A class whose tests were skipped.
        ("setUpClass (tempest.api.image.a.A)", ("tempest.api.image.a.A", "setUpClass")),
    ],
)
def test_tests_and_classes_are_named(
    tool: ModuleType, test_id: str, names: tuple[str, str]
) -> None:
    assert tool.names(test_id) == names


def test_table_counts_each_suite_and_says_why(tool: ModuleType) -> None:
    # As stestr keeps the traceback of a test, here with the lines of a response after it.
    failure = (
        'Traceback (most recent call last):\n\n  File "x.py", line 7, in test_share\n'
        "    raise exceptions.Forbidden(resp_body, resp=resp)\n\n"
        "    tempest.lib.exceptions.Forbidden: Forbidden\n"
    )
    lines = tool.table(
        [
            tool.Outcome("heat_tempest_plugin.tests.api.a", "test_a", "passed", ""),
            tool.Outcome("heat_tempest_plugin.tests.api.b", "test_b", "skipped", "no cinder"),
            tool.Outcome(
                "tempest.api.image.v2.c", "test_c", "failed", tool.reason({"traceback": failure})
            ),
        ]
    ).splitlines()
    assert lines[0].split() == ["suite", "passed", "failed", "skipped", "all"]
    assert lines[1].split() == ["heat_tempest_plugin.tests.api", "1", "0", "1", "2"]
    assert lines[2].split() == ["tempest.api.image", "0", "1", "0", "1"]
    assert lines[3].split() == ["all", "1", "1", "1", "3"]
    assert lines[4:] == [
        "skipped: heat_tempest_plugin.tests.api.b.test_b",
        "    no cinder",
        "failed: tempest.api.image.v2.c.test_c",
        "    tempest.lib.exceptions.Forbidden: Forbidden",
    ]
