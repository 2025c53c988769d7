"""The network of servers whose template names none: the project's only one."""

from __future__ import annotations

from typing import Any

from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.errors import UsageError

#: Nova's "get me a network" does the same for a server; here it would stay after the run.
MAKE = "openstack --os-cloud {cloud} network auto allocated topology create --or-show"


def only(cloud: OsCloud) -> Any:
    """Return the only network of the project on which Nova puts servers.

    Nova takes the project's own and shared ones (``_get_available_networks`` in
    nova/network/neutron.py), and refuses those without a subnet; external ones, which many clouds
    share for their addresses, count when there is no other.

    :raises UsageError: when there is none, or several.
    """
    with cloud.translated("its networks"):
        project = cloud.sdk.current_project_id
        usable = [
            each
            for each in cloud.sdk.network.networks()
            if each.is_admin_state_up
            and each.subnet_ids
            and (each.is_shared or (each.project_id == project and not each.is_router_external))
        ]
    usable = [each for each in usable if not each.is_router_external] or usable
    if len(usable) == 1:
        return usable[0]
    begin = (
        f'a server of the template names no network, and the project in the cloud "{cloud.name}"'
    )
    if not usable:
        raise UsageError(
            f"{begin} has none that servers may use",
            hint=f"{MAKE.format(cloud=cloud.name)}; or --os-network with another one",
        )
    names = ", ".join(sorted(each.name or each.id for each in usable))
    raise UsageError(f"{begin} has several: {names}", hint="--os-network NAME")


def subnet_of(cloud: OsCloud, network: Any) -> str:
    """Return the id of a network's subnet, of IPv4 if it has one; "" when it has none."""
    with cloud.translated("its subnets"):
        subnets = sorted(
            cloud.sdk.network.subnets(network_id=network.id), key=lambda each: each.ip_version
        )
    return str(subnets[0].id) if subnets else ""
