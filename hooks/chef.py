#!/usr/bin/python3 -IS
"""Heat hook "chef" and "chef-solo": the config is a run list; converge it locally.

The programs' contract (options, exit codes, what local mode keeps) is that of Chef Infra Client
15 to 19 and of Cinc Client, its free build.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import files, hook, tools, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKING = "/var/lib/heat-config/heat-config-chef"
OUTPUTS = "/var/lib/heat-config/heat-config-chef/outputs"
LICENSE = "/etc/heat-config/chef-license"
OLDEST = (12, 0)

#: Below the working directory: the files of one run, with the inputs in them.
RUNS = ".runs"

#: Below the working directory: the nodes kept between runs, without inputs.
REMEMBERED = ".nodes"

NODES = "nodes"
#: Bytes of a saved node; Chef saves about 155 kB on a plain server.
NODE_LIMIT = 64 << 20

#: The message of Chef 19 from a gem, with status 1, without a key and without a network.
NO_LICENSE_SERVER = "Unable to connect to the licensing server"

# cinc-client itself and not a chef-client that is cinc-wrapper: the wrapper stops after an hour.
# chef-solo without --legacy-mode is chef-client in local mode.
PROGRAMS = ["cinc-client", "chef-client", "cinc-solo", "chef-solo"]
PLACES = ["/opt/cinc/bin", "/opt/chef/bin"]
LEVELS = ("auto", "trace", "debug", "info", "warn", "error", "fatal")
ACCEPTANCES = ("accept", "accept-silent", "accept-no-persist")

MEANINGS = {
    35: "Chef converged, and a reboot that the recipes asked for is scheduled (35).",
    37: "Chef stopped because the server must be rebooted first (37).",
    41: "Chef could not reboot the server (41).",
    43: "Chef found an error in its configuration (43).",
    172: "172: the licence of Chef is not accepted. Set the option chef_license to accept, "
    "accept-silent or accept-no-persist, or build the image with DIB_HEAT_CHEF_LICENSE, or use "
    "Cinc, which needs no acceptance.",
    173: "173: the licence key of Chef does not entitle this server.",
    174: "174: Chef 19 wants a licence key; set CHEF_LICENSE_KEY in the agent's environment.",
    213: "Chef replaced itself with another version and stopped (213); deploy again.",
}


def wanted_run_list(deployment: hook.Deployment) -> list[str]:
    """Return the config as a list of run list items; HookError when it is not one.

    The JSON text of one item counts as a list of it, as with heat-agents, where Chef accepts that.
    """
    config = deployment.config
    if isinstance(config, str):
        try:
            config = values.decode(config)
        except ValueError:
            config = None
        if isinstance(config, str):
            config = [config]
    if isinstance(config, list) and all(isinstance(item, str) for item in config):
        return config
    raise hook.HookError(
        'The config of group "chef" must be a run list, a JSON list of texts; for instance '
        '["recipe[apache2]", "role[web]"].'
    )


def acceptance(deployment: hook.Deployment) -> str:
    """Return the acceptance of Chef's licence by option, environment or image; "" if none.

    No licence is accepted by default.
    """
    given = values.text(deployment.options.get("chef_license"))
    given = given or os.environ.get("HEAT_CHEF_LICENSE", "")
    if not given:
        try:
            with open(LICENSE, encoding="ascii", errors="replace") as file:
                given = file.read().strip()
        except OSError:
            return ""
    if given and given not in ACCEPTANCES:
        raise hook.HookError(
            f"The acceptance of Chef's licence must be one of {', '.join(ACCEPTANCES)}."
        )
    return given


def good(deployment: hook.Deployment) -> list[int]:
    """Return the exit codes that count as success: 0, or the option "exit_codes"."""
    codes = deployment.options.get("exit_codes")
    if codes is None:
        return [0]
    if not isinstance(codes, list):
        codes = [codes]
    return [int(code) for code in codes if re.match(r"[0-9]+\Z", values.text(code))]


def kitchen_path(deployment: hook.Deployment, work: hook.Workspace) -> str:
    """Return the directory with cookbooks, roles and environments."""
    given = values.text(deployment.options.get("kitchen_path"))
    return os.path.normpath(os.path.join(work.directory, given or "kitchen"))


def configuration(deployment: hook.Deployment, work: hook.Workspace) -> str:
    """Return the text of client.rb."""
    base = kitchen_path(deployment, work)
    level = values.text(deployment.options.get("log_level")) or "info"
    if level not in LEVELS:
        valid = ", ".join(LEVELS)
        raise hook.HookError(f'The option "log_level" must be one of {valid}.')
    lines = [
        # At debug, Chef prints every attribute, and so the inputs, several times.
        f"log_level :{level}",
        "log_location STDOUT",
        "local_mode true",
        "chef_zero.enabled true",
        f"node_path {ruby(os.path.join(run_directory(work), NODES))}",
        # One cache for all deployments, at the place of heat-agents: downloads are kept, and Chef
        # rotates its backups. By default it is beside this file, which is removed after the run.
        f"cache_path {ruby(os.path.join(work.directory, 'local-mode-cache'))}",
    ]
    for name in ("cookbook", "role", "environment"):
        lines.append(f"{name}_path {ruby(os.path.join(base, name + 's'))}")
    chosen = deployment.inputs.get("environment")
    if chosen not in (None, ""):
        lines.append(f"environment {ruby(values.text(chosen))}")
    return "\n".join(lines) + "\n"


def ruby(text: str) -> str:
    """Return *text* as a Ruby string in single quotes, without interpolation."""
    # A quote in an input would end the string, and what follows would run as Ruby. In single
    # quotes, \\ and \' are the only escapes.
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "") + "'"


def kitchen(deployment: hook.Deployment, work: hook.Workspace, environment: dict[str, str]) -> None:
    """Put a fresh clone of the option "kitchen", a git URL, at the kitchen path."""
    url = values.text(deployment.options.get("kitchen"))
    if not url:
        return
    path = kitchen_path(deployment, work)
    if os.path.isdir(path) and os.listdir(path) and not os.path.isdir(os.path.join(path, ".git")):
        raise hook.HookError(
            f'The kitchen cannot be cloned to "{path}": what is there is not a git clone.'
        )
    tools.private_directory(os.path.dirname(path))
    # The old clone stays until the new one is complete.
    fresh = path + ".new"
    tools.remove_tree(fresh)
    result = hook.run(
        # "--": a URL that begins with "-" is no option.
        ["git", "clone", "--quiet", "--", url, fresh],
        # git fails instead of asking for a password.
        env={**environment, "GIT_TERMINAL_PROMPT": "0"},
        cwd=work.directory,
    )
    if result.status:
        tools.remove_tree(fresh)
        # Heat must not get a password that is part of the URL.
        output = re.sub(r"//[^/@\s]*@", "//", result.stdout + result.stderr)
        raise hook.HookError("The kitchen could not be cloned.\n" + output.strip(), result.status)
    tools.remove_tree(path)
    os.rename(fresh, path)


def run_directory(work: hook.Workspace) -> str:
    """Return the directory of this run; no deployment's id begins with a dot."""
    return os.path.join(work.directory, RUNS, os.path.basename(work.path()))


def recall(work: hook.Workspace, nodes: str) -> None:
    """Copy the nodes of earlier runs on this server into the directory *nodes*."""
    remembered = os.path.join(work.directory, REMEMBERED)
    for name in sorted(os.listdir(remembered)) if os.path.isdir(remembered) else ():
        data = files.read_bounded(os.path.join(remembered, name), NODE_LIMIT)
        if data is not None:
            hook.write_file(os.path.join(nodes, name), data)


def remember(work: hook.Workspace, nodes: str, inputs: dict[str, Any]) -> None:
    """Keep the attributes that recipes set in ``node.normal``; Chef restores them at the next run.

    The inputs are in the saved node too. They are omitted: an input that is dropped must not come
    back, and no secret may stay on the disk.
    """
    remembered = tools.private_directory(os.path.join(work.directory, REMEMBERED))
    for name in os.listdir(nodes):
        data = files.read_bounded(os.path.join(nodes, name), NODE_LIMIT)
        try:
            node = values.decode(data or b"")
        except ValueError:
            continue
        if isinstance(node, dict) and isinstance(node.get("normal"), dict):
            kept: dict[str, Any] = {
                "name": node.get("name"),
                "chef_environment": "_default",
                "json_class": "Chef::Node",
                "chef_type": "node",
                "normal": without(node["normal"], inputs),
                "run_list": [],
            }
            hook.write_file(os.path.join(remembered, name), values.encode(kept))


def without(attributes: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the map *attributes* without those set in *inputs*, a map of the same shape."""
    kept = {}
    for name, value in attributes.items():
        if name not in inputs:
            kept[name] = value
        elif isinstance(value, dict) and isinstance(inputs[name], dict):
            inner = without(value, inputs[name])
            if inner:
                kept[name] = inner
    return kept


def converge(
    chef: str,
    text: str,
    attributes: dict[str, Any],
    work: hook.Workspace,
    environment: dict[str, str],
) -> hook.Result:
    """Run Chef with a configuration and attributes of its own, and remove both afterwards."""
    # No other run is in progress, so these are files of a run that was killed.
    tools.remove_tree(os.path.join(work.directory, RUNS))
    own = run_directory(work)
    nodes = os.path.join(own, NODES)
    config = os.path.join(own, "client.rb")
    given = os.path.join(own, "attributes.json")
    try:
        tools.private_directory(nodes)
        recall(work, nodes)
        hook.write_file(config, text)
        hook.write_file(given, values.encode(attributes))
        result = hook.run(
            [chef, "-z", "-c", config, "-j", given], env=environment, cwd=work.directory
        )
        remember(work, nodes, attributes)
        return result
    finally:
        tools.remove_tree(os.path.join(work.directory, RUNS))


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write attributes and a configuration of its own, converge, and return the outputs."""
    run_list = wanted_run_list(deployment)
    chef = tools.find(
        "Chef",
        PROGRAMS,
        setting="HEAT_CHEF_CMD",
        places=PLACES,
        hint="Build the image with the element heat-config-chef, whose README says how Cinc or "
        "Chef gets into it.",
    )
    work = hook.workspace(deployment, env="HEAT_CHEF_WORKING", default=WORKING)
    outputs = hook.workspace(deployment, env="HEAT_CHEF_OUTPUTS", default=OUTPUTS)
    environment = tools.environment()
    environment["heat_outputs_path"] = outputs.path()
    accepted = acceptance(deployment)
    if accepted:
        environment["CHEF_LICENSE"] = accepted
    text = configuration(deployment, work)
    # The input "environment" chooses Chef's environment, in client.rb, and is no attribute.
    attributes = {
        name: value
        for name, value in deployment.inputs.items()
        if name not in tools.HEAT_INPUTS and name != "environment"
    }
    attributes["run_list"] = run_list

    with open(os.path.join(work.directory, ".lock"), "w", encoding="ascii") as lock:
        # Two converges at once would share a kitchen and the packages of the server.
        fcntl.flock(lock, fcntl.LOCK_EX)
        kitchen(deployment, work, environment)
        result = converge(chef, text, attributes, work, environment)

    late = MEANINGS.get(result.status, "")
    if result.status == 1 and NO_LICENSE_SERVER in result.stdout:
        late = MEANINGS[174]
    if result.status:
        late = (late + "\n" if late else "") + tools.age("Chef", chef, OLDEST)
    return hook.Response(
        result.stdout,
        result.stderr + late,
        0 if result.status in good(deployment) else result.status,
        hook.file_outputs(deployment, outputs.directory),
    )
