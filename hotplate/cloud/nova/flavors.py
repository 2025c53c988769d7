"""Flavors over HTTP: the usual ones are listed, and any other exists on request.

The harness chooses the size of a machine, so a template may name a flavor of the cloud that it was
written for.  A flavor's id is its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, page
from hotplate.cloud.nova.microversions import Caller

PAGE = 1000
"""Nova: ``[api] max_limit``."""


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


def add_to(routes: Routes[Caller]) -> None:
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
    limit = request.number("limit", default=PAGE, most=PAGE)
    rows, _ = page(fitting, lambda each: each.name, limit=limit, marker=request.one("marker"))
    return Answer(body={"flavors": [view(each, caller) for each in rows]})


def _show(request: Request, caller: Caller) -> Answer:
    name = request.part("name")
    if len(name) > 255:
        raise HttpError(404, f"Flavor {name} could not be found.")
    return Answer(body={"flavor": _full(flavor(name), caller)})


def _extra_specs(_request: Request, _caller: Caller) -> Answer:
    return Answer(body={"extra_specs": {}})
