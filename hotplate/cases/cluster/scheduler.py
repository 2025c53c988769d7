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

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"(?:tcp|tls)://[^/\s]+:(\d{1,5})/?")

#: How long to wait for a scheduler that is gone in the middle of a command.
AGAIN_SECONDS = 300.0

#: How long Dask tries to reach it before it begins anew, with short waits again.
ATTEMPT_SECONDS = 10.0


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
    for name in ("distributed", "distributed.client", "tornado", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


async def connect(address: str) -> Client:
    """Return a client of a scheduler, to be closed by :func:`leave`; it connects again by itself.

    :raises HostError: when no scheduler answers.
    """
    from distributed import Client

    try:
        client: Client = await Client(
            address,
            asynchronous=True,
            set_as_default=False,
            name="hotplate",
            # No pickles are asked for; hotplate.cases.cluster.transfer refuses those that come.
            deserializers=("msgpack", "error"),
        )
    except OSError as error:
        raise _unanswered(address, " ".join(str(error).split())) from None
    # Its parameter "timeout" is one for the first connection, too.
    client._timeout = AGAIN_SECONDS
    connect_once = client._ensure_connected
    # The waits between Dask's attempts grow, to minutes within a timeout of minutes.
    vars(client)["_ensure_connected"] = lambda timeout: connect_once(min(timeout, ATTEMPT_SECONDS))
    # A client subscribes to these by default, and prints workers' messages on the terminal.
    for topic in ("print", "warn"):
        client.unsubscribe_topic(topic)
    return client


def _unanswered(address: str, why: str) -> HostError:
    return HostError(
        f'no Dask scheduler answers at "{address}": {why}', hint="dask scheduler --port 8786"
    )


async def leave(client: Client) -> None:
    """Close a client; a scheduler that is gone is not waited for."""
    # Nothing is left to be closed when the scheduler is gone, or the reading task has failed.
    with contextlib.suppress(Exception):
        await client.close(timeout=5)


def check(client: Client, address: str) -> None:
    """Check that a client still reads messages.

    :raises HostError: when the scheduler is gone, or one of its messages could not be read; that
        ends Dask's reading task, but leaves the client's status unchanged.
    """
    reader: asyncio.Task[None] | None = client._handle_report_task
    if reader is None or not reader.done():
        return
    if problem := reader.exception():
        raise HostError(
            f'a message from "{address}" cannot be read: {problem}',
            hint='let no other worker in: see "TLS" in docs/cluster.rst',
        )
    raise _unanswered(address, f"it has been gone for {AGAIN_SECONDS:.0f} s")
