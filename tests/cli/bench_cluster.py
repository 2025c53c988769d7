"""Send stub cases through a real Dask cluster on this host, and print what they cost the client.

    bench_cluster.py NUMBER...

For each number of cases a line of JSON.  A stub is run in its worker by itself, without a process,
and brings a verdict with stages and a folder with files of usual sizes; all else is the real thing:
scheduler, two workers of four threads, and the command ``hotplate test --on``.
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
from pathlib import Path

WORKERS, THREADS = 2, 4
WAIT_SECONDS = 120

STUB = """
import hashlib
from hotplate.cli import case_on_worker
from hotplate.errors import Outcome
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import StageTime, Verdict

def run(self, image, others):
    folder = self._folder / "run"
    folder.mkdir()
    # What does not compress well, as large as in a run that passed.
    for name, size in (("report.html", 60_000), ("console.log", 40_000), ("timeline.json", 30_000)):
        blocks = (hashlib.sha256(f"{name}{n}".encode()).hexdigest() for n in range(size // 64))
        (folder / name).write_text("".join(blocks))
    stages = tuple(StageTime(each, float(n), "evidence") for n, each in enumerate(Stage))
    verdict = Verdict(self._job.case.subject, Outcome.PASSED, "CREATE_COMPLETE", (), stages)
    return self._brought(verdict, folder)

case_on_worker.JobOnWorker._run = run

def dask_setup(worker):
    pass
"""
TEMPLATE = "heat_template_version: 2018-08-31\nresources: {}\n"


def main() -> None:
    """Measure each number of cases on a cluster of its own."""
    for number in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory(prefix="hotplate-bench-") as folder:
            print(json.dumps(measure(Path(folder), number)), flush=True)


def measure(folder: Path, number: int) -> dict[str, float]:
    """Run so many cases; returns seconds, seconds of the client's processor, and its MiB."""
    (folder / "stub.py").write_text(STUB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    environment = {
        **os.environ,
        "HOTPLATE_ACCELERATOR": "tcg",
        "DASK_DISTRIBUTED__WORKER__PRELOAD": json.dumps([str(folder / "stub.py")]),
    }
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "distributed.cli.dask_scheduler"),
                *("--host", address, "--no-dashboard", "--no-show"),
            ],
            cwd=folder,
            stderr=(folder / "scheduler.log").open("ab"),
        )
    ]
    try:
        for worker in range(WORKERS):
            log = folder / f"worker{worker}.log"
            processes.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "hotplate", "worker", address),
                        *("--cores", str(THREADS), "--memory-mib", "100000"),
                    ],
                    cwd=folder,
                    env={**environment, "HOTPLATE_CACHE": str(folder / f"cache{worker}")},
                    stdout=log.open("ab"),
                    stderr=subprocess.STDOUT,
                )
            )
            end = time.monotonic() + WAIT_SECONDS
            while b"works for" not in log.read_bytes():
                if time.monotonic() > end:
                    raise SystemExit(f"bench: a worker does not come: {log.read_text()}")
                time.sleep(0.1)
        return _client(folder, address, number)
    finally:
        for each in processes:
            each.send_signal(signal.SIGTERM)
        for each in processes:
            each.wait(WAIT_SECONDS)


def _client(folder: Path, address: str, number: int) -> dict[str, float]:
    """Run the command, so many templates on so many images."""
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
    return {
        "cases": passed,
        "seconds": time.monotonic() - began,
        "processor": usage.ru_utime + usage.ru_stime,
        "mib": usage.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
