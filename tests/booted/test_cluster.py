"""Boots on workers of a real Dask cluster, one of which is killed during a boot."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from played_cases import wait_until
from played_cluster import cluster

pytestmark = [pytest.mark.boots, pytest.mark.long, pytest.mark.usefixtures("nothing_left")]

TEMPLATES = Path(__file__).parent / "templates"


#: Limit for the first line of a guest on a busy host.
BOOT_SECONDS = 900


def test_case_of_killed_worker_is_repeated_on_the_other(hotplate, trixie, tmp_path):
    chosen = [TEMPLATES / name for name in ("user-data-only.yaml", "no-signal.yaml")]
    words = [word for each in chosen for word in ("-t", each)]
    base, verdicts = tmp_path / "artifacts", tmp_path / "v.json"
    with cluster(tmp_path) as on:
        for name in ("one", "two"):
            on.start_worker(name, "--cores", "1")

        def kill_one() -> None:
            wait_until(lambda: _booting(on.folder / "local-one"), seconds=BOOT_SECONDS)
            on.workers["one"].kill()

        killer = threading.Thread(target=kill_one)
        killer.start()
        done = hotplate(
            *("test", trixie, *words, "--on", on.address),
            *("--artifacts", base, "--json", verdicts),
        )
        killer.join()
        # The worker cached the image once.
        assert len([*on.folder.glob(f"cache-two/images/*/{trixie.name}")]) == 1
    assert done.status == 0, done
    listed = json.loads(verdicts.read_text())
    assert [each["outcome"] for each in listed] == ["passed"] * 2
    again = [each for each in listed if each["reasons"]]
    assert len(again) == 1
    assert "a first try lost its machine: the worker" in again[0]["reasons"][0]
    for each in listed:
        folder = Path(each["artifacts"])
        assert folder.parent == base
        assert (folder / "report.html").is_file()
        assert [*folder.glob("servers/*/console.log")]
        assert json.loads((folder / "verdict.json").read_text()) == each
    history = json.loads((on.folder / "cache-two" / "history.json").read_text())
    assert history


def _booting(folder: Path) -> bool:
    """Return True when a guest has written to a console of a worker's case."""
    return any(each.stat().st_size for each in folder.glob("**/console.log"))
