#!/usr/bin/python3 -IS
"""Heat hook "script": the config is a program; run it with the inputs as environment variables."""

import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, process

WORKING = "/var/lib/heat-config/heat-config-script"
OUTPUTS = "/var/lib/heat-config/heat-config-script/outputs"
SHELL = "/bin/sh"


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Write the config to a private file, run it, and return its output."""
    config = deployment.config
    if config is None:
        config = ""
    if not isinstance(config, str):
        raise hook.HookError(
            'The config of group "script" must be text, the program itself; this one is a '
            "map or list. Use OS::Heat::SoftwareConfig, whose config is a string."
        )
    if "\0" in config:
        raise hook.HookError('The config of group "script" holds a NUL byte; no shell takes that.')
    work = hook.workspace(deployment, env="HEAT_SCRIPT_WORKING", default=WORKING)
    outputs = hook.workspace(deployment, env="HEAT_SCRIPT_OUTPUTS", default=OUTPUTS)
    script = work.path()
    hook.write_file(script, config, mode=0o700)
    environment = dict(os.environ)
    environment.update(deployment.environment())
    environment["heat_outputs_path"] = outputs.path()
    # Without "#!" the kernel cannot run it; its author meant a shell, unless "#!" is there behind a
    # byte order mark.
    argv = [script] if config.removeprefix("\ufeff").startswith("#!") else [SHELL, script]
    result = hook.run(argv, env=environment, cwd=work.directory)
    stderr = result.stderr
    # Of a config put together from several texts, the last line may be the one with CR LF.
    has_cr_lf = process.has_cr_lf(script) or config.endswith("\r\n")
    if result.status and process.CR_LF not in stderr and has_cr_lf:
        # On a line of its own, also behind output without a line end.
        stderr += "\n" * (stderr[-1:] not in ("", "\n")) + f"The config failed; {process.CR_LF}.\n"
    return hook.Response(
        result.stdout,
        stderr,
        result.status,
        hook.file_outputs(deployment, outputs.directory),
    )
