"""Faults that a test plants between a client and a service, applied in the HTTP front.

with cloud.fault(endpoint="cfn", kind="status", status=500, count=3):
    ...
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hotplate.cloud.http.addresses import SERVICES
from hotplate.errors import UsageError

#: kind -> effect that a client sees.
KINDS: dict[str, str] = {
    "refuse": "the connection is reset as soon as it is made, a kept one at its next request",
    "status": "the given status with the service's kind of body, the request is not handled",
    "delay": "the answer comes the given seconds later",
    "hang": "the request is accepted and never answered while the fault lasts",
    "truncate": "the answer breaks off in the middle of its body",
    "html200": "200 with a web page, as a captive portal or a proxy gives",
    "skew": "signatures and tokens are judged by a clock that is off by the given seconds",
}


@dataclass
class Fault:
    """One planted fault.

    :param endpoint: a service of :data:`~hotplate.cloud.http.addresses.SERVICES`, or ``*`` for all.
    :param kind: one of :data:`KINDS`.
    :param status: the HTTP status for ``status``.
    :param delay: seconds for ``delay`` and ``skew``.
    :param count: number of requests that it hits; 0 is unlimited.
    :param seconds: duration from now; 0 is until it is removed.
    :param server: only requests of this server, "" for all.
    :param method: only requests with this HTTP method, "" for all.
    :param path: only requests whose path contains this.
    """

    endpoint: str
    kind: str
    status: int = 500
    delay: float = 5.0
    count: int = 0
    seconds: float = 0.0
    server: str = ""
    method: str = ""
    path: str = ""
    hits: int = 0
    over: threading.Event = field(default_factory=threading.Event, repr=False)
    _start: float = field(default_factory=time.monotonic, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(
                f'there is no fault of the kind "{self.kind}"', hint=f"one of {', '.join(KINDS)}"
            )
        if self.endpoint != "*" and self.endpoint not in SERVICES:
            raise UsageError(
                f'there is no endpoint "{self.endpoint}" to plant a fault in',
                hint=f"one of {', '.join(SERVICES)} or *",
            )

    @property
    def expired(self) -> bool:
        """True when its hit count or duration is used up."""
        if self.over.is_set() or (self.count and self.hits >= self.count):
            return True
        return self.left == 0

    @property
    def left(self) -> float | None:
        """Seconds until it ends; None when it has no duration."""
        if not self.seconds:
            return None
        return max(0.0, self._start + self.seconds - time.monotonic())


class Faults:
    """The table of planted faults."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            faults, self._faults = self._faults, []
        for fault in faults:
            fault.over.set()

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[Fault]:
        """Plant ``fault`` for the ``with`` block; its end releases the requests that hang in it."""
        with self._lock:
            self._faults.append(fault)
        try:
            yield fault
        finally:
            fault.over.set()
            with self._lock:
                # hit() may have removed it when it expired, or clear() with all others.
                if fault in self._faults:
                    self._faults.remove(fault)

    def hit(
        self, endpoint: str, server: str, matches: Callable[[Fault], bool] = lambda _fault: True
    ) -> Fault | None:
        """Return the fault for the next request of a server to ``endpoint``, and count the hit."""
        # Without the lock: each request asks, and there is seldom a fault.
        if not self._faults:
            return None
        with self._lock:
            for fault in list(self._faults):
                if fault.expired:
                    self._faults.remove(fault)
                    continue
                # A skew does not hit a request: services ask for it by skew().
                if fault.kind == "skew" or fault.endpoint not in ("*", endpoint):
                    continue
                if fault.server in ("", server) and matches(fault):
                    fault.hits += 1
                    return fault
        return None

    def skew(self, endpoint: str) -> float:
        """Return the clock skew of ``endpoint`` in seconds."""
        if not self._faults:
            return 0.0
        with self._lock:
            return sum(
                fault.delay
                for fault in self._faults
                if fault.kind == "skew" and not fault.expired and fault.endpoint in ("*", endpoint)
            )
