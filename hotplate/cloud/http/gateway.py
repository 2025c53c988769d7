"""The HTTP front of every service.

It writes each request to the event log without secrets, and applies planted faults.
Serves TCP and unix sockets that the caller creates (waitress).  Each guest has an event loop and
worker threads of its own, and so has the host: none of them can block another.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIEnvironment

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import Side
from hotplate.cloud.http.faults import Fault, Faults
from hotplate.cloud.http.limits import Quota
from hotplate.errors import is_unforeseen
from hotplate.events.background import Background
from hotplate.events.kinds import ServiceRequest
from hotplate.events.log import EventLog, clipped

LOG = logging.getLogger("hotplate.gateway")
"""Log of service failures; the engine writes it to a file."""

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
#: Exceptions of a handler that could not parse a request.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)


class _Refusal(ErrorTask):  # type: ignore[misc]
    """The response to an invalid or too large request, which is logged like any other."""

    def execute(self) -> None:
        error = self.request.error
        self.channel.server._front.refused(self.request, error.code)
        super().execute()


class _Channel(HTTPChannel):  # type: ignore[misc]
    error_task_class = _Refusal

    def received(self, data: bytes) -> bool:
        """Process data, unless it begins a request that a fault refuses on a kept connection."""
        if data and self.request is None and self.server._front.refuses():
            _reset(self.socket)
            self.handle_close()
            return False
        return bool(super().received(data))

    def service(self) -> None:
        """Answer a request, and close the connection afterwards unless it is kept alive."""
        if not self.server.keep_alive:
            self.requests[0].headers["CONNECTION"] = "close"
        super().service()


def _reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class _Listening:
    """A waitress server that can reset connections, and can end before its workers."""

    _front: Front
    keep_alive: bool
    trigger: Any
    channel_class = _Channel
    in_connection_overflow = False

    def __init__(self, *args: object, **options: object) -> None:
        self._pulling = threading.Lock()
        self._deaf = False
        super().__init__(*args, **options)

    def pull_trigger(self) -> None:
        """Wake the loop; a worker calls it after its response."""
        with self._pulling:
            # The descriptor of a closed pipe may belong to another file by now.
            if not self._deaf:
                super().pull_trigger()  # type: ignore[misc]

    def close_trigger(self) -> None:
        """Close the trigger, so that workers that still answer do not wake the loop."""
        with self._pulling:
            self._deaf = True
            self.trigger.close()

    def readable(self) -> bool:
        was_full = self.in_connection_overflow
        ready: bool = super().readable()  # type: ignore[misc]
        if self.in_connection_overflow and not was_full:
            self._front.crowded()
        return ready

    def accept(self) -> Any:
        accepted = super().accept()  # type: ignore[misc]
        if accepted is None or not self._front.refuses():
            return accepted
        _reset(accepted[0])
        return None


class _Tcp(_Listening, TcpWSGIServer):  # type: ignore[misc]
    pass


class _Unix(_Listening, UnixWSGIServer):  # type: ignore[misc]
    pass


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
            self.service,
            lambda fault: fault.kind == "refuse" and fault.server in ("", self._server_id),
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
        if self._quota is not None and not self._quota.request():
            body = b"Too many requests.\n"
            start_response(
                "429 Too Many Requests",
                [
                    ("Content-Type", "text/plain"),
                    ("Content-Length", str(len(body))),
                    ("Retry-After", "10"),
                ],
            )
            return [body]
        begun = time.monotonic()
        environ[SIDE] = self._side
        environ[SERVER] = self._server_id
        started = StartedResponse()
        # Saved now: Heat's own filters modify the path while they work.
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        fault = self._faults.hit(self.service, lambda fault: self._meets(fault, method, path))
        try:
            body = self._sensible(environ, started, fault)
        finally:
            self._log(environ, path, started, begun, fault)
        if self._quota is not None and fault is None and self.service in limits.FULL:
            status = int(started.status.split(" ", 1)[0])
            self._quota.wrote(self.service, _size(environ), status)
        if method == "HEAD":
            start_response(started.status, started.headers)
            return []
        headers = [
            (name, value) for name, value in started.headers if name.lower() != "content-length"
        ]
        if not started.status.startswith(("204", "304")):
            headers.append(("Content-Length", str(len(body))))
        start_response(started.status, headers)
        if fault is not None and fault.kind == "truncate":
            # Waitress closes the connection when the body is shorter than announced.
            return [body[: len(body) // 2]]
        return [body]

    def _meets(self, fault: Fault, method: str, path: str) -> bool:
        return (
            fault.kind != "refuse"
            and fault.server in ("", self._server_id)
            and fault.method in ("", method)
            and fault.path in path
        )

    def _sensible(
        self, environ: WSGIEnvironment, keep: StartResponse, fault: Fault | None
    ) -> bytes:
        """Return the service's response; 400 if it cannot parse the request, 414 for a long URI."""
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


class StartedResponse:
    """A WSGI ``start_response`` that records the status and headers of an application."""

    def __init__(self) -> None:
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
        len(name) + len(value)
        for name, value in environ.items()
        if name == "CONTENT_TYPE" or name.startswith("HTTP_")
    )
    body = int(environ.get("CONTENT_LENGTH") or 0)
    return body + len(environ.get("PATH_INFO", "")) + sum(headers)


def _plain(keep: StartResponse, status: str, text: str) -> bytes:
    keep(status, [("Content-Type", "text/plain; charset=UTF-8")])
    return text.encode() + b"\n"


def _no_write(_data: bytes) -> None:
    raise AssertionError("a service used the write() callable of WSGI")


class _ThreadPerRequest:
    """A waitress dispatcher that starts a thread for each request, so that none waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def add_task(self, task: Any) -> None:
        """Answer a request of a channel in a new thread."""
        thread = threading.Thread(
            target=self._answer, args=(task,), name="hotplate-request", daemon=True
        )
        with self._lock:
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            self._ended(thread)
            task.cancel()
            raise

    def _answer(self, task: Any) -> None:
        try:
            task.service()
        except Exception:  # as in waitress's own threads; the application's never come here
            LOG.exception("a connection failed")
        finally:
            self._ended(threading.current_thread())

    def _ended(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)

    def shutdown(self, cancel_pending: bool = True, timeout: float = 5) -> None:  # noqa: ARG002
        """Wait for the threads to end, at most ``timeout`` seconds."""
        end = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


class Serving:
    """Serves any number of listening sockets until it is stopped.

    The sockets given to :meth:`add` belong to this object from then on: the function that
    :meth:`add` returns, or :meth:`stop`, closes them.

    :param events: the log for faults of its loop.
    :param threads: number of requests that are answered at once; None is unlimited.
    :param connections: maximum number of open connections.
    :param keep_alive: keep a connection for the client's next request, until it was idle for
        :data:`limits.IDLE_SECONDS`.
    :param sides: number of interfaces, each with its listeners.
    :param lift_limits: accept bodies that the real services refuse.
    """

    def __init__(
        self,
        *,
        events: EventLog,
        threads: int | None,
        connections: int,
        keep_alive: bool = True,
        sides: int = 1,
        lift_limits: bool = False,
    ) -> None:
        self._map: dict[int, object] = {}
        self._connections = connections
        self._keep_alive = keep_alive
        self._sides = sides
        self._lift_limits = lift_limits
        self._dispatcher: Any = _ThreadPerRequest()
        if threads is not None:
            self._dispatcher = ThreadedTaskDispatcher()
            self._dispatcher.set_thread_count(threads)
        self._lock = threading.Lock()
        self._work: list[Callable[[], None]] = []
        self._stopping = False
        # A socket pair of our own wakes the loop, even when it has no listener.
        self._waker, wakened = socket.socketpair()
        self._waker.setblocking(False)
        _Wakened(wakened, self._map, self._run_work)
        self._thread = Background(events, self._loop, name="hotplate-http")
        self._thread.start()

    def _adjustments(self, service: str) -> Adjustments:
        borne = limits.BORNE[service]
        largest = max(limits.LIFTED, borne) if self._lift_limits else borne
        return Adjustments(
            backlog=256,
            # The loop itself has two for each listener, and the waker.
            connection_limit=self._connections + 2 * len(limits.BORNE) * self._sides + 1,
            channel_timeout=limits.IDLE_SECONDS,
            ident="",
            # Waitress also refuses a body of exactly this size.
            max_request_body_size=largest + 1,
            max_request_header_size=limits.HEADERS,
            # Larger bodies are buffered in a file.
            inbuf_overflow=1 << 16,
            outbuf_overflow=1 << 16,
            asyncore_use_poll=True,
            listen="127.0.0.1:0",
        )

    def add(self, listener: socket.socket, front: Front) -> Callable[[], None]:
        """Serve ``front`` on ``listener``; return a function that stops and closes it."""
        kind = _Unix if listener.family == socket.AF_UNIX else _Tcp
        made: list[Any] = []

        def make() -> None:
            server = kind(
                front,
                self._map,
                True,
                listener,
                dispatcher=self._dispatcher,
                adj=self._adjustments(front.service),
                bind_socket=False,
                sockinfo=(listener.family, listener.type, listener.proto, None),
            )
            server._front = front
            server.keep_alive = self._keep_alive
            made.append(server)

        self._in_loop(make)

        def end() -> None:
            def close() -> None:
                for server in made:
                    server.accepting = False
                    server.del_channel(self._map)
                    listener.close()
                    for channel in list(server.active_channels.values()):
                        channel.will_close = True
                    drain(server)
                made.clear()

            def drain(server: Any) -> None:
                # A worker that is still answering needs the server's trigger to wake the loop.
                if server.active_channels and not self._stopping:
                    with self._lock:
                        self._work.append(lambda: drain(server))
                else:
                    server.close_trigger()

            self._in_loop(close)

        return end

    def stop(self) -> None:
        """Close all listeners and connections, and wait for the threads to end."""
        if self._stopping:
            return

        def finish() -> None:
            self._stopping = True

        self._in_loop(finish)
        self._thread.join(timeout=10)
        self._dispatcher.shutdown(cancel_pending=True, timeout=5)
        for each in list(self._map.values()):
            if isinstance(each, _Listening):
                each.close_trigger()
        wasyncore.close_all(self._map, ignore_all=True)
        self._waker.close()

    def _in_loop(self, work: Callable[[], None]) -> None:
        """Run ``work`` in the thread of the loop, the only one that may touch its sockets."""
        done = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except Exception as error:  # it is the caller's, not the loop's
                failed.append(error)
            finally:
                done.set()

        if not self._thread.is_alive():
            return
        with self._lock:
            self._work.append(run)
        self._waker.send(b"w")
        done.wait(10)
        if failed:
            raise failed[0]

    def _run_work(self) -> None:
        with self._lock:
            work, self._work = self._work, []
        for run in work:
            run()

    def _loop(self) -> None:
        while not self._stopping:
            wasyncore.loop(timeout=1.0, use_poll=True, map=self._map, count=1)
            self._run_work()


class _Wakened(wasyncore.dispatcher):  # type: ignore[misc]
    """The end of a socket pair on which the loop is woken."""

    def __init__(
        self, sock: socket.socket, map_: dict[int, object], callback: Callable[[], None]
    ) -> None:
        super().__init__(sock, map=map_)
        self._callback = callback

    def writable(self) -> bool:
        return False

    def handle_read(self) -> None:
        self.recv(4096)
        self._callback()

    def handle_accept(self) -> None:
        pass

    def handle_close(self) -> None:
        self.close()
