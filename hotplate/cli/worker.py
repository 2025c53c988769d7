"""``hotplate worker``: a worker of a Dask cluster that runs cases of ``hotplate test --on``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cases.cluster import abilities, scheduler
from hotplate.cli.arguments import load_settings
from hotplate.errors import HostError, UsageError
from hotplate.image.image_store import GIB, LIMIT_GIB
from hotplate.machine import admission
from hotplate.machine.config import ARCHITECTURES
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed.host_probes import Finding, State
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

if TYPE_CHECKING:
    from distributed import Security, Worker

    from hotplate.cases.cluster.case_on_worker import CasesPlugin

AGAIN_SECONDS = 1.0
"""The time between two attempts to reach a scheduler."""

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate worker``."""
    parser.add_argument(
        "scheduler", metavar="SCHEDULER", help="the Dask scheduler: dask://, tcp:// or tls://"
    )
    parser.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="run so many cases at a time (default: as many as there are processors)",
    )
    parser.add_argument(
        "--memory-mib",
        type=int,
        metavar="MIB",
        help="memory for all cases together (default: four fifths of the host's)",
    )
    parser.add_argument(
        "--image-cache",
        type=float,
        default=LIMIT_GIB,
        metavar="GIB",
        help=f"keep images up to this size in the cache ({LIMIT_GIB:g})",
    )
    parser.add_argument("--name", help="what the scheduler calls it (default: its address)")
    parser.add_argument(
        "--local-directory",
        type=Path,
        metavar="DIR",
        help="for the files of cases that run (default: Dask's, in the temporary directory)",
    )
    parser.add_argument(
        "--death-timeout",
        type=float,
        metavar="SECONDS",
        help="end when no scheduler could be reached for so long (default: never)",
    )


def run(args: argparse.Namespace) -> int:
    """Work until a signal, or until no scheduler could be reached for too long."""
    address = scheduler.address_of(args.scheduler)
    for name, value in (("cores", args.cores), ("memory-mib", args.memory_mib)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value} is too small; expected at least 1")
    settings = load_settings()
    resources = resources_of(settings, cores=args.cores, memory_mib=args.memory_mib)
    if note := scheduler.warning(address):
        print(f"hotplate worker: {note}", file=sys.stderr)
    print(f"can do: {as_text(resources)}", flush=True)
    return WorkerCommand(
        address,
        settings,
        resources,
        image_cache=int(args.image_cache * GIB),
        name=args.name,
        folder=args.local_directory or Path(tempfile.gettempdir()),
        death_timeout=args.death_timeout,
    ).run()


def resources_of(
    settings: Settings, *, cores: int | None = None, memory_mib: int | None = None
) -> dict[str, float]:
    """Return this host's resources, found by the probes of ``hotplate doctor``.

    :raises HostError: when it can run no guest.
    """
    from hotplate.machine import accelerator
    from hotplate.testbed import host_probes

    findings = [*host_probes.tools(), *host_probes.firmware(), *host_probes.wiring()]
    resources = {
        abilities.CORES: float(cores or len(os.sched_getaffinity(0))),
        abilities.MEMORY: float(memory_mib or int(admission.host_mib() * admission.SHARE)),
    }
    for name, row in ARCHITECTURES.items():
        if _works(findings, row.program):
            resources[abilities.arch(name)] = abilities.PLENTY
            if _works(findings, f"UEFI {name}"):
                resources[abilities.uefi(name)] = abilities.PLENTY
    lacking = [each for each in findings if each.state is State.FAILS and each.use.value == "test"]
    if lacking:
        raise HostError(
            f"this host can run no case: {lacking[0].name} {lacking[0].sentence}",
            hint="hotplate doctor",
        )
    # Probing KVM may take a while; it is not needed for emulation.
    if settings.accelerator is not AcceleratorChoice.TCG:
        chosen = accelerator.choose(cache=settings.cache)
        if chosen.name == AcceleratorChoice.KVM.value:
            resources[abilities.KVM] = abilities.PLENTY
    return resources


def _works(findings: Sequence[Finding], name: str) -> bool:
    return any(each.name == name and each.state is State.WORKS for each in findings)


def as_text(resources: abilities.Resources) -> str:
    """Return a worker's resources, for people."""
    counted = {abilities.CORES: "at a time", abilities.MEMORY: "MiB of memory"}
    words = [f"{resources[name]:g} {text}" for name, text in counted.items()]
    return ", ".join([*words, *(name for name in resources if name not in counted)])


class WorkerCommand:
    """Works for a scheduler, and for its successor at the same address when it is gone.

    :param image_cache: the size limit of kept images in bytes.
    :param name: for the scheduler; None for the worker's address.
    :param folder: for the files of cases that run.
    :param death_timeout: seconds without a scheduler after which it ends; None for never.
    """

    def __init__(
        self,
        address: str,
        settings: Settings,
        resources: abilities.Resources,
        *,
        image_cache: int,
        name: str | None,
        folder: Path,
        death_timeout: float | None,
    ) -> None:
        self._address = address
        self._settings = settings
        self._resources = dict(resources)
        self._image_cache = image_cache
        self._name = name
        self._folder = folder
        self._death_timeout = death_timeout

    def run(self) -> int:
        """Return the exit status: 0 after a signal."""
        from hotplate.cases.cluster.case_on_worker import CasesPlugin
        from hotplate.children.keeper import Keeper
        from hotplate.image.image_store import ImageStore

        scheduler.hush()
        store = ImageStore(self._settings.cache, limit=self._image_cache)
        with Keeper() as keeper:
            asyncio.run(self._work(CasesPlugin(keeper, store)))
        return 0

    async def _work(self, plugin: CasesPlugin) -> None:
        from distributed import Security

        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in END_SIGNALS:
            loop.add_signal_handler(number, ended.set)
        security = Security()
        patience = self._patience()
        while not ended.is_set():
            worker = await self._joined(plugin, security)
            if worker is None:
                if patience is not None and patience.passed:
                    raise HostError(
                        f'no scheduler answered at "{self._address}" for {self._death_timeout:g} s'
                    )
                await _first(ended.wait(), asyncio.sleep(AGAIN_SECONDS))
                continue
            print(
                f'works for "{self._address}" as "{worker.address}", and listens there only',
                flush=True,
            )
            await _first(ended.wait(), worker.finished())
            await worker.close()
            if not ended.is_set():
                print(f'"{self._address}" has gone, or does not know us any more', flush=True)
            patience = self._patience()

    def _patience(self) -> Deadline | None:
        if self._death_timeout is None:
            return None
        return Deadline(self._death_timeout, "a scheduler")

    async def _joined(self, plugin: CasesPlugin, security: Security) -> Worker | None:
        """Return a worker registered with the scheduler; None when none answers."""
        try:
            host = await asyncio.to_thread(scheduler.own_address, self._address)
        except OSError:
            return None
        worker = _worker_class()(
            self._address,
            # Dask's default is to listen on every address, where anyone could run programs.
            host=host,
            nthreads=int(self._resources[abilities.CORES]),
            resources=self._resources,
            name=self._name,
            local_directory=str(self._folder),
            # Cases have their memory in processes of their own; data in this process is only in
            # transit.
            memory_limit=0,
            plugins=(plugin,),
            security=security,
            death_timeout=10,
        )
        try:
            await worker
        except (OSError, ValueError) as error:
            await worker.close()
            if isinstance(error, ValueError):
                raise HostError(
                    f"the scheduler refuses this worker: {clean(str(error))}"
                ) from error
            return None
        return worker


def _worker_class() -> type[Worker]:
    """Return Dask's worker without its HTTP server, which listens regardless of ``dashboard``."""
    from distributed import Worker

    class WithoutHttp(Worker):
        def start_http_server(self, *_: object, **__: object) -> None:
            pass

    return WithoutHttp


async def _first(*waits: Awaitable[object]) -> None:
    """Wait until one of several is done, and cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
