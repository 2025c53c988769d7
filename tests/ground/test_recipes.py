"""docs/recipes: each CI system accepts its own files, and they install the same packages.

``tests/booted/test_recipes.py`` and ``test_recipe_steps.py`` run them.  The workflow that publishes
a release is here, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from played_cases import Played

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "docs" / "recipes"
#: Schemas that check-jsonschema bundles: SchemaStore's, and GitLab's own.
SCHEMAS = {
    "github.yml": ("vendor.github-workflows",),
    "github-action.yml": ("vendor.github-workflows",),
    "action/action.yml": ("vendor.github-actions",),
    "gitlab-ci.yml": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
    "gitlab-include.yml": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}

#: The interpreter's packages, and the keys that Ubuntu needs to build a Debian.
BESIDE_BINDEP = {"python3", "python3-venv", "debian-archive-keyring"}


RELEASE = ROOT / ".github" / "workflows" / "release.yml"


def checked(path: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema")
    return subprocess.run(
        [*command, *SCHEMAS[name], path], capture_output=True, text=True, timeout=60
    )


def component(inputs: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two documents of the component, its inputs filled in as GitLab does."""
    text = (RECIPES / "gitlab-component/templates/test-image.yml").read_text()
    head, _, body = text.partition("\n---\n")
    spec = yaml.safe_load(head)
    values = {
        name: inputs[name] if name in inputs else each["default"]
        for name, each in spec["spec"]["inputs"].items()
    }
    used = set(re.findall(r"\$\[\[ inputs\.(\w+) \]\]", body))
    assert used == set(values)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {filled(name): filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        if isinstance(value, str):
            return re.sub(r"\$\[\[ inputs\.(\w+) \]\]", lambda one: values[one[1]], value)
        return value

    return spec, filled(yaml.safe_load(body))


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


def test_release_is_built_with_the_locked_versions():
    build = yaml.safe_load(RELEASE.read_text())["jobs"]["build"]
    (step,) = (each for each in build["steps"] if each.get("name") == "build")
    # pip reads the variable, also in the isolated environments of "build".
    lock = step["env"]["PIP_CONSTRAINT"].replace("${{ github.workspace }}", str(ROOT))
    _, first, second, *_ = step["run"].splitlines()
    assert first.startswith(".venv/bin/pip install -q --require-hashes -r <(sed ")
    assert second == ".venv/bin/pip install -q build twine"
    command = "cat " + first.rpartition(" -r ")[2]
    done = subprocess.run(
        ["bash", "-c", command], env={"PIP_CONSTRAINT": lock}, stdout=subprocess.PIPE, text=True
    )
    assert re.fullmatch(r"pip==[\d.]+ \\\n(?: +--hash=sha256:\w{64}(?: \\)?\n)+", done.stdout)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("github.yml", "runs-on:", "run-on:"),
        ("action/action.yml", "using:", "use:"),
        ("gitlab-ci.yml", "expire_in:", "expire-in:"),
    ],
)
def test_schema_rejects_a_wrong_key(name, good, bad, tmp_path):
    spoiled = tmp_path / Path(name).name
    spoiled.write_text((RECIPES / name).read_text().replace(good, bad))
    assert checked(spoiled, name).returncode == 1


#: The first version of each action with ``runs.using: node24`` in its action.yml.
NODE_24 = {"checkout": 5, "cache": 5, "upload-artifact": 6, "download-artifact": 7}


def test_each_action_is_pinned_to_the_commit_of_a_version_that_runs_on_node_24():
    files = ("github.yml", "github-action.yml", "action/action.yml")
    used = [
        each for file in files for each in re.findall(r"uses: (.+)", (RECIPES / file).read_text())
    ]
    assert len(used) == 9
    for each in used:
        if each.startswith("OWNER/"):
            path, commit = re.fullmatch(r"OWNER/hotplate/(.+)@([0-9a-f]{40})", each).groups()
            assert (ROOT / path / "action.yml").is_file() and commit
            continue
        name, major = re.fullmatch(
            r"actions/([\w-]+)@[0-9a-f]{40} # v(\d+)\.\d+\.\d+", each
        ).groups()
        assert int(major) >= NODE_24[name], each


def test_no_checkout_of_a_recipe_leaves_the_token_to_later_steps():
    for file in ("github.yml", "github-action.yml"):
        jobs = yaml.safe_load((RECIPES / file).read_text())["jobs"]
        for step in (step for job in jobs.values() for step in job["steps"]):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"] == {"persist-credentials": False}, file


@pytest.mark.parametrize("name", ["github.yml", "github-action.yml"])
def test_github_workflow_has_few_permissions_and_runs_once_for_a_push(name):
    workflow = yaml.safe_load((RECIPES / name).read_text())
    assert workflow["permissions"] == {"contents": "read"}
    # YAML 1.1 reads the key "on" as true.
    assert workflow[True] == {"push": {"branches": ["main"]}, "pull_request": None}


def test_inputs_reach_the_scripts_of_the_action_by_the_environment():
    """GitHub's "Script injections": an expression in a script is text of that script."""
    action = yaml.safe_load((RECIPES / "action/action.yml").read_text())
    steps = action["runs"]["steps"]
    assert not [step for step in steps if "${{" in step.get("run", "")]
    given = re.findall(r"inputs\.(\w+)", json.dumps(steps))
    assert set(given) == set(action["inputs"])


def test_component_follows_gitlabs_schema_with_its_inputs_filled_in(tmp_path):
    spec, job = component({"image": "web.qcow2"})
    for document in (spec, job):
        file = tmp_path / "component.yml"
        file.write_text(yaml.safe_dump(document))
        done = checked(file, "gitlab-ci.yml")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "$[[" not in json.dumps(job)
    (only,) = job.values()
    scripts = only["before_script"] + only["script"] + only["after_script"]
    assert "$[[" not in json.dumps(scripts)
    # An included file with these would change jobs of the project that includes it.
    assert not {"default", "variables", "stages"} & set(job)


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


@pytest.mark.parametrize(
    "name",
    [
        *("github.yml", "gitlab-ci.yml", "playbooks/pre.yaml", "Containerfile"),
        *("action/action.yml", "gitlab-component/templates/test-image.yml"),
        "tmt/plans/image.fmf",
    ],
)
def test_recipe_installs_the_locked_versions(name):
    """pip 26.1 was the first to take versions and hashes from constraints (pip's issue 9243)."""
    text = (RECIPES / name).read_text().replace("\\\n", "")
    found = re.findall(r"pip\"? install (?:-q|--no-cache-dir| )*([^\n&]+)", text)
    installs = [each.strip() for each in found]
    assert installs and len(installs) % 3 == 0
    for pip, wheel, needs in zip(*(iter(installs),) * 3, strict=True):
        assert pip == "--upgrade pip"
        assert re.fullmatch(r"--no-deps \S+|--no-deps \"{{ hotplate }}\"", wheel)
        assert re.fullmatch(r"-c \S+/share/hotplate/constraints.txt\"? hotplate", needs)


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


#: Names that are no shell's: spaces, quotes, and a command that would be run.
STRANGE = "a 'b\" $(touch injected);touch injected.raw"


class Steps:
    """Scripts of recipes, run with a hotplate whose image files say how they fare."""

    def __init__(self, folder: Path) -> None:
        self.played = Played(folder)
        self.folder = folder
        (folder / STRANGE).write_text("pass")
        (folder / "bad.raw").write_text("fail")

    def install(self, directory: Path) -> None:
        """Make a ``bin/hotplate`` in the place of a virtual environment."""
        program = directory / "bin" / "hotplate"
        program.parent.mkdir(parents=True)
        path = f"{self.folder / 'planted'}:{ROOT}"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" -P -m hotplate "$@"\n'
        )
        program.chmod(0o755)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script as GitHub and GitLab do."""
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**os.environ, "HOTPLATE_CACHE": str(self.folder / "cache"), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not list(self.folder.glob("injected*"))
        return done


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_action_tests_the_image_and_packs_its_results(steps, tmp_path):
    action = yaml.safe_load((RECIPES / "action/action.yml").read_text())
    named = {step.get("name"): step for step in action["runs"]["steps"]}
    temp = tmp_path / "temp"
    steps.install(temp / "hotplate")
    given = {"RUNNER_TEMP": str(temp), "TEMPLATE": "", "ARGUMENTS": "-j 1  -q"}
    passed = steps.run(named["test"]["run"], IMAGE=STRANGE, **given)
    assert (passed.returncode, passed.stdout.splitlines()[-1]) == (0, "PASSED")
    failed = steps.run(named["test"]["run"], IMAGE="bad.raw", **given)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1] == "FAILED: the image is bad"
    absent = steps.run(named["test"]["run"], IMAGE="bad.raw", **given | {"TEMPLATE": "no such"})
    assert absent.returncode == 2 and '"no such" does not exist' in absent.stderr
    packed = steps.run(named["pack what is to be kept"]["run"], **given)
    assert packed.returncode == 0, packed.stderr
    listed = steps.run(f'tar -tzf "{temp}/verdicts.tar.gz"').stdout
    assert "/report.html\n" in listed


def test_component_tests_the_image_and_packs_its_results(steps, tmp_path):
    _, document = component({"image": STRANGE, "arguments": "-j 1  -q"})
    (job,) = document.values()
    steps.install(tmp_path / ".venv")
    passed = steps.run("\n".join(job["script"]), **job["variables"])
    assert (passed.returncode, passed.stdout.splitlines()[-1]) == (0, "PASSED")
    failed = steps.run("\n".join(job["script"]), **job["variables"] | {"IMAGE": "bad.raw"})
    assert failed.returncode == 1
    assert "the image is bad" in (tmp_path / job["artifacts"]["reports"]["junit"]).read_text()
    packed = steps.run("\n".join(job["after_script"]))
    assert packed.returncode == 0, packed.stderr
    assert [tmp_path / each for each in job["artifacts"]["paths"]] == [*tmp_path.glob("*.gz")]


@pytest.mark.tool("ansible-playbook")
def test_role_lets_an_image_pass_and_stops_the_play_at_one_that_failed(steps, tmp_path):
    program = shutil.which("ansible-playbook")
    if program is None:
        pytest.skip("no ansible-playbook (package ansible-core)")
    steps.install(tmp_path / "venv")
    for installed in ("python3", "heat-engine"):
        (tmp_path / "venv/bin" / installed).symlink_to(sys.executable)
    task = {"name": "uploads", "ansible.builtin.debug": {"msg": "uploaded {{ image }}"}}
    roles = [{"role": "validate_image", "validate_image_path": "{{ image }}"}]
    play = [{"hosts": "all", "gather_facts": False, "roles": roles, "tasks": [task]}]
    (tmp_path / "play.yaml").write_text(yaml.safe_dump(play))
    values = {
        "ansible_python_interpreter": sys.executable,
        "ansible_user_dir": str(tmp_path),
        "validate_image_arguments": ["-j", "1"],
        "validate_image_inspect": False,
        "validate_image_install_packages": False,
        "validate_image_venv": str(tmp_path / "venv"),
        "zuul": {"project": {"src_dir": str(tmp_path)}},
    }
    command = shlex.join([program, "-i", "localhost,", "-c", "local", "play.yaml", "-e"])
    roles_path = {"ANSIBLE_ROLES_PATH": str(RECIPES / "roles")}
    given = {**values, "image": STRANGE}
    passed = steps.run(f"{command} {shlex.quote(json.dumps(given))}", **roles_path)
    assert passed.returncode == 0, passed.stdout
    assert "uploaded" in passed.stdout
    assert (tmp_path / "zuul-output/logs/hotplate/verdict.xml").is_file()
    given = {**values, "image": "bad.raw"}
    failed = steps.run(f"{command} {shlex.quote(json.dumps(given))}", **roles_path)
    assert failed.returncode == 2
    assert '"msg": "FAILED: the image is bad"' in failed.stdout
    assert "uploaded" not in failed.stdout


def linted(directory: Path, package: str, *words: str, cwd: Path) -> None:
    """Assert that a linter, installed into a virtual environment of its own, has no complaint."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=100)
    pip = (directory / "bin/pip", "--disable-pip-version-check", "--no-input", "install")
    subprocess.run([*pip, "-q", "--no-compile", package], check=True, timeout=600)
    path = {**os.environ, "PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(words, cwd=cwd, env=path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warn " not in done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.network
def test_tmt_accepts_the_plan_and_its_test(tmp_path):
    linted(tmp_path, "tmt>=1.50", "tmt", "lint", cwd=RECIPES / "tmt")


@pytest.mark.long
@pytest.mark.network
def test_ansible_lint_accepts_the_role_and_its_playbook(tmp_path):
    shutil.copytree(RECIPES / "roles", tmp_path / "tree" / "roles")
    shutil.copy(RECIPES / "validate_image.yaml", tmp_path / "tree")
    words = ("ansible-lint", "--offline", "--profile", "production", "roles/validate_image")
    linted(
        tmp_path / "venv", "ansible-lint>=25", *words, "validate_image.yaml", cwd=tmp_path / "tree"
    )


def test_zuul_jobs_use_all_playbooks():
    recipe = yaml.safe_load((RECIPES / "zuul.yaml").read_text())
    job = recipe[0]["job"]
    names = [Path(job[key]).name for key in ("pre-run", "run", "post-run")]
    assert sorted(names) == sorted(path.name for path in (RECIPES / "playbooks").iterdir())


def test_element_for_heats_gate_has_the_groups_of_its_tests():
    """test_server_software_config.yaml and test_server_cfn_init.yaml of heat-tempest-plugin 3.0."""
    elements = RECIPES / "elements"
    hotplate = (sys.executable, "-P", "-m", "hotplate")
    lint = subprocess.run([*hotplate, "lint", elements], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
    words = ("build", "--dry-run", "--element", "heat-gate", "--element-path", elements)
    build = subprocess.run([*hotplate, *words], capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    assert "heat-gate" in build.stdout
    needed = (elements / "heat-gate/element-deps").read_text().split()
    assert {f"heat-config-{group}" for group in ("script", "puppet", "cfn-init")} < set(needed)


def bindep(section: str) -> set[str]:
    """Return the packages below a comment of ``bindep.txt`` that every host needs."""
    text = (ROOT / "bindep.txt").read_text()
    (block,) = re.findall(rf"^# {section}:.*\n((?:.+\n)+)", text, re.MULTILINE)
    return {line.split()[0] for line in block.splitlines() if "[platform:dpkg]" in line}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.-])[\w.+-]+(?![\w.-])", text))


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("github.yml", ("boot", "build")),
        ("gitlab-ci.yml", ("boot", "build")),
        ("playbooks/pre.yaml", ("boot", "build")),
        ("Containerfile", ("boot", "build")),
        ("action/action.yml", ("boot",)),
        ("gitlab-component/templates/test-image.yml", ("boot",)),
        ("roles/validate_image/tasks/main.yaml", ("boot",)),
        ("tmt/plans/image.fmf", ("boot",)),
    ],
)
def test_recipe_installs_the_packages_of_bindep(name, sections):
    text = (RECIPES / name).read_text()
    needed = {package for each in sections for package in bindep(each)}
    # GitHub's machine has sudo; ovmf is only needed for UEFI images.
    missing = needed - words_of(text)
    assert missing <= {"ovmf", "sudo"}
    assert name != "Containerfile" or not missing
    for block in re.findall(r"no-install-recommends((?:[^\n&]*\\\n)*[^\n&]*)", text):
        named = {word for word in words_of(block) if not word.startswith("-")}
        assert named - {"PACKAGES"} <= bindep("boot") | bindep("build") | BESIDE_BINDEP


def test_ci_page_lists_the_packages_of_bindep():
    text = (ROOT / "docs" / "ci.rst").read_text()
    assert (bindep("boot") | bindep("build")) - words_of(text) == set()
