#!/usr/bin/python3 -I
"""Heat hook "salt": the config is a state (SLS); apply it without a master, the inputs as opts."""

from __future__ import annotations

import glob
import json
import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKING = "/var/lib/heat-config/heat-config-salt"
OUTPUTS = "/var/lib/heat-config/heat-config-salt/outputs"
MINION = "/etc/salt/minion"
PLACES = ["/opt/heat-salt/bin", "/opt/saltstack/salt"]
OLDEST = (3000,)
#: Settings that make Salt search for the state elsewhere, or drop root's privileges.
MISLEADING = ("environment", "saltenv", "user")

TRACEBACK = "Traceback (most recent call last):\n"


def state_text(deployment: hook.Deployment) -> str:
    """Return the config as SLS text; a map or list becomes YAML."""
    config = deployment.config
    if not isinstance(config, (dict, list)):
        return tools.text_config(deployment)
    try:
        import yaml
    except ImportError:  # equivalent, except for Jinja expressions with double quotes
        return tools.yaml(config)
    return yaml.safe_dump(config, default_flow_style=False, sort_keys=False, allow_unicode=True)


def refuse_settings(inputs: dict[str, Any]) -> None:
    """Raise HookError for inputs that Salt takes for settings of its own that mislead it.

    heat-agents puts inputs into a configuration that Salt has already read.
    """
    for name in MISLEADING:
        if name in inputs:
            raise hook.HookError(
                f'The input "{name}" has the name of a setting of Salt, which would not find the '
                "state with it. Give the input another name."
            )


def write_configuration(
    deployment: hook.Deployment, work: hook.Workspace, outputs: hook.Workspace, run: str
) -> None:
    """Write the minion configuration for this one run: the image's, then the inputs, then ours.

    Salt reads the included files in order, and the later one wins.
    """
    image = os.environ.get("SALT_MINION_CONFIG") or MINION
    given = os.path.join(run, "inputs.conf")
    ours = os.path.join(run, "run.conf")
    include = [image] if os.path.isfile(image) else []
    include += sorted(glob.glob(glob.escape(os.path.dirname(image)) + "/minion.d/*.conf"))
    # Without a default_include: the image's minion.d is listed here, before the inputs.
    main = {"default_include": "", "include": [*include, given, ours]}
    forced = {
        "file_client": "local",
        "file_roots": {"base": [work.directory]},
        "heat_outputs_path": outputs.path(),
        "cachedir": os.path.join(run, "cache"),
        "pki_dir": os.path.join(run, "pki"),
        "sock_dir": os.path.join(run, "sock"),
        "log_file": os.path.join(run, "log"),
        "log_level_logfile": "quiet",
        "default_include": "",
    }
    for path, content in (
        (os.path.join(run, "minion"), main),
        (given, deployment.inputs),
        (ours, forced),
    ):
        hook.write_file(path, tools.yaml(content) + "\n")


def read_answer(path: str) -> dict[str, Any] | None:
    """Return salt-call's answer about the one call: "return", "retcode" and more; else None."""
    try:
        with open(path, "rb") as file:
            answered = values.decode(file.read())
    except (OSError, ValueError):
        return None
    local = answered.get("local") if isinstance(answered, dict) else None
    return local if isinstance(local, dict) and "return" in local else None


def judge(answered: dict[str, Any], status: int) -> int:
    """Return 0 when every state's result is true, whatever the code; else a nonzero code.

    Salt's own code is not always right: it is 2 for a formula without work, whose result is an
    empty map. A result is a map of states, or a list of sentences when no state could be applied.
    """
    returned = answered.get("return")
    code = answered.get("retcode") or status
    if not isinstance(returned, dict):
        return code or 1
    states = list(returned.values())
    if not all(isinstance(state, dict) for state in states):
        return code
    results = [state.get("result") for state in states]
    if all(results):
        return 0
    return code or int(False in results)


def cause(returned: Any) -> str:
    """Return a line with the reason why no state was applied; "" if one was, or none is given.

    Salt's sentence has the source behind a line of "---", and may have a traceback in it, of which
    only the exception counts.
    """
    if not isinstance(returned, list) or not returned or not isinstance(returned[0], str):
        return ""
    sentence, marker, trace = returned[0].partition("\n---\n")[0].partition(TRACEBACK)
    if marker:
        sentence += "".join(line + " " for line in trace.splitlines() if not line.startswith(" "))
    return f"Salt applied nothing: {' '.join(sentence.split())}\n"


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write the state and a configuration of its own, apply it, and read Salt's result."""
    refuse_settings(deployment.inputs)
    state = state_text(deployment)
    salt = tools.find(
        "Salt",
        ["salt-call"],
        setting="HEAT_SALT_CMD",
        places=PLACES,
        hint="Build the image with the element heat-config-salt.",
    )
    work = hook.workspace(deployment, env="HEAT_SALT_WORKING", default=WORKING)
    outputs = hook.workspace(deployment, env="HEAT_SALT_OUTPUTS", default=OUTPUTS)
    hook.write_file(work.path(".sls"), state)
    # Beside the states, not below them: Salt serves everything below as its file tree.
    run = os.path.join(os.path.abspath(work.directory) + ".run", deployment.id)
    tools.remove_tree(run)
    tools.private_directory(run)
    try:
        write_configuration(deployment, work, outputs, run)
        answer = os.path.join(run, "answer.json")
        argv = [salt, "--local", "--config-dir", run, "--metadata", "--retcode-passthrough"]
        argv += ["--out", "json", "--out-file", answer, "--no-color", "state.sls", deployment.id]
        result = hook.run(argv, env=tools.environment(), cwd=work.directory)
        answered = read_answer(answer)
    finally:
        tools.remove_tree(run)  # it holds the inputs

    if answered is None:
        late = tools.age("Salt", salt, OLDEST)
        return hook.Response(result.stdout, result.stderr + late, result.status or 1)
    status = judge(answered, result.status)
    returned = json.dumps(answered["return"], indent=2, ensure_ascii=False) + "\n"
    # As with heat-agents, an output is a key of salt-call's answer. A file of its name wins.
    declared = {name: answered[name] for name in deployment.outputs if name in answered}
    declared.update(hook.file_outputs(deployment, outputs.directory))
    if status:
        late = cause(answered["return"])
        return hook.Response(result.stdout, returned + result.stderr + late, status, declared)
    return hook.Response(returned, result.stderr, 0, declared)
