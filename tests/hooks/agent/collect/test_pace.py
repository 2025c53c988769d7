"""The pauses between rounds, as numbers."""

from __future__ import annotations

import pytest


@pytest.fixture
def pace():
    from heat_agent.collect.pace import Pace

    return Pace(1, 30)


def quiet(pace, rounds):
    return [pace.after(fresh=False, troubled=False) for _ in range(rounds)]


def test_pauses_double_up_to_the_longest(pace):
    """As in upstream's main loop: exponential_sleep_time."""
    assert quiet(pace, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_a_change_resets_the_pause(pace):
    """Upstream's help of polling-interval says so, and its loop does not (C8)."""
    quiet(pace, 7)
    assert pace.after(fresh=True, troubled=False) == 1
    assert quiet(pace, 2) == [2, 4]


def test_a_source_that_always_changes_is_polled_with_growing_pauses(pace):
    pauses = [pace.after(fresh=True, troubled=False) for _ in range(7)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_in_trouble_pauses_grow_at_random(pace):
    pauses = [pace.after(fresh=False, troubled=True) for _ in range(12)]
    for pause, whole in zip(pauses, [1, 2, 4, 8, 16, 32, 64, 120, 120, 120], strict=False):
        assert whole / 2 <= pause <= whole
    assert len({pause / 120 for pause in pauses[7:]}) == 5  # at random
    assert quiet(pace, 1) == [30]  # the server has recovered


def test_a_long_interval_is_kept(pace):
    from heat_agent.collect.pace import Pace

    slow = Pace(600, 3600)
    assert all(slow.after(fresh=False, troubled=True) <= 3600 for _ in range(9))


def test_retry_after(pace):
    assert 20 <= pace.after(fresh=False, troubled=True, wait=20.0) <= 25
    quiet(pace, 6)
    assert pace.after(fresh=False, troubled=True, wait=0.0) >= 15


def test_shortest_may_be_longer_than_longest():
    from heat_agent.collect.pace import Pace

    assert quiet(Pace(5, 2), 3) == [5, 5, 5]
