"""hotplate.deadline: waits end, and say what they waited for."""

import pytest

from hotplate.deadline import Deadline, DeadlineExceeded, retry


def test_retry_returns_the_first_result():
    answers = iter([None, None, "ready"])
    assert retry(lambda last: next(answers), Deadline(30, "an answer"), every=0.001) == "ready"


def test_the_last_try_is_told_so_and_the_sentence_names_what_was_awaited():
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


def test_the_factor_of_a_slow_host_scales_it():
    assert Deadline(10, "x", factor=3).seconds == 30
