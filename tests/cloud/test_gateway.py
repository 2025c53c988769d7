"""The HTTP front of the services can end while requests are still being answered."""

from __future__ import annotations

import contextlib
import socket

import pytest

from hotplate.cloud.http.addresses import HOST_SERVICES, Side
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.gateway import Front
from hotplate.cloud.http.serving import Serving, _Tcp
from hotplate.events import kinds
from hotplate.events.log import EventLog


def answer(_environ, start_response):
    start_response("200 OK", [])
    return []


def front():
    return Front("cfn", answer, side=Side.HOST, server_id="", events=EventLog(), faults=Faults())


@pytest.mark.parametrize(("method", "announced"), [("POST", True), ("PUT", True), ("GET", False)])
def test_event_of_a_change_is_announced_while_it_is_made(method, announced):
    """A signal ends a stack before its request is answered; reads may last long."""
    events, settled = EventLog(), []

    def app(environ, start_response):
        settled.append(events.settle(seconds=0))
        return answer(environ, start_response)

    guests = Front("cfn", app, side=Side.GUEST, server_id="web", events=events, faults=Faults())
    guests({"REQUEST_METHOD": method, "PATH_INFO": "/v1/signal/x"}, lambda *_: None)
    assert settled == [not announced]
    assert events.settle(seconds=0)
    assert len(events) == 1


def test_late_worker_writes_to_no_reused_descriptor():
    serving = Serving(events=EventLog(), threads=1, connections=10)
    listener = socket.create_server(("127.0.0.1", 0))
    end = serving.add(listener, front())
    (server,) = [each for each in serving._map.values() if isinstance(each, _Tcp)]
    end()
    # New files get the descriptors of the closed pipe.
    pairs = [each for _ in range(8) for each in socket.socketpair()]
    # A worker does this last, whether or not its server still exists.
    server.pull_trigger()
    for each in pairs:
        each.setblocking(False)
        with pytest.raises(BlockingIOError):
            each.recv(10)
    for each in pairs:
        each.close()
    serving.stop()


def test_listener_closed_by_its_owner_is_polled_no_longer(caplog):
    """A signal during the start closes it so; waitress then wrote a line for people."""
    serving = Serving(events=EventLog(), threads=1, connections=10)
    listener = socket.create_server(("127.0.0.1", 0))
    serving.add(listener, front())
    listener.close()
    # The loop polls again after each piece of work.
    for _ in range(3):
        serving._in_loop(lambda: None)
    left = [each for each in serving._map.values() if isinstance(each, _Tcp)]
    serving.stop()
    assert (left, caplog.messages) == ([], [])


@pytest.fixture
def served():
    """Return a function that serves an application and returns its address."""
    with contextlib.ExitStack() as ended:

        def serve(**options: bool) -> tuple[str, int]:
            serving = Serving(events=EventLog(), threads=1, connections=10, **options)
            ended.callback(serving.stop)
            listener = socket.create_server(("127.0.0.1", 0))
            ended.callback(serving.add(listener, front()))
            return listener.getsockname()

        yield serve


def test_guest_connection_is_kept_alive(served):
    with socket.create_connection(served()) as client:
        for _ in range(3):
            client.sendall(b"GET / HTTP/1.1\r\nHost: heat\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_host_connection_is_closed_after_each_request(served):
    """Heat's own clients kept 364 in a session of 20 minutes, until no further one was free."""
    with socket.create_connection(served(keep_alive=False)) as client, client.makefile("rb") as got:
        client.sendall(b"GET / HTTP/1.1\r\nHost: heat\r\n\r\n")
        answered = got.read()
    assert answered.startswith(b"HTTP/1.1 200")
    assert b"\r\nConnection: close\r\n" in answered


def test_events_list_every_service_out_of_reach_of_guests():
    """Otherwise Heat's own requests to them would look like a sign of life of a guest."""
    assert set(HOST_SERVICES) == kinds.HOST_SERVICES
