"""The HTTP front of every service, and the proxy that leads to them.

It writes each request to the event log without secrets, and applies planted faults.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import parse_qsl, urlsplit
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import GUEST_ADDRESS, PORTS, Side, guest_base
from hotplate.cloud.http.faults import Fault, Faults
from hotplate.cloud.http.quota import Quota
from hotplate.errors import is_unforeseen
from hotplate.events.kinds import ServiceRequest
from hotplate.events.log import EventLog, clipped

#: Log of service failures; the engine writes it to a file.
LOG = logging.getLogger("hotplate.gateway")

WSGIApp = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]

#: WSGI environment keys that the services read.
SIDE = "hotplate.side"
SERVER = "hotplate.server"

_HTML = (
    b"<!DOCTYPE html><html><head><title>Sign in</title></head>"
    b"<body><p>Please sign in to use this network.</p></body></html>"
)
#: Path segments that are secrets: no path of ours has one today, but a client may send a token so.
_TOKEN_PATH = re.compile(r"(/auth/tokens/)[^/]+")
#: Maximum length of a host's name in an error of the proxy.
MAX_HOST = 255
#: Exceptions of a handler that could not parse a request.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)


def after_writes(app: WSGIApp, act: Callable[[], None]) -> WSGIApp:
    """Wrap ``app`` so that ``act`` is called after each request that may have changed something."""

    def watched(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        result = app(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET":
            act()
        return result

    return watched


class Front:
    """A service on one listener.

    :param service: the service's name in the event log and in the table of faults.
    :param server_id: the server behind a guest's listener, "" for the host's.
    :param quota: the limits of that guest; None for the host.
    """

    def __init__(
        self,
        service: str,
        app: WSGIApp,
        *,
        side: Side,
        server_id: str,
        events: EventLog,
        faults: Faults,
        quota: Quota | None = None,
    ) -> None:
        self.service = service
        self._quota = quota
        self._app = app
        self._side = side
        self._server_id = server_id
        self._events = events
        self._faults = faults

    def refuses(self) -> bool:
        """Return True when a fault resets a new connection or request."""
        fault = self._faults.hit(
            self.service, self._server_id, lambda fault: fault.kind == "refuse"
        )
        if fault is None:
            return False
        self._events.emit(self.service, "refused", server=self._server_id)
        return True

    def crowded(self) -> None:
        """Report that the connection limit is reached."""
        if self._quota is not None:
            self._quota.crowded()

    def refused(self, request: object, status: int) -> None:
        """Log the response ``status`` to an invalid or too large request."""
        # A flood of bad requests must not fill the event log.
        if self._quota is not None and not self._quota.request():
            return
        self._events.add(
            ServiceRequest(
                method=clipped(str(getattr(request, "command", ""))),
                path=clipped(_TOKEN_PATH.sub(r"\1...", str(getattr(request, "path", "")))),
                status=status,
                side=self._side.value,
            ),
            source=self.service,
            server=self._server_id,
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # Not logged: the quota reports the flood once.
        if self._quota is not None and not self._quota.request():
            later = ("Retry-After", "10")
            return [_plain(start_response, "429 Too Many Requests", "Too many requests.", later)]
        if (
            self._quota is not None
            and self.service in limits.HEAT
            and not self._quota.signals(_size(environ))
        ):
            return [_plain(start_response, "413 Payload Too Large", "No room is left.")]
        begun = time.monotonic()
        environ[SIDE] = self._side
        environ[SERVER] = self._server_id
        started = StartedResponse()
        # Saved now: Heat's own filters modify the path while they work.
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        fault = self._faults.hit(
            self.service,
            self._server_id,
            lambda fault: (
                fault.kind != "refuse" and fault.method in ("", method) and fault.path in path
            ),
        )
        # A change may be seen before its event is added, such as a stack that a signal has ended.
        changes = method not in ("GET", "HEAD") and (fault is None or fault.kind != "hang")
        with self._events.coming() if changes else contextlib.nullcontext():
            try:
                body = self._sensible(environ, started, fault)
            finally:
                self._log(environ, path, started, begun, fault)
        # Only a real answer tells that no room is left; a planted 413 is no flood.
        if self._quota is not None and fault is None and self.service in limits.FULL:
            status = int(started.status.split(" ", 1)[0])
            self._quota.wrote(self.service, _size(environ), status)
        # The service's own headers, whose length is that of the answer to a GET.
        if method == "HEAD":
            start_response(started.status, started.headers)
            return []
        # The length is that of the collected body, which may be a fault's.
        headers = [
            (name, value) for name, value in started.headers if name.lower() != "content-length"
        ]
        # RFC 9110: a 204 has no Content-Length, and a 304 would have that of the 200.
        if not started.status.startswith(("204", "304")):
            headers.append(("Content-Length", str(len(body))))
        start_response(started.status, headers)
        if fault is not None and fault.kind == "truncate":
            # Waitress closes the connection when the body is shorter than announced.
            return [body[: len(body) // 2]]
        return [body]

    def _sensible(
        self, environ: WSGIEnvironment, keep: StartResponse, fault: Fault | None
    ) -> bytes:
        """Return the service's response; 400 if it cannot parse the request, 414 for a long URI."""
        # Waitress has one limit for all header lines together; this one is the services' own.
        asked = environ.get("PATH_INFO", ""), environ.get("QUERY_STRING", "")
        if sum(map(len, asked)) > limits.REQUEST_LINE:
            return _plain(keep, "414 URI Too Long", "The URI is too long.")
        try:
            return self._answer(environ, keep, fault)
        except _NONSENSE:
            # Without the path, which may be the invalid part.
            LOG.warning(
                "the service %s could not make sense of a request", self.service, exc_info=True
            )
            return _plain(keep, "400 Bad Request", "The request could not be understood.")
        except Exception as error:
            LOG.exception("the service %s failed at a request", self.service)
            if is_unforeseen(error):
                self._events.doubt(error)
            return _plain(keep, "500 Internal Server Error", "The service failed at the request.")

    def _answer(self, environ: WSGIEnvironment, keep: StartResponse, fault: Fault | None) -> bytes:
        if fault is not None and fault.kind == "html200":
            keep("200 OK", [("Content-Type", "text/html; charset=UTF-8")])
            return _HTML
        if fault is not None and fault.kind == "status":
            keep(f"{fault.status} Injected Fault", [("Content-Type", "text/plain")])
            return b"injected fault\n"
        if fault is not None and fault.kind == "hang":
            fault.over.wait(fault.left)
        if fault is not None and fault.kind == "delay":
            fault.over.wait(fault.delay)
        result = self._app(environ, keep)
        # PEP 3333: close() is called even when reading the result fails.
        try:
            body = b"".join(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        return body

    def _log(
        self,
        environ: WSGIEnvironment,
        path: str,
        started: StartedResponse,
        begun: float,
        fault: Fault | None,
    ) -> None:
        asked: dict[str, str] = {}
        # The rest of the query is not logged: it has the signature.
        if self.service == "cfn":
            query = {"Action": "", **dict(parse_qsl(environ.get("QUERY_STRING", "")))}
            asked = {name: clipped(value) for name, value in query.items()}
        facts = ServiceRequest(
            method=clipped(environ["REQUEST_METHOD"]),
            path=clipped(_TOKEN_PATH.sub(r"\1...", path)),
            status=int(started.status.split(" ", 1)[0]),
            seconds=round(time.monotonic() - begun, 4),
            side=self._side.value,
            action=asked.get("Action"),
            StackName=asked.get("StackName"),
            LogicalResourceId=asked.get("LogicalResourceId"),
            fault=None if fault is None else fault.kind,
        )
        self._events.add(facts, source=self.service, server=self._server_id)


class Proxy(Front):
    """An HTTP proxy from the host to the addresses that Heat hands out.

    Those are the guests', 169.254.169.254; a client on the host with this as its ``http_proxy``
    reaches the same services at them, with the ``Host`` header for which a signature was made.  It
    reaches nothing else.

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
        # Waitress checks the limit of the proxy, which may be above that of the service.
        largest = limits.MAX_BODY_LIFTED if self._lift_limits else limits.MAX_BODY[front.service]
        if int(environ.get("CONTENT_LENGTH") or 0) > largest:
            text = "The body is too large."
            return [_plain(start_response, "413 Content Too Large", text)]
        return front(environ, start_response)


def _refused(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    host = environ.get("HTTP_HOST", "")
    if environ["REQUEST_METHOD"] == "CONNECT":
        text = "This proxy makes no tunnels: its services speak HTTP without TLS."
    elif host in (GUEST_ADDRESS, f"{GUEST_ADDRESS}:80"):
        text = "The metadata service answers guests alone: it knows a server by its link."
    else:
        services = ", ".join(str(port) for port, name in PORTS.items() if name != "metadata")
        text = (
            f"This proxy leads to the services at {GUEST_ADDRESS} (ports {services}), not to "
            f'"{host[:MAX_HOST]}"; unset http_proxy for that.'
        )
    return [_plain(start_response, "403 Forbidden", text)]


class StartedResponse:
    """A WSGI ``start_response`` that records the status and headers of an application."""

    def __init__(self) -> None:
        # The status of a service that fails before it starts a response.
        self.status = "500 "
        self.headers: list[tuple[str, str]] = []

    def __call__(
        self, status: str, headers: list[tuple[str, str]], _exc_info: object = None, /
    ) -> Callable[[bytes], None]:
        self.status, self.headers = status, headers
        return _no_write


def _size(environ: WSGIEnvironment) -> int:
    """Return the bytes of a request that may be stored: 0 for a read."""
    if environ["REQUEST_METHOD"] not in ("PUT", "POST"):
        return 0
    headers = (
        # Swift stores headers as metadata, so they count.
        len(name) + len(value)
        for name, value in environ.items()
        if name == "CONTENT_TYPE" or name.startswith("HTTP_")
    )
    body = int(environ.get("CONTENT_LENGTH") or 0)
    return body + len(environ.get("PATH_INFO", "")) + sum(headers)


def _plain(keep: StartResponse, status: str, text: str, *more: tuple[str, str]) -> bytes:
    body = text.encode("utf-8", "replace") + b"\n"
    headers = [("Content-Type", "text/plain; charset=UTF-8"), ("Content-Length", str(len(body)))]
    keep(status, [*headers, *more])
    return body


def _no_write(_data: bytes) -> None:
    raise AssertionError("a service used the write() callable of WSGI")
