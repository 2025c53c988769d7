"""Run the recipes that test an image as a step of other jobs, with all that they install."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.boots, pytest.mark.long, pytest.mark.xdist_group("recipe_steps")]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "recipes"
SECONDS = 1500


def run(script: str, cwd: Path, **environment: str) -> str:
    """Run a script as GitHub and GitLab do, without the virtual environment of the tests."""
    names = ("HOME", "LANG", "HOTPLATE_CACHE", "HOTPLATE_MACHINE")
    kept = {name: text for name, text in os.environ.items() if name in names or "PIP_" in name}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=cwd,
        env={**kept, "PATH": path, "CI": "true", "PIP_NO_COMPILE": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_action_installs_its_own_commit_and_tests_an_image(tmp_path: Path, bookworm: Path):
    action = yaml.safe_load((RECIPES / "action/action.yml").read_text())
    temp, summary = tmp_path / "temp", tmp_path / "summary.md"
    temp.mkdir()
    environment = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_ACTION_PATH": str(RECIPES / "action"),
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_WORKSPACE": str(tmp_path),
        "RUNNER_TEMP": str(temp),
        # The inputs, which are the same for each step.
        "IMAGE": str(bookworm),
        "TEMPLATE": "",
        "ARGUMENTS": "",
        "HOTPLATE": "",
    }
    for step in action["runs"]["steps"]:
        if "run" in step:
            run(step["run"], tmp_path, **environment)
    assert "### hotplate: 1 of 1 passed" in summary.read_text()
    assert (temp / "verdicts.tar.gz").stat().st_size > 0


def test_component_and_role_test_an_image(tmp_path: Path, bookworm: Path, wheel: Path):
    text = (RECIPES / "gitlab-component/templates/test-image.yml").read_text()
    (job,) = yaml.safe_load(text.partition("\n---\n")[2]).values()
    given = {"HOTPLATE": str(wheel), "IMAGE": str(bookworm), "TEMPLATE": "", "ARGUMENTS": ""}
    assert set(given) == set(job["variables"])
    run("\n".join([*job["before_script"], *job["script"]]), tmp_path, **given)
    run("\n".join(job["after_script"]), tmp_path, **given)
    assert all((tmp_path / each).is_file() for each in ("results.xml", "verdicts.tar.gz"))
    # The role finds the virtual environment that the component has made.
    program = shutil.which("ansible-playbook")
    if program is None:
        pytest.skip("no ansible-playbook (package ansible-core)")
    play = [{"hosts": "all", "gather_facts": False, "roles": ["validate_image"]}]
    (tmp_path / "play.yaml").write_text(yaml.safe_dump(play))
    values = {
        "ansible_user_dir": str(tmp_path),
        # The image of the tests has the keys of its ssh server.
        "validate_image_inspect": False,
        "validate_image_path": str(bookworm),
        "validate_image_venv": str(tmp_path / ".venv"),
        "zuul": {"project": {"src_dir": str(tmp_path)}},
    }
    words = (program, "-i", "localhost,", "-c", "local", "play.yaml", "-e", json.dumps(values))
    run(shlex.join(words), tmp_path, ANSIBLE_ROLES_PATH=str(RECIPES / "roles"))
    assert (tmp_path / "zuul-output/logs/hotplate/verdict.xml").is_file()
