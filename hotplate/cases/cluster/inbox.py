"""Queue between Dask's callback threads and the command's thread."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Future

from hotplate.cases.cluster.brought import Brought
from hotplate.errors import Interrupted
from hotplate.interrupts import Interrupts

AT_ONCE = 100
"""The most messages taken at once, so that due work is not delayed."""


WORDS: Mapping[str, Mapping[str, type]] = {
    "want": {"worker": str, "image": str, "file": str, "offset": int},
    "begun": {"key": str, "worker": str, "begun": str},
    "doing": {"key": str, "text": str},
}
"""The messages of workers, by their ``what``, with the types of their values."""


@dataclass(frozen=True)
class CaseEvent:
    """A message of a case on a worker."""

    message: Mapping[str, Any]

    @property
    def is_known(self) -> bool:
        """Return whether it is one of :data:`WORDS`; a worker can send anything."""
        message: object = self.message
        if not isinstance(message, Mapping) or not isinstance(message.get("what"), str):
            return False
        words = WORDS.get(message["what"])
        return words is not None and all(isinstance(message.get(n), k) for n, k in words.items())


@dataclass(frozen=True)
class TaskEnd:
    """The end of a task: with its result, or the reason that there is none."""

    key: str
    future: Future[bytes]
    brought: Brought | None = None
    error: BaseException | None = None


class Inbox:
    """Receives messages from any thread, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[CaseEvent | TaskEnd] = queue.SimpleQueue()

    def heard(self, event: tuple[float, Mapping[str, Any]]) -> None:
        """Queue the message of one of Dask's events, and drop unknown ones."""
        case_event = CaseEvent(event[1])
        if case_event.is_known:
            self._queue.put(case_event)

    def watch(self, future: Future[bytes]) -> None:
        """Queue the end of a task when it comes."""
        future.add_done_callback(lambda future: self._queue.put(TaskEnd(future.key, future)))

    def fetch(self, key: str, future: Future[bytes]) -> None:
        """Wait for a task's result, and queue it."""
        try:
            self._queue.put(TaskEnd(key, future, brought=Brought.from_bytes(future.result())))
        except BaseException as error:
            self._queue.put(TaskEnd(key, future, error=error))

    def arrived(self, seconds: float, interrupts: Interrupts) -> list[CaseEvent | TaskEnd]:
        """Wait for messages; return none after so many seconds, or after a signal."""
        came: list[CaseEvent | TaskEnd] = []
        try:
            with interrupts.allowed() if not interrupts.came else _nothing():
                came.append(self._queue.get(timeout=seconds))
        except (queue.Empty, Interrupted):
            return came
        with contextlib.suppress(queue.Empty):
            for _ in range(AT_ONCE):
                came.append(self._queue.get_nowait())
        return came

    def clear(self) -> None:
        """Drop all messages."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield
