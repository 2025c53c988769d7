"""The outcome of a failed test or fixture."""

from __future__ import annotations

import pytest
from heatclient import exc

from hotplate.errors import HotplateError, Outcome, ThreadFault
from hotplate.plugin.outcomes import exit_status, of_failure, one_sentence
from hotplate.timing.deadline import DeadlineExceeded, HostTooSlow


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (
            HostTooSlow("gave up waiting for QEMU's greeting after 30 s"),
            Outcome.HOST,
            "host error: the host is too slow or too busy: gave up waiting for QEMU's greeting",
        ),
        (
            DeadlineExceeded("gave up waiting for the agent to be idle after 180 s"),
            Outcome.FAILED,
            "failed: gave up waiting for the agent to be idle",
        ),
    ],
    ids=["host", "guest"],
)
def test_timeout_is_a_host_error_or_a_failure_by_its_cause(error, outcome, message):
    with pytest.raises(pytest.fail.Exception, match=message) as failure, one_sentence():
        raise error
    assert of_failure(failure.value, lost=False) is outcome
    assert of_failure(error, lost=False) is outcome


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ({Outcome.HOST}, 3),
        ({Outcome.LOST}, 4),
        ({Outcome.HOST, Outcome.LOST}, 3),
        ({Outcome.FAILED}, None),
        ({Outcome.HOST, Outcome.FAILED}, None),
        (set(), None),
    ],
)
def test_exit_status_is_not_1_when_no_failure_is_the_images(outcomes, status):
    assert exit_status(outcomes) == status


def test_failure_of_the_embedded_heat_is_no_failure_of_the_test():
    answer = exc.HTTPInternalServerError("ERROR: Timed out waiting for a reply to message ID 1")
    assert of_failure(answer, lost=False) is Outcome.ERROR
    wrapped = HotplateError("the embedded Heat itself failed")
    wrapped.__cause__ = answer
    assert of_failure(wrapped, lost=False) is Outcome.ERROR
    assert of_failure(exc.HTTPBadRequest("ERROR: no such property"), lost=False) is Outcome.FAILED


def test_assertion_after_a_cloud_failure_is_an_error():
    assert of_failure(AssertionError("CREATE_FAILED"), lost=False, faulty=True) is Outcome.ERROR
    assert of_failure(AssertionError("CREATE_FAILED"), lost=True, faulty=True) is Outcome.LOST
    assert of_failure(MemoryError(), lost=False, faulty=True) is Outcome.HOST


def test_fault_in_a_thread_is_no_failure_of_the_test():
    assert of_failure(ThreadFault("console", KeyError("boom")), lost=False) is Outcome.ERROR
    assert of_failure(ThreadFault("console", MemoryError()), lost=False) is Outcome.HOST
    with pytest.raises(ThreadFault), one_sentence():
        raise ThreadFault("console", KeyError("boom"))
