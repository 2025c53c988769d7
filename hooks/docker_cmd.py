#!/usr/bin/python3 -I
"""Heat hook "docker-cmd": the config is a map of containers; run them with docker or podman."""

import os
import re
import shlex
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import containers, files, hook, standing, values, yamltext

WORKING = "/var/lib/heat-config/heat-config-docker-cmd"
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*\Z")

# Options of "docker run" that take the value as it is; those of "docker exec" are fewer.
SCALARS = ("net", "pid", "privileged", "restart", "user")
LISTS = {"volumes": "volume", "volumes_from": "volumes-from"}
OTHERS = ("action", "command", "detach", "env_file", "environment", "exit_codes", "image")
KNOWN = (*SCALARS, *LISTS, *OTHERS, "start_order")


def _replaced(container, deployment):
    """True for what an earlier action, or an interrupted run of this one, has made."""
    if container.config_id == deployment.id:
        return True
    same = container.deployment == standing.of_deployment(deployment)
    return same and deployment.action in ("CREATE", "UPDATE", "DELETE")


def _checked(config):
    for name, entry in config.items():
        if not NAME.match(name):
            raise hook.HookError('"%s" cannot be the name of a container.' % values.clean(name))
        if not isinstance(entry, dict):
            raise hook.HookError('The entry of container "%s" must be a map.' % name)
        _order(name, entry)
        _exit_codes(name, entry)
        action = entry.get("action", "run")
        if action not in ("run", "exec"):
            raise hook.HookError('The action of container "%s" must be run or exec.' % name)
        if action == "run" and not entry.get("image"):
            raise hook.HookError('Container "%s" has no image.' % name)
        if action == "exec" and not _words(entry.get("command")):
            raise hook.HookError(
                'The command of container "%s" is empty; with action exec it must begin with the '
                "name of the container to run it in." % name
            )
    return config


def _order(name, entry):
    order = entry.get("start_order", 0)
    if isinstance(order, bool) or not isinstance(order, (int, float)):
        raise hook.HookError('The start_order of container "%s" must be a number.' % name)
    return order


def _exit_codes(name, entry):
    codes = entry.get("exit_codes", [0])
    codes = codes if isinstance(codes, list) else [codes]
    if not codes or not all(isinstance(code, int) for code in codes):
        raise hook.HookError('The exit_codes of container "%s" must be numbers.' % name)
    return codes


def _start(engine, deployment, work, name, entry):
    if entry.get("action", "run") == "exec":
        arguments = ["exec", *_options(entry, ("privileged", "user"))]
        target, *command = _words(entry["command"])
        for container in engine.managed():
            if container.config_id == deployment.id and container.wanted_name == target:
                target = container.name
        return engine.run(*arguments, target, *command)
    arguments = ["run", "--name", _free_name(engine, deployment, name)]
    for label in _labels(deployment, name):
        arguments += ["--label", label]
    if entry.get("detach", True):
        arguments.append("--detach")
    arguments += ["--env-file=" + path for path in _texts(entry.get("env_file"))]
    private, environment = _environment(entry.get("environment"))
    arguments += environment
    path = work.path("-%s.env" % name)
    if private:
        # Not on the command line, which everybody can read in /proc.
        hook.write_file(path, private)
        arguments.append("--env-file=" + path)
    arguments += _options(entry, SCALARS)
    for key, option in LISTS.items():
        arguments += ["--%s=%s" % (option, item) for item in _texts(entry.get(key))]
    try:
        return engine.run(*arguments, values.text(entry["image"]), *_words(entry.get("command")))
    finally:
        files.remove(path)


def _free_name(engine, deployment, name):
    """Return the name, or one with a suffix while another container has it."""
    if name not in engine.names():
        return name
    return "%s-%s" % (name, deployment.id[:8])


def _labels(deployment, name):
    return (
        "deploy_stack_id=" + values.text(deployment.inputs.get("deploy_stack_id")),
        "deploy_resource_name=" + values.text(deployment.inputs.get("deploy_resource_name")),
        "config_id=" + deployment.id,
        "container_name=" + name,
        containers.MANAGED,
    )


def _options(entry, names):
    return ["--%s=%s" % (name, values.text(entry[name])) for name in names if name in entry]


def _environment(value):
    """Return (the text of an env file, options for what such a file cannot hold)."""
    if isinstance(value, dict):
        value = ["%s=%s" % (key, values.text(item)) for key, item in value.items()]
    lines, options = [], []
    for item in _texts(value):
        plain = re.match(r"[A-Za-z_][A-Za-z0-9_]*=[^\r\n]*\Z", item)
        (lines if plain else options).append(item)
    return "".join(line + "\n" for line in lines), ["--env=" + item for item in options]


def _texts(value):
    """Return the values of a list, or of one value, as texts; empty ones are left out."""
    items = value if isinstance(value, list) else [value]
    return [text for text in map(values.text, items) if text]


def _words(command):
    if isinstance(command, list):
        return [values.text(item) for item in command]
    text = values.text(command)
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe that quotes nothing
        return text.split()


@hook.main
def main(deployment):
    """Run the containers in order; on UPDATE replace those of before, on DELETE remove them."""
    config = _checked(yamltext.map_config(deployment))
    if not config and deployment.action != "DELETE":
        return hook.Response()
    engine = containers.Engine()
    engine.remove([c for c in engine.managed() if _replaced(c, deployment)])
    if deployment.action == "DELETE":
        return hook.Response()
    work = hook.workspace(deployment, env="HEAT_DOCKER_CMD_WORKING", default=WORKING)
    stdout, stderr, status = [], [], 0
    for name, entry in sorted(config.items(), key=lambda item: _order(*item)):
        unknown = sorted(set(entry) - set(KNOWN))
        if unknown:
            stderr.append('"%s": %s is not known here and left out\n' % (name, ", ".join(unknown)))
        result = _start(engine, deployment, work, name, entry)
        stdout.append(result.stdout)
        stderr.append(result.stderr)
        if result.status not in _exit_codes(name, entry):
            stderr.append('"%s" ended with status %d\n' % (name, result.status))
            status = status or result.status or 1
    return hook.Response("".join(stdout), "".join(stderr), status)
