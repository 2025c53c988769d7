"""The embedded services' HTTP: it can end while requests are still being answered."""

from __future__ import annotations

import socket

import pytest

from hotplate.cloud.http.addresses import HOST_SERVICES, Side
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.gateway import Front, Serving, _Tcp
from hotplate.events import kinds
from hotplate.events.log import EventLog


def test_a_worker_that_ends_after_its_server_wakes_nobody():
    def app(_environ, start_response):
        start_response("200 OK", [])
        return []

    serving = Serving(threads=1, connections=10)
    listener = socket.create_server(("127.0.0.1", 0))
    front = Front("cfn", app, side=Side.HOST, server_id="", events=EventLog(), faults=Faults())
    end = serving.add(listener, front)
    (server,) = [each for each in serving._map.values() if isinstance(each, _Tcp)]
    end()
    # Somebody opens files, whose numbers are those of the pipe that was closed.
    pairs = [each for _ in range(8) for each in socket.socketpair()]
    # What a worker does last, whether or not its server is still there.
    server.pull_trigger()
    for each in pairs:
        each.setblocking(False)
        with pytest.raises(BlockingIOError):
            each.recv(10)
    for each in pairs:
        each.close()
    serving.stop()


def test_events_know_every_service_that_guests_have_no_way_to():
    """Without it, what Heat asks them would look like a sign of life of a guest."""
    assert set(HOST_SERVICES) == kinds.HOST_SERVICES
