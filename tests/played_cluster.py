"""A Dask cluster on the loopback interface: its scheduler and workers as real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from played_cases import SECONDS, wait_until


class Cluster:
    """A scheduler and workers with caches of their own.

    :param folder: for their files; all of them import modules from its ``planted``.
    :ivar address: the scheduler's address, which a restart keeps.
    """

    def __init__(self, folder: Path, *, ttl: int = 300, tls: Path | None = None) -> None:
        self.folder = folder
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._ttl = ttl
        self._tls = tls
        self.address = ""
        self.scheduler = self.start_scheduler()
        wait_until(self._read_address)

    def environment(self) -> dict[str, str]:
        """Return the environment that all processes share."""
        path = os.pathsep.join([str(self.folder / "planted"), os.environ.get("PYTHONPATH", "")])
        return {
            **os.environ,
            "PYTHONPATH": path,
            "HOTPLATE_ACCELERATOR": "tcg",
            "PLAYED_TRIES": str(self.folder),
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{self._ttl}s",
            **({"DASK_CONFIG": str(self._tls)} if self._tls else {}),
        }

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler, at a free port or, again, at the same address."""
        anywhere = f"{'tls' if self._tls else 'tcp'}://127.0.0.1"
        self.scheduler = subprocess.Popen(
            [
                *(sys.executable, "-m", "distributed.cli.dask_scheduler"),
                *("--host", self.address or anywhere, "--no-dashboard", "--no-show"),
                *("--scheduler-file", self.folder / "scheduler.json"),
                *(() if self.address else ("--port", "0")),
            ],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "scheduler.log").open("ab"),
        )
        return self.scheduler

    def _read_address(self) -> bool:
        """Read the scheduler's address; return False while it has written none."""
        assert self.scheduler.poll() is None, (self.folder / "scheduler.log").read_text()
        with contextlib.suppress(OSError, ValueError):
            self.address = json.loads((self.folder / "scheduler.json").read_text())["address"]
        return bool(self.address)

    def start_worker(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a worker with its own cache, and wait until it is ready."""
        self.start_workers(name, words=words)
        return self.workers[name]

    def start_workers(self, *names: str, words: Sequence[str] = ()) -> None:
        """Start workers side by side, each with its own cache, and wait until all are ready."""
        for name in names:
            self._spawn_worker(name, words)
        for name in names:
            self._wait_for_worker(name)

    def stop_workers(self) -> None:
        """Stop the workers, also those that stand still."""
        for each in self.workers.values():
            if each.poll() is None:
                each.send_signal(signal.SIGCONT)
                each.terminate()
        for each in self.workers.values():
            _wait_for_end(each)
        self.workers.clear()

    def _spawn_worker(self, name: str, words: Sequence[str]) -> None:
        cache = self.folder / f"cache-{name}"
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        self.workers[name] = subprocess.Popen(
            [
                *(sys.executable, "-P", "-X", "faulthandler", "-m", "hotplate", "worker"),
                self.address,
                *("--name", name, "--local-directory", self.folder / f"local-{name}"),
                *("--cores", "2", "--memory-mib", "8000", *words),
            ],
            cwd=self.folder,
            env={**self.environment(), "HOTPLATE_CACHE": str(cache)},
            stdin=subprocess.DEVNULL,
            stdout=log.open("ab"),
            stderr=subprocess.STDOUT,
        )

    def _wait_for_worker(self, name: str) -> None:
        log, process = self.folder / f"{name}.log", self.workers[name]
        try:
            wait_until(lambda: process.poll() is not None or b"works for" in log.read_bytes())
        except AssertionError as error:
            # The stacks show whether it was slow or hung, and where.
            process.send_signal(signal.SIGABRT)
            process.wait(SECONDS)
            raise AssertionError(log.read_text()) from error
        assert process.poll() is None, log.read_text()

    def tried(self) -> list[int]:
        """Return the processes in which images were tested, on all workers."""
        files = self.folder.glob("*.tries")
        return [int(each) for file in files for each in file.read_text().split()]

    def close(self) -> None:
        """Stop the scheduler and the workers."""
        self.stop_workers()
        self.scheduler.terminate()
        _wait_for_end(self.scheduler)


def _wait_for_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def cluster(folder: Path, *, ttl: int = 300, tls: Path | None = None) -> Iterator[Cluster]:
    """Run a scheduler for the context, and stop all workers started in it."""
    started = Cluster(folder, ttl=ttl, tls=tls)
    try:
        yield started
    finally:
        started.close()
