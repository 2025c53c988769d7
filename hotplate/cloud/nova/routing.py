"""Which networks Neutron's routers join, told to whoever runs the servers.

What leads outside (gateways, floating addresses) is kept by Neutron and carries nothing.
"""

from __future__ import annotations

import threading
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.records import Values
from hotplate.cloud.nova.compute import Compute, RouterInterface, RouterSpec


class Routing:
    """Tells a compute of the routers each time that they change."""

    def __init__(self, networking: Networking, compute: Compute) -> None:
        self._networking = networking
        self._compute = compute
        self._lock = threading.Lock()
        self._last: tuple[RouterSpec, ...] = ()

    def update(self) -> None:
        """Tell of the routers as they are now, unless they are as they were."""
        with self._lock:
            routers = self._routers()
            if routers != self._last:
                self._last = routers
                self._compute.route(routers)

    def watching(self, app: WSGIApp) -> WSGIApp:
        """Return Neutron's API, after each of whose changes the routers are looked at."""

        def watched(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
            result = app(environ, start_response)
            if environ["REQUEST_METHOD"] != "GET":
                self.update()
            return result

        return watched

    def _routers(self) -> tuple[RouterSpec, ...]:
        with self._networking.transaction():
            routers = self._networking.records.all("routers")
            return tuple(self._spec(each) for each in routers if each["admin_state_up"])

    def _spec(self, router: Values) -> RouterSpec:
        ports = self._networking.routers.interfaces(router["id"])
        interfaces = (
            RouterInterface(port["network_id"], port["mac_address"].lower(), ip["ip_address"])
            for port in ports
            for ip in port["fixed_ips"]
            if ":" not in ip["ip_address"]
        )
        routes = (
            (each["destination"], each["nexthop"])
            for each in router["routes"]
            if ":" not in each["nexthop"]
        )
        return RouterSpec(router["id"], router["name"], tuple(interfaces), tuple(routes))
