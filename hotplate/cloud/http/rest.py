"""Common parts of the cloud's JSON APIs: requests, answers, routes and pages.

A service creates a table of :class:`Routes`, and answers a WSGI request with :func:`respond`::

    routes: Routes[Grant] = Routes(("GET", "/v2.0/networks/{id}", show), ...)

    def app(environ, start_response):
        return respond(environ, start_response, lambda request: routes.answer(request, caller))
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

Caller = TypeVar("Caller")
Row = TypeVar("Row")

Headers = tuple[tuple[str, str], ...]

#: Filter of a list -> its test of a resource's tags by the wanted ones.
TAG_FILTERS: Mapping[str, Callable[[set[str], set[str]], bool]] = {
    "tags": lambda has, wanted: wanted <= has,
    "tags-any": lambda has, wanted: bool(wanted & has),
    "not-tags": lambda has, wanted: not wanted <= has,
    "not-tags-any": lambda has, wanted: not wanted & has,
}

#: The header with the id of a request.
REQUEST_ID = "x-openstack-request-id"


class HttpError(Exception):
    """An error response; ``str()`` is the message.

    :param kind: the error's own name if the service has one (Neutron's ``type``).
    :param body: the whole JSON body, if it is not in the service's usual form.
    :param identified: as in :class:`Answer`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "",
        headers: Headers = (),
        body: object = None,
        identified: bool = True,
    ) -> None:
        super().__init__(message)
        self.identified = identified
        self.status = status
        self.kind = kind
        self.headers = headers
        self.body = body


@dataclass(frozen=True)
class Request:
    """A request to a service.

    :param path: decoded, without a trailing slash; "" is the root.
    :param query: name -> all values in their order.
    :param environ: the rest, WSGI's and the gateway's.
    :param parts: the parts of the path that a route names.
    """

    method: str
    path: str
    query: Mapping[str, list[str]]
    environ: WSGIEnvironment
    parts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, environ: WSGIEnvironment) -> Request:
        """Return the request of a WSGI environment."""
        # PEP 3333: a path's bytes come as latin-1 text.
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        return cls(environ["REQUEST_METHOD"], path.rstrip("/"), query, environ)

    def header(self, name: str) -> str:
        """Return a header's value, "" when it is missing."""
        return str(self.environ.get("HTTP_" + name.upper().replace("-", "_"), ""))

    def one(self, name: str, default: str = "") -> str:
        """Return the last value of a query parameter."""
        return self.query.get(name, [default])[-1]

    def number(self, name: str, *, default: int, most: int) -> int:
        """Return a query parameter as a number, at most ``most``.

        :raises HttpError: 400, when it is not a non-negative whole number.
        """
        text = self.one(name)
        if not text:
            return min(default, most)
        # Not "\d", which matches the digits of every script; 18 digits fit into 64 bits.
        if not re.fullmatch("[0-9]{1,18}", text):
            raise HttpError(400, f"{name} must be a whole number from 0 on, not '{text}'.")
        return min(int(text), most)

    @property
    def size(self) -> int:
        """The size of the body in bytes, which the gateway limits."""
        return int(self.environ.get("CONTENT_LENGTH") or 0)

    def document(self) -> object:
        """Return the JSON of the body.

        :raises HttpError: 400, when it is not JSON.
        """
        try:
            return json.loads(self.environ["wsgi.input"].read(self.size))
        except (ValueError, RecursionError):
            # json.loads() raises RecursionError for deeply nested lists.
            raise HttpError(400, "Malformed request body: it is not JSON.") from None

    def json(self) -> dict[str, Any]:
        """Return the body.

        :raises HttpError: 400, when it is not a JSON object.
        """
        body = self.document()
        if not isinstance(body, dict):
            raise HttpError(400, "Malformed request body: it is not a JSON object.")
        return body


@dataclass(frozen=True)
class Answer:
    """The response to a request.

    :param body: None for no body; ``bytes`` are sent as they are, anything else as JSON.
    :param identified: False for an answer without a request id, as from a filter in front of the
        one that gives them.
    """

    status: int = 200
    body: object = None
    headers: Headers = ()
    identified: bool = True

    def send(self, start_response: StartResponse) -> list[bytes]:
        """Send the answer as a WSGI application does."""
        headers, payload, kind = list(self.headers), b"", ""
        if isinstance(self.body, bytes):
            payload, kind = self.body, "application/octet-stream"
        elif self.body is not None:
            payload, kind = json.dumps(self.body).encode(), "application/json"
        if kind and not any(name == "Content-Type" for name, _ in headers):
            headers.append(("Content-Type", kind))
        headers.append(("Content-Length", str(len(payload))))
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", headers)
        return [payload]


class Routes(Generic[Caller]):
    """Maps methods and paths to handlers, which are called with request and caller.

    :param routes: the arguments of :meth:`add`.
    """

    def __init__(self, *routes: tuple[str, str, Callable[[Request, Caller], Answer]]) -> None:
        self._table: list[tuple[str, re.Pattern[str], Callable[[Request, Caller], Answer]]] = []
        for route in routes:
            self.add(*route)

    def add(
        self, methods: str, template: str, handler: Callable[[Request, Caller], Answer]
    ) -> None:
        """Add a handler; a part of the path in braces is one of :attr:`Request.parts`.

        :param methods: one, or several with spaces between them.
        """
        # Because of the group, each second piece is a name in braces.
        names = re.split(r"\{(\w+)\}", template)
        pattern = "".join(
            f"(?P<{text}>[^/]+)" if index % 2 else re.escape(text)
            for index, text in enumerate(names)
        )
        self._table += [(method, re.compile(pattern), handler) for method in methods.split()]

    def answer(self, request: Request, caller: Caller) -> Answer:
        """Return the answer of the first matching route.

        :raises HttpError: 404 for a path without a route, 405 for another method.
        """
        methods = []
        for method, pattern, handler in self._table:
            if not (match := pattern.fullmatch(request.path)):
                continue
            if method == request.method:
                return handler(replace(request, parts=match.groupdict()), caller)
            methods.append(method)
        if not methods:
            raise HttpError(404, "The resource could not be found.")
        allowed = (("Allow", ", ".join(sorted(set(methods)))),)
        raise HttpError(
            405, f"The method {request.method} is not allowed for this resource.", headers=allowed
        )


def respond(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    answer: Callable[[Request], Answer],
    *,
    describe: Callable[[HttpError], object],
    headers: Headers = (),
) -> list[bytes]:
    """Answer a WSGI request.

    The answer has a request id, as from ``oslo_middleware``, unless ``answer`` gave it one.

    :param describe: returns the JSON of an error in the form of the service.
    :param headers: sent with every answer.
    """
    try:
        given = answer(Request.read(environ))
    except HttpError as error:
        body = error.body if error.body is not None else describe(error)
        given = Answer(error.status, body, error.headers, identified=error.identified)
    if given.identified and not any(name == REQUEST_ID for name, _ in given.headers):
        headers = (*headers, (REQUEST_ID, request_id()))
    return replace(given, headers=(*given.headers, *headers)).send(start_response)


def now() -> str:
    """Return the current time as OpenStack's APIs show it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def naive_time(seconds: float) -> str:
    """Return a time since the epoch as OpenStack's databases have it: without a zone, in UTC.

    >>> naive_time(1.5)
    '1970-01-01T00:00:01.500000'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def seconds_of(text: str) -> float:
    """Return the seconds since the epoch of a time in ISO 8601, in UTC unless it has a zone.

    :raises ValueError: when it is none; :exc:`OverflowError` for one outside of all calendars.
    """
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def request_id() -> str:
    """Return a new id of a request."""
    return f"req-{uuid.uuid4()}"


def page(
    rows: Sequence[Row], name: Callable[[Row], str], *, limit: int, marker: str = ""
) -> tuple[list[Row], bool]:
    """Return the rows after ``marker``, at most ``limit``, and whether there are more.

    :param name: returns a row's id, with which the marker is compared.
    :raises HttpError: 400, when no row has that id.
    """
    start = 0
    if marker:
        places = [index for index, row in enumerate(rows) if name(row) == marker]
        if not places:
            raise HttpError(400, f"marker [{marker}] not found")
        start = places[0] + 1
    return list(rows[start : start + limit]), len(rows) > start + limit
