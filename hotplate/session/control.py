"""The owner's end of a session's control socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Callable

from hotplate.errors import HotplateError, outcome_of, sentence_of
from hotplate.session import channel as channels
from hotplate.session.directory import DOWN, SessionDirectory

Handler = Callable[[dict[str, object]], tuple[object, list[int]]]
"""Takes a request; its ``descriptors`` are those passed along, and are closed afterwards. Returns
the answer, and descriptors to pass along and close."""


class Control:
    """The owner's end of the control socket; a context manager.

    The caller of :meth:`run` handles signals that mean "end" and accepts requests; each request is
    answered in a thread of its own.

    :param handle: answers a request; a :class:`HotplateError` becomes the answer's error.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, directory: SessionDirectory, handle: Handler) -> None:
        self._directory = directory
        self._handle = handle
        self._owned = contextlib.ExitStack()

    def __enter__(self) -> Control:
        with contextlib.ExitStack() as owned:
            path = self._directory.path
            self._listener = owned.enter_context(channels.listen(path))
            self._woken, self._waker = (owned.enter_context(each) for each in socket.socketpair())
            self._waker.setblocking(False)
            owned.callback((path / channels.CONTROL).unlink, missing_ok=True)
            # A signal delivered to another thread would not end the main thread's select().
            owned.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(self._waker.fileno()))
            for number in self.SIGNALS:
                # nohup and background jobs set it to be ignored, and it stays so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    owned.callback(signal.signal, number, signal.signal(number, self._on_signal))
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def end(self) -> None:
        """Make :meth:`run` return."""
        with contextlib.suppress(OSError):
            self._waker.send(b"e")

    def run(self) -> None:
        """Answer requests until a signal or a call of :meth:`end`."""
        while True:
            ready, _, _ = select.select([self._woken, self._listener], [], [])
            if self._woken in ready:
                return
            channel, _ = self._listener.accept()
            threading.Thread(
                target=self._answer, args=(channel,), name="control", daemon=True
            ).start()

    def _on_signal(self, number: int, _frame: object) -> None:  # noqa: ARG002
        self.end()

    def _answer(self, channel: socket.socket) -> None:
        descriptors: list[int] = []
        with contextlib.ExitStack() as owned, contextlib.suppress(OSError):
            owned.callback(channel.close)
            channels.check_peer(channel)
            try:
                message, handed = channels.receive(channel, owned)
                request = json.loads(message or b"{}") | {"descriptors": handed}
                if request["ask"] == DOWN:
                    # Kept open to the end: its closing shows the other end that we are gone.
                    self._owned.callback(owned.pop_all().close)
                value, descriptors = self._handle(request)
                answer = {"ok": value}
            except HotplateError as error:
                answer = {
                    "error": error.message,
                    "hint": error.hint,
                    "outcome": str(outcome_of(error)),
                }
            except (ValueError, KeyError, TypeError) as error:
                answer = {"error": f"the request was not understood: {error}"}
            except Exception as error:  # the caller must always get an answer
                traceback.print_exception(error)
                answer = {"error": sentence_of(error), "outcome": str(outcome_of(error))}
            try:
                socket.send_fds(channel, [json.dumps(answer).encode()], descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
