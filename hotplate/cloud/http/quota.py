"""The limits of one guest on its requests, connections and stored bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hotplate.cloud.http import limits


class Quota:
    """The limits of one guest; reports each limit once when it is exceeded.

    :param tell: called with the name of the fault and a sentence.
    """

    def __init__(
        self,
        tell: Callable[[str, str], None],
        requests: int = limits.REQUESTS,
        per_second: float = limits.REQUESTS_PER_SECOND,
    ) -> None:
        self._tell = tell
        self._requests = requests
        self._per_second = per_second
        self._left = float(requests)
        self._at = time.monotonic()
        self._websockets = 0
        self._written = dict.fromkeys(limits.FULL, 0)
        self._signalled = 0
        self._count = 0
        self._begun = self._at
        self._passed: set[str] = set()
        self._lock = threading.Lock()

    def request(self) -> bool:
        """Count a request; return False when it exceeds the limit."""
        with self._lock:
            now = time.monotonic()
            # A token bucket: it holds ``requests`` when full, and fills at ``per_second``.
            self._left = min(self._requests, self._left + (now - self._at) * self._per_second)
            self._at = now
            self._count += 1
            if self._left >= 1:
                self._left -= 1
                return True
            count, seconds = self._count, now - self._begun
        # Outside of the block: passed() takes the lock itself.
        self.passed("request-flood", f"the guest made {count} requests in {seconds:.0f} s")
        return False

    def open_websocket(self) -> bool:
        """Count a websocket; return False when it exceeds the limit."""
        with self._lock:
            if self._websockets < limits.WEBSOCKETS:
                self._websockets += 1
                return True
        self.passed(
            "connection-flood", f"the guest opened more than {limits.WEBSOCKETS} websockets"
        )
        return False

    def close_websocket(self) -> None:
        """Uncount a websocket that :meth:`open_websocket` counted."""
        with self._lock:
            self._websockets -= 1

    def crowded(self) -> None:
        """Report that the guest has reached the limit of open connections."""
        self.passed(
            "connection-flood",
            f"the guest held {limits.CONNECTIONS} connections open at the same time",
        )

    def wrote(self, service: str, size: int, status: int) -> None:
        """Count the bytes that a request stores, and check its response.

        :param service: one of :data:`~hotplate.cloud.http.limits.FULL`.
        :param size: bytes.
        """
        with self._lock:
            self._written[service] += size
            flood = (
                status == limits.FULL[service]
                and self._written[service] >= limits.STORED // limits.SHARE
            )
        if flood:
            self.passed(
                "storage-flood",
                f"the guest wrote to {service.capitalize()} until there were more than "
                f"{limits.STORED >> 20} MiB",
            )

    def signals(self, size: int) -> bool:
        """Count the bytes of a request that Heat may keep; return False when it exceeds the limit.

        :param size: bytes.
        """
        with self._lock:
            if self._signalled + size <= limits.SIGNALLED:
                self._signalled += size
                return True
        self.passed(
            "storage-flood", f"the guest sent more than {limits.SIGNALLED >> 20} MiB to Heat"
        )
        return False

    def passed(self, fault: str, text: str) -> None:
        """Report an exceeded limit, once."""
        with self._lock:
            if fault in self._passed:
                return
            self._passed.add(fault)
        # Without the lock, because the callback writes to the event log.
        self._tell(fault, text)
