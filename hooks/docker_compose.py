#!/usr/bin/python3 -I
"""Heat hook "docker-compose": the config is a compose file; bring its services up."""

from __future__ import annotations

import ast
import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools, values, yamltext
from heat_containers import compose

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _compose_file(deployment: hook.Deployment, config: dict[str, Any]) -> str:
    # Not JSON: it writes characters beyond U+FFFF as two escapes, which no YAML reader joins.
    if not any(key in config for key in compose.TOP_LEVEL):
        return tools.yaml(compose.modern(config))
    # Pass text unchanged: compose reads YAML 1.2, PyYAML would read a port 22:22 as 1342.
    return deployment.config if isinstance(deployment.config, str) else tools.yaml(config)


def _given_files(deployment: hook.Deployment) -> dict[str, str]:
    """Return {file name: content} from the input "env_files".

    It is a list of ``{"file_name":, "content":}``, as JSON or, as heat-agents expected, as a
    Python literal.
    """
    given = deployment.inputs.get("env_files")
    if isinstance(given, str) and given.strip():
        try:
            given = values.decode(given)
        except ValueError:
            try:
                given = ast.literal_eval(given.strip())
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                given = None
            if not isinstance(given, list):
                raise hook.HookError('The input "env_files" is not a list in JSON.') from None
    contents = {}
    for item in given if isinstance(given, list) else ():
        if not isinstance(item, dict) or not isinstance(item.get("file_name"), str):
            raise hook.HookError('Each of "env_files" must have a file_name and a content.')
        contents[os.path.normpath(item["file_name"])] = values.text(item.get("content"))
    return contents


def _write_env_files(
    project: compose.Project, config: dict[str, Any], given: dict[str, str]
) -> None:
    services = config.get("services", config)
    for name, service in services.items() if isinstance(services, dict) else ():
        wanted = service.get("env_file") if isinstance(service, dict) else None
        for item in wanted if isinstance(wanted, list) else [wanted]:
            path = item.get("path") if isinstance(item, dict) else item
            # A file that is not in the input is left to compose.
            if not isinstance(path, str) or os.path.normpath(path) not in given:
                continue
            plain = os.path.normpath(path)
            if plain.split("/")[0] == ".." or "\0" in plain:
                raise hook.HookError(
                    f'The env_file of service "{values.clean(name)}" is outside the project\'s '
                    "directory."
                )
            project.write_env_file(plain, given[plain])


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write the compose file and its env files, and bring the project up, or down on DELETE."""
    config = yamltext.map_config(deployment)
    directory = compose.working()
    tools.private_directory(directory)
    present = compose.projects(directory)
    project = compose.project_for(directory, deployment, present)
    leave = deployment.action == "DELETE" or not config
    # Whatever this deployment has brought up before, maybe under another name.
    mine = [p for p in present if p.is_of(deployment) or (p is project and not leave)]
    if leave and not mine:
        return hook.Response()
    command = compose.find_command()
    stdout, stderr = "", ""
    for old in mine:
        # The name may have changed with an update; and podman-compose accepts --remove-orphans with
        # "up" but ignores it, so that only "down" removes a service.
        other = old is not project
        if leave or other or os.path.basename(command[0]) == "podman-compose":
            result = old.take_down(command)
            stdout, stderr = stdout + result.stdout, stderr + result.stderr
            if result.status != 0:
                return hook.Response(stdout, stderr, result.status)
    if leave:
        return hook.Response(stdout, stderr)
    project.prepare(deployment.id)
    _write_env_files(project, config, _given_files(deployment))
    hook.write_file(project.file, _compose_file(deployment, config))
    result = project.bring_up(command)
    return hook.Response(stdout + result.stdout, stderr + result.stderr, result.status)
