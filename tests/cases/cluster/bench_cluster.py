"""Send stub cases through a real Dask cluster on this host, and print their cost for the client.

    bench_cluster.py [NUMBER...]

For each number of cases (100, 1,000 and 10,000) a line of JSON: the seconds of the whole command,
its processor time in all and for one case in milliseconds, its memory at most in MiB, and for one
case the milliseconds of the scheduler's processor and of all workers'.  A stub is run in its worker
by itself, without a process, and brings a verdict with stages and a folder with files of usual
sizes; all else is the real thing: scheduler, eight workers that run a case at a time each, and the
command ``hotplate test --on``.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NUMBERS = (100, 1_000, 10_000)
WORKERS = 8
WAIT_SECONDS = 120

STUB = """
import hashlib
from hotplate.cases.cluster import task, transfer
from hotplate.errors import Outcome
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import StageTime, Verdict

def test(self, request, case):
    folder = request.settings.artifacts
    folder.mkdir()
    # What does not compress well, as large as in a run that passed.
    for name, size in (("report.html", 60_000), ("console.log", 40_000), ("timeline.json", 30_000)):
        blocks = (hashlib.sha256(f"{name}{n}".encode()).hexdigest() for n in range(size // 64))
        (folder / name).write_text("".join(blocks))
    stages = tuple(StageTime(each, float(n), "evidence") for n, each in enumerate(Stage))
    verdict = Verdict(case.subject, Outcome.PASSED, "CREATE_COMPLETE", (), stages)
    archive = transfer.pack(folder)
    return transfer.CaseResult(verdict, self.worker.address, str(folder), archive)

task.RunningCase._test = test

def dask_setup(worker):
    pass
"""
TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"


def main() -> None:
    """Measure each number of cases on a cluster of its own."""
    for number in map(int, sys.argv[1:] or NUMBERS):
        with tempfile.TemporaryDirectory(prefix="hotplate-bench-") as folder:
            print(json.dumps(measure(Path(folder), number)), flush=True)


def measure(folder: Path, number: int) -> dict[str, float]:
    """Run so many cases; return the measurements, see above."""
    (folder / "stub.py").write_text(STUB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with ExitStack() as running:
        scheduler = running.enter_context(_ended(_scheduler(folder, address)))
        workers = [
            running.enter_context(_ended(_worker(folder, address, each))) for each in range(WORKERS)
        ]
        for each in range(WORKERS):
            _wait_for(folder / f"worker{each}.log")
        began = [_processor(scheduler), sum(map(_processor, workers))]
        result = _client(folder, address, number)
        ended = [_processor(scheduler), sum(map(_processor, workers))]
        cases = result["cases"]
        of_scheduler, of_workers = (
            1000 * (after - before) / cases for before, after in zip(began, ended, strict=True)
        )
        return {**result, "scheduler_ms": of_scheduler, "workers_ms": of_workers}


def _scheduler(folder: Path, address: str) -> subprocess.Popen[bytes]:
    with (folder / "scheduler.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "distributed.cli.dask_scheduler"),
                *("--host", address, "--no-dashboard", "--no-show"),
            ],
            cwd=folder,
            stderr=log,
        )


def _worker(folder: Path, address: str, number: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "HOTPLATE_ACCELERATOR": "tcg",
        "HOTPLATE_CACHE": str(folder / f"cache{number}"),
        "DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([str(folder / "stub.py")]),
    }
    with (folder / f"worker{number}.log").open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "hotplate", "worker", address),
                *("--cores", "1", "--memory-mib", "100000"),
            ],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End a process with the context."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_SECONDS)


def _wait_for(log: Path) -> None:
    """Wait until a worker is ready."""
    end = time.monotonic() + WAIT_SECONDS
    while b"works for" not in log.read_bytes():
        if time.monotonic() > end:
            raise SystemExit(f"bench: a worker does not come: {log.read_text()}")
        time.sleep(0.1)


def _processor(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process so far, in seconds (proc(5), stat)."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _client(folder: Path, address: str, number: int) -> dict[str, float]:
    """Run the command, with so many templates on so many images."""
    images = math.isqrt(number)
    templates = number // images
    for each in range(images):
        (folder / f"image{each}.raw").write_text(str(each))
    for each in range(templates):
        (folder / f"t{each}.yaml").write_text(TEMPLATE)
    words = [word for each in range(templates) for word in ("-t", f"t{each}.yaml")]
    began = time.monotonic()
    client = subprocess.Popen(
        [
            *(sys.executable, "-m", "hotplate", "test", "--on", address, "-q"),
            *("--json", "v.json", "--junit", "j.xml"),
            *(f"image{each}.raw" for each in range(images)),
            *words,
        ],
        cwd=folder,
        env={**os.environ, "HOTPLATE_CACHE": str(folder / "cache")},
        stdout=(folder / "out").open("wb"),
        stderr=subprocess.STDOUT,
    )
    _, status, usage = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    written = json.loads((folder / "v.json").read_text())
    verdicts = written if isinstance(written, list) else [written]
    passed = sum(each["passed"] for each in verdicts)
    if client.returncode or passed != images * templates:
        raise SystemExit(f"bench: {passed} passed; {(folder / 'out').read_text()[-2000:]}")
    processor = usage.ru_utime + usage.ru_stime
    return {
        "cases": passed,
        "seconds": time.monotonic() - began,
        "processor": processor,
        "ms": 1000 * processor / passed,
        "mib": usage.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
