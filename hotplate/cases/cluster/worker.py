"""A worker of a Dask cluster that runs cases, from its start to a signal."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from distributed import Security, Worker

from hotplate.cases.cluster import resources, scheduler
from hotplate.cases.cluster.resources import Resources
from hotplate.cases.cluster.task import CasesPlugin
from hotplate.errors import HostError
from hotplate.interrupts import SIGNALS
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

#: The time limit of one attempt to reach a scheduler.
CONNECT_SECONDS = 10.0

#: The time between two attempts.
AGAIN_SECONDS = 1.0


class WithoutHttp(Worker):
    """Dask's worker without its HTTP server, which listens regardless of ``dashboard``."""

    def start_http_server(self, *_: object, **__: object) -> None:
        """Start none."""


def work(
    address: str,
    able: Resources,
    *,
    cache: Path,
    image_bytes: int,
    name: str | None,
    directory: Path | None,
    death_timeout: float | None,
) -> None:
    """Work for a scheduler, and for its successor at the same address, until a signal.

    :param address: of the scheduler, in Dask's form.
    :param able: the resources of this host.
    :param image_bytes: the limit of all images in the cache.
    :param name: for the scheduler; None for the address.
    :param directory: for the files of cases; None for the temporary directory.
    :param death_timeout: seconds after which a scheduler that does not answer is given up; None
        for never.
    :raises HostError: when it is given up, or refuses this worker.
    """
    scheduler.hush()
    make = partial(
        WithoutHttp,
        address,
        # Each thread only waits for the process of its case.
        nthreads=int(able[resources.CORES]),
        resources=dict(able),
        name=name,
        local_directory=str(directory or tempfile.gettempdir()),
        # Cases have their memory in processes of their own; data in this process is only in
        # transit.
        memory_limit=0,
        plugins=(CasesPlugin(cache, image_bytes),),
        security=Security(),
        # The limit of one attempt; the limit of all of them is checked in _work().
        death_timeout=CONNECT_SECONDS,
    )
    asyncio.run(_work(address, make, death_timeout))


async def _work(address: str, make: Callable[..., Worker], death_timeout: float | None) -> None:
    ended = asyncio.Event()
    # A handler of the loop interrupts no coroutine of Dask's by an exception.
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    ending = asyncio.ensure_future(ended.wait())
    patience = Deadline(death_timeout or 0, "a scheduler")
    while not ended.is_set():
        worker = await _joined(address, make)
        if worker is None:
            if death_timeout is not None and patience.passed:
                raise HostError(f'no scheduler answered at "{address}" for {death_timeout:g} s')
            await asyncio.wait([ending], timeout=AGAIN_SECONDS)
            continue
        print(f'works for "{address}" as "{worker.address}", and listens there only', flush=True)
        finished = asyncio.ensure_future(worker.finished())
        await asyncio.wait([ending, finished], return_when=asyncio.FIRST_COMPLETED)
        await worker.close()
        if not ended.is_set():
            print(f'"{address}" has gone, or does not know us any more', flush=True)
        # Counted anew from the loss of this scheduler.
        patience = Deadline(death_timeout or 0, "a scheduler")


async def _joined(address: str, make: Callable[..., Worker]) -> Worker | None:
    """Return a worker registered with the scheduler; None when none answers."""
    try:
        # Dask's default is to listen on every address, where anyone could run programs.
        host = await asyncio.to_thread(_own_address, address)
    except OSError:
        return None
    worker = make(host=host)
    try:
        await worker
    # Dask raises a ValueError when the scheduler's answer to the registration is a refusal.
    except (OSError, ValueError) as error:
        await worker.close()
        if isinstance(error, ValueError):
            raise HostError(f"the scheduler refuses this worker: {clean(str(error))}") from error
        return None
    return worker


def _own_address(address: str) -> str:
    """Return this host's address towards a scheduler, for a worker to listen on.

    :raises OSError: when the scheduler does not answer.
    """
    # From the right: an IPv6 address, in brackets, has colons too.
    host, _, port = address.partition("://")[2].rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as reached:
        # The kernel has chosen the address of the route to the scheduler.
        own = str(reached.getsockname()[0])
    return f"[{own}]" if ":" in own else own
