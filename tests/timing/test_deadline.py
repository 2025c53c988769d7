"""hotplate.timing.deadline: waits end, and say what they waited for."""

import time
from types import SimpleNamespace

import pytest

from hotplate.timing import host_speed
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline, retry


def test_retry_returns_the_first_result():
    answers = iter([None, None, "ready"])
    assert retry(lambda last: next(answers), Deadline(30, "an answer"), every=0.001) == "ready"


def test_the_last_try_knows_that_it_is_and_the_sentence_names_what_was_awaited():
    tries = []
    with pytest.raises(DeadlineExceeded, match="gave up waiting for the moon"):
        retry(lambda last: tries.append(last), Deadline(0.01, "the moon"), every=0.001)
    assert tries[-1] is True
    assert not any(tries[:-1])


def test_progress_extends_and_never_shortens():
    deadline = Deadline(100, "x")
    deadline.extend(1)
    assert deadline.left > 90
    deadline.extend(200)
    assert deadline.left > 190


class Host:
    """A host that is as slow as it is told to be, and counts how often it was asked."""

    def __init__(self, *factors: float) -> None:
        self.factors = list(factors)
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.factors.pop(0) if len(self.factors) > 1 else self.factors[0]


def test_a_host_that_is_not_slow_gets_no_more_time_and_is_asked_once():
    host = Host(1.0)
    deadline = GuestDeadline(0.02, "x", measure=host)
    assert deadline.left > 0
    assert host.asked == 0
    time.sleep(0.03)
    assert all(deadline.passed for _ in range(5))
    assert host.asked == 1


def test_a_slow_host_gets_that_many_times_as_much():
    deadline = GuestDeadline(0.02, "the guest", measure=Host(1000.0))
    time.sleep(0.03)
    assert not deadline.passed
    assert 15 < deadline.left < 20
    assert deadline.seconds == pytest.approx(20)


def test_a_host_that_became_faster_is_waited_for_no_longer():
    deadline = GuestDeadline(0.02, "x", measure=Host(2.0, 1.0))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        retry(lambda _last: None, deadline, every=0.001)
    assert time.monotonic() - began >= 0.04
    assert deadline.passed


def test_progress_begins_the_stretch_anew():
    host = Host(1.0)
    deadline = GuestDeadline(0.01, "x", measure=host)
    time.sleep(0.02)
    assert deadline.passed
    deadline.extend(0.01)
    assert not deadline.passed
    time.sleep(0.02)
    assert deadline.passed
    assert host.asked == 2


def test_one_that_was_ended_or_only_looks_does_not_ask_the_host():
    host = Host(1000.0)
    ended, looks = GuestDeadline(10, "x", measure=host), GuestDeadline(0, "y", measure=host)
    ended.end()
    assert ended.passed
    assert looks.passed
    assert host.asked == 0


@pytest.mark.parametrize(
    ("seconds", "factor"),
    [(0.001, 1.0), (2.5 * host_speed.REFERENCE_SECONDS, 2.5), (0.6, host_speed.MOST)],
)
def test_the_host_is_measured_by_what_work_takes_now(monkeypatch, seconds, factor):
    # By a clock of its own: this host may be busy.
    now = [100.0]

    def work():
        now[0] += seconds

    monkeypatch.setattr(host_speed, "_measured", (float("-inf"), 1.0))
    monkeypatch.setattr(host_speed, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(host_speed, "_work", work)
    assert host_speed.factor() == pytest.approx(factor)
    # Many who wait at once do not slow the host down further.
    host_speed.factor()
    assert now == [100.0 + seconds]
