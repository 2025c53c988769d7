#!/usr/bin/python3 -IS
"""Heat hook "tmpfiles": the config is a tmpfiles.d file; make the files that it lists."""

import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools

WORKING = "/var/lib/heat-config/heat-config-tmpfiles"


@hook.main
def main(deployment):
    """Write the config to a private file, apply it, and hand back what came of it."""
    config = tools.text_config(deployment)
    program = tools.find(
        "systemd-tmpfiles",
        ["systemd-tmpfiles"],
        setting="HEAT_TMPFILES_CMD",
        hint="It comes with the package systemd.",
    )
    work = hook.workspace(deployment, env="HEAT_TMPFILES_WORKING", default=WORKING)
    file = work.path(".conf")
    hook.write_file(file, config)
    verb = "--remove" if deployment.action == "DELETE" else "--create"
    result = hook.run([program, verb, file], env=tools.environment())
    return hook.Response(result.stdout, result.stderr, result.status, {"applied": file})
