"""The router and the answers of the JSON APIs, called through WSGI."""

from __future__ import annotations

import io
import json
import re
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from hotplate.cloud.http.gateway import StartedResponse
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, page, respond

ROUTES: Routes[str] = Routes()
ROUTES.add("GET", "/things", lambda request, caller: Answer(body={"caller": caller}))
ROUTES.add("POST", "/things", lambda request, caller: Answer(201, request.json()))
ROUTES.add("GET", "/things/{id}/a.b", lambda request, caller: Answer(body=request.parts["id"]))
ROUTES.add("DELETE", "/things/{id}", lambda request, caller: Answer(204))
ROUTES.add("GET", "/raw", lambda request, caller: Answer(body=b"\x00raw"))
ROUTES.add(
    "GET",
    "/count",
    lambda request, caller: Answer(body=request.number("limit", default=5, most=10)),
)


def ask(method: str, path: str, *, query: str = "", body: bytes = b"") -> tuple[str, Any, Any]:
    """Return the status, the headers and the body of an answer."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    setup_testing_defaults(environ)
    started = StartedResponse()
    parts = respond(
        environ,
        started,
        lambda request: ROUTES.answer(request, "me"),
        describe=lambda error: {"oops": {"message": str(error), "kind": error.kind}},
        headers=(("X-Always", "1"),),
    )
    return started.status, dict(started.headers), b"".join(parts)


def test_route_answers_as_json() -> None:
    status, headers, body = ask("GET", "/things/")
    assert (status, json.loads(body)) == ("200 OK", {"caller": "me"})
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Length"] == str(len(body))
    assert headers["X-Always"] == "1"


def test_each_answer_has_a_request_id_of_its_own() -> None:
    """As from the RequestId filter of oslo_middleware, which all real services have."""
    ids = [ask("GET", path)[1]["x-openstack-request-id"] for path in ("/raw", "/raw", "/nothing")]
    assert len(set(ids)) == 3
    assert all(re.fullmatch("req-[0-9a-f-]{36}", each) for each in ids)


def test_path_parts_are_decoded() -> None:
    assert json.loads(ask("GET", "/things/é %/a.b")[2]) == "é %"
    assert ask("GET", "/things/x/aXb")[0] == "404 Not Found"
    assert ask("GET", "/things/x/y/a.b")[0] == "404 Not Found"


def test_empty_and_raw_bodies_are_sent() -> None:
    status, headers, body = ask("DELETE", "/things/1")
    assert (status, body, "Content-Type" in headers) == ("204 No Content", b"", False)
    status, headers, body = ask("GET", "/raw")
    assert (headers["Content-Type"], body) == ("application/octet-stream", b"\x00raw")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert ask("POST", "/things", body=body)[0] == "400 Bad Request"


@pytest.mark.parametrize(
    ("query", "status", "number"),
    [
        ("", 200, 5),
        ("limit=", 200, 5),
        ("limit=3&limit=7", 200, 7),
        ("limit=11", 200, 10),
        ("limit=-1", 400, None),
        ("limit=%C2%B2", 400, None),
        ("limit=" + "9" * 5000, 400, None),
    ],
)
def test_number_in_a_query_is_limited(query: str, status: int, number: int | None) -> None:
    answer, _, body = ask("GET", "/count", query=query)
    assert int(answer.split()[0]) == status
    assert number is None or json.loads(body) == number


def test_error_may_have_its_own_body() -> None:
    def refuse(request: Request) -> Answer:
        raise HttpError(409, "no", headers=(("X-Why", "x"),), body={"mine": request.method})

    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    started = StartedResponse()
    body = b"".join(respond(environ, started, refuse, describe=lambda error: {}))
    assert (started.status, json.loads(body)) == ("409 Conflict", {"mine": "GET"})
    assert dict(started.headers)["X-Why"] == "x"


def test_rows_are_paged() -> None:
    rows = ["a", "b", "c"]
    assert page(rows, str, limit=2) == (["a", "b"], True)
    assert page(rows, str, limit=2, marker="b") == (["c"], False)
    assert page(rows, str, limit=0) == ([], True)
    with pytest.raises(HttpError, match=r"marker \[x\] not found") as refused:
        page(rows, str, limit=2, marker="x")
    assert refused.value.status == 400
