"""The deployments that still exist: containers and projects of all others can be removed.

A deployment may be missing from the list although it exists: while Heat cannot be reached the list
may be empty. It is gone when the metadata that Heat sent in this very run does not have it.
"""

from __future__ import annotations

import json
import os

from heat_config import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Optional

    from heat_config.hook import Deployment

    Present = Collection[tuple[Optional[str], Optional[str]]]


#: The documents of os-collect-config that come from Heat; ``heat_local`` is the boot's.
SERVERS = ("cfn.json", "heat.json", "request.json", "zaqar.json")

DOCUMENT = "/var/run/heat-config/heat-config"


def identity(stack_id: str, resource_name: str, config_id: str) -> str:
    """Return a text that stays the same through all updates of a deployment.

    A config's id changes with every action. Deployments without stack and resource (made through
    the API by hand) have only that id.
    """
    if stack_id and resource_name:
        return f"{stack_id} {resource_name}"
    return config_id


def of_deployment(deployment: Deployment) -> str:
    """Return the identity of the hook's Deployment."""
    inputs = deployment.inputs
    return identity(
        values.text(inputs.get("deploy_stack_id")),
        values.text(inputs.get("deploy_resource_name")),
        deployment.id,
    )


class LiveDeployments:
    """The deployments of Heat's metadata and of the list; *items* are their entries.

    identities: of the deployments of *group*; one whose config is now of another group does not
    count. names, config_ids: of all deployments.
    """

    def __init__(self, items: list[dict[str, Any]], group: str) -> None:
        self.identities = {_identity(item) for item in items if _is_of(item, group)}
        self.names = {values.text(item.get("name")) for item in items}
        self.config_ids = {values.text(item.get("id")) for item in items}

    def is_gone(self, deployment: str | None, config_id: str | None, present: Present) -> bool:
        """Return whether a container or project of this identity and config has no deployment left.

        present: the (identity, config id) of all that exist. One that a pending update will replace
        is not gone; one left by a deployment that a new one has replaced is.
        """
        if deployment not in self.identities:
            return True
        if config_id in self.config_ids:
            return False
        return any(owner == deployment and id in self.config_ids for owner, id in present)


def read(group: str) -> LiveDeployments | None:
    """Return the LiveDeployments of *group*, or None when Heat was not reached in this run."""
    items = []
    reached = False
    for path in (os.environ.get("OS_CONFIG_FILES") or "").split(":"):
        if os.path.basename(path) in SERVERS:
            document = _read(path)
            listed = document.get("deployments") if isinstance(document, dict) else None
            # Heat was reached, even if it lists nothing.
            if isinstance(listed, list):
                reached = True
                items += _items(listed)
    listed = _read(_list())
    if not reached or not isinstance(listed, list):
        return None
    return LiveDeployments(items + _items(listed), group)


def config_ids() -> set[str]:
    """Return the ids of the configs in the list, whether Heat was reached or not."""
    return {values.text(item.get("id")) for item in _items(_read(_list()))}


def _list() -> str:
    return os.environ.get("HEAT_SHELL_CONFIG") or DOCUMENT


def _read(path: str) -> Any:
    try:
        with open(path, "rb") as stream:
            return json.load(stream)
    except (OSError, ValueError, RecursionError):
        return None


def _items(listed: object) -> list[dict[str, Any]]:
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _is_of(item: dict[str, Any], group: str) -> bool:
    if item.get("group") == group:
        return True
    # A config of group "component" has one entry for each tool.
    config = item.get("config")
    entries = config.get("configs") if isinstance(config, dict) else None
    return any(entry.get("tool") == group for entry in _items(entries))


def _identity(item: dict[str, Any]) -> str:
    inputs = values.named_values(item.get("inputs"))
    return identity(
        values.text(inputs.get("deploy_stack_id")),
        values.text(inputs.get("deploy_resource_name")),
        values.text(item.get("id")),
    )
