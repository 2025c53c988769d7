"""A guest that sends too many or invalid requests over the wire, beside a well-behaved one."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import resource
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_software_config import booted, inputs_of, poll_for_deployment
from test_transports import signal, template, token
from websockets.sync.client import connect
from wire_guest import Guest, guest

from hotplate.cloud.http import limits
from hotplate.cloud.http.quota import Quota
from hotplate.cloud.http.serving import raise_descriptors
from hotplate.cloud.zaqar import websocket
from hotplate.timing.deadline import Deadline, retry

TOKENS = "http://169.254.169.254:5000/v3/auth/tokens"


@pytest.fixture
def bad(cloud: Any) -> Iterator[Guest]:
    with guest(cloud, f"bad-{time.monotonic_ns()}") as vm:
        yield vm


@pytest.fixture
def good(cloud: Any) -> Iterator[Guest]:
    with guest(cloud, f"good-{time.monotonic_ns()}") as vm:
        yield vm


def floods(cloud: Any, vm: Guest) -> list[str]:
    return [
        each.detail["fault"]
        for each in cloud.events
        if each.kind == "flood" and each.server == vm.server_id
    ]


def requests_of(cloud: Any, vm: Guest) -> list[dict[str, Any]]:
    return [
        each.detail
        for each in cloud.events
        if each.kind == "request" and each.server == vm.server_id
    ]


def all_is_well(cloud: Any, good: Guest) -> None:
    """Check that the host's own calls and another guest's are answered."""
    assert list(cloud.heat().stacks.list()) is not None
    assert good.get("/").status_code == 404


def raw(vm: Guest, port: int, data: bytes) -> bytes:
    """Send bytes and return the whole answer; b"" when the connection was reset."""
    with socket.create_connection(("127.0.0.1", vm.ports[port]), timeout=120) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
        return answer


def test_long_path_is_refused_and_clipped_in_its_event(cloud: Any, bad: Guest) -> None:
    for length, statuses in ((5_000, b"404"), (9_000, b"414"), (250_000, b"431")):
        line = b"GET /" + b"x" * length + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert statuses in raw(bad, 80, line)[:40]
    assert max(len(each["path"]) for each in requests_of(cloud, bad)) < 1100
    assert [each["status"] for each in requests_of(cloud, bad)] == [404, 414, 431]


@pytest.mark.parametrize("size", [limits.KEYSTONE_BODY + 1, 30_000_000])
def test_too_large_token_post_is_refused_unread(bad: Guest, size: int) -> None:
    head = f"POST /v3/auth/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", bad.ports[5000]), timeout=120) as connection:
        connection.sendall(head.encode())
        assert b"413" in connection.recv(1024)[:20]


def test_token_post_of_maximum_size_is_read(bad: Guest) -> None:
    body = json.dumps({"auth": {"x": ""}})
    body = body.replace('""', '"' + "x" * (limits.KEYSTONE_BODY - len(body)) + '"')
    assert len(body) == limits.KEYSTONE_BODY
    assert bad.request("POST", TOKENS, data=body).status_code == 400


def test_chunked_body_is_limited_too(bad: Guest) -> None:
    chunks = b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(4)) + b"0\r\n\r\n"
    head = b"POST /v3/auth/tokens HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"413" in raw(bad, 5000, head + chunks)[:20] or raw(bad, 5000, head + chunks) == b""


def test_idle_connections_do_not_block_other_guests(cloud: Any, bad: Guest, good: Guest) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with contextlib.ExitStack() as held:
        for number in range(300):
            connection = held.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", bad.ports[(8000, 8004, 5000)[number % 3]]))
        retry(lambda _: "connection-flood" in floods(cloud, bad), Deadline(120, "the word"))
        all_is_well(cloud, good)
        # 300 are ours; the server accepts no more than the limit.
        assert len(list(Path("/proc/self/fd").iterdir())) < before + 300 + limits.CONNECTIONS + 20
    assert floods(cloud, bad) == ["connection-flood"]
    assert floods(cloud, good) == []
    # When they are closed, the guest is answered as before.
    retry(lambda _: bad.get("/").status_code == 404, Deadline(120, "an answer"))


def test_websockets_are_limited(cloud: Any, bad: Guest, good: Guest) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(4 * limits.WEBSOCKETS):
            connection = held.enter_context(socket.socket())
            connection.connect(("127.0.0.1", bad.ports[9000]))
        retry(lambda _: "connection-flood" in floods(cloud, bad), Deadline(120, "the word"))
        retry(
            lambda _: threading.active_count() < before + 2 * limits.WEBSOCKETS + 10,
            Deadline(120, "the threads of those that were turned away to end"),
        )
        all_is_well(cloud, good)
    retry(lambda _: threading.active_count() < before + 10, Deadline(120, "the threads"))


def test_endless_requests_are_a_flood_and_then_refused() -> None:
    seen: list[tuple[str, str]] = []
    quota = Quota(lambda fault, text: seen.append((fault, text)), requests=5, per_second=0)
    assert [quota.request() for _ in range(8)] == [True] * 5 + [False] * 3
    ((fault, text),) = seen
    assert fault == "request-flood"
    assert re.fullmatch(r"the guest made 6 requests in \d+ s", text)


def test_agent_that_polls_all_day_is_no_flood() -> None:
    quota = Quota(lambda fault, text: pytest.fail(f"{fault}: {text}"), requests=5, per_second=1e9)
    assert all(quota.request() for _ in range(10_000))


def test_request_beyond_the_quota_is_429_and_no_event(
    cloud: Any, good: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = functools.partial(Quota, requests=300)
    monkeypatch.setattr("hotplate.cloud.cloud.Quota", few)
    line = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    last = b"GET / HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n"
    with guest(cloud, "many-requests") as bad:
        with socket.create_connection(("127.0.0.1", bad.ports[80]), timeout=120) as connection:
            connection.sendall(line + last)
            answers = b"".join(iter(lambda: connection.recv(1 << 20), b""))
        assert b"HTTP/1.1 404" in answers
        assert b"HTTP/1.1 429" in answers
        assert floods(cloud, bad) == ["request-flood"]
        assert bad.get("/").status_code in (404, 429)
        assert 300 <= len(requests_of(cloud, bad)) < 1000
        all_is_well(cloud, good)


NONSENSE = [
    ("GET", ":8888/v2/%1b%5d0%3bOWNED%07%1b%5b2J", {"URL-Signature": "\xff"}, b"", 404),
    ("POST", ":5000/v3/auth/tokens", {}, b"[" * 100_000, 400),
    (
        "POST",
        ":5000/v3/auth/tokens",
        {},
        b'{"auth":{"identity":{"methods":["password"],"password":"x"}}}',
        400,
    ),
    ("POST", ":5000/v3/auth/tokens", {}, b'{"auth":{"identity":{"methods":7}}}', 400),
    (
        "GET",
        ":8080/v1/AUTH_x/c/o?temp_url_sig=" + "a" * 40 + "&temp_url_expires=%C2%B2",
        {},
        b"",
        401,
    ),
    ("GET", ":8080/v1/AUTH_x/c/o?temp_url_sig=%C3%A9&temp_url_expires=9", {}, b"", 401),
    ("POST", "/openstack/latest/password", {"Content-Length": "x"}, b"", 400),
]


@pytest.mark.parametrize(("method", "where", "headers", "body", "status"), NONSENSE)
def test_invalid_request_is_answered_without_terminal_output(
    cloud: Any,
    bad: Guest,
    capfd: pytest.CaptureFixture[str],
    method: str,
    where: str,
    headers: dict[str, str],
    body: bytes,
    status: int,
) -> None:
    port, _, path = where.partition("/")
    fields = {"Host": "x", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"{method} /{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body
    answer = raw(bad, int(port[1:] or 80), request)
    assert answer.split()[1] == str(status).encode(), answer[:300]
    assert capfd.readouterr() == ("", "")
    assert "\x1b" not in (cloud.directory / "heat.log").read_text()


def test_service_failure_is_logged_without_the_path(
    cloud: Any, bad: Guest, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("of the test")

    monkeypatch.setattr(cloud.metadata, "answer", fail)
    assert bad.get("/not-for-a-log%1b%5b2J").status_code == 500
    assert capfd.readouterr() == ("", "")
    log = (cloud.directory / "heat.log").read_text()
    assert "RuntimeError: of the test" in log
    assert "not-for-a-log" not in log


@given(st.sampled_from([80, 5000, 8000, 8004, 8080, 8888]), st.binary(max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_bytes_are_refused_or_answered(
    cloud: Any, good: Guest, port: int, data: bytes
) -> None:
    answer = raw(good, port, b"POST /" + data)
    assert not answer.startswith(b"HTTP/1.1 5"), answer
    assert good.get("/").status_code == 404


# -- refusals of a real cloud --------------------


@contextlib.contextmanager
def deployment(
    cloud: Any, compute: Any, stacks: Any, how: str
) -> Iterator[tuple[Guest, dict[str, Any], str]]:
    stack_id = stacks.create(template("POLL_SERVER_CFN", how))
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        yield vm, inputs_of(poll_for_deployment(vm, cfn)), stack_id


def result(size: int) -> dict[str, Any]:
    return {"deploy_stdout": "x" * size, "deploy_stderr": "", "deploy_status_code": 0}


@pytest.mark.parametrize(
    ("how", "size", "status", "words"),
    [
        # The pipeline of Heat's cfn API does not turn its parser's exceptions into answers.
        ("CFN_SIGNAL", limits.JSON_BODY, 500, "failed at the request"),
        ("HEAT_SIGNAL", limits.JSON_BODY, 400, "exceeds maximum allowed size"),
        ("ZAQAR_SIGNAL", limits.ZAQAR_POST, 400, "collection size is too large"),
    ],
)
def test_result_too_large_for_a_real_cloud_is_refused(
    cloud: Any, compute: Any, stacks: Any, how: str, size: int, status: int, words: str
) -> None:
    with deployment(cloud, compute, stacks, how) as (vm, inputs, stack_id):
        refused = signal(vm, inputs, result(size))
        assert refused is not None
        assert (refused.status_code, words in refused.text) == (status, True), refused.text
        # One that is smaller by the size of its envelope is accepted.
        taken = signal(vm, inputs, result(size - 400))
        assert taken is not None
        assert taken.ok
        stacks.wait(stack_id, "CREATE_COMPLETE")


@pytest.fixture
def zaqar(cloud: Any, compute: Any, stacks: Any) -> Iterator[tuple[Guest, dict[str, str], str]]:
    """Return a guest, the headers of its requests, and the URL of its queue's messages."""
    with deployment(cloud, compute, stacks, "ZAQAR_SIGNAL") as (vm, inputs, _):
        made, urls = token(vm, inputs)
        messages = f"{urls['messaging']}/v2/queues/{inputs['deploy_queue_id']}/messages"
        yield vm, {"X-Auth-Token": made, "Client-ID": str(uuid.uuid4())}, messages


@contextlib.contextmanager
def framed(vm: Guest, headers: dict[str, str]) -> Iterator[Callable[..., int]]:
    """Open a websocket; yield a function that sends a frame and returns the answer's status."""
    # Only one frame is read beforehand.
    with connect(f"ws://127.0.0.1:{vm.ports[9000]}/", max_queue=1) as connection:

        def status(action: str, **body: Any) -> int:
            connection.send(json.dumps({"action": action, "headers": headers, "body": body}))
            return int(json.loads(connection.recv(timeout=120))["headers"]["status"])

        yield status


def test_subscriber_that_does_not_read_blocks_nobody(
    zaqar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotplate.cloud.zaqar.websocket.SEND_SECONDS", 1)
    vm, headers, url = zaqar
    with framed(vm, headers) as status:
        assert status("authenticate") == 200
        assert status("subscription_create", queue_name=url.split("/")[-2]) == 201
        # Much more than the buffers of a socket hold, and nobody reads it.
        posted = {"messages": [{"ttl": 60, "body": "x" * 250_000}]}
        for _ in range(60):
            assert vm.request("POST", url, headers=headers, json=posted).status_code == 201


def test_post_without_room_is_answered_and_keeps_the_websocket(
    cloud: Any, zaqar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm, headers, url = zaqar
    project = Project.of(cloud, headers)
    monkeypatch.setattr(limits, "STORED", project.stored("zaqar") + 600)
    # A queue of its own, because Heat polls a deployment's queue and removes its messages.
    body = {"queue_name": f"{url.split('/')[-2]}2", "messages": [{"ttl": 60, "body": "xxxx"}]}
    with framed(vm, headers) as status:
        assert status("authenticate") == 200
        # The queue with its first message exceeds 600 bytes, but one of them alone may not.
        assert [status("message_post", **body) for _ in range(3)] == [201, 503, 503]
        assert status("message_list", **body) == 200


class Project:
    """A guest's project, with a storage limit that a test can reach."""

    def __init__(self, cloud: Any, project_id: str) -> None:
        self._store = cloud.parts.store
        self.id = project_id

    @classmethod
    def of(cls, cloud: Any, headers: dict[str, str]) -> Project:
        return cls(cloud, cloud.identity.read_token(headers["X-Auth-Token"]).project)

    def stored(self, service: str) -> int:
        owner = f"AUTH_{self.id}" if service == "swift" else self.id
        return int(self._store.stored(service, owner))


#: Bytes that a guest can store; a sixteenth of them makes it a flood.
ROOM = 256 << 10


class Writer:
    """A guest that writes until it is refused."""

    def __init__(self, cloud: Any, vm: Guest, headers: dict[str, str], messages: str) -> None:
        self.cloud, self.vm, self.headers = cloud, vm, headers
        self.queues = messages.rsplit("/", 2)[0]
        self.project = Project.of(cloud, headers)
        self.container = f"http://169.254.169.254:8080/v1/AUTH_{self.project.id}/c"

    def put(self, url: str, **fields: Any) -> int:
        headers = {**self.headers, **fields.pop("headers", {})}
        return self.vm.request("PUT", url, headers=headers, **fields).status_code

    def post(self, url: str, headers: dict[str, str]) -> int:
        return self.vm.request("POST", url, headers={**self.headers, **headers}).status_code

    def queue(self, number: int) -> int:
        """Create a queue with metadata, without messages."""
        return self.put(f"{self.queues}/q{number}", json={"x": "y" * 16_000})

    def type(self, number: int) -> int:
        """Put an empty object with a content type of Swift's maximum length."""
        return self.put(f"{self.container}/{number}", headers={"Content-Type": "x" * 8000})

    def name(self, number: int) -> int:
        """Put an empty object with a name of Swift's maximum length."""
        return self.put(f"{self.container}/{number:01000}")

    def containers(self, number: int) -> int:
        """Create a container with the maximum metadata of Swift."""
        meta = {f"X-Container-Meta-K{each}": "v" * 256 for each in range(15)}
        return self.put(f"{self.container}{number}", headers=meta)

    def frame(self, number: int) -> int:
        """Create a queue with metadata, over a websocket."""
        with framed(self.vm, self.headers) as status:
            status("authenticate")
            return status("queue_create", queue_name=f"q{number}", metadata={"x": "y" * 16_000})


@pytest.fixture
def writer(cloud: Any, zaqar: Any, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(limits, "STORED", ROOM)
    writer = Writer(cloud, *zaqar)
    assert writer.put(writer.container) == 201
    return writer


@pytest.mark.parametrize(
    ("way", "service"),
    [
        ("queue", "zaqar"),
        ("frame", "zaqar"),
        ("type", "swift"),
        ("name", "swift"),
        ("containers", "swift"),
    ],
)
def test_guest_that_writes_without_end_is_refused_and_is_a_flood(
    cloud: Any, writer: Writer, way: str, service: str
) -> None:
    most = 500
    written = next(n for n in range(most) if getattr(writer, way)(n) == limits.FULL[service])
    assert written > 10
    # The last accepted one may have exceeded the limit.
    assert ROOM < writer.project.stored(service) < ROOM + 17_000
    assert floods(cloud, writer.vm) == ["storage-flood"]


def test_guest_that_signals_without_end_is_refused_and_is_a_flood(
    cloud: Any, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SIGNALLED", 100_000)
    url = f"http://127.0.0.1:{writer.vm.ports[8000]}/v1/waitcondition/nonsense"
    answers = [writer.vm.request("PUT", url, data="x" * 40_000).status_code for _ in range(3)]
    assert 413 not in answers[:2]
    assert answers[2] == 413
    assert floods(cloud, writer.vm) == ["storage-flood"]


def test_object_metadata_is_refused_when_no_room_is_left(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer.put(f"{writer.container}/o") == 201
    monkeypatch.setattr(limits, "STORED", writer.project.stored("swift") - 1)
    assert writer.post(f"{writer.container}/o", {"X-Object-Meta-K": "v" * 256}) == 413


def test_metadata_of_a_queue_is_refused_when_no_room_is_left(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer.queue(1) == 201
    monkeypatch.setattr(limits, "STORED", writer.project.stored("zaqar") - 1)
    kind = "application/openstack-messaging-v2.0-json-patch"
    answer = writer.vm.request(
        "PATCH",
        f"{writer.queues}/q1",
        headers={**writer.headers, "Content-Type": kind},
        data=json.dumps([{"op": "add", "path": "/metadata/z", "value": "y" * 16_000}]),
    )
    assert answer.status_code == 503


def test_guest_in_a_project_filled_by_others_is_no_flood(
    cloud: Any, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        assert writer.queue(number) == 201
    monkeypatch.setattr(limits, "STORED", 16 << 20)
    monkeypatch.setattr(writer.cloud.parts.store, "stored", lambda *_: (16 << 20) + 1)
    assert writer.queue(3) == 503
    assert floods(cloud, writer.vm) == []


def test_container_metadata_is_limited_in_total(writer: Writer) -> None:
    # MAX_META_COUNT; validate_metadata of swift/common/db.py includes the existing metadata.
    added = [
        writer.post(writer.container, {f"X-Container-Meta-{number}": "v"})
        for number in range(limits.SWIFT_META_COUNT + 1)
    ]
    assert added == [204] * limits.SWIFT_META_COUNT + [400]
    assert writer.post(writer.container, {"X-Container-Meta-0": "other"}) == 204
    # Headers that are not metadata of a container are not stored at all.
    before = writer.project.stored("swift")
    for name in ("X-Meta-A", "X-Evil-Meta-B", "X-My-Versions-C", "X-Object-Meta-D"):
        assert writer.post(writer.container, {name: "v" * 200}) == 204
    assert writer.project.stored("swift") == before


def test_header_too_long_for_swift_is_refused(writer: Writer) -> None:
    assert writer.put(f"{writer.container}/o", headers={"Content-Type": "x" * 50_000}) == 400
    assert writer.put(f"{writer.container}/o", headers={"Content-Type": "text/plain"}) == 201


@pytest.mark.parametrize(
    "frame",
    [
        "[",
        "[" * 100_000,
        "7",
        "{}",
        '{"action":"authenticate","headers":[]}',
        '{"action":"x","body":[]}',
    ],
)
def test_invalid_frame_is_answered_with_400_or_403(bad: Guest, frame: str) -> None:
    with connect(f"ws://127.0.0.1:{bad.ports[9000]}/") as connection:
        connection.send(frame)
        assert json.loads(connection.recv(timeout=120))["headers"]["status"] in (400, 403)
        connection.send("{}")
        assert json.loads(connection.recv(timeout=120))["headers"]["status"] == 400


def test_frame_is_in_the_events_before_its_answer(
    cloud: Any, bad: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a request over HTTP is, so that who has the answer finds the event, and a flood."""
    send = websocket._Session._send
    logged: list[int] = []

    def sent(session: Any, frame: dict[str, object]) -> None:
        logged.append(len(requests_of(cloud, bad)))
        send(session, frame)

    monkeypatch.setattr(websocket._Session, "_send", sent)
    with connect(f"ws://127.0.0.1:{bad.ports[9000]}/") as connection:
        connection.send("{}")
        connection.recv(timeout=60)
    assert logged == [1]


def test_http_server_log_goes_to_the_file() -> None:
    assert not logging.getLogger("waitress").propagate


def test_descriptor_limit_is_raised_at_the_start() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        raise_descriptors()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == min(limits.DESCRIPTORS, hard) or hard == resource.RLIM_INFINITY
        assert raised > 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
