"""The pauses between rounds, as numbers, and the effect of a server in trouble."""

from __future__ import annotations

import subprocess
import sys

import pytest
from heat_agent.collect.pace import Pace, chance
from stub_server import Reply

from .conftest import HOOKS, agent_of
from .test_beside_upstream import cfn_conf


@pytest.fixture
def pace():
    return Pace(1, 30)


def quiet(pace, rounds):
    return [pace.after(fresh=False, troubled=False) for _ in range(rounds)]


def test_pauses_double_up_to_the_longest(pace):
    """As in upstream's main loop: exponential_sleep_time."""
    assert quiet(pace, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_change_resets_the_pause(pace):
    """Upstream's help of polling-interval promises it, and its loop does not do it (C8)."""
    quiet(pace, 7)
    assert pace.after(fresh=True, troubled=False) == 1
    assert quiet(pace, 2) == [2, 4]


def test_source_that_always_changes_is_polled_with_growing_pauses(pace):
    pauses = [pace.after(fresh=True, troubled=False) for _ in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_pauses_in_trouble_grow_at_random(pace):
    pauses = [pace.after(fresh=False, troubled=True) for _ in range(12)]
    for pause, whole in zip(pauses, [1, 2, 4, 8, 16, 32, 64, 120, 120, 120], strict=False):
        assert whole / 2 <= pause <= whole
    assert len({pause / 120 for pause in pauses[7:]}) == 5  # at random
    assert quiet(pace, 1) == [30]  # the server has recovered


def test_long_interval_is_kept(pace):
    slow = Pace(600, 3600)
    assert all(slow.after(fresh=False, troubled=True) <= 3600 for _ in range(9))


def test_retry_after_is_honoured(pace):
    assert 20 <= pace.after(fresh=False, troubled=True, wait=20.0) <= 25
    quiet(pace, 6)
    assert pace.after(fresh=False, troubled=True, wait=0.0) >= 15


def test_shortest_may_be_longer_than_longest():
    assert quiet(Pace(5, 2), 3) == [5, 5, 5]


def test_chances_differ_between_processes():
    """Servers that boot together start their agents at the same time, with the same ids."""
    many = [chance() for _ in range(4000)]
    assert 0 <= min(many) < 0.01 and 0.99 < max(many) < 1
    assert 0.47 < sum(many) / len(many) < 0.53
    program = f"import sys; sys.path.insert(0, {str(HOOKS)!r})\n"
    program += "from heat_agent.collect import pace; print(pace.chance())"
    started = [
        subprocess.Popen([sys.executable, "-IS", "-c", program], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    assert len({process.communicate(timeout=60)[0] for process in started}) == 4


@pytest.fixture
def polled(guest, cloud):
    """An agent that polls cfn with pauses from 1 to 8 seconds; its command succeeds."""
    cloud.documents["cfn:server"] = {"a": 1}
    intervals = {"min_polling_interval": 1, "polling_interval": 8}
    guest.conf(cfn_conf(cloud), "true", collectors="cfn", **intervals)
    agent = agent_of(guest, lambda command, paths: 0)
    assert agent.round() == (0, 1)
    return agent


def pauses(agent, rounds):
    return [agent.round()[1] for _ in range(rounds)]


def test_pauses_grow_in_an_outage_and_shrink_after_it(polled, cloud):
    cloud.reply = lambda asked: Reply(503)
    for pause, whole in zip(pauses(polled, 7), [2, 4, 8, 16, 32, 32, 32], strict=True):
        assert whole / 2 <= pause <= whole
    cloud.reply = lambda asked: None
    assert polled.round() == (None, 8)


def test_change_in_an_outage_is_followed_up_at_once(polled, cloud):
    cloud.reply = lambda asked: Reply(503)
    pauses(polled, 7)
    cloud.reply = lambda asked: None
    cloud.documents["cfn:server"] = {"a": 2}
    assert polled.round() == (0, 1)


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [("100", 100, 125), ("301", 300, 375), ("9" * 400, 300, 375), ("-5", 1, 2), ("1e9", 1, 2)],
    ids=lambda value: str(value)[:8],
)
def test_retry_after_is_bounded(polled, cloud, seconds, least, most):
    cloud.reply = lambda asked: Reply(503, headers={"Retry-After": seconds})
    assert least <= polled.round()[1] <= most
    cloud.reply = lambda asked: None
    assert polled.round() == (None, 4)


@pytest.mark.parametrize("works", [True, False], ids=["with-heat", "alone"])
def test_missing_metadata_service_delays_no_deployment(guest, cloud, works):
    """Upstream keeps its usual pace; with a config drive alone, 169.254.169.254 never answers."""
    cloud.documents["cfn:server"] = {"a": 1}
    guest.conf(
        f"[ec2]\nmetadata_url = http://127.0.0.1:9/ec2\n{cfn_conf(cloud)}",
        "true",
        collectors="ec2\ncollectors = cfn",
        polling_interval=8,
    )
    if not works:
        cloud.reply = lambda asked: Reply(503)
    agent = agent_of(guest, lambda command, paths: 0)
    longest = max(pauses(agent, 9)[6:])
    assert longest == 8 if works else 16 <= longest <= 32


def test_metadata_service_in_trouble_is_polled_less_when_it_is_alone(guest, cloud):
    cloud.reply = lambda asked: Reply(503)
    guest.conf(f"[ec2]\nmetadata_url = {cloud.url}/ec2\n", "true", polling_interval=8)
    agent = agent_of(guest, lambda command, paths: 0)
    assert 16 <= max(pauses(agent, 9)[6:]) <= 32
