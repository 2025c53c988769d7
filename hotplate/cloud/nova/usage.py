"""The use of the project's servers over HTTP (``openstack usage show``).

As ``nova/api/openstack/compute/simple_tenant_usage.py``; a deleted server is not remembered.
"""

from __future__ import annotations

import time
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, naive_time, seconds_of
from hotplate.cloud.nova import policy
from hotplate.cloud.nova.capacity import flavor
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import STATES, ServerRecord


def _show(request: Request, caller: Caller) -> Answer:
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
        _used(row, state[0], project, start, stop)
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


def _used(row: ServerRecord, word: str, project: str, start: float, stop: float) -> dict[str, Any]:
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


#: The route of a project's usage.
ROUTES = (("GET", "/os-simple-tenant-usage/{project}", _show),)
