"""heat-agents' own hooks beside ours, with the values that production templates have.

Each hook gets the values in each place that it passes on, and a program in place of its tool
records its arguments, variables and the content of files. Values with which heat-agents' hook ends
with a traceback are omitted for a place. Each other difference is a row of "Differences" in
docs/hooks.rst.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import program

pytestmark = pytest.mark.network

TEXTS = {
    "plain": "web",
    "double quotes": '"%{::uuid}"',
    "single quotes": "'it''s'",
    "one quote": "it's",
    "lines": "one\n  two\n",
    "interpolation": "%{::fqdn} ${x} {{ y }} $(z) `w` $v",
    "percent": "100% %s %(x)s",
    "blanks": "  both  ",
    "empty": "",
    "backslashes": "a\\b\\\\c\\n",
    "colon": "a: b # c",
    "equals": "a=b=",
    "json": '{"a": ["b", null]}',
    "boolean": "yes",
    "True": "True",
    "octal": "007",
    "unicode": "wörld ☃🍲",
}
OTHERS = {
    "true": True,
    "false": False,
    "number": 7,
    "large": 2**70,
    "float": 1.5,
    "null": None,
    "list": ["a", 1, True, "it's"],
    "map": {"k": [True, None], "ü": "🍲"},
}
VALUES = TEXTS | OTHERS
TEXTS_AND_MAPS = TEXTS | {name: OTHERS[name] for name in ("list", "map")}
NOTHING = {name: OTHERS[name] for name in ("false", "null")}

# The program in place of a tool: it keeps its words, its variables and the files of the test.
RECORDER = """#!{python} -I
import json, os, pathlib, sys
if sys.argv[1:2] in (["ps"], ["inspect"], ["version"]):
    sys.exit(sys.argv[1] == "inspect")
files = {{}}
named = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--env-file=/proc/")]
for path in [*map(pathlib.Path, named), *pathlib.Path({root!r}).rglob("*")]:
    if path.is_file():
        files[str(path)] = path.read_bytes().decode()
record = {{"words": sys.argv[1:], "environment": dict(os.environ), "files": files}}
with open({record!r}, "a") as file:
    file.write(json.dumps(record) + "\\n")
"""

Records = list[dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """A place of a deployment that a hook passes on.

    :param values: by a name that may be that of a variable, a file or a container.
    :param deployment: makes the keywords of a deployment that has them there.
    :param see: returns the values that the tool got, from its records or from the test's files.
    :param phase: whether heat-agents' hook relies on a step of os-refresh-config.
    """

    group: str
    values: dict[str, Any]
    deployment: Callable[[dict[str, Any]], dict[str, Any]]
    see: Callable[[Records, Path], Any]
    phase: bool = False


def inputs(config: Any = "x", **more: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: (
        {"config": config, "inputs": {f"v_{k}": v for k, v in given.items()}} | more
    )


def variables(prefix: str) -> Callable[[Records, Path], dict[str, str]]:
    def see(records: Records, _root: Path) -> dict[str, str]:
        environment = records[0]["environment"]
        return {name: environment[name] for name in environment if name.startswith(prefix)}

    return see


def content(ending: str) -> Callable[[Records, Path], str]:
    """Return the content of the file whose path has this ending."""

    def see(records: Records, _root: Path) -> str:
        files = records[0]["files"]
        (text,) = {text for path, text in files.items() if path.endswith(ending)}
        return text

    return see


def attributes(ending: str) -> Callable[[Records, Path], dict[str, Any]]:
    """Return the inputs in the JSON file whose path has this ending."""

    def see(records: Records, root: Path) -> dict[str, Any]:
        made = json.loads(content(ending)(records, root))
        return {name: made[name] for name in made if name.startswith("v_")}

    return see


def chef_attributes(records: Records, root: Path) -> dict[str, Any]:
    words = records[0]["words"]
    return attributes(words[words.index("-j") + 1])(records, root)


def written(folder: str) -> Callable[[Records, Path], dict[str, str]]:
    return lambda _, root: {path.name: path.read_text() for path in (root / folder).iterdir()}


def services(records: Records, root: Path) -> Any:
    """Return the services of a compose file, which is YAML; ours is of the new layout."""
    document = yaml.safe_load(content("docker-compose.yml")(records, root))
    return document.get("services", document)


def env_files(records: Records, _root: Path) -> dict[str, str]:
    files = records[0]["files"]
    return {Path(path).name: files[path] for path in files if path.endswith(".env")}


def containers(records: Records, _root: Path) -> Any:
    """Return each container's options, the words behind the image, and its variables."""
    made = {}
    for record in records:
        options, own = [], {}
        words = record["words"]
        split = words.index("image")
        for word in words[:split]:
            name, _equals, value = word.partition("=")
            if name == "--env-file" and value in record["files"]:
                lines = record["files"][value].splitlines()
                own.update(line.split("=", 1) for line in lines)
            elif name == "--env":
                key, equals, text = value.partition("=")
                own[key] = text if equals else record["environment"].get(key)
            else:
                options.append("--detach=true" if word == "--detach" else word)
        made[words[words.index("--name") + 1]] = (sorted(options), words[split:], own)
    return made


def commands(wrap: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return a config of docker-cmd with a container for each value, as part of its command."""
    return lambda given: {
        "config": {name: {"image": "image", "command": wrap(given[name])} for name in given}
    }


PLACES = {
    "script": Place("script", TEXTS_AND_MAPS, inputs("#!/bin/sh\nexec $TOOL\n"), variables("v_")),
    "puppet facts": Place("puppet", TEXTS, inputs(), variables("FACTER_v_")),
    "puppet hiera": Place(
        "puppet",
        VALUES,
        inputs(options={"enable_hiera": True, "enable_facter": False}),
        attributes("heat_config_a-deployment.json"),
    ),
    "puppet manifest": Place(
        "puppet", TEXTS, lambda given: {"config": "\n".join(given.values())}, content(".pp")
    ),
    "ansible": Place("ansible", VALUES, inputs(), attributes("_variables.json")),
    "ansible playbook": Place(
        "ansible",
        TEXTS,
        lambda given: {"config": "\n".join(given.values())},
        content("_playbook.yaml"),
    ),
    "chef": Place("chef", VALUES, inputs('["recipe[x]"]'), chef_attributes),
    "cfn-init": Place(
        "cfn-init",
        VALUES,
        lambda given: {"config": {"config": {"files": given}}},
        lambda records, root: json.loads(content("last_metadata")(records, root)),
    ),
    "json-file": Place(
        "json-file",
        VALUES,
        lambda given: {"config": {f"ROOT/made/{name}": given[name] for name in given}},
        written("made"),
    ),
    "hiera": Place(
        "hiera", VALUES, lambda given: {"config": {"datafiles": given}}, written("data")
    ),
    "docker-cmd command": Place("docker-cmd", TEXTS | NOTHING, commands(), containers),
    "docker-cmd words": Place(
        "docker-cmd", TEXTS, commands(lambda value: ["x", value]), containers
    ),
    "docker-cmd options": Place(
        "docker-cmd",
        VALUES,
        lambda given: {
            "config": {
                name: {
                    "image": "image",
                    "environment": [f"KEY={value}", "EMPTY="],
                    "volumes": [f"/a:/{value}"],
                    **dict.fromkeys(
                        ("user", "net", "pid", "restart", "privileged", "detach"), value
                    ),
                }
                for name, value in given.items()
            }
        },
        containers,
    ),
    "docker-compose": Place(
        "docker-compose",
        VALUES,
        lambda given: {
            "config": {
                name: {"image": "image", "environment": {"KEY": given[name]}} for name in given
            }
        },
        services,
        phase=True,
    ),
    "docker-compose env_files": Place(
        "docker-compose",
        TEXTS,
        lambda given: {
            "config": {name: {"image": "i", "env_file": f"./{name}.env"} for name in given},
            "inputs": {
                "env_files": repr(
                    [{"file_name": f"./{name}.env", "content": given[name]} for name in given]
                )
            },
        },
        env_files,
        phase=True,
    ),
}

OPTIONS = {
    "puppet": (("tags", "--tags"), ("modulepath", "--modulepath")),
    "ansible": (
        ("tags", "--tags"),
        ("skip_tags", "--skip-tags"),
        ("modulepath", "--module-path"),
    ),
}


def settings(root: Path, tool: Path) -> dict[str, str]:
    """Return the variables by which both find the tool, and have all their files below *root*."""
    made = {"TOOL": str(tool), "PATH": f"{tool.parent}:{os.environ['PATH']}", "PYTHONUTF8": "1"}
    for group in ("PUPPET", "ANSIBLE", "CHEF", "CFN_INIT", "DOCKER", "DOCKER_COMPOSE"):
        made[f"HEAT_{group}_CMD"] = str(tool)
    for group in ("SCRIPT", "PUPPET", "ANSIBLE", "CHEF", "DOCKER_COMPOSE"):
        made[f"HEAT_{group}_WORKING"] = str(root / "work")
        made[f"HEAT_{group}_OUTPUTS"] = str(root / "out")
    made["HEAT_PUPPET_LOGDIR"] = str(root / "log")
    made["HEAT_PUPPET_HIERA_DATADIR"] = str(root / "data")
    made["HEAT_HIERA_CONFIG"] = str(root / "hiera.yaml")
    made["HEAT_HIERA_ELEMENT_CHECK_CMD"] = "echo empty"
    made["HEAT_CFN_INIT_LAST_METADATA_DIR"] = str(root / "cfn")
    made["HEAT_SHELL_CONFIG"] = str(root / "heat-config")
    return made


@pytest.fixture
def both(run_hook, run_theirs, heat_agents: Path, make_deployment, tmp_path: Path):
    """Run heat-agents' hook and then ours on a deployment; return the result of *see* for each."""

    def run(group: str, keywords: dict[str, Any], see: Any, *, phase: bool = False) -> list[Any]:
        seen = []
        for whose in ("theirs", "ours"):
            root, record = tmp_path / whose, tmp_path / f"{whose}.json"
            text = RECORDER.format(python=sys.executable, root=str(root), record=str(record))
            tool = program(root / "bin" / "chef-client", text)
            deployment = make_deployment(group=group, id="the-id", **keywords)
            deployment = json.loads(json.dumps(deployment).replace("ROOT", str(root)))
            environment = settings(root, tool)
            (root / "heat-config").write_text(json.dumps([deployment]))
            if whose == "ours":
                run_hook(f"{group.replace('-', '_')}.py", deployment, env=environment)
            else:
                if phase:
                    steps = heat_agents / f"heat-config-{group}/os-refresh-config/configure.d"
                    step = [sys.executable, str(steps / f"50-heat-config-{group}")]
                    subprocess.run(step, env=environment, check=True, capture_output=True)
                assert run_theirs(group, deployment, env=environment) is not None, "a traceback"
            lines = record.read_text().splitlines() if record.exists() else []
            seen.append(see([json.loads(line) for line in lines], root))
        return seen

    return run


@pytest.mark.parametrize("name", PLACES, ids=lambda name: name.replace(" ", "-"))
def test_tool_gets_the_same_values(both, name):
    place = PLACES[name]
    given = {name.replace(" ", "_"): value for name, value in place.values.items()}
    theirs, ours = both(place.group, place.deployment(given), place.see, phase=place.phase)
    assert ours == theirs
    assert theirs


@pytest.mark.parametrize("value", ["plain", "lines", "one quote", "blanks", "empty", *NOTHING])
@pytest.mark.parametrize("group", OPTIONS)
def test_options_are_passed_unchanged(both, group, value):
    def see(records: Records, _root: Path) -> dict[str, str]:
        words = records[0]["words"]
        return {word: words[words.index(word) + 1] for _, word in OPTIONS[group] if word in words}

    given = {name: VALUES[value] for name, _ in OPTIONS[group]}
    theirs, ours = both(group, {"config": "x", "options": given}, see)
    assert ours == theirs
    assert len(theirs) == (0 if value in ("empty", *NOTHING) else len(OPTIONS[group]))


@pytest.mark.parametrize("value", [True, False, None, 0, 1, ""], ids=repr)
def test_flags_are_on_and_off_for_the_same_values(both, value):
    """The text "false" is excluded: with heat-agents every text is on."""

    def see(records: Records, root: Path) -> tuple[bool, bool]:
        applied = records[-1]  # ours has queried Puppet's settings before
        has_data = any("heat_config_" in path for path in applied["files"])
        return "FACTER_v" in applied["environment"], has_data

    options = {"enable_facter": value, "enable_hiera": value}
    keywords = {"config": "x", "inputs": {"v": "x"}, "options": options}
    theirs, ours = both("puppet", keywords, see)
    assert ours == theirs == (bool(value), bool(value))
