"""Classify the failure of a test in the words of :class:`~hotplate.errors.Outcome`."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from hotplate.errors import (
    HotplateError,
    Outcome,
    ThreadFault,
    UsageError,
    causes,
    outcome_of,
    sentence_of,
)
from hotplate.timing.deadline import DeadlineExceeded, HostTooSlow

#: The property of a failed test, in its report and in JUnit.
PROPERTY = "hotplate_outcome"

#: The exit status of a run is theirs when all its failures are among them; see
#: :func:`exit_status`.
BLAMELESS = frozenset({Outcome.HOST, Outcome.LOST})


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Report an error by its sentence for people, if it has one, without a traceback."""
    try:
        yield
    except UsageError as error:
        message, status = str(error), error.exit_status
    except (HotplateError, DeadlineExceeded, OSError, MemoryError, sqlite3.Error) as error:
        outcome = _outcome(error)
        if outcome is Outcome.ERROR and not isinstance(error, HotplateError):
            # A fault of hotplate is shown in full.
            raise
        text = sentence_of(error) if outcome is Outcome.HOST else str(error)
        failure = pytest.fail.Exception(f"{outcome}: {text}", pytrace=False)
        setattr(failure, PROPERTY, outcome)
        # Not chained, as pytest would show the cause with its traceback.
        raise failure from None
    else:
        return
    # Outside of "except", because pytest also shows the exception that was being handled.
    pytest.exit(message, returncode=status)


def _outcome(error: BaseException) -> Outcome:
    """Return the outcome of an error that the harness itself raised."""
    # On a host that is fast enough, a time limit that has passed is the guest's.
    of_guest = isinstance(error, DeadlineExceeded) and not isinstance(error, HostTooSlow)
    return Outcome.FAILED if of_guest else outcome_of(error)


def of_failure(error: BaseException, *, lost: bool, faulty: bool = False) -> Outcome:
    """Return the outcome of an exception in a test or a fixture.

    :param lost: whether the test's machine went away by itself.
    :param faulty: whether a service or a thread of hotplate's own failed meanwhile.
    """
    if lost:
        return Outcome.LOST
    outcome = _of_failure(error)
    # Our fault may be the cause of the failure, so nothing is known about the image.
    ours = faulty or any(map(_is_server_error, causes(error)))
    return Outcome.ERROR if ours and outcome is Outcome.FAILED else outcome


def _is_server_error(error: BaseException) -> bool:
    """Return True when Heat failed to answer: its client got a status of 500 or higher."""
    code = getattr(error, "code", None)
    return (
        type(error).__module__ == "heatclient.exc"
        and isinstance(code, int)
        and code >= HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _of_failure(error: BaseException) -> Outcome:
    # one_sentence() has classified it already.
    if (kept := getattr(error, PROPERTY, None)) is not None:
        return Outcome(kept)
    if isinstance(error, ThreadFault):
        return outcome_of(error)
    ours = isinstance(error, (HotplateError, HostTooSlow, OSError, MemoryError, sqlite3.Error))
    outcome = outcome_of(error) if ours else Outcome.FAILED
    return Outcome.FAILED if outcome is Outcome.ERROR else outcome


def exit_status(outcomes: set[Outcome]) -> int | None:
    """Return the status of a run with these failures, or None for pytest's own 1.

    It is 3 when all failures are the host's, and 4 when none says anything about an image.
    """
    if not outcomes or not outcomes <= BLAMELESS:
        return None
    return min(outcome.exit_status for outcome in outcomes)
