"""The web server of the cloud: waitress, changed where it must be.

It serves TCP and unix sockets that the caller creates.  Each guest has an event loop and worker
threads of its own, and so has the host: none of them can block another.
"""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from hotplate.cloud.http import limits
from hotplate.cloud.http.gateway import LOG, Front
from hotplate.events.background import Background
from hotplate.events.log import EventLog


def raise_descriptors() -> None:
    """Raise the limit of open files to the number that guests may need, as far as the host allows.

    The soft limit is 1024 nearly everywhere, and the hard one is for programs that can handle
    more (systemd's NEWS for version 240).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.DESCRIPTORS
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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
        # No request is being parsed, so this is the first byte of one.
        if data and self.request is None and self.server._front.refuses():
            _reset(self.socket)
            self.handle_close()
            return False
        return bool(super().received(data))

    def service(self) -> None:
        """Answer a request, and close the connection afterwards unless it is kept alive."""
        # Waitress 3 has no setting for this: its task looks at the header that the client sent.
        if not self.server.keep_alive:
            self.requests[0].headers["CONNECTION"] = "close"
        super().service()


def _reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    # Lingering for 0 seconds makes the kernel send RST instead of FIN.
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
        # Waitress notices in here that connection_limit is reached, and only logs it.
        was_full = self.in_connection_overflow
        ready: bool = super().readable()  # type: ignore[misc]
        if self.in_connection_overflow and not was_full:
            self._front.crowded()
        return ready

    def handle_close(self) -> None:
        """Stop polling a listener that its owner has closed.

        A signal during the start ends a cloud before it has the function that :meth:`Serving.add`
        returns. Waitress would log "unhandled close event".
        """
        self.del_channel(self._map)  # type: ignore[attr-defined]

    def accept(self) -> Any:
        accepted = super().accept()  # type: ignore[misc]
        if accepted is None or not self._front.refuses():
            return accepted
        # The kernel has completed the handshake already; a reset is the nearest to a refusal.
        _reset(accepted[0])
        # Waitress's handle_accept() takes None for "no connection".
        return None


class _Tcp(_Listening, TcpWSGIServer):  # type: ignore[misc]
    pass


class _Unix(_Listening, UnixWSGIServer):  # type: ignore[misc]
    pass


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
            # The host may be out of threads.  cancel() marks the channel for closing; otherwise its
            # client would wait for an answer.
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
        largest = limits.MAX_BODY[service]
        if self._lift_limits:
            largest = max(largest, limits.MAX_BODY_LIFTED)
        return Adjustments(
            backlog=256,
            # The loop itself has two for each listener, and the waker.
            connection_limit=self._connections + 2 * len(limits.MAX_BODY) * self._sides + 1,
            channel_timeout=limits.IDLE_SECONDS,
            # Without a text of our own waitress sends "Server: waitress".
            ident="",
            # Waitress 3 also refuses a body of exactly this size.
            max_request_body_size=largest + 1,
            max_request_header_size=limits.HEADERS,
            # Larger bodies are buffered in a file.
            inbuf_overflow=1 << 16,
            outbuf_overflow=1 << 16,
            asyncore_use_poll=True,
            # Not bound: add() passes listeners.
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
                # Not server.close(), which closes the trigger at once.
                for server in made:
                    server.accepting = False
                    server.del_channel(self._map)
                    listener.close()
                    for channel in list(server.active_channels.values()):
                        # The loop closes such a channel at its next turn.
                        channel.will_close = True
                    drain(server)
                made.clear()

            def drain(server: Any) -> None:
                # A worker that is still answering needs the server's trigger to wake the loop.
                if server.active_channels and not self._stopping:
                    # Look again at the next turn of the loop.
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

        # The loop ends first: nothing is accepted from then on.
        self._in_loop(finish)
        self._thread.join(timeout=10)
        # Then the workers, which may still pull their servers' triggers.
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
        # Bounded, because the loop may end after the check above.
        done.wait(10)
        if failed:
            raise failed[0]

    def _run_work(self) -> None:
        # Run outside of the lock, which drain() takes to add work.
        with self._lock:
            work, self._work = self._work, []
        for run in work:
            run()

    def _loop(self) -> None:
        while not self._stopping:
            # poll(), since select() refuses descriptors from 1024 on.
            wasyncore.loop(timeout=1.0, use_poll=True, map=self._map, count=1)
            # drain() adds work without waking the loop.
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
        # One read takes all wake-ups so far.
        self.recv(4096)
        self._callback()

    def handle_close(self) -> None:
        self.close()
