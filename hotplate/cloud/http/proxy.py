"""HTTP proxy from the host to the addresses that Heat hands out.

Those addresses are the guests', 169.254.169.254; a client on the host with this as its
``http_proxy`` reaches the same services at them, with the ``Host`` header for which a signature was
made.  It reaches nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import GUEST_ADDRESS, PORTS, Side, guest_base
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.gateway import Front
from hotplate.events.log import EventLog

METADATA = "metadata"
NAME = 255
"""Maximum length of a host's name in an error."""


class Proxy(Front):
    """The front of the proxy's listener: passes a request to the front of its service.

    :param fronts: those of the host's listeners, by service.
    :param host: their addresses, which are reached through the proxy as well, because a client
        finds them in the catalogue.
    :param lift_limits: accept bodies that the real services refuse.
    """

    def __init__(
        self,
        fronts: Mapping[str, Front],
        host: Mapping[str, str],
        *,
        events: EventLog,
        faults: Faults,
        lift_limits: bool = False,
    ) -> None:
        super().__init__(
            "proxy", _refused, side=Side.HOST, server_id="", events=events, faults=faults
        )
        self._lift_limits = lift_limits
        self._fronts = {urlsplit(host[name]).netloc: front for name, front in fronts.items()}
        for name in set(PORTS.values()) & set(fronts):
            self._fronts[urlsplit(guest_base(name)).netloc] = fronts[name]

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        front = self._fronts.get(environ.get("HTTP_HOST", ""))
        if front is None or environ["REQUEST_METHOD"] == "CONNECT":
            return super().__call__(environ, start_response)
        largest = limits.MAX_BODY_LIFTED if self._lift_limits else limits.MAX_BODY[front.service]
        if int(environ.get("CONTENT_LENGTH") or 0) > largest:
            return _plain(start_response, "413 Content Too Large", "The body is too large.")
        return front(environ, start_response)


def _refused(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    host = environ.get("HTTP_HOST", "")
    if environ["REQUEST_METHOD"] == "CONNECT":
        text = "This proxy makes no tunnels: its services speak HTTP without TLS."
    elif host in (GUEST_ADDRESS, f"{GUEST_ADDRESS}:80"):
        text = "The metadata service answers guests alone: it knows a server by its link."
    else:
        services = ", ".join(str(port) for port, name in PORTS.items() if name != METADATA)
        text = (
            f"This proxy leads to the services at {GUEST_ADDRESS} (ports {services}), not to "
            f'"{host[:NAME]}"; unset http_proxy for that.'
        )
    return _plain(start_response, "403 Forbidden", text)


def _plain(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    body = text.encode("utf-8", "replace") + b"\n"
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    start_response(status, headers)
    return [body]
