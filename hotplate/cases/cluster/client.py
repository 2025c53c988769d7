"""The command's connection to a Dask scheduler while its cases run on workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distributed import Client

from hotplate.cases.cluster import plain
from hotplate.errors import HostError
from hotplate.interrupts import Interrupts
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

CONNECT_SECONDS = 30.0
"""The time limit of one attempt to reach the scheduler."""

EVERY_SECONDS = 1.0
"""The time between two attempts."""


DASKS_TOPICS = ("print", "warn")
"""By default a client subscribes to these, and prints workers' messages on the terminal."""


class ConnectionLost(Exception):
    """The scheduler is gone, or no longer knows us."""


def unreadable(client: Client) -> BaseException | None:
    """Return the error of an unreadable message; None when all were readable.

    The error ends Dask's reading task, but leaves the client's status unchanged.
    """
    reader: asyncio.Task[None] | None = client._handle_report_task
    if reader is None or not reader.done() or reader.cancelled():
        return None
    return reader.exception()


@contextlib.contextmanager
def connected(
    address: str,
    *,
    seconds: float,
    interrupts: Interrupts,
    topic: str,
    heard: Callable[[tuple[float, Mapping[str, Any]]], None],
) -> Iterator[Client]:
    """Connect to a scheduler as one of its clients.

    :param seconds: how long to retry when the first attempt fails.
    :param topic: the topic of the events to receive.
    :param heard: called with the time and the message of each, in a thread of Dask.
    :raises HostError: when no scheduler answers.
    """
    problem: list[str] = []

    def connect(_: bool) -> Client | None:
        try:
            with interrupts.allowed():
                return Client(
                    address,
                    timeout=CONNECT_SECONDS,
                    set_as_default=False,
                    name="hotplate",
                    deserializers=plain.DESERIALIZERS,
                )
        except OSError as error:
            problem[:] = [" ".join(str(error).split())]
            return None

    with plain.only_plain_data():
        try:
            client = retry(connect, Deadline(seconds, "the scheduler"), every=EVERY_SECONDS)
        except DeadlineExceeded:
            raise HostError(
                f'no Dask scheduler answers at "{address}": {problem[0]}',
                hint="dask scheduler --port 8786",
            ) from None
        try:
            for each in DASKS_TOPICS:
                client.unsubscribe_topic(each)
            client.subscribe_topic(topic, heard)
            yield client
        finally:
            if unreadable(client):
                # Dask would wait for it, and be stopped by its exception.
                client._handle_report_task = None
            # A scheduler that is gone need not be told that we leave.
            with contextlib.suppress(Exception):
                client.close(timeout=5)
