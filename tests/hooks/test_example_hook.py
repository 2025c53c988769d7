"""The hook in docs/writing-hooks.rst works, and its element has no finding."""

import json
import sys
from pathlib import Path

import pytest
from programs import completed

from hotplate.image.plan import dib_elements_dir
from hotplate.lint.collection import Collection
from hotplate.lint.elements import element_findings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "hook"
HOOK = EXAMPLE / "hooks" / "tmpfiles.py"
COLLECT = ROOT / "elements" / "heat-config" / "heat-config-files" / "collect-hooks.py"


@pytest.fixture
def apply(tmp_path, make_deployment, run_hook):
    """Run the example hook on a config; more arguments are the deployment's."""

    def run(config, env=None, **more):
        deployment = make_deployment(config, group="tmpfiles", **more)
        settings = {"HEAT_TMPFILES_WORKING": str(tmp_path / "work"), **(env or {})}
        return run_hook(str(HOOK), deployment, env=settings)

    return run


def test_files_are_made_and_removed(apply, tmp_path):
    folder = tmp_path / "made"
    config = f"d {folder} 0750 - - -\nf {folder}/note 0640 - - - hello\n"
    answer = apply(config, outputs=["applied"])
    assert (answer.status, answer.stderr) == (0, "")
    assert folder.stat().st_mode & 0o777 == 0o750
    assert (folder / "note").read_text() == "hello"
    assert Path(answer.outputs["applied"]).read_text() == config
    assert apply(f"r {folder}/note\n", action="DELETE").status == 0
    assert not (folder / "note").exists()


def test_malformed_line_fails(apply):
    answer = apply("nonsense\n")
    assert answer.status != 0
    assert ".conf:1: " in answer.stderr


def test_missing_tool_is_explained(apply):
    answer = apply("", env={"HEAT_TMPFILES_CMD": "systemd-tmpfiles-not-here"})
    assert answer.status == 127
    assert "package systemd" in answer.stderr


def test_config_that_is_a_map_is_refused(apply):
    answer = apply({"a": 1})
    assert answer.status == 1
    assert "must be text" in answer.stderr


def test_deployment_on_the_page_runs_with_the_script_hook(hooks_dir, tmp_path, run_hook):
    """Tried with the hook for scripts, which needs no tool."""
    deployment = json.loads((EXAMPLE / "deployment.json").read_text())
    settings = {
        "HEAT_SCRIPT_WORKING": str(tmp_path / "work"),
        "HEAT_SCRIPT_OUTPUTS": str(tmp_path / "outputs"),
    }
    answer = run_hook(str(hooks_dir / "script.py"), deployment, env=settings)
    assert (answer.status, answer.stdout) == (0, "hello world\n")
    assert answer.outputs["greeted"] == "world\n"


def test_element_has_no_finding():
    collection = Collection(
        EXAMPLE / "elements", EXAMPLE / "hooks", (ROOT / "elements", dib_elements_dir())
    )
    assert element_findings(collection) == []


def test_element_brings_the_hook(tmp_path):
    element = EXAMPLE / "elements" / "heat-config-tmpfiles"
    done = completed(
        [sys.executable, COLLECT, tmp_path / "collected"], input=f"[heat-config-tmpfiles]={element}"
    )
    assert done.returncode == 0, done.stderr
    assert (
        '"/usr/libexec/heat-config/hooks/tmpfiles"'
        in (tmp_path / "collected" / "index.json").read_text()
    )
