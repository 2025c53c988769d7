"""Zaqar over a websocket: frames of JSON with ``action``, ``headers`` and ``body``.

Every connection has a thread of its own, which ends when the listener is closed.
"""

from __future__ import annotations

import http
import json
import logging
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from hotplate.cloud.http import limits
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.quota import Quota
from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.keystone.identity import Identity, IdentityError
from hotplate.cloud.zaqar.queues import Queues
from hotplate.cloud.zaqar.validation import (
    check_deletion,
    check_metadata_size,
    check_name,
    check_page,
)
from hotplate.errors import is_unforeseen
from hotplate.events.background import Background
from hotplate.events.kinds import ServiceRequest
from hotplate.events.log import EventLog, clipped

SERVICE = "zaqar-websocket"
#: Maximum time to wait for a client that does not read.
SEND_SECONDS = 5


class WebsocketServer:
    """Serves one listening socket until it is closed.

    :param server_id: the server behind a guest's listener, "" for the host's.
    :param quota: the limits of that guest; None for the host.
    """

    def __init__(
        self,
        listener: socket.socket,
        queues: Queues,
        identity: Identity,
        *,
        server_id: str,
        events: EventLog,
        faults: Faults,
        quota: Quota | None = None,
        lift_limits: bool = False,
    ) -> None:
        self._quota = quota
        self.queues = queues
        self.identity = identity
        self._server_id = server_id
        self._events = events
        self._faults = faults
        # The library logs each failed handshake as an error, and guests can make any number of
        # them.
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        self._server = serve(
            self._accepted,
            sock=listener,
            process_request=self._meet_fault,
            compression=None,
            server_header=None,
            # A frame is a post with its headers; a client can have only a few of them queued.
            max_size=limits.MAX_BODY_LIFTED if lift_limits else limits.ZAQAR_POST + limits.HEADERS,
            max_queue=2,
        )
        # The library calls its handler in a thread for each connection, before the handshake: from
        # there on a flood is counted.
        self._handle = self._server.handler
        self._server.handler = self._counted
        self._thread = Background(events, self._server.serve_forever, name="hotplate-websocket")
        self._thread.start()

    def close(self) -> None:
        """Close the listener and every connection, and wait for the threads."""
        self._server.shutdown()
        self._thread.join(timeout=5)

    def _meet_fault(self, connection: ServerConnection, request: Request) -> Response | None:
        fault = self._faults.hit(SERVICE, self._server_id)
        if fault is None:
            return None
        if fault.kind == "refuse":
            self._events.emit(SERVICE, "refused", server=self._server_id)
            # Not close(): the library closes the socket itself when the handshake fails.
            connection.socket.shutdown(socket.SHUT_RDWR)
            return None
        if fault.kind in ("delay", "hang"):
            fault.over.wait(fault.delay if fault.kind == "delay" else fault.left)
            return None
        status = {"status": fault.status, "html200": 200}.get(fault.kind, 500)
        self._events.add(
            ServiceRequest("GET", request.path, status, fault=fault.kind),
            source=SERVICE,
            server=self._server_id,
        )
        return connection.respond(http.HTTPStatus(status), "injected fault\n")

    def _counted(self, connection: socket.socket, address: object) -> None:
        """Serve a connection in a thread of its own, unless there are too many."""
        if self._quota is None:
            self._handle(connection, address)
            return
        if not self._quota.open_websocket():
            # As the library's handler does at its end: shutdown() waits for the threads in this
            # set.
            with self._server.lock:
                self._server.handler_threads.discard(threading.current_thread())
            connection.close()
            return
        try:
            self._handle(connection, address)
        finally:
            self._quota.close_websocket()

    def _accepted(self, connection: ServerConnection) -> None:
        try:
            # The client may disconnect at any time.
            with suppress(ConnectionClosed):
                _Session(self, connection).run()
        except Exception as error:
            if is_unforeseen(error):
                self._events.doubt(error)
            raise

    def counts(self) -> bool:
        """Count a frame; return False when it exceeds the limit."""
        return self._quota is None or self._quota.request()

    def log(self, action: str, status: int, *, size: int) -> None:
        """Write a frame of ``size`` bytes, and the status of its answer, to the event log."""
        if self._quota is not None:
            self._quota.wrote("zaqar", size, status)
        self._events.add(
            ServiceRequest("WS", status=status, action=clipped(action)),
            source=SERVICE,
            server=self._server_id,
        )


class _Session:
    """One connection: it authenticates first, then sends requests."""

    def __init__(self, server: WebsocketServer, connection: ServerConnection) -> None:
        self._server = server
        self._connection = connection
        self._project = ""
        self._ends: dict[str, Callable[[], None]] = {}
        self._sending = threading.Lock()
        # A subscriber that does not read must not block those who post.
        # A ``struct timeval``: seconds and microseconds.
        patience = struct.pack("ll", SEND_SECONDS, 0)
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)

    def run(self) -> None:
        """Answer frames until the client disconnects."""
        try:
            for frame in self._connection:
                if not self._server.counts():
                    return
                action, status, body = self._sensible(frame)
                # Before the answer, as over HTTP: a client that has it finds the event.
                self._server.log(action, status, size=len(frame))
                self._send({"headers": {"status": status}, "body": body})
        finally:
            for end in self._ends.values():
                end()

    def _send(self, frame: dict[str, object]) -> None:
        with self._sending:
            self._connection.send(json.dumps(frame))

    def _sensible(self, frame: str | bytes) -> tuple[str, int, dict[str, object]]:
        """Return the answer to a frame: 400 for an invalid one, 503 when no room is left."""
        try:
            return self._answer(frame)
        except HttpError as error:
            return "", error.status, {"error": str(error)}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            # A frame may be any JSON, such as a list: each step of _answer() can fail.
            return "", 400, {"error": "The frame is not a request."}

    def _answer(self, frame: str | bytes) -> tuple[str, int, dict[str, object]]:
        message = json.loads(frame)
        action = str(message["action"])
        headers = message.get("headers") or {}
        body = message.get("body") or {}
        if action == "authenticate":
            return action, *self._authenticate(headers)
        if not self._project:
            return action, 403, {"error": "Not authenticated."}
        queue = str(body.get("queue_name", ""))
        if not queue:
            return action, 400, {"error": "queue_name is needed."}
        check_name(queue)
        queues, project = self._server.queues, self._project
        if action == "queue_create":
            check_metadata_size(len(str(body.get("metadata", {}))))
            made = queues.create(project, queue, body.get("metadata"))
            return action, 201 if made else 204, {}
        if action == "subscription_create":
            if queue not in self._ends:
                if len(self._ends) >= limits.SUBSCRIPTIONS:
                    return action, 400, {"error": "There are too many subscriptions."}
                self._ends[queue] = queues.subscribe(project, queue, self._push)
            return action, 201, {"message": f"Subscription to {queue} created."}
        if action == "message_delete_many":
            pop = int(body.get("pop", 1))
            check_deletion(pop=pop, ids=None)
            messages = queues.pop(project, queue, pop)
            return action, 200, {"messages": messages}
        if action == "message_list":
            limit = int(body.get("limit", 10))
            check_page(limit)
            messages = queues.peek(project, queue, limit)
            return action, 200, {"messages": messages}
        if action == "message_post":
            if body.get("messages") is None:
                return action, 400, {"error": "No messages were found in the request body."}
            queues.check_size(project, queue, len(str(body["messages"])))
            ids = queues.post(project, queue, body["messages"])
            return action, 201, {"message_ids": ids}
        return action, 400, {"error": f"{action} is not supported."}

    def _authenticate(self, headers: dict[str, object]) -> tuple[int, dict[str, object]]:
        try:
            grant = self._server.identity.read_token(str(headers.get("X-Auth-Token", "")))
        except IdentityError:
            return 403, {"error": "Failed to authenticate."}
        if headers.get("X-Project-ID") not in (None, grant.project):
            return 403, {"error": "Not a token of that project."}
        self._project = grant.project
        return 200, {"message": "Authenticated."}

    def _push(self, body: object) -> None:
        """Send a message to a subscriber; one that has disconnected misses it."""
        try:
            self._send({"body": body, "headers": {"status": 200}})
        except ConnectionClosed:
            return
