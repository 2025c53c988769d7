"""A server whose agent is replaced, upstream's by ours or back, continues with its state.

Both read the other's cache: the command does not run again without a change, and a change in
between is not missed.
"""

from __future__ import annotations

import pytest

from .test_beside_upstream import DOCUMENT, cfn_conf

COMMAND = "echo ran >>$$RECORD/ran; test ! -e $$RECORD/fail"


@pytest.fixture
def one_round(guest, cloud):
    """Run one of the agents once; return how often the command has run by then."""
    guest.conf(cfn_conf(cloud), COMMAND)
    guest.write("local/more", {"greeting": "hello"})

    def run(which: str) -> int:
        done = guest.run(which, "--one-time", "cfn", "local", RECORD=str(guest.root))
        assert "Traceback" not in done.stderr
        ran = guest.root / "ran"
        return len(ran.read_text().splitlines()) if ran.exists() else 0

    return run


@pytest.mark.parametrize(("before", "after"), [("real", "ours"), ("ours", "real")])
def test_replaced_agent_repeats_and_misses_no_change(guest, cloud, one_round, before, after):
    cloud.documents["cfn:server"] = DOCUMENT
    assert one_round(before) == 1
    left = guest.files()
    assert one_round(after) == 1
    assert guest.files() == left
    assert one_round(before) == 1
    cloud.documents["cfn:server"] = {**DOCUMENT, "new": 1}
    assert one_round(after) == 2
    assert one_round(before) == 2


@pytest.mark.parametrize(("before", "after"), [("real", "ours"), ("ours", "real")])
def test_failed_command_is_tried_again(guest, cloud, one_round, before, after):
    cloud.documents["cfn:server"] = DOCUMENT
    guest.write("fail", "")
    assert one_round(before) == 1
    (guest.root / "fail").unlink()
    assert one_round(after) == 2
    assert one_round(before) == 2
