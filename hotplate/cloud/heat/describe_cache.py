"""Cache of answers to polls, valid until Heat's database changes.

Agents poll every few seconds for data that seldom changes, and Heat spends a tenth of a second of
CPU on each answer.  The cache key has all that an answer depends on: the caller, the request, and
the state of Heat's database, whose ``data_version`` SQLite changes with every commit.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http.gateway import StartedResponse, WSGIApp

#: Query parameters that authenticate the caller, which is done by then; the answer ignores them.
_PROOF = frozenset({"Signature", "Timestamp", "SignatureVersion", "SignatureMethod"})

#: Size of the cache: enough for each poll of 1,000 agents, with 16 KiB of metadata.
MAX_BYTES = 16 << 20

_Answer = tuple[str, list[tuple[str, str]], bytes]


class DatabaseVersion:
    """Detects changes of a SQLite database.

    :param path: the database; it must exist.
    """

    def __init__(self, path: Path) -> None:
        # A connection of its own, which never writes: for its own commits, SQLite leaves a
        # connection's data_version as it is.
        self._connection = sqlite3.connect(path, check_same_thread=False, timeout=30)
        self._lock = threading.Lock()

    def __call__(self) -> int:
        """Return a number that differs from an earlier one exactly when a commit came between."""
        with self._lock:
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class DescribeCache:
    """A WSGI filter, placed after authentication.

    Simultaneous equal requests wait for one answer.  The most recently used answers are kept, up to
    :data:`MAX_BYTES` including their keys, since a guest chooses both.
    """

    def __init__(self, app: WSGIApp, version: Callable[[], int]) -> None:
        self._app = app
        self._version = version
        self._answers: OrderedDict[object, tuple[int, _Answer, int]] = OrderedDict()
        self._bytes = 0
        self._locks: dict[object, tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        key = _key(environ)
        if key is None:
            return self._app(environ, start_response)
        answer = self._kept(key)
        if answer is None:
            with self._one_at_a_time(key):
                # Another thread may have stored the answer while this one waited.
                answer = self._kept(key) or self._ask(key, environ)
        status, headers, body = answer
        start_response(status, headers)
        return [body]

    @contextmanager
    def _one_at_a_time(self, key: object) -> Iterator[None]:
        with self._lock:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            # The last user drops the lock: guests choose the keys, so locks must not pile up.
            with self._lock:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = lock, users - 1

    def _kept(self, key: object) -> _Answer | None:
        with self._lock:
            entry = self._answers.get(key)
            if entry is None or entry[0] != self._version():
                return None
            self._answers.move_to_end(key)
            return entry[1]

    def _keep(self, key: object, version: int, answer: _Answer) -> None:
        size = len(answer[2]) + len(repr((key, answer[1])))
        with self._lock:
            _, _, before = self._answers.pop(key, (0, None, 0))
            self._answers[key] = version, answer, size
            self._bytes += size - before
            while self._bytes > MAX_BYTES:
                _, (_, _, oldest) = self._answers.popitem(last=False)
                self._bytes -= oldest

    def _ask(self, key: object, environ: WSGIEnvironment) -> _Answer:
        # Read before the engine is asked: a change meanwhile then expires the answer at once.
        version = self._version()
        started = StartedResponse()
        body = b"".join(self._app(environ, started))
        answer: _Answer = (started.status, started.headers, body)
        if started.status.startswith("200"):
            self._keep(key, version, answer)
        return answer


def _key(environ: WSGIEnvironment) -> Any:
    """Return the key of the answer to a request; None when it is not to be cached."""
    if environ["REQUEST_METHOD"] != "GET":
        return None
    query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    path = environ.get("PATH_INFO", "")
    if ("Action", "DescribeStackResource") not in query and not (
        path.endswith("/metadata") and "/resources/" in path
    ):
        return None
    return (
        environ.get("HTTP_X_USER_ID"),
        environ.get("HTTP_X_PROJECT_ID"),
        environ.get("HTTP_X_ROLES"),
        environ.get("HTTP_ACCEPT"),
        environ.get("CONTENT_TYPE"),
        path,
        tuple(sorted(pair for pair in query if pair[0] not in _PROOF)),
    )
