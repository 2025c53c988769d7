#!/usr/bin/python3 -IS
"""Heat hook "puppet": the config is a manifest; apply it, the inputs as facts or Hiera data."""

from __future__ import annotations

import contextlib
import os
import re
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import files, hook, tools, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

WORKING = "/var/lib/heat-config/heat-config-puppet"
OUTPUTS = "/var/lib/heat-config/heat-config-puppet/outputs"
LOGS = "/var/run/heat-config/deployed"
TOOL_LOGS = "/var/log/puppet"
OLDEST = (5, 0)

NO_CREDENTIALS = ("deploy_action", "deploy_resource_name", "deploy_server_id", "deploy_stack_id")

# Puppet's own codes under --detailed-exitcodes: 0 nothing to do, 2 changes were made.
GOOD = (0, 2)


@contextlib.contextmanager
def hiera_data(
    deployment: hook.Deployment, work: hook.Workspace, puppet: str
) -> Iterator[list[str]]:
    """Write the inputs, typed, as Hiera data; yield the options that make Puppet find it.

    The files exist for this one run. Heat's own inputs, some of them credentials, are omitted:
    all of them are facts.
    """
    name = f"heat_config_{deployment.name}"
    if "/" in name or "\0" in name or len(name.encode()) > 240:
        raise hook.HookError(
            "With enable_hiera the deployment's name becomes a file name, and this one cannot: "
            'it is too long, or has a "/" in it. Give the deployment another name.'
        )
    directory = tools.private_directory(tools.datadir())
    inputs = {key: deployment.inputs[key] for key in deployment.inputs if is_data(key)}
    data, config = os.path.join(directory, name + ".json"), work.path(".hiera.yaml")
    try:
        hook.write_file(data, values.encode(inputs))
        if hierarchy_is_set(puppet):
            yield []
        else:
            # No hierarchy is configured here: Debian ships a configuration without one.
            hook.write_file(config, tools.hiera5([name], directory))
            yield ["--hiera_config", config]
    finally:
        files.remove(data)
        files.remove(config)


def is_data(name: str) -> bool:
    """Return whether the input is the user's, or one of Heat's that is no credential."""
    return name not in tools.HEAT_INPUTS or name in NO_CREDENTIALS


def hierarchy_is_set(puppet: str) -> bool:
    """Return whether the global Hiera configuration, wherever Puppet reads it, sets anything.

    A file given as --hiera_config would replace it. Asking Puppet takes seconds; it follows the
    setting in puppet.conf, and reads $codedir/hiera.yaml before $confdir/hiera.yaml.
    """
    if has_hierarchy(tools.hiera_config()):
        return True
    argv = [puppet, "config", "print", "hiera_config", "--section", "user"]
    path = hook.run(argv, env=tools.environment(), quiet=True, timeout=120).stdout.strip()
    return os.path.isabs(path) and has_hierarchy(path)


def has_hierarchy(path: str) -> bool:
    """Return whether the Hiera configuration *path* sets anything."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split("#")[0].strip() for line in file]
    except OSError:
        return False
    return any(line not in ("", "---", "version: 5", "hierarchy: []") for line in lines)


def tool_log(level: str) -> str:
    """Return the private log file of the options enable_debug and enable_verbose."""
    path = os.path.join(tools.private_directory(TOOL_LOGS), f"heat-{level}.log")
    # On Debian the user puppet owns the directory, and may replace the name at any time.
    # O_NONBLOCK: opening a pipe that nobody reads fails instead of blocking.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path


def keep_logs(deployment: hook.Deployment, result: hook.Result) -> None:
    """Keep both streams in the place of heat-agents, named by the deployment's time."""
    directory = tools.private_directory(os.environ.get("HEAT_PUPPET_LOGDIR") or LOGS)
    time = re.sub("[^0-9A-Za-z-]", "", re.sub("[:T]", "-", deployment.creation_time))
    for stream in ("stdout", "stderr"):
        path = os.path.join(directory, f"{time}-{deployment.id}-{stream}.log")
        hook.write_file(path, getattr(result, stream))


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write the manifest to a private file, apply it, and return its output."""
    manifest = tools.text_config(deployment)
    puppet = tools.find(
        "Puppet",
        ["puppet"],
        setting="HEAT_PUPPET_CMD",
        places=["/opt/puppetlabs/bin"],
        hint="Build the image with the element heat-config-puppet.",
    )
    work = hook.workspace(deployment, env="HEAT_PUPPET_WORKING", default=WORKING)
    outputs = hook.workspace(deployment, env="HEAT_PUPPET_OUTPUTS", default=OUTPUTS)
    file = work.path(".pp")
    hook.write_file(file, manifest)

    # The later one wins: an input may replace the fact fqdn, but not the last two below.
    environment = tools.environment()
    environment["FACTER_fqdn"] = tools.host_name()
    if tools.flag(deployment, "enable_facter", "use_facter", default=True):
        for name, value in deployment.environment().items():
            environment["FACTER_" + name] = value
    environment["FACTER_deploy_config_name"] = deployment.name
    environment["FACTER_heat_outputs_path"] = outputs.path()

    argv = [puppet, "apply", "--color", "false", "--detailed-exitcodes", "--logdest", "console"]
    for option, separator in (("modulepath", os.pathsep), ("tags", ",")):
        given = tools.joined(deployment, option, separator)
        if given:
            argv += ["--" + option, given]
    for level in ("debug", "verbose"):
        if tools.flag(deployment, "enable_" + level, default=False):
            argv += ["--" + level, "--logdest", tool_log(level)]

    with contextlib.ExitStack() as used:
        if tools.flag(deployment, "enable_hiera", "use_hiera", default=False):
            argv += used.enter_context(hiera_data(deployment, work, puppet))
        result = hook.run([*argv, file], env=environment, cwd=work.directory)
    keep_logs(deployment, result)
    status = 0 if result.status in GOOD else result.status
    late = tools.age("Puppet", puppet, OLDEST) if status else ""
    return hook.Response(
        result.stdout,
        result.stderr + late,
        status,
        hook.file_outputs(deployment, outputs.directory),
    )
