"""docs/recipes: each CI system accepts its own files, and they install the same packages.

``tests/booted/test_recipes.py`` runs them.  The workflow that publishes a release is here, too.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "recipes"
#: Schemas that check-jsonschema bundles: SchemaStore's, and GitLab's own.
SCHEMAS = {
    "github.yml": ("vendor.github-workflows",),
    "gitlab-ci.yml": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}

#: The interpreter's packages, and the keys that Ubuntu needs to build a Debian.
BESIDE_BINDEP = {"python3", "python3-venv", "debian-archive-keyring"}


RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def checked(path: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    return subprocess.run(
        [*command, *SCHEMAS[name], path], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_recipe_follows_its_schema(name):
    done = checked(RECIPES / name, name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_release_workflow_gives_an_identity_to_its_last_job_alone():
    """As Trusted Publishing's documentation asks; each action is pinned by the hash of a commit."""
    done = checked(RELEASE, "github.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    workflow = yaml.safe_load(RELEASE.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert {name: job.get("permissions") for name, job in jobs.items()} == {
        "build": None,
        "publish": {"id-token": "write"},
    }
    assert [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}
    used = re.findall(r"uses: (.+)", RELEASE.read_text())
    assert len(used) == 4
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("github.yml", "runs-on:", "run-on:"), ("gitlab-ci.yml", "expire_in:", "expire-in:")],
)
def test_schema_rejects_a_wrong_key(name, good, bad, tmp_path):
    spoiled = tmp_path / name
    spoiled.write_text((RECIPES / name).read_text().replace(good, bad))
    assert checked(spoiled, name).returncode == 1


#: The first version of each action with ``runs.using: node24`` in its action.yml.
NODE_24 = {"checkout": 5, "cache": 5, "upload-artifact": 6, "download-artifact": 7}


def test_each_action_is_pinned_to_a_version_that_runs_on_node_24():
    used = re.findall(r"uses: (.+)", (RECIPES / "github.yml").read_text())
    assert len(used) == 6
    for each in used:
        name, major = re.fullmatch(r"actions/([\w-]+)@v(\d+)\.\d+\.\d+", each).groups()
        assert int(major) >= NODE_24[name], each


def test_github_workflow_has_few_permissions_and_runs_once_for_a_push():
    workflow = yaml.safe_load((RECIPES / "github.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key "on" as true.
    assert workflow[True] == {"push": {"branches": ["main"]}, "pull_request": None}


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml", "zuul.yaml"])
def test_recipe_installs_a_wheel_and_no_package_of_that_name(name, tmp_path):
    (wheel,) = re.findall(r"(?i)^ *hotplate: (.*)", (RECIPES / name).read_text(), re.MULTILINE)
    assert wheel.startswith("./")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", wheel],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and Path(wheel).name in done.stderr


@pytest.fixture(scope="module")
def zuul_schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema from zuulcilint, without that package's many dependencies."""
    directory = tmp_path_factory.mktemp("zuulcilint")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
    words = ("-q", "--no-deps", "--no-compile", "--target", directory, "zuulcilint==1.0.0")
    subprocess.run([*pip, *words], check=True, timeout=300)
    loaded: dict[str, Any] = json.loads((directory / "zuulcilint/zuul-schema.json").read_text())
    return loaded


@pytest.mark.network
def test_zuul_jobs_follow_the_schema(zuul_schema):
    recipe = yaml.safe_load((RECIPES / "zuul.yaml").read_text())
    jsonschema.validate(recipe, zuul_schema)
    recipe[0]["job"]["nodset"] = recipe[0]["job"].pop("nodeset")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(recipe, zuul_schema)


#: Parses jobs only: the schema of a project's stanza needs a complete Zuul.
ZUULS_OWN = """
import sys, yaml
from zuul import configloader

parsers = {"job": configloader.JobParser.schema}
for entry in yaml.safe_load(open(sys.argv[1])):
    for kind, text in entry.items():
        if kind in parsers:
            parsers[kind](text)
            print("parsed", text["name"])
"""


@pytest.mark.long
@pytest.mark.network
def test_zuul_parser_accepts_the_jobs(tmp_path):
    def parsed(path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "bin/python", "-c", ZUULS_OWN, path], capture_output=True, text=True
        )

    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True, timeout=100)
    pip = (tmp_path / "bin/pip", "--disable-pip-version-check", "--no-input", "install")
    words = ("-q", "--no-compile", "--prefer-binary", "zuul>=13")
    subprocess.run([*pip, *words], check=True, timeout=900)
    done = parsed(RECIPES / "zuul.yaml")
    assert done.stdout == "parsed image\nparsed image-2\n", done.stderr
    spoiled = tmp_path / "zuul.yaml"
    spoiled.write_text((RECIPES / "zuul.yaml").read_text().replace("pre-run:", "prerun:"))
    assert "prerun" in parsed(spoiled).stderr


@pytest.mark.tool("ansible-playbook")
@pytest.mark.parametrize("name", ["pre", "run", "post"])
def test_zuul_playbooks_pass_the_syntax_check(name):
    program = shutil.which("ansible-playbook")
    if program is None:
        pytest.skip("no ansible-playbook (package ansible-core)")
    command = [program, "--syntax-check", "-i", "localhost,", RECIPES / f"playbooks/{name}.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_zuul_jobs_use_all_playbooks():
    recipe = yaml.safe_load((RECIPES / "zuul.yaml").read_text())
    job = recipe[0]["job"]
    names = [Path(job[key]).name for key in ("pre-run", "run", "post-run")]
    assert sorted(names) == sorted(path.name for path in (RECIPES / "playbooks").iterdir())


def bindep(section: str) -> set[str]:
    """Return the packages below a comment of ``bindep.txt`` that every host needs."""
    text = (ROOT / "bindep.txt").read_text()
    (block,) = re.findall(rf"^# {section}:.*\n((?:.+\n)+)", text, re.MULTILINE)
    return {line.split()[0] for line in block.splitlines() if "[platform:dpkg]" in line}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.-])[\w.+-]+(?![\w.-])", text))


@pytest.mark.parametrize(
    "name", ["github.yml", "gitlab-ci.yml", "playbooks/pre.yaml", "Containerfile"]
)
def test_recipe_installs_the_packages_of_bindep(name):
    text = (RECIPES / name).read_text()
    needed = bindep("boot") | bindep("build")
    # GitHub's machine has sudo; ovmf is only needed for UEFI images.
    missing = needed - words_of(text)
    assert missing <= {"ovmf", "sudo"}
    assert name != "Containerfile" or not missing
    for block in re.findall(r"no-install-recommends((?:[^\n&]*\\\n)*[^\n&]*)", text):
        named = {word for word in words_of(block) if not word.startswith("-")}
        assert named - {"PACKAGES"} <= needed | BESIDE_BINDEP


def test_ci_page_lists_the_packages_of_bindep():
    text = (ROOT / "docs" / "ci.rst").read_text()
    assert (bindep("boot") | bindep("build")) - words_of(text) == set()
