"""Zaqar over a websocket: the agent and the real one against the server of ``websockets``."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from heat_agent.collect.problems import Unavailable
from heat_agent.collect.sources.zaqar import Zaqar as Source
from heat_agent.collect.trust import Trust
from heat_agent.collect.web import Client
from heat_agent.collect.websocket import WebSocket
from heat_config.address import Target
from heat_config.deadline import Deadline
from heat_config.stream import Stream
from programs import wait_until
from raw_server import request
from stub_server import Reply
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from .conftest import PASSWORD, TOKEN
from .test_beside_upstream import DEPLOYMENTS, RECORD, heat_conf, same


class Zaqar:
    """Zaqar's websocket: one queue; *push* sends a frame to the connected client."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.frames: list[dict[str, Any]] = []
        self.connections: list[ServerConnection] = []
        self.before_reply: Callable[[str], list[Any]] = lambda action: []
        self.status: dict[str, int] = {}
        self._server = serve(self._handle, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for connection in self.connections:
            cut(connection)
        self._server.shutdown()

    def push(self, body: Any) -> None:
        self.connections[-1].send(json.dumps({"body": body, "Message_Type": "Notification"}))

    def _handle(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        with suppress(ConnectionClosed):
            for text in connection:
                frame = json.loads(text)
                self.frames.append(frame)
                for early in self.before_reply(frame["action"]):
                    connection.send(early if isinstance(early, str) else json.dumps(early))
                body: dict[str, Any] = {"message": "done"}
                if frame["action"] == "message_delete_many":
                    body = {"messages": [{"body": message} for message in self.queue[:1]]}
                    del self.queue[:1]
                status = self.status.get(frame["action"], 200)
                reply = {"headers": {"status": status}, "body": body}
                connection.send(json.dumps({**reply, "request": {"action": frame["action"]}}))


def cut(connection: ServerConnection) -> None:
    """Close a connection without a handshake: the agent may not be reading."""
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def zaqar(cloud) -> Iterator[Zaqar]:
    made = Zaqar()
    cloud.websocket = made.url
    yield made
    made.close()


@pytest.fixture
def source(cloud, zaqar):
    """The source itself, configured as in the agent."""
    options = SimpleNamespace(
        auth_url=f"{cloud.url}/keystone/v3",
        user_id="u1",
        password=PASSWORD,
        project_id="p1",
        queue_id="q1",
        region_name="here",
        use_websockets=True,
        ssl_certificate_validation=True,
        ca_file=None,
    )
    log = SimpleNamespace(warning=print)
    client = Client(Trust({}), {})
    chosen = SimpleNamespace(zaqar=options, deployment_key=["deployments"])
    yield Source(SimpleNamespace(settings=chosen, client=client, log=log, warn=print))
    client.close()


def until_it_wakes(source):
    wait_until(lambda: source.wakes().holds())


def test_waiting_message_is_read(guest, cloud, zaqar):
    """The frames are those of zaqarclient; ours then asks for a further message."""

    def play(which):
        zaqar.queue[:] = [{"first": 1, "deployments": DEPLOYMENTS}]
        guest.conf(heat_conf(cloud, section="zaqar", extra="use_websockets = true\n"), RECORD)
        return [guest.run(which, "--one-time", "zaqar", RECORD=str(guest.root))]

    same(guest, play)
    frames = [(frame["action"], frame.get("body")) for frame in zaqar.frames]
    assert [action for action, _ in frames[:4]] == [
        "authenticate",
        "queue_create",
        "subscription_create",
        "message_delete_many",
    ]
    assert frames[4:8] == frames[:4]
    assert zaqar.frames[4]["headers"]["X-Auth-Token"].startswith(TOKEN)
    assert zaqar.frames[4]["headers"].keys() == zaqar.frames[0]["headers"].keys()


def test_pushed_message_wakes_the_agent(source, zaqar):
    with pytest.raises(Unavailable) as caught:
        source.collect()
    assert caught.value.quiet
    assert not source.wakes().holds()
    zaqar.push({"pushed": 1})
    until_it_wakes(source)
    assert source.collect() == [("zaqar", {"pushed": 1})]
    assert len(zaqar.connections) == 1


def test_newest_message_counts(source, zaqar):
    """Upstream takes the oldest, even after a newer one was pushed."""
    zaqar.queue[:] = [{"n": 1}, {"n": 2}, {"n": 3}]
    assert source.collect() == [("zaqar", {"n": 3})]
    zaqar.push({"n": 4})
    until_it_wakes(source)
    zaqar.queue[:] = [{"n": 4}, {"n": 5}]
    assert source.collect() == [("zaqar", {"n": 5})]


def test_message_pushed_before_a_reply_is_read(source, zaqar):
    zaqar.before_reply = lambda action: (
        [{"body": {"pushed": action}, "headers": {"status": 200}}]
        if action == "message_delete_many"
        else []
    )
    assert source.collect() == [("zaqar", {"pushed": "message_delete_many"})]


def test_refused_token_is_renewed(source, cloud, zaqar):
    zaqar.status["authenticate"] = 403
    with pytest.raises(Unavailable, match="403"):
        source.collect()
    zaqar.status.clear()
    zaqar.queue[:] = [{"n": 1}]
    assert source.collect() == [("zaqar", {"n": 1})]
    assert cloud.tokens == 2


def test_closed_connection_is_replaced(source, zaqar):
    zaqar.queue[:] = [{"n": 1}]
    source.collect()
    cut(zaqar.connections[0])
    until_it_wakes(source)
    with pytest.raises(Unavailable) as caught:
        source.collect()
    assert caught.value.overloaded  # so that there is a pause
    assert source.wakes() is None
    zaqar.queue[:] = [{"n": 2}]
    assert source.collect() == [("zaqar", {"n": 2})]


@pytest.mark.parametrize(
    "early", ["no JSON", "[]", '"x"', "null", "[" * 100_000, '{"headers": 1}', "{}"]
)
def test_invalid_replies_are_refused(source, zaqar, early):
    zaqar.before_reply = lambda action: [early] if action == "message_delete_many" else []
    try:
        assert source.collect() == [("zaqar", None)]
    except Unavailable as error:
        assert early[:6] not in str(error) or early == "[]"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 300_000])
def test_messages_of_all_lengths_are_sent_and_read(size):
    """The three forms of a length (RFC 6455 5.2), sent and read by ``websockets``."""
    received: list[Any] = []

    def echo(connection: ServerConnection) -> None:
        received.append(connection.recv())
        connection.ping(b"are you there")
        connection.send(iter(["a" * (size // 2), "b" * (size - size // 2)]))
        with suppress(ConnectionClosed):
            connection.recv()

    with serve(echo, "127.0.0.1", 0, max_size=None, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = connected(server.socket.getsockname()[1])
        deadline = Deadline(5, 10)
        client.send("ü" * size, deadline)
        assert client.receive(deadline) == "a" * (size // 2) + "b" * (size - size // 2)
        client.close()
        server.shutdown()
    assert received == ["ü" * size]


def connected(port, limit=1 << 20):
    client = WebSocket(Stream(socket.create_connection(("127.0.0.1", port), 5)), limit)
    client.begin(Target(f"http://127.0.0.1:{port}/"), Deadline(5, 5))
    return client


def pair(data: bytes):
    """A websocket that gets *data* after it is connected."""
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    theirs.shutdown(socket.SHUT_WR)
    return WebSocket(Stream(ours), 1000), theirs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81",
        b"\x81\x05abc",
        b"\x81\x85\0\0\0\0abcde",  # masked: a server must not
        b"\xc1\x01a",  # an extension that was not negotiated
        b"\x80\x01a",  # continues nothing
        b"\x01\x01a\x81\x01b",  # another begins before the first has ended
        b"\x81\x02\xff\xfe",
        b"\x09\x01a",  # a ping in parts
        b"\x89\x7e\x00\x7eaaa",  # a ping that is too long
        b"\x83\x01a",
        b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x81\x7e\xff\xff",
        b"\x01\x7e\x03\xe8" + b"a" * 1000 + b"\x80\x01a",
        b"\x88\x02\x03\xe8",
        b"\x01\x00" + b"\x00\x00" * 2000,
        b"\x8a\x00" * 2000,
    ],
    ids=lambda data: data[:8].hex(),
)
def test_invalid_frames_are_refused(data):
    client, theirs = pair(data)
    with theirs, pytest.raises(OSError):
        client.receive(Deadline(2, 2))
    client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: wrong\r\n\r\n",
        b"HTTP/1.1 101 Yes\r\nUpgrade: h2c\r\n\r\n",
        b"garbage\r\n\r\n",
        b"",
    ],
)
def test_invalid_handshakes_are_refused(listen, answer):
    listener = listen(lambda connection: (request(connection), connection.sendall(answer)))
    with pytest.raises(OSError):
        connected(listener.port)


def test_random_bytes_raise_only_os_errors():
    for _ in range(300):
        client, theirs = pair(os.urandom(64))
        with theirs, suppress(OSError):
            client.receive(Deadline(2, 2))
        client.close()


def test_missing_websocket_in_the_catalog_is_unavailable(source, cloud):
    cloud.websocket = ""
    with pytest.raises(Unavailable):
        source.collect()
    cloud.reply = lambda asked: Reply(503)
    with pytest.raises(Unavailable):
        source.collect()
