#!/usr/bin/python3 -IS
"""Heat hook "apply-config": run os-apply-config over all the metadata; the config is not used."""

import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import hook, tools

BOOT_METADATA = "/var/lib/heat-cfntools/cfn-init-data"
UNUSED = (
    "The config of this deployment was not used: group apply-config renders the templates of the "
    'image from all metadata. A config of group "os-apply-config" becomes part of that metadata.\n'
)


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Render every template from the collected metadata."""
    program = tools.find(
        "os-apply-config",
        ["os-apply-config"],
        setting="HEAT_APPLY_CONFIG_CMD",
        places=["/usr/local/bin"],
        hint="Build the image with the element os-apply-config.",
    )
    argv = [program]
    if os.path.basename(program) == "os-apply-config":
        # As in 20-os-apply-config: files of the cfn tools are not Heat's metadata.
        argv += ["--fallback-metadata", BOOT_METADATA]
    result = hook.run(argv, env=tools.environment())
    late = UNUSED if deployment.config else ""
    return hook.Response(result.stdout, result.stderr + late, result.status)
