"""The durations of earlier runs, builds and uploads, as estimates for the progress display."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

RUNS = 10
KEYS = 1000

#: Its file in the cache.
FILE = "history.json"


class History:
    """A small file of times, by a key such as an image's hash with the accelerator.

    A file that is missing, damaged or cannot be written is no reason to stop: estimates are then
    unknown.

    ::

        history = History(settings.cache / FILE)
        history.expected(key)               # {Stage.BOOTED: 17.2, ...}
        history.record(key, verdict.times)
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def expected(self, key: str) -> dict[str, float]:
        """Return the median seconds to each stage or step, empty when nothing is known."""
        # The median, which one run on a busy host does not move.
        return {
            name: statistics.median(seconds)
            for name, seconds in self._read().get(key, {}).items()
            if seconds
        }

    def record(self, key: str, times: Mapping[str, float]) -> None:
        """Store the seconds to each stage or step; the oldest runs and keys are dropped."""
        self.record_all({key: times})

    def record_all(self, runs: Mapping[str, Mapping[str, float]]) -> None:
        """Store the seconds of several keys; the file is written whole, and here once."""
        entries = self._read()
        for key, times in runs.items():
            # Put at the end again: the first keys are those unused for the longest time.
            entry = entries.pop(key, {})
            for name, seconds in times.items():
                entry[name] = [*entry.get(name, []), round(seconds, 2)][-RUNS:]
            entries[key] = entry
        while len(entries) > KEYS:
            del entries[next(iter(entries))]
        self._write(entries)

    def _read(self) -> dict[str, dict[str, list[float]]]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        if not isinstance(document, dict):
            return {}
        return {
            str(key): {
                str(stage): [float(each) for each in times if isinstance(each, int | float)]
                for stage, times in entry.items()
                if isinstance(times, list)
            }
            for key, entry in document.items()
            if isinstance(entry, dict)
        }

    def _write(self, entries: dict[str, dict[str, list[float]]]) -> None:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # By rename: several processes write it, and each reader gets a whole file.
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".history-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    json.dump(entries, stream)
                Path(name).replace(self._path)
            except OSError:
                Path(name).unlink(missing_ok=True)
