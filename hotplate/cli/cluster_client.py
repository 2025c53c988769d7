"""The connection to a Dask scheduler that a command has while its cases are elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distributed import Client

from hotplate.cli.interrupts import Interrupts
from hotplate.cluster import plain
from hotplate.errors import HostError
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

CONNECT_SECONDS = 30.0
"""For one try to reach the scheduler."""

EVERY_SECONDS = 1.0
"""From one try to the next."""


DASKS_TOPICS = ("print", "warn")
"""A client listens to these by itself, and writes on the terminal what workers say."""


class ConnectionLost(Exception):
    """The scheduler has gone, or forgot us."""


def unreadable(client: Client) -> BaseException | None:
    """Return why a message could not be read; None when all could.

    It ends the task of Dask's in which a client reads, and leaves the client's status as it was.
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
    """Be connected to a scheduler, as one of its clients.

    :param seconds: how long to try again where the first try fails.
    :param topic: of the events that are listened to.
    :param heard: called with the time and the message of each, in a thread of Dask's.
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
                # Dask would wait for it, and not get beyond its exception.
                client._handle_report_task = None
            # Who has gone need not be told that we go.
            with contextlib.suppress(Exception):
                client.close(timeout=5)
