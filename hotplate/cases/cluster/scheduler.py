"""The scheduler of a Dask cluster: its address, and the command's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import warnings
from typing import TYPE_CHECKING

from hotplate.errors import HostError, UsageError
from hotplate.timing.deadline import Deadline

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"(?:tcp|tls)://[^/\s]+:(\d{1,5})/?")


class ConnectionLost(Exception):
    """The scheduler is gone, or no longer knows us."""


def address_of(text: str) -> str:
    """Return the address of a scheduler in Dask's form.

    :param text: ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, as a scheduler prints it.
    :raises UsageError: when it is malformed, or the extra is not installed.

    >>> address_of("tcp://10.0.0.1:8786")
    'tcp://10.0.0.1:8786'
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[1]) < 65536:
        raise UsageError(
            f'"{text}" is no address of a Dask scheduler',
            hint="tcp://HOST:PORT or tls://HOST:PORT, as the scheduler prints it",
        )
    if importlib.util.find_spec("distributed") is None:
        from hotplate.image.image_url import EXTRA

        raise UsageError('the package "distributed" (Dask) is not installed', hint=EXTRA)
    return text.rstrip("/")


def warning(address: str) -> str:
    """Return the warning about an unencrypted connection; "" for an encrypted one."""
    if address.startswith("tls://"):
        return ""
    return (
        f'the connection to "{address}" is not encrypted, and whoever reaches the scheduler or a '
        "worker runs programs on the workers; with TLS they need a certificate "
        '(see "TLS" in docs/cluster.rst)'
    )


def hush() -> None:
    """Keep Dask's own log off the terminal: important events are reported in sentences.

    Only the versions of hotplate have to be equal, not those of other packages.
    """
    from distributed.versions import VersionMismatchWarning

    warnings.simplefilter("ignore", VersionMismatchWarning)
    # Above CRITICAL, so that nothing is logged at all.
    for name in ("distributed", "distributed.client", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


async def connect(address: str, *, seconds: float) -> Client:
    """Return a client of a scheduler, to be closed by :func:`leave`.

    :param seconds: how long to try again when the first attempt fails.
    :raises HostError: when no scheduler answers.
    """
    from distributed import Client

    deadline = Deadline(seconds, "the scheduler")
    while True:
        try:
            client: Client = await Client(
                address,
                asynchronous=True,
                set_as_default=False,
                name="hotplate",
                # No pickles are asked for; hotplate.cases.cluster.transfer refuses those that come.
                deserializers=("msgpack", "error"),
            )
            break
        except OSError as error:
            # Dask waits for a port, and fails at once when a connection is closed.
            if deadline.passed:
                raise HostError(
                    f'no Dask scheduler answers at "{address}": {" ".join(str(error).split())}',
                    hint="dask scheduler --port 8786",
                ) from None
        await asyncio.sleep(1)
    # A client subscribes to these by default, and prints workers' messages on the terminal.
    for topic in ("print", "warn"):
        client.unsubscribe_topic(topic)
    return client


async def leave(client: Client) -> None:
    """Close a client; a scheduler that is gone is not waited for."""
    if unreadable(client):
        # Dask would wait for its reading task, and be stopped by the exception of that.
        client._handle_report_task = None
    # Nothing is left to be closed when the scheduler is gone.
    with contextlib.suppress(Exception):
        await client.close(timeout=5)


def unreadable(client: Client) -> BaseException | None:
    """Return the error of an unreadable message; None when all were readable.

    The error ends Dask's reading task, but leaves the client's status unchanged.
    """
    reader: asyncio.Task[None] | None = client._handle_report_task
    if reader is None or not reader.done() or reader.cancelled():
        return None
    return reader.exception()
