"""What takes the longer the more there is of it is done the more seldom."""

from __future__ import annotations

from hotplate.timing.sparing import SHARE, Sparing


def test_it_costs_a_small_part_of_the_time_however_much_there_is():
    now = 0.0
    sparing = Sparing(clock=lambda: now)
    spent, last, times = 0.0, 0.0, 0
    for number in range(1, 10_001):
        now += 0.02
        if sparing.due:
            with sparing.doing():
                # A tenth of a millisecond for each that there is.
                last = number * 0.0001
                now += last
            spent += last
            times += 1
    # After each case all would be 5,000 seconds; what follows the last time is still to come.
    assert spent - last <= now / SHARE
    assert times > 50


def test_the_first_time_is_at_once():
    assert Sparing().due
