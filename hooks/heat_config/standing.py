"""Which deployments still stand, for what has to be cleaned up after those that are gone.

That a deployment is missing from the list proves little: while Heat is out of reach the list may be
empty. Gone is what Heat itself has left out of the metadata that was collected in this very run.
"""

import json
import os

from . import values

SERVERS = ("cfn.json", "heat.json", "request.json", "zaqar.json")
"""The documents of os-collect-config that come from Heat; ``heat_local`` is only how it began."""

DOCUMENT = "/var/run/heat-config/heat-config"


def identity(stack_id, resource_name, config_id):
    """Return what stays the same through the updates of a deployment, as one text.

    A config's id changes with every action. Deployments without stack and resource (made through
    the API by hand) are known by that id alone.
    """
    if stack_id and resource_name:
        return "%s %s" % (stack_id, resource_name)
    return config_id


def of_deployment(deployment):
    """Return the identity of the hook's Deployment."""
    inputs = deployment.inputs
    return identity(
        values.text(inputs.get("deploy_stack_id")),
        values.text(inputs.get("deploy_resource_name")),
        deployment.id,
    )


def deployments():
    """Return the identities of all deployments that stand, or None when that cannot be said."""
    found = set()
    said = False
    for path in (os.environ.get("OS_CONFIG_FILES") or "").split(":"):
        if os.path.basename(path) in SERVERS:
            document = _read(path)
            listed = document.get("deployments") if isinstance(document, dict) else None
            if isinstance(listed, list):
                said = True
                found.update(_identities(listed))
    listed = _read(os.environ.get("HEAT_SHELL_CONFIG") or DOCUMENT)
    if not said or not isinstance(listed, list):
        return None
    return found.union(_identities(listed))


def _read(path):
    try:
        with open(path, "rb") as stream:
            return json.load(stream)
    except (OSError, ValueError, RecursionError):
        return None


def _identities(listed):
    for item in listed:
        if isinstance(item, dict):
            inputs = values.named_values(item.get("inputs"))
            yield identity(
                values.text(inputs.get("deploy_stack_id")),
                values.text(inputs.get("deploy_resource_name")),
                values.text(item.get("id")),
            )
