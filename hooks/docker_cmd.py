#!/usr/bin/python3 -I
"""Heat hook "docker-cmd": the config is a map of containers; run them with docker or podman."""

from __future__ import annotations

import os
import re
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, values, yamltext
from heat_containers import containers, live_deployments

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")
DIGITS = re.compile(r"\s*[-+]?[0-9]{1,18}\s*\Z", re.ASCII)
#: An entry of ``environment`` that fits on a line of an environment file.
LINE = re.compile(r"[^\s#=][^\s=]*=[^\r\n]*\Z")

# Options of "docker run" that take the value unchanged; those of "docker exec" are fewer.
SCALARS = ("net", "pid", "privileged", "restart", "user")
LISTS = {"volumes": "volume", "volumes_from": "volumes-from"}
OTHERS = ("action", "command", "detach", "env_file", "environment", "exit_codes", "image")
KEYS = (*SCALARS, *LISTS, *OTHERS, "start_order")


def _replaced(
    deployment: hook.Deployment, config: dict[str, Any], managed: list[containers.Container]
) -> list[containers.Container]:
    """Return the containers made by an earlier action, or by an interrupted run of this one.

    An action between UPDATE and DELETE that only runs commands in containers keeps them. So do
    configs that Heat still lists: when Heat replaces a deployment, the new one already has its
    containers while the old one is deleted.
    """
    owner = live_deployments.of_deployment(deployment)
    commands_only = config and all(entry.get("action") == "exec" for entry in config.values())
    stay = commands_only and deployment.action not in ("CREATE", "UPDATE", "DELETE")
    listed = () if stay else live_deployments.config_ids()
    return [
        container
        for container in managed
        if container.config_id == deployment.id
        or (container.deployment == owner and not stay and container.config_id not in listed)
    ]


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    for name, entry in config.items():
        if not isinstance(entry, dict):
            raise hook.HookError(f'The entry "{values.clean(name)}" must be a map.')
        _check_entry(values.clean(name), entry)
    return config


def _check_entry(name: str, entry: dict[str, Any]) -> None:
    _order(name, entry)
    _exit_codes(name, entry)
    action = entry.get("action", "run")
    if action not in ("run", "exec"):
        raise hook.HookError(f'The action of container "{name}" must be run or exec.')
    if action == "run" and not NAME.match(name):  # with exec the key is only a label
        raise hook.HookError(f'"{name}" cannot be the name of a container.')
    if action == "run" and not entry.get("image"):
        raise hook.HookError(f'Container "{name}" has no image.')
    if action == "exec" and not _words(entry.get("command")):
        raise hook.HookError(
            f'The command of container "{name}" is empty; with action exec it must begin with the '
            "name of the container to run it in."
        )


def _order(name: str, entry: dict[str, Any]) -> float:
    order = entry.get("start_order") or 0
    if isinstance(order, str) and DIGITS.match(order):
        return int(order)
    if isinstance(order, bool) or not isinstance(order, (int, float)):
        raise hook.HookError(f'The start_order of container "{name}" must be a number.')
    return order


def _exit_codes(name: str, entry: dict[str, Any]) -> list[int]:
    codes = entry.get("exit_codes", [0])
    codes = codes if isinstance(codes, list) else [codes]
    if not codes or not all(isinstance(code, int) for code in codes):
        raise hook.HookError(f'The exit_codes of container "{name}" must be numbers.')
    return codes


def _start(
    engine: containers.Engine, deployment: hook.Deployment, name: str, entry: dict[str, Any]
) -> hook.Result:
    if entry.get("action", "run") == "exec":
        return _exec(engine, deployment, entry)
    arguments = ["run", "--name", _free_name(engine, deployment, name)]
    for label in _labels(deployment, name):
        arguments += ["--label", label]
    if entry.get("detach", True):
        arguments.append("--detach")
    arguments += ["--env-file=" + path for path in _texts(entry.get("env_file"))]
    lines, options, variables = _environment(name, entry.get("environment"))
    rest = _options(entry, SCALARS)
    for key, option in LISTS.items():
        rest += [f"--{option}={item}" for item in _texts(entry.get(key))]
    rest += [values.text(entry["image"]), *_words(entry.get("command"))]
    with containers.unnamed_file(lines) as path:
        # Not on the command line, which every user can read in /proc, and not on the disk.
        private = ["--env-file=" + path] if lines else []
        return engine.run(*arguments, *private, *options, *rest, variables=variables)


def _exec(
    engine: containers.Engine, deployment: hook.Deployment, entry: dict[str, Any]
) -> hook.Result:
    arguments = ["exec", *_options(entry, ("privileged", "user"))]
    target, *command = _words(entry["command"])
    # Another container may have the name of the template; ours then has a suffix.
    for container in engine.managed():
        if container.config_id == deployment.id and container.wanted_name == target:
            target = container.name
    return engine.run(*arguments, target, *command)


def _free_name(engine: containers.Engine, deployment: hook.Deployment, name: str) -> str:
    """Return the name, or one with a suffix while another container has it."""
    if name not in engine.names():
        return name
    return f"{name}-{deployment.id[:8]}"


def _labels(deployment: hook.Deployment, name: str) -> tuple[str, ...]:
    return (
        "deploy_stack_id=" + values.text(deployment.inputs.get("deploy_stack_id")),
        "deploy_resource_name=" + values.text(deployment.inputs.get("deploy_resource_name")),
        "config_id=" + deployment.id,
        "container_name=" + name,
        containers.MANAGED,
    )


def _options(entry: dict[str, Any], names: Iterable[str]) -> list[str]:
    """Return the options of an *entry* among *names*, in Python's notation like heat-agents'."""
    options = []
    for name in names:
        if name in entry:
            text = values.clean(str(entry[name]))
            options.append(f"--{name}={text.lower() if name == 'privileged' else text}")
    return options


def _environment(name: str, value: Any) -> tuple[str, list[str], dict[str, str]]:
    """Return (the text of an env file, options, variables of the engine's client).

    A file cannot hold a value of several lines: the client passes on a variable of its own.
    """
    if isinstance(value, dict):
        value = [f"{key}={values.text(item)}" for key, item in value.items()]
    lines, options, variables = "", [], {}
    for item in _texts(value):
        variable, equals, content = item.partition("=")
        if not variable or "\0" in item:
            raise hook.HookError(
                f'The environment of container "{name}" has an entry without a name, or with a NUL '
                "character."
            )
        if LINE.match(item):
            lines += item + "\n"
            continue
        options.append("--env=" + variable)
        if equals:
            variables[variable] = content
    return lines, options, variables


def _texts(value: Any) -> list[str]:
    """Return the values of a list, or of one value, as texts; empty ones are omitted."""
    items = value if isinstance(value, list) else [value]
    return [text for text in map(values.text, items) if text]


def _words(command: Any) -> list[str]:
    """Return the words of a *command*, a list or text.

    Text is split at its blanks, as in heat-agents: quotes and backslashes are part of the words.
    """
    if isinstance(command, list):
        return [values.text(item) for item in command]
    return values.text(command).split() if command else []


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Run the containers in order, replacing the earlier ones; on DELETE only remove those."""
    config = _checked(yamltext.map_config(deployment))
    leave = deployment.action == "DELETE" or not config
    if leave and not containers.is_installed():
        return hook.Response()
    engine = containers.Engine()
    # The old containers first: they have the names of the new ones.
    engine.remove(_replaced(deployment, config, engine.managed()))
    if leave:
        return hook.Response()
    stdout, stderr, status = [], [], 0
    for name, entry in sorted(config.items(), key=lambda item: _order(*item)):
        unknown = sorted(set(entry) - set(KEYS))
        if unknown:
            keys = ", ".join(unknown)
            stderr.append(f'"{name}": ignored unknown keys: {keys}\n')
        result = _start(engine, deployment, name, entry)
        stdout.append(result.stdout)
        stderr.append(result.stderr)
        if result.status not in _exit_codes(name, entry):
            stderr.append(f'"{name}" ended with status {result.status}\n')
            # The first failure counts, and so does a 0 that exit_codes does not list.
            status = status or result.status or 1
    return hook.Response("".join(stdout), "".join(stderr), status)
