"""Pass Neutron's routers on to the compute that runs the servers.

Gateways and floating addresses, which lead outside, are stored by Neutron and carry no traffic.
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
    """Reports the routers to a compute each time that they change."""

    def __init__(self, networking: Networking, compute: Compute) -> None:
        self._networking = networking
        self._compute = compute
        self._lock = threading.Lock()
        self._last: tuple[RouterSpec, ...] = ()

    def update(self) -> None:
        """Report the current routers, if they have changed."""
        with self._lock:
            routers = self._routers()
            if routers != self._last:
                self._last = routers
                self._compute.route(routers)

    def watching(self, app: WSGIApp) -> WSGIApp:
        """Wrap Neutron's API so that each change updates the routers."""

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
