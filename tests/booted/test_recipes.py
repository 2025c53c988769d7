"""Run each of docs/recipes as its CI system would, in a repository of one template.

Actions, caches and uploads belong to the services; the tests check that their files exist.
"""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotplate.settings import cache_dir

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
]

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "recipes"
SECONDS = 2400

TEMPLATE = """\
heat_template_version: wallaby
resources:
  config:
    type: OS::Heat::SoftwareConfig
    properties:
      group: script
      config: "#!/bin/sh\\necho hello > /etc/motd\\n"
  deployment:
    type: OS::Heat::SoftwareDeployment
    properties: {config: {get_resource: config}, server: {get_resource: server}}
  server:
    type: OS::Nova::Server
    properties:
      image: image
      flavor: m1.small
      user_data_format: SOFTWARE_CONFIG
"""

#: Four tests, so that each of two shards has at least one.
TESTS = """\
import pytest


@pytest.mark.parametrize("number", range(4))
def test_a_script_answers(server, number):
    done = server.deploy(group="script", config="#!/bin/sh\\necho hello\\n").wait()
    assert done.status == "COMPLETE", done
"""


@pytest.fixture
def repository(tmp_path: Path, nothing_left: None) -> Path:
    """A repository into which the recipes are copied."""
    directory = tmp_path / "repository"
    (directory / "tests").mkdir(parents=True)
    (directory / "stack.yaml").write_text(TEMPLATE)
    (directory / "tests" / "test_web.py").write_text(TESTS)
    return directory


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return a job's environment: no virtual environment, the host's pip configuration.

    The guests are containers, as those of the other tests.
    """
    names = ("HOME", "LANG", "HOTPLATE_CACHE", "HOTPLATE_CPUS", "HOTPLATE_MACHINE")
    kept = {name: text for name, text in os.environ.items() if name in names or "PIP_" in name}
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    # Compiling takes a third of the time, and most modules are imported by none of the jobs.
    return {**kept, "PATH": path, "CI": "true", "PIP_NO_COMPILE": "1", **more}


def run(script: str, *, shell: tuple[str, ...], cwd: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [*shell, "-c", script],
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    assert done.returncode == 0, script


def assert_there(patterns: list[str], directory: Path) -> None:
    """Assert that the files that a service is asked to keep exist."""
    missing = [each for each in patterns if not list(directory.glob(each))]
    assert missing == []


# -- GitHub Actions ------------------------------------------------------------------------------


@dataclass
class GithubJob:
    """One job of a workflow, for one combination of its matrix."""

    job: dict[str, Any]
    environment: dict[str, str]
    directory: Path
    matrix: dict[str, Any] = field(default_factory=dict)

    def play(self) -> None:
        """Run the steps in order, each in its own shell as GitHub does."""
        files = {name: self.directory.parent / name for name in ("GITHUB_PATH", "GITHUB_OUTPUT")}
        for path in files.values():
            path.write_text("")
        for step in self.job["steps"]:
            if not self._is_chosen(step.get("if", "always()")):
                continue
            if script := step.get("run"):
                added = files["GITHUB_PATH"].read_text().split()[::-1]
                path = ":".join([*added, self.environment["PATH"]])
                environment = {**self.environment, "PATH": path}
                environment |= {name: str(each) for name, each in files.items()}
                shell = ("bash", "-e")
                run(self._filled(script), shell=shell, cwd=self.directory, environment=environment)
            elif "upload-artifact" in step["uses"]:
                assert_there(step["with"]["path"].split(), self.directory)
            elif "actions/cache" in step["uses"]:
                assert "week=20" in files["GITHUB_OUTPUT"].read_text()

    def _is_chosen(self, condition: str) -> bool:
        if condition == "always()":
            return True
        name, wanted = re.fullmatch(r"matrix\.(\w+) == (\w+)", condition).groups()
        return str(self.matrix[name]) == wanted

    def _filled(self, script: str) -> str:
        return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda one: str(self.matrix[one[1]]), script)


def test_github_recipe_runs(repository: Path, wheel: Path):
    workflow = yaml.safe_load((RECIPES / "github.yml").read_text())
    environment = clean_environment({**workflow["env"], "HOTPLATE": str(wheel)})
    build, test = workflow["jobs"]["build"], workflow["jobs"]["test"]
    GithubJob(build, environment, repository).play()
    for part in test["strategy"]["matrix"]["part"]:
        GithubJob(test, environment, repository, {"part": part}).play()
    assert len(list((repository / "artifacts").glob("*/"))) > 1


# -- GitLab CI -----------------------------------------------------------------------------------


def gitlab_jobs(recipe: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Return each job merged with the job it extends, and the variables of each copy."""
    reserved = ("stages", "variables", "default")
    for name, job in recipe.items():
        if name in reserved or name.startswith("."):
            continue
        whole = {**recipe.get(job.get("extends", ""), {}), **job}
        copies = whole.get("parallel", 1)
        for index in range(1, copies + 1):
            yield whole, {"CI_NODE_INDEX": str(index), "CI_NODE_TOTAL": str(copies)}


def test_gitlab_recipe_runs(repository: Path, wheel: Path):
    recipe = yaml.safe_load((RECIPES / "gitlab-ci.yml").read_text())
    # As GitLab would: the cache of an earlier pipeline, with its base systems.
    bases = cache_dir() / "dib"
    bases.mkdir(parents=True, exist_ok=True)
    (repository / ".hotplate").mkdir()
    (repository / ".hotplate" / "dib").symlink_to(bases)
    for job, numbers in gitlab_jobs(recipe):
        variables = {
            "CI_PROJECT_DIR": str(repository),
            **numbers,
            **recipe["variables"],
            "HOTPLATE": str(wheel),
            **job.get("variables", {}),
        }
        filled = {k: string.Template(v).safe_substitute(variables) for k, v in variables.items()}
        environment = clean_environment(filled)
        script = "\n".join([*recipe["default"]["before_script"], *job["script"]])
        shell = ("bash", "-eo", "pipefail")
        run(script, shell=shell, cwd=repository, environment=environment)
        after = "\n".join(job.get("after_script", []))
        run(after, shell=shell, cwd=repository, environment=environment)
        kept = [*job["artifacts"]["paths"], *job.get("cache", {}).get("paths", [])]
        kept += job["artifacts"].get("reports", {}).values()
        assert_there(kept, repository)


# -- Zuul ----------------------------------------------------------------------------------------


AFTER_THE_BUILD = "Test it the whole way, from the console to the last signal"


def test_zuul_recipe_runs(repository: Path, wheel: Path, tmp_path: Path):
    first, second = (
        entry["job"] for entry in yaml.safe_load((RECIPES / "zuul.yaml").read_text())[:2]
    )
    assert second["parent"] == first["name"]
    playbooks = [Path(first[key]).name for key in ("pre-run", "run", "post-run")]
    for name, more in (("run.yaml", {}), ("run.yaml", second["vars"])):
        variables = {**first["vars"], "hotplate": str(wheel), **more}
        variables |= {
            "zuul": {"project": {"src_dir": str(repository)}},
            "ansible_user_dir": str(tmp_path),
        }
        # The second shard finds the packages that the first installed, and its image.
        for each in playbooks if not more else [name, "post.yaml"]:
            words = ("--start-at-task", AFTER_THE_BUILD) if more and each == name else ()
            play(RECIPES / "playbooks" / each, variables, tmp_path, *words)
    assert (tmp_path / "zuul-output" / "logs" / "verdicts.tar.gz").exists()


def play(playbook: Path, variables: Mapping[str, Any], directory: Path, *more: str) -> None:
    """Run a playbook on this host, as on a Zuul node."""
    given = directory / "variables.json"
    given.write_text(json.dumps(variables))
    words = ("-c", "local", "-i", "builder,", "-e", f"@{given}", *more, playbook)
    done = subprocess.run(
        ["ansible-playbook", *words],
        cwd=directory,
        env=clean_environment({}),
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
    )
    assert done.returncode == 0, playbook
