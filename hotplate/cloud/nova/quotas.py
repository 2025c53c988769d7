"""Limits, quotas and the one availability zone over HTTP."""

from __future__ import annotations

from hotplate.cloud.http.rest import Answer, Request, Routes
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.flavors import flavor
from hotplate.cloud.nova.groups import GROUPS, Groups
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import KEY_PAIRS, now
from hotplate.cloud.nova.server_views import HOST
from hotplate.cloud.nova.servers import Servers

INSTANCES = 1000
"""Maximum number of servers."""

UNLIMITED = -1


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
        routes.add("GET", "/os-availability-zone/detail", self._zones)
        routes.add("GET", "/os-services", self._services)
        routes.add("GET", "/extensions", lambda *_: Answer(body={"extensions": []}))

    def _used(self) -> dict[str, int]:
        flavors = [flavor(each.spec.flavor) for each in self._servers.all()]
        return {
            "instances": len(flavors),
            "cores": sum(each.vcpus for each in flavors),
            "ram": sum(each.ram for each in flavors),
            "server_groups": len(self._groups.all()),
        }

    @staticmethod
    def _most() -> dict[str, int]:
        return {
            "instances": INSTANCES,
            "cores": UNLIMITED,
            "ram": UNLIMITED,
            "metadata_items": schemas.METADATA_ITEMS,
            "key_pairs": KEY_PAIRS,
            "server_groups": GROUPS,
            "server_group_members": INSTANCES,
        }

    def _limits(self, _request: Request, caller: Caller) -> Answer:
        used, most = self._used(), self._most()
        absolute = {
            "maxTotalInstances": most["instances"],
            "maxTotalCores": most["cores"],
            "maxTotalRAMSize": most["ram"],
            "maxServerMeta": most["metadata_items"],
            "maxTotalKeypairs": most["key_pairs"],
            "maxServerGroups": most["server_groups"],
            "maxServerGroupMembers": most["server_group_members"],
            "totalInstancesUsed": used["instances"],
            "totalCoresUsed": used["cores"],
            "totalRAMUsed": used["ram"],
            "totalServerGroupsUsed": used["server_groups"],
        }
        if not caller.since(57):
            absolute |= {"maxPersonality": 5, "maxPersonalitySize": 10240, "maxImageMeta": 128}
        return Answer(body={"limits": {"rate": [], "absolute": absolute}})

    def _quota(self, request: Request, _caller: Caller) -> Answer:
        return Answer(body={"quota_set": {"id": request.part("project"), **self._most()}})

    def _detail(self, request: Request, _caller: Caller) -> Answer:
        used = self._used()
        detail: dict[str, object] = {
            name: {"limit": most, "in_use": used.get(name, 0), "reserved": 0}
            for name, most in self._most().items()
        }
        return Answer(body={"quota_set": {"id": request.part("project"), **detail}})

    def _zones(self, request: Request, _caller: Caller) -> Answer:
        state = {"available": True, "active": True, "updated_at": now().removesuffix("Z")}
        detail = request.path.endswith("/detail")
        hosts = {HOST: {"nova-compute": state}} if detail else None
        zone = {"zoneName": "nova", "zoneState": {"available": True}, "hosts": hosts}
        return Answer(body={"availabilityZoneInfo": [zone]})

    def _services(self, _request: Request, caller: Caller) -> Answer:
        service = {
            "id": 1 if not caller.since(53) else "4d0c1f0e-5e0f-4c5c-9d3e-000000000001",
            "binary": "nova-compute",
            "host": HOST,
            "zone": "nova",
            "status": "enabled",
            "state": "up",
            "updated_at": now().removesuffix("Z"),
            "disabled_reason": None,
            "forced_down": False,
        }
        return Answer(body={"services": [service]})
