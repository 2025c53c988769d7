"""A worker of a Dask cluster that runs cases, from its start to a signal."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from distributed import Security, Worker
from distributed.comm.core import connect

from hotplate.cases.cluster import resources, scheduler
from hotplate.cases.cluster.resources import Resources
from hotplate.cases.cluster.task import CasesPlugin
from hotplate.errors import HostError
from hotplate.interrupts import SIGNALS
from hotplate.text import clean

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
    )
    asyncio.run(_work(address, make, death_timeout))


async def _work(address: str, make: Callable[..., Worker], death_timeout: float | None) -> None:
    ended = asyncio.Event()
    # A handler of the loop interrupts no coroutine of Dask's by an exception.
    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    ending = asyncio.ensure_future(ended.wait())
    while not ended.is_set():
        # The time limit is counted anew from the loss of each scheduler.
        starting = asyncio.ensure_future(_registered(address, make))
        await asyncio.wait(
            [ending, starting], timeout=death_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not starting.done():
            starting.cancel()
            if ended.is_set():
                return
            raise HostError(f'no scheduler answered at "{address}" for {death_timeout:g} s')
        worker = await starting
        print(f'works for "{address}" as "{worker.address}", and listens there only', flush=True)
        finished = asyncio.ensure_future(worker.finished())
        await asyncio.wait([ending, finished], return_when=asyncio.FIRST_COMPLETED)
        await worker.close()
        if not ended.is_set():
            print(f'"{address}" has gone, or does not know us any more', flush=True)


async def _registered(address: str, make: Callable[..., Worker]) -> Worker:
    """Return a worker registered with the scheduler, as soon as that answers.

    :raises HostError: when it refuses the worker.
    """
    while True:
        # Dask gives an attempt up after "distributed.comm.timeouts.connect".
        with contextlib.suppress(OSError):
            comm = await connect(address, **Security().get_connection_args("worker"))
            # Dask's default is to listen on every address, where anyone could run programs.
            host = comm.local_address.rpartition(":")[0]
            await comm.close()
            try:
                worker: Worker = await make(host=host)
                return worker
            except RuntimeError as error:
                why = clean(str(error.__cause__ or error))
                raise HostError(f"the scheduler refuses this worker: {why}") from error
        await asyncio.sleep(AGAIN_SECONDS)
