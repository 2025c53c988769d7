#!/usr/bin/python3 -IS
"""Heat hook "cfn-init": the config is the content of AWS::CloudFormation::Init."""

import os
import sys

sys.path.insert(0, os.environ.get("HEAT_CONFIG_LIB", "/usr/libexec/heat-config/lib"))
from heat_config import files, hook, tools, values

INIT = "AWS::CloudFormation::Init"
METADATA = "/var/cache/heat-cfntools"
SETTING = "HEAT_CFN_INIT_CMD"


def is_ours(program: str) -> bool:
    """Return whether this is our own cfn-init, which accepts the path of the metadata."""
    try:
        with open(program, "rb") as stream:
            # Only our own commands import this package.
            return b"heat_cfn" in stream.read(4096)
    except OSError:
        return False


@hook.main
def main(deployment: hook.Deployment) -> hook.Response:
    """Put the metadata in a private file of this deployment and run cfn-init on it."""
    config = tools.map_config(deployment)
    metadata = values.encode({INIT: config.get(INIT, config)})
    program = tools.find(
        "cfn-init",
        ["cfn-init"],
        setting=SETTING,
        hint="Build the image with the element heat-cfntools.",
    )
    work = hook.workspace(deployment, env="HEAT_CFN_INIT_LAST_METADATA_DIR", default=METADATA)
    path = work.path(".metadata")
    hook.write_file(path, metadata)
    if not is_ours(program):
        # Other implementations read only the one file that all deployments share.
        hook.write_file(os.path.join(work.directory, "last_metadata"), metadata)
    configsets = tools.joined(deployment, "configsets", ",")
    try:
        result = hook.run(
            [program, *(["--configsets", configsets] if configsets else [])],
            env=dict(tools.environment(), HEAT_CFN_INIT_METADATA=path),
        )
    finally:
        files.remove(path)  # it may hold passwords
    return hook.Response(result.stdout, result.stderr, result.status)
