"""Errors, sorted by who has to act.

The exit status (:class:`Outcome`) depends on whose fault it is: that of the image or the template
under test (:class:`SubjectError`), of the command line (:class:`UsageError`), of the host
(:class:`HostError`), or of none of these: the machine was lost (:class:`MachineLostError`), or
the harness itself is at fault, which is any other exception and is shown with its traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from hotplate.text import clean, quoted, shortened


class Outcome(StrEnum):
    """The outcome of a run or an error, by who has to act; the value is for people and JSON."""

    PASSED = "passed"
    FAILED = "failed"
    USAGE = "usage error"
    HOST = "host error"
    LOST = "machine lost"
    GIVEN_UP = "given up"
    ERROR = "error"
    INTERRUPTED = "interrupted"

    @property
    def exit_status(self) -> int:
        """Return a command's exit status; an interrupted one ends with 128 + its signal."""
        return _STATUS[self]


_STATUS = {
    Outcome.PASSED: 0,
    Outcome.FAILED: 1,
    Outcome.USAGE: 2,
    Outcome.HOST: 3,
    Outcome.LOST: 4,
    Outcome.GIVEN_UP: 4,
    Outcome.ERROR: 4,
    # 128 + SIGINT.
    Outcome.INTERRUPTED: 130,
}

#: The exit statuses for people; besides these, 128 + N: interrupted by the signal N.
EXIT_STATUSES = {
    0: "passed",
    1: "the image or the template failed",
    2: "wrong usage, or an image or a template that does not exist",
    3: "the host lacks something or ran out of it: a tool, memory, disk, open files",
    4: "the machine was lost, the run was given up, or hotplate is at fault: says nothing about "
    "the image",
}

#: The operating system's errors that mean that the host is out of resources, each with a command
#: that shows more about it.
_REMEDIES = {
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "sysctl -w fs.file-max=1000000",
    errno.ENOSPC: "df -h",
    errno.EDQUOT: "quota",
    errno.ENOMEM: "free -m",
    errno.EROFS: "mount | grep -w ro",
    errno.EIO: "dmesg",
}


class HotplateError(Exception):
    """A failure that is reported as one sentence, without a traceback.

    :param message: a sentence that names the thing in quotes, with the expected value.
    :param hint: the remedy; where possible a command to paste.
    """

    outcome: ClassVar[Outcome] = Outcome.ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        # A sentence may quote a guest, an image or a template.
        self.message = clean(message)
        self.hint = clean(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    @property
    def exit_status(self) -> int:
        """Return the exit status of a command that this error ended."""
        return self.outcome.exit_status


class SubjectError(HotplateError):
    """The image or the template under test is at fault (exit status 1)."""

    outcome = Outcome.FAILED


class ImageError(SubjectError):
    """The image cannot be used: it is no image, truncated, or not bootable."""


class TemplateError(SubjectError):
    """The template cannot be used: not YAML, refused by Heat, or it names a missing file."""


class UsageError(HotplateError):
    """The command line, a settings file or an argument is wrong (exit status 2)."""

    outcome = Outcome.USAGE


class HostError(HotplateError):
    """This host lacks something: a tool, a device, space on a disk (exit status 3)."""

    outcome = Outcome.HOST


class MachineLostError(HotplateError):
    """The virtual machine went away or stopped answering; this says nothing about the image.

    A run that ends so may be retried. Exit status 4.
    """

    outcome = Outcome.LOST


class WaitedTooLong(Exception):
    """Something took longer than its time limit.

    Callers that wait for a guest translate it; uncaught, it means that the host was too slow (exit
    status 3).
    """


@contextlib.contextmanager
def usable_names() -> Iterator[None]:
    """Turn errors about the names of files that a user gave into sentences.

    :raises UsageError: for a file in a directory that this user may not enter, and for a name that
        is too long; the methods of a path that look for a file raise both.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENAMETOOLONG) or error.filename is None:
            raise
        name = os.fsdecode(error.filename)
        raise UsageError(
            f'"{shortened(name, 200)}" cannot be used: {error.strerror}',
            hint=f"namei -l {quoted(name)}" if error.errno == errno.EACCES else "",
        ) from error


def error_of(outcome: Outcome, message: str, *, hint: str = "") -> HotplateError:
    """Return the error of another process, from its words.

    :param outcome: the outcome of that error there.
    """
    kinds = (SubjectError, UsageError, HostError, MachineLostError)
    kind = next((each for each in kinds if each.outcome is outcome), HotplateError)
    return kind(message, hint=hint)


class ThreadFault(Exception):
    """A thread of hotplate's own failed while others relied on it; the cause is its exception.

    :ivar thread: its name.
    """

    def __init__(self, thread: str, error: BaseException) -> None:
        super().__init__(f'in the thread "{thread}": {type(error).__name__}: {error}')
        self.thread = thread
        self.__cause__ = error


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end.

    :ivar number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of an exception, whatever layers it went through.

    When any of its causes is an exhausted host, the fault is the host's: a template that Heat
    refuses because no more files can be opened is a good template.
    """
    if isinstance(error, UsageError):
        return Outcome.USAGE
    if isinstance(error, KeyboardInterrupt):
        return Outcome.INTERRUPTED
    for each in causes(error):
        if isinstance(each, (HostError, MemoryError)) or exhaustion(each):
            return Outcome.HOST
    if isinstance(error, WaitedTooLong):
        return Outcome.HOST
    return error.outcome if isinstance(error, HotplateError) else Outcome.ERROR


def is_unforeseen(error: BaseException) -> bool:
    """Return True when it is unforeseen, and so shown with its traceback."""
    return outcome_of(error) is Outcome.ERROR and not isinstance(error, HotplateError)


def exhaustion(error: BaseException) -> bool:
    """Return True for an operating system's error that means that the host is out of resources."""
    return _number(error) in _REMEDIES


def remedy(error: BaseException) -> str:
    """Return the command that shows more about an error of an exhausted host, "" for others."""
    return _REMEDIES.get(_number(error) or 0, "")


def _number(error: BaseException) -> int | None:
    """Return the operating system's error number of an exception, SQLite's too."""
    if isinstance(error, sqlite3.Error):
        # SQLite has codes of its own; this is the one of a full disk.
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return errno.ENOSPC if full else None
    return error.errno if isinstance(error, OSError) else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, in the order of a traceback."""
    # Causes may form a ring, as each exception's context can be set.
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        # "raise ... from None" hides the context, here as in a traceback.
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def sentence_of(error: BaseException) -> str:
    """Return the message of an exception for people."""
    if isinstance(error, HotplateError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted"
    if outcome_of(error) is Outcome.HOST:
        return _host_sentence(error)
    if isinstance(error, ThreadFault):
        return f"hotplate itself is at fault: {error}"
    return f"hotplate itself is at fault: {type(error).__name__}: {error}"


def _host_sentence(error: BaseException) -> str:
    chain = list(causes(error))
    for each in chain:
        # Wherever it is: a file that cannot be closed on a full disk hides it behind an OSError.
        if isinstance(each, HostError):
            return str(each)
    for each in chain:
        if (number := _number(each)) in _REMEDIES:
            return f"the host is out of resources: {each}\n  hint: {_REMEDIES[number]}"
    if isinstance(error, WaitedTooLong):
        return f"the host is too slow or too busy: {error}\n  hint: uptime"
    return f"the host has no more memory to give\n  hint: {_REMEDIES[errno.ENOMEM]}"
