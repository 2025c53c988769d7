"""The event as all readers of the stream get it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a run.

    :param source: the room or service that saw it: ``machine``, ``console``, ``metadata``,
        ``cfn``, ``heat``, ``keystone``, ``swift``, ``zaqar``, ``stack``, ``harness``.
    :param kind: a short word such as ``request``, ``line``, ``power-on``, ``resource``,
        ``signal``.
    :param server: the Nova id of the server concerned, or "" when it concerns none.
    :param detail: its facts, JSON types only, already redacted; texts that a guest chose are
        :func:`~hotplate.events.log.clipped`.  :mod:`hotplate.events.kinds` defines the facts of
        each kind, and reads them.
    :param at: seconds on the monotonic clock.
    :param wall: seconds since the epoch, for people.
    """

    source: str
    kind: str
    server: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
