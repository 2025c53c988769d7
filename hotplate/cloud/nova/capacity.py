"""Flavors, limits and quotas over HTTP, and the one host in its availability zone.

The usual flavors are listed, and any other exists on request: the harness chooses the size of a
machine, so a template may name a flavor of the cloud that it was written for.  A flavor's id is its
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.groups import Groups
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import MAX_GROUPS, MAX_INSTANCES, MAX_KEY_PAIRS
from hotplate.cloud.nova.servers import Servers


@dataclass(frozen=True)
class Flavor:
    """The properties of a flavor.

    :param ram: MiB.
    :param disk: GiB.
    """

    name: str
    vcpus: int = 1
    ram: int = 2048
    disk: int = 20


USUAL = (
    Flavor("m1.tiny", 1, 512, 1),
    Flavor("m1.small", 1, 2048, 20),
    Flavor("m1.medium", 2, 4096, 40),
    Flavor("m1.large", 4, 8192, 80),
    Flavor("m1.xlarge", 8, 16384, 160),
)


def flavor(name: str) -> Flavor:
    """Return the flavor of that name.

    >>> flavor("m1.tiny").ram
    512
    >>> flavor("of.another.cloud").ram
    2048
    """
    return next((each for each in USUAL if each.name == name), Flavor(name))


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


def add_flavors(routes: Routes[Caller]) -> None:
    """Add the routes below ``/flavors``."""
    routes.add("GET", "/flavors", lambda request, caller: _list(request, caller, _brief))
    routes.add("GET", "/flavors/detail", lambda request, caller: _list(request, caller, _full))
    routes.add("GET", "/flavors/{name}", _show)
    routes.add("GET", "/flavors/{name}/os-extra_specs", _extra_specs)


def _brief(each: Flavor, caller: Caller) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": each.name,
        "name": each.name,
        "links": caller.link(f"/flavors/{each.name}"),
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


def _list(request: Request, caller: Caller, view: Any) -> Answer:
    least_ram = request.number("minRam", default=0, most=1 << 40)
    least_disk = request.number("minDisk", default=0, most=1 << 40)
    fitting = [each for each in USUAL if each.ram >= least_ram and each.disk >= least_disk]
    rows, _ = caller.page(request, fitting, lambda each: each.name)
    return Answer(body={"flavors": [view(each, caller) for each in rows]})


def _show(request: Request, caller: Caller) -> Answer:
    name = request.part("name")
    if len(name) > 255:
        raise HttpError(404, f"Flavor {name} could not be found.")
    return Answer(body={"flavor": _full(flavor(name), caller)})


def _extra_specs(_request: Request, _caller: Caller) -> Answer:
    return Answer(body={"extra_specs": {}})


UNLIMITED = -1

#: Quota -> its limit, and the names of limit and usage in the answer of ``/limits``.
QUOTAS = {
    "instances": (MAX_INSTANCES, "maxTotalInstances", "totalInstancesUsed"),
    "cores": (UNLIMITED, "maxTotalCores", "totalCoresUsed"),
    "ram": (UNLIMITED, "maxTotalRAMSize", "totalRAMUsed"),
    "metadata_items": (schemas.MAX_METADATA_ITEMS, "maxServerMeta", ""),
    "key_pairs": (MAX_KEY_PAIRS, "maxTotalKeypairs", ""),
    "server_groups": (MAX_GROUPS, "maxServerGroups", "totalServerGroupsUsed"),
    "server_group_members": (MAX_INSTANCES, "maxServerGroupMembers", ""),
}


class QuotasApi:
    """Resources below ``/limits``, ``/os-quota-sets``, ``/os-availability-zone`` and the like."""

    def __init__(self, servers: Servers, groups: Groups) -> None:
        self._servers = servers
        self._groups = groups

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of limits, quotas and availability zones."""
        routes.add("GET", "/limits", self._limits)
        routes.add("GET", "/os-quota-sets/{project}", self._quota)
        routes.add("GET", "/os-quota-sets/{project}/defaults", self._quota)
        routes.add("GET", "/os-quota-sets/{project}/detail", self._detail)
        routes.add("GET", "/os-availability-zone", self._zones)
        routes.add("GET", "/extensions", lambda *_: Answer(body={"extensions": []}))

    def _used(self) -> dict[str, int]:
        flavors = [flavor(each.spec.flavor) for each in self._servers.all()]
        return {
            "instances": len(flavors),
            "cores": sum(each.vcpus for each in flavors),
            "ram": sum(each.ram for each in flavors),
            "server_groups": len(self._groups.all()),
        }

    def _limits(self, _request: Request, caller: Caller) -> Answer:
        used = self._used()
        absolute = {most: limit for limit, most, _ in QUOTAS.values()}
        absolute |= {word: used[name] for name, (_, _, word) in QUOTAS.items() if word}
        # 2.57 removed the injection of files, and its limits.
        if not caller.since(57):
            absolute |= {"maxPersonality": 5, "maxPersonalitySize": 10240, "maxImageMeta": 128}
        return Answer(body={"limits": {"rate": [], "absolute": absolute}})

    def _quota(self, request: Request, _caller: Caller) -> Answer:
        limits = {name: limit for name, (limit, _, _) in QUOTAS.items()}
        return Answer(body={"quota_set": {"id": request.part("project"), **limits}})

    def _detail(self, request: Request, _caller: Caller) -> Answer:
        used = self._used()
        detail: dict[str, object] = {
            name: {"limit": limit, "in_use": used.get(name, 0), "reserved": 0}
            for name, (limit, _, _) in QUOTAS.items()
        }
        return Answer(body={"quota_set": {"id": request.part("project"), **detail}})

    def _zones(self, _request: Request, _caller: Caller) -> Answer:
        zone = {"zoneName": "nova", "zoneState": {"available": True}, "hosts": None}
        return Answer(body={"availabilityZoneInfo": [zone]})
