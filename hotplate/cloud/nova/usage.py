"""The use of the project's servers over HTTP (``openstack usage show``).

As ``nova/api/openstack/compute/simple_tenant_usage.py``; a deleted server is not remembered.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request
from hotplate.cloud.nova import policy
from hotplate.cloud.nova.capacity import flavor
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import STATES, ServerRecord


def _show(request: Request, caller: Caller) -> Answer:
    project = request.parts["project"]
    if project != caller.grant.project:
        raise policy.forbidden("os-simple-tenant-usage:show")
    now = datetime.now(UTC)
    start, stop = _moment(request, "start", now), _moment(request, "end", now)
    if start >= stop:
        raise HttpError(400, "Invalid start time. The start time cannot occur after the end time.")
    stop = min(stop, now)
    # A server may be deleted while the list is built.
    states = [(row, caller.servers.status_if_present(row.spec.id)) for row in caller.servers.all()]
    used = [
        _used(row, state[0], project, start, stop)
        for row, state in states
        if state and _began(row) <= stop
    ]
    if not used:
        return Answer(body={"tenant_usage": {}})
    shown = {
        "tenant_id": project,
        "start": _naive(start),
        "stop": _naive(stop),
        "total_hours": sum(each["hours"] for each in used),
        "server_usages": used,
    }
    for name in ("local_gb", "vcpus", "memory_mb"):
        shown[f"total_{name}_usage"] = sum(each[name] * each["hours"] for each in used)
    return Answer(body={"tenant_usage": shown})


def _used(
    row: ServerRecord, word: str, project: str, start: datetime, stop: datetime
) -> dict[str, Any]:
    each, began = flavor(row.spec.flavor), _began(row)
    return {
        "instance_id": row.spec.id,
        "name": row.spec.name,
        "tenant_id": project,
        "flavor": each.name,
        "vcpus": each.vcpus,
        "memory_mb": each.ram,
        "local_gb": each.disk,
        "hours": max((stop - max(began, start)).total_seconds(), 0.0) / 3600,
        "uptime": int((datetime.now(UTC) - began).total_seconds()),
        "started_at": _naive(began),
        "ended_at": None,
        "state": STATES.get(word, STATES["ERROR"])[0],
    }


def _began(row: ServerRecord) -> datetime:
    return datetime.fromisoformat(row.created)


def _moment(request: Request, name: str, default: datetime) -> datetime:
    """Return a time of the query, which has no zone in Nova.

    :raises HttpError: 400, when it is not a time.
    """
    text = request.one(name)
    if not text:
        return default
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise HttpError(400, "Datetime is in invalid format") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _naive(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(timespec="microseconds")


#: The route of a project's usage.
ROUTES = (("GET", "/os-simple-tenant-usage/{project}", _show),)
