"""Work whose cost grows with the number of cases is done less often as it grows."""

from __future__ import annotations

from hotplate.timing.sparing import SHARE, Sparing


def test_sparing_keeps_work_to_a_small_part_of_the_time():
    now = 0.0
    sparing = Sparing(clock=lambda: now)
    spent, last, times = 0.0, 0.0, 0
    for number in range(1, 10_001):
        now += 0.02
        if sparing.due:
            with sparing.doing():
                # A tenth of a millisecond for each case.
                last = number * 0.0001
                now += last
            spent += last
            times += 1
    # Writing all after each case would take 5,000 seconds; the pause after the last run is still
    # to come.
    assert spent - last <= now / SHARE
    assert times > 50


def test_sparing_is_due_at_once_the_first_time():
    assert Sparing().due
