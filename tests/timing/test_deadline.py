"""hotplate.timing.deadline: waits end, and report the awaited event."""

from types import SimpleNamespace

import pytest

from hotplate.timing import deadline as module
from hotplate.timing import host_speed
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline, retry


def test_retry_returns_the_first_true_result():
    answers = iter([None, False, [], "ready"])
    assert retry(lambda last: next(answers), Deadline(30, "an answer"), every=0.001) == "ready"


def test_retry_marks_the_last_try_and_names_the_awaited_event():
    tries = []
    with pytest.raises(DeadlineExceeded, match="gave up waiting for the moon"):
        retry(lambda last: tries.append(last), Deadline(0.01, "the moon"), every=0.001)
    assert tries[-1] is True
    assert not any(tries[:-1])


def test_extend_never_shortens_the_deadline():
    deadline = Deadline(100, "x")
    deadline.extend(1)
    assert deadline.left > 90
    deadline.extend(200)
    assert deadline.left > 190


class Clock:
    """A clock that only a sleep advances: a busy host may take longer than any short deadline."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


class Host:
    """A host of a given slowness that counts its measurements."""

    def __init__(self, *factors: float) -> None:
        self.factors = list(factors)
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.factors.pop(0) if len(self.factors) > 1 else self.factors[0]


def test_guest_deadline_measures_a_fast_host_once_and_is_not_stretched(clock):
    host = Host(1.0)
    deadline = GuestDeadline(20, "x", measure=host)
    assert deadline.left > 0
    assert host.asked == 0
    clock.sleep(30)
    assert all(deadline.passed for _ in range(5))
    assert host.asked == 1


def test_guest_deadline_is_stretched_by_the_factor_of_a_slow_host(clock):
    deadline = GuestDeadline(20, "the guest", measure=Host(1000.0))
    clock.sleep(30)
    assert not deadline.passed
    assert deadline.left == pytest.approx(19970)
    assert deadline.seconds == pytest.approx(20000)


def test_guest_deadline_ends_its_stretch_when_the_host_became_faster(clock):
    deadline = GuestDeadline(20, "x", measure=Host(2.0, 1.0))
    began = clock.now
    with pytest.raises(DeadlineExceeded):
        retry(lambda _last: None, deadline, every=1)
    assert clock.now - began == pytest.approx(40)
    assert deadline.passed


def test_guest_deadline_stretches_from_the_last_progress(clock):
    host = Host(1.0)
    deadline = GuestDeadline(10, "x", measure=host)
    clock.sleep(20)
    assert deadline.passed
    deadline.extend(10)
    assert not deadline.passed
    clock.sleep(20)
    assert deadline.passed
    assert host.asked == 2


def test_guest_deadline_ended_or_of_no_seconds_does_not_measure():
    host = Host(1000.0)
    ended, looks = GuestDeadline(10, "x", measure=host), GuestDeadline(0, "y", measure=host)
    ended.end()
    assert ended.passed
    assert looks.passed
    assert host.asked == 0


@pytest.mark.parametrize(
    ("seconds", "factor"),
    [(0.001, 1.0), (2.5 * host_speed.REFERENCE_SECONDS, 2.5), (0.6, host_speed.MAX_FACTOR)],
)
def test_host_speed_factor_compares_work_with_the_reference_host(monkeypatch, seconds, factor):
    # Use a fake clock: this host may be busy.
    now = [100.0]

    def work():
        now[0] += seconds

    monkeypatch.setattr(host_speed, "_measured", (float("-inf"), 1.0))
    monkeypatch.setattr(host_speed, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(host_speed, "_work", work)
    assert host_speed.factor() == pytest.approx(factor)
    # Concurrent callers share one measurement and do not slow the host down further.
    host_speed.factor()
    assert now == [100.0 + seconds]
