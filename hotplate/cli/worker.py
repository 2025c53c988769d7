"""``hotplate worker``: a worker of a Dask cluster that runs cases of ``hotplate test --on``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotplate.cases.cluster import scheduler
from hotplate.cli.arguments import load_settings
from hotplate.errors import UsageError
from hotplate.image.image_store import GIB, LIMIT_GIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate worker``."""
    parser.add_argument(
        "scheduler",
        metavar="SCHEDULER",
        help="the Dask scheduler: tcp://HOST:PORT or tls://HOST:PORT",
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
    # Imported here: Dask is an extra, and slow to load.
    from hotplate.cases.cluster import resources, worker

    settings = load_settings()
    able = resources.of_host(settings, cores=args.cores, memory_mib=args.memory_mib)
    if note := scheduler.warning(address):
        print(f"hotplate worker: {note}", file=sys.stderr)
    print(f"can do: {resources.as_text(able)}", flush=True)
    worker.work(
        address,
        able,
        cache=settings.cache,
        image_bytes=int(args.image_cache * GIB),
        name=args.name,
        directory=args.local_directory,
        death_timeout=args.death_timeout,
    )
    return 0
