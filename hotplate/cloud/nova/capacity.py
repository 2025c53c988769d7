"""Flavors, limits, quotas and usage over HTTP, and the one host in its availability zone.

The usual flavors are listed, and any other exists on request: the harness chooses the size of a
machine, so a template may name a flavor of the cloud that it was written for.  Such a flavor's id
is its name, and every flavor is found by its name as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, naive_time, seconds_of
from hotplate.cloud.nova import policy
from hotplate.cloud.nova.groups import all_groups
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import STATES, UNLIMITED, ServerRecord
from hotplate.cloud.nova.servers import Servers


@dataclass(frozen=True)
class Flavor:
    """The properties of a flavor.

    :param id: for one of another cloud, its name.
    :param ram: MiB.
    :param disk: GiB.
    """

    id: str
    name: str
    vcpus: int = 1
    ram: int = 2048
    disk: int = 20


#: The flavors that Nova made itself until 14.0, and DevStack makes, with their ids.
USUAL = (
    Flavor("1", "m1.tiny", 1, 512, 1),
    Flavor("2", "m1.small", 1, 2048, 20),
    Flavor("3", "m1.medium", 2, 4096, 40),
    Flavor("4", "m1.large", 4, 8192, 80),
    Flavor("5", "m1.xlarge", 8, 16384, 160),
)


def flavor(name: str) -> Flavor:
    """Return the flavor with that name or id.

    >>> flavor("m1.tiny").ram
    512
    >>> flavor("1").name
    'm1.tiny'
    >>> flavor("of.another.cloud").ram
    2048
    """
    return next((each for each in USUAL if name in (each.id, each.name)), Flavor(name, name))


def embedded(name: str) -> dict[str, Any]:
    """Return a flavor as server details show it since 2.47."""
    each = flavor(name)
    return {
        "original_name": each.name,
        "vcpus": each.vcpus,
        "ram": each.ram,
        "disk": each.disk,
        "ephemeral": 0,
        "swap": 0,
        "extra_specs": {},
    }


def _brief(each: Flavor, caller: Caller) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": each.id,
        "name": each.name,
        "links": caller.link(f"/flavors/{each.id}"),
    }
    if caller.since(55):
        shown["description"] = None
    return shown


def _full(each: Flavor, caller: Caller) -> dict[str, Any]:
    shown = {
        **_brief(each, caller),
        "vcpus": each.vcpus,
        "ram": each.ram,
        "disk": each.disk,
        # Before 2.75 no swap was an empty text.
        "swap": 0 if caller.since(75) else "",
        "OS-FLV-EXT-DATA:ephemeral": 0,
        "OS-FLV-DISABLED:disabled": False,
        "os-flavor-access:is_public": True,
        "rxtx_factor": 1.0,
    }
    if caller.since(61):
        shown["extra_specs"] = {}
    return shown


def _list(view: Callable[..., object], request: Request, caller: Caller) -> Answer:
    least_ram = request.number("minRam", default=0, most=1 << 40)
    least_disk = request.number("minDisk", default=0, most=1 << 40)
    fitting = [each for each in USUAL if each.ram >= least_ram and each.disk >= least_disk]
    rows, _ = caller.page(request, fitting, lambda each: each.id, "flavors_links")
    return Answer(body={"flavors": [view(each, caller) for each in rows]})


def _show(request: Request, caller: Caller) -> Answer:
    name = request.parts["name"]
    if len(name) > 255:
        raise HttpError(404, f"Flavor {name} could not be found.")
    return Answer(body={"flavor": _full(flavor(name), caller)})


def _extra_specs(_request: Request, _caller: Caller) -> Answer:
    return Answer(body={"extra_specs": {}})


#: Quota -> the names of its limit and its usage in the answer of ``/limits``.
_LIMITS = {
    "instances": ("maxTotalInstances", "totalInstancesUsed"),
    "cores": ("maxTotalCores", "totalCoresUsed"),
    "ram": ("maxTotalRAMSize", "totalRAMUsed"),
    "metadata_items": ("maxServerMeta", ""),
    "key_pairs": ("maxTotalKeypairs", ""),
    "server_groups": ("maxServerGroups", "totalServerGroupsUsed"),
    "server_group_members": ("maxServerGroupMembers", ""),
}
#: Quotas of which each server takes a share.
_OF_SERVERS = ("instances", "cores", "ram")


def _usage(servers: Servers) -> dict[str, int]:
    flavors = [flavor(each.spec.flavor) for each in servers.all()]
    return {
        "instances": len(flavors),
        "cores": sum(each.vcpus for each in flavors),
        "ram": sum(each.ram for each in flavors),
    }


def check_servers(servers: Servers, of: Flavor, least: int, most: int) -> int:
    """Return how many new servers of a flavor the quotas allow, from ``least`` to ``most``.

    :raises HttpError: 403, when they do not even allow ``least``, in the words of
        ``check_num_instances_quota`` of ``nova/compute/utils.py``.
    """
    each = {"instances": 1, "cores": of.vcpus, "ram": of.ram}
    used = _usage(servers)
    left = _left(servers, used)
    allowed = min([most, *(left[name] // each[name] for name in left)])
    if allowed >= max(least, 1):
        return allowed
    asked = {name: str(most * each[name]) for name in each}
    asked["instances"] = str(least) if least == most else f"{least}-{most}"
    over = [name for name in left if most * each[name] > left[name]]
    raise _too_many(servers, over, asked, used)


def check_resize(servers: Servers, old: Flavor, new: Flavor) -> None:
    """Check that the quotas allow a server to grow.

    :raises HttpError: 403, when they do not.
    """
    more = {"cores": new.vcpus - old.vcpus, "ram": new.ram - old.ram}
    used = _usage(servers)
    left = _left(servers, used)
    if over := [name for name in more if name in left and more[name] > max(left[name], 0)]:
        raise _too_many(servers, over, {name: str(more[name]) for name in more}, used)


def _left(servers: Servers, used: dict[str, int]) -> dict[str, int]:
    limits = {name: getattr(servers.quotas, name) for name in _OF_SERVERS}
    # Sorted, as DbQuotaDriver sorts the exceeded ones.
    return {name: limits[name] - used[name] for name in sorted(limits) if limits[name] >= 0}


def _too_many(
    servers: Servers, over: list[str], asked: dict[str, str], used: dict[str, int]
) -> HttpError:
    names = ", ".join(over)
    return HttpError(
        403,
        f"Quota exceeded for {names}: Requested {', '.join(asked[name] for name in over)}, but "
        f"already used {', '.join(str(used[name]) for name in over)} of "
        f"{', '.join(str(getattr(servers.quotas, name)) for name in over)} {names}",
    )


def _used(caller: Caller) -> dict[str, int]:
    return {**_usage(caller.servers), "server_groups": len(all_groups(caller.store))}


def _limits(_request: Request, caller: Caller) -> Answer:
    quotas, used = caller.servers.quotas, _used(caller)
    absolute = {most: getattr(quotas, name) for name, (most, _) in _LIMITS.items()}
    absolute |= {word: used[name] for name, (_, word) in _LIMITS.items() if word}
    # 2.57 removed the injection of files, and its limits; 2.39 those of images.
    if not caller.since(57):
        absolute["maxPersonality"] = quotas.injected_files
        absolute["maxPersonalitySize"] = quotas.injected_file_content_bytes
    if not caller.since(39):
        absolute["maxImageMeta"] = quotas.metadata_items
    # 2.36 left the limits of networks to Neutron.
    if not caller.since(36):
        absolute |= dict.fromkeys(
            ("maxTotalFloatingIps", "maxSecurityGroups", "maxSecurityGroupRules"), UNLIMITED
        )
        absolute |= dict.fromkeys(("totalFloatingIpsUsed", "totalSecurityGroupsUsed"), 0)
    return Answer(body={"limits": {"rate": [], "absolute": absolute}})


def _of_project(request: Request, caller: Caller) -> dict[str, int]:
    """Return the limits of the caller's project, which Nova shows with its version.

    :raises HttpError: 403 for another project.
    """
    if request.parts["project"] != caller.grant.project:
        kind = "detail" if request.path.endswith("/detail") else "show"
        raise policy.forbidden(f"os-quota-sets:{kind}")
    of_networks = ("fixed_ips", "floating_ips", "security_group_rules", "security_groups")
    return {
        name: limit
        for name, limit in asdict(caller.servers.quotas).items()
        if not (caller.since(57) and name.startswith("injected_"))
    } | ({} if caller.since(36) else dict.fromkeys(of_networks, UNLIMITED))


def _quota(request: Request, caller: Caller) -> Answer:
    limits = _of_project(request, caller)
    return Answer(body={"quota_set": {"id": request.parts["project"], **limits}})


def _detail(request: Request, caller: Caller) -> Answer:
    used = _used(caller)
    detail: dict[str, object] = {
        name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
        for name, limit in _of_project(request, caller).items()
    }
    return Answer(body={"quota_set": {"id": request.parts["project"], **detail}})


def _zones(_request: Request, _caller: Caller) -> Answer:
    zone = {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None}
    return Answer(body={"availabilityZoneInfo": [zone]})


def _project_usage(request: Request, caller: Caller) -> Answer:
    """Return the use of the project's servers; a deleted server is not remembered.

    As ``nova/api/openstack/compute/simple_tenant_usage.py``.
    """
    project = request.parts["project"]
    if project != caller.grant.project:
        raise policy.forbidden("os-simple-tenant-usage:show")
    now = time.time()
    start, stop = _moment(request, "start", now), _moment(request, "end", now)
    if start >= stop:
        raise HttpError(400, "Invalid start time. The start time cannot occur after the end time.")
    stop = min(stop, now)
    # A server may be deleted while the list is built.
    states = [(row, caller.servers.status_if_present(row.spec.id)) for row in caller.servers.all()]
    used = [
        _server_usage(row, state[0], project, start, stop)
        for row, state in states
        if state and seconds_of(row.created) <= stop
    ]
    if not used:
        return Answer(body={"tenant_usage": {}})
    usage = {
        "tenant_id": project,
        "start": naive_time(start),
        "stop": naive_time(stop),
        "total_hours": sum(each["hours"] for each in used),
        "server_usages": used,
    }
    for name in ("local_gb", "vcpus", "memory_mb"):
        usage[f"total_{name}_usage"] = sum(each[name] * each["hours"] for each in used)
    return Answer(body={"tenant_usage": usage})


def _server_usage(
    row: ServerRecord, word: str, project: str, start: float, stop: float
) -> dict[str, Any]:
    each, began = flavor(row.spec.flavor), seconds_of(row.created)
    return {
        "instance_id": row.spec.id,
        "name": row.spec.name,
        "tenant_id": project,
        "flavor": each.name,
        "vcpus": each.vcpus,
        "memory_mb": each.ram,
        "local_gb": each.disk,
        "hours": max(stop - max(began, start), 0.0) / 3600,
        "uptime": int(time.time() - began),
        "started_at": naive_time(began),
        "ended_at": None,
        "state": STATES.get(word, STATES["ERROR"])[0],
    }


def _moment(request: Request, name: str, default: float) -> float:
    text = request.one(name)
    try:
        return seconds_of(text) if text else default
    except (ValueError, OverflowError):
        raise HttpError(400, "Datetime is in invalid format") from None


#: The routes of flavors, limits, quotas, usage and availability zones.
ROUTES = (
    ("GET", "/flavors", partial(_list, _brief)),
    ("GET", "/flavors/detail", partial(_list, _full)),
    ("GET", "/flavors/{name}", _show),
    ("GET", "/flavors/{name}/os-extra_specs", _extra_specs),
    ("GET", "/limits", _limits),
    ("GET", "/os-quota-sets/{project}", _quota),
    ("GET", "/os-quota-sets/{project}/defaults", _quota),
    ("GET", "/os-quota-sets/{project}/detail", _detail),
    ("GET", "/os-availability-zone", _zones),
    ("GET", "/extensions", lambda *_: Answer(body={"extensions": []})),
    ("GET", "/os-simple-tenant-usage/{project}", _project_usage),
)
