"""Read the metadata that Heat serves to a server, to learn its expected deployments.

The format is Heat's: the configs of ``software_deployments/metadata/SERVER`` with their
``deploy_*`` inputs (heat/engine/resources/openstack/heat/software_deployment.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from hotplate.events.expected import ExpectedDeployment, Transport

#: Returns the name of a resource, given its stack's id and its name, with its parents' names.
Label = Callable[[str, str], str]


class Labels:
    """Labels resources by their names and their parents': ``servers.0.deployment``."""

    def __init__(self) -> None:
        self._prefixes: dict[str, str] = {}

    def learn(self, stack: Any) -> None:
        """Add a stack of Heat's engine."""
        if stack.id in self._prefixes:
            return
        outer = self._prefixes.get(stack.owner_id, "")
        self._prefixes[stack.id] = f"{outer}{stack.parent_resource_name}." if stack.owner_id else ""

    def label(self, stack_id: str, resource: str) -> str:
        """Return the label of a stack's resource."""
        return f"{self._prefixes.get(stack_id, '')}{resource}"


def deployments(configs: Iterable[Mapping[str, Any]], label: Label) -> list[ExpectedDeployment]:
    """Return the deployments that a server is expected to run, by the configs that Heat serves."""
    return [_deployment(config, label) for config in configs]


def _deployment(config: Mapping[str, Any], label: Label) -> ExpectedDeployment:
    inputs = {each["name"]: each.get("value") for each in config.get("inputs") or ()}
    # Heat's deploy_stack_id is NAME/UUID.
    stack_path = str(inputs.get("deploy_stack_id") or "")
    stack = stack_path.rpartition("/")[2]
    resource = str(inputs.get("deploy_resource_name") or "")
    return ExpectedDeployment(
        id=str(config["id"]),
        name=str(config.get("name") or ""),
        group=str(config.get("group") or ""),
        stack=stack,
        resource=resource,
        label=label(stack, resource),
        transport=str(inputs.get("deploy_signal_transport") or ""),
        action=str(inputs.get("deploy_action") or ""),
        signal=_signal(inputs, stack_path, resource),
    )


def _signal(inputs: Mapping[str, object], stack_path: str, resource: str) -> str:
    """Return the part of a URL path that identifies a signal, without the query and its secrets."""
    transport = inputs.get("deploy_signal_transport")
    if transport == Transport.NONE:
        return ""
    if transport == Transport.TEMP_URL:
        # Decoded, as the paths in the event log are.
        return unquote(urlsplit(str(inputs.get("deploy_signal_id") or "")).path)
    if transport == Transport.ZAQAR:
        return f"/queues/{inputs.get('deploy_queue_id')}/messages"
    return f"stacks/{stack_path}/resources/{resource}"
