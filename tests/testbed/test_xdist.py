"""Two workers of pytest-xdist, each with two tiny guests on a network of the same addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.boots,
    pytest.mark.long,
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]
SECONDS = 600

TESTS = """\
import contextlib
import os
import sys
import time
from pathlib import Path

sys.path[:0] = {folders!r}
import pytest
from test_networked_servers import DB, WEB, Cloud, both_ways

HERE = Path(__file__).parent


@pytest.mark.parametrize("number", range(2))
def test_each_pair_is_by_itself(tmp_path, number):
    made = Cloud(tmp_path)
    with contextlib.ExitStack() as owned:
        owned.callback(made.compute.close)
        made.boot(WEB, DB)
        assert both_ways(made)
        # Both pairs are up at once, with the same addresses and MACs.
        (HERE / f"up-{{number}}").write_text(os.environ["PYTEST_XDIST_WORKER"])
        end = time.monotonic() + {seconds} / 2
        while len(list(HERE.glob("up-*"))) < 2:
            assert time.monotonic() < end, "the other worker's servers are not up"
            time.sleep(0.2)
        made.compute.delete(DB.id) if number == 0 else None
        assert made.who_asks(WEB) == WEB.id
        assert number == 0 or both_ways(made)
"""


def test_two_workers_have_networks_of_their_own(tmp_path: Path) -> None:
    here = Path(__file__).parent
    folders = [str(here), str(here.parent / "machine")]
    (tmp_path / "test_pairs.py").write_text(TESTS.format(folders=folders, seconds=SECONDS))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"),
            *(f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'base'}", tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    workers = {each.read_text() for each in tmp_path.glob("up-*")}
    assert workers == {"gw0", "gw1"}
