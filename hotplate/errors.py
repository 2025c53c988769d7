"""What can go wrong, told apart by who has to act.

Whose fault it is decides the exit status (:class:`Outcome`): that of the image or the template
under test (:class:`SubjectError`), of the command line (:class:`UsageError`), of the host
(:class:`HostError`), or of nobody who could mend the image: the machine was lost
(:class:`MachineLostError`), or the harness itself is at fault, which is any other exception and is
shown with its traceback.
"""

from __future__ import annotations

import errno
import signal
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar

from hotplate.text import clean


class Outcome(StrEnum):
    """How something ended, by who has to act; the value is what people and JSON read."""

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
        """What a command ends with; an interrupted one with 128 and the signal's number."""
        return _STATUS[self]


_STATUS = {
    Outcome.PASSED: 0,
    Outcome.FAILED: 1,
    Outcome.USAGE: 2,
    Outcome.HOST: 3,
    Outcome.LOST: 4,
    Outcome.GIVEN_UP: 4,
    Outcome.ERROR: 4,
    Outcome.INTERRUPTED: 130,
}

EXIT_STATUSES = {
    0: "passed",
    1: "the image or the template failed",
    2: "wrong usage, or an image or a template that does not exist",
    3: "the host lacks something or ran out of it: a tool, memory, disk, open files",
    4: "the machine was lost, the run was given up, or hotplate is at fault: says nothing about "
    "the image",
}
"""The exit statuses for people; 128 + N beside them: interrupted by the signal N."""

_REMEDIES = {
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "sysctl -w fs.file-max=1000000",
    errno.ENOSPC: "df -h",
    errno.EDQUOT: "quota",
    errno.ENOMEM: "free -m",
    errno.EROFS: "mount | grep -w ro",
    errno.EIO: "dmesg",
}
"""The errors of the operating system by which a host says that it has no more to give, and what
shows more of it."""


class HotplateError(Exception):
    """A failure that is reported as one sentence, without a traceback.

    :param message: a sentence that names the thing in quotes and says what was expected.
    :param hint: what to do about it; where possible a command that can be pasted.
    """

    outcome: ClassVar[Outcome] = Outcome.ERROR

    def __init__(self, message: str, *, hint: str = "") -> None:
        # A sentence may quote what a guest, an image or a template said.
        self.message = clean(message)
        self.hint = clean(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    @property
    def exit_status(self) -> int:
        """What a command ends with that this ended."""
        return self.outcome.exit_status


class SubjectError(HotplateError):
    """The image or the template under test is at fault (exit status 1)."""

    outcome = Outcome.FAILED


class ImageError(SubjectError):
    """The image cannot be used: not an image, truncated, nothing in it that boots."""


class TemplateError(SubjectError):
    """The template cannot be used: not YAML, refused by Heat, a file it names is missing."""


class UsageError(HotplateError):
    """The command line, a settings file or an argument is wrong (exit status 2)."""

    outcome = Outcome.USAGE


class HostError(HotplateError):
    """This host lacks something: a tool, a device, space on a disk (exit status 3)."""

    outcome = Outcome.HOST


class MachineLostError(HotplateError):
    """The virtual machine went away or stopped answering; says nothing about the image.

    A run that ends so may be tried once more.  Exit status 4.
    """

    outcome = Outcome.LOST


class WaitedTooLong(Exception):
    """Something took longer than is waited for.

    Who waits for a guest says what that means; one that comes as far as the end of a command waited
    for what this host does by itself (exit status 3).
    """


def error_of(outcome: Outcome, message: str, *, hint: str = "") -> HotplateError:
    """Return the error that another process had and put into words.

    :param outcome: whose fault it was there.
    """
    kinds = (SubjectError, UsageError, HostError, MachineLostError)
    kind = next((each for each in kinds if each.outcome is outcome), HotplateError)
    return kind(message, hint=hint)


class ThreadFault(Exception):
    """A thread of hotplate's own failed while others relied on it; its cause is what it raised.

    :ivar thread: its name.
    """

    def __init__(self, thread: str, error: BaseException) -> None:
        super().__init__(f'in the thread "{thread}": {type(error).__name__}: {error}')
        self.thread = thread
        self.__cause__ = error


class Interrupted(KeyboardInterrupt):
    """A signal asked us to end.

    :ivar number: the signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


def outcome_of(error: BaseException) -> Outcome:
    """Whose fault an exception is, whatever layers it went through.

    What names the host's exhaustion anywhere among its causes is the host's: a template that Heat
    refuses because no file can be opened any more is a good template.
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
    """Return True when it is shown with its traceback: nobody thought of it."""
    return outcome_of(error) is Outcome.ERROR and not isinstance(error, HotplateError)


def exhaustion(error: BaseException) -> bool:
    """Return True for an error of the operating system that says that the host is full."""
    return _number(error) in _REMEDIES


def remedy(error: BaseException) -> str:
    """Return the command that shows more of an error by which the host says that it is full."""
    return _REMEDIES.get(_number(error) or 0, "")


def _number(error: BaseException) -> int | None:
    """Return the operating system's error number behind an exception, SQLite's too."""
    if isinstance(error, sqlite3.Error):
        full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        return errno.ENOSPC if full else None
    return error.errno if isinstance(error, OSError) else None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those behind it, as a traceback shows them."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def sentence_of(error: BaseException) -> str:
    """Return what an exception has to say to a person."""
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
    for each in causes(error):
        if isinstance(each, HostError):
            return str(each)
        if (number := _number(each)) in _REMEDIES:
            return f"the host has no more to give: {each}\n  hint: {_REMEDIES[number]}"
    if isinstance(error, WaitedTooLong):
        return f"the host is too slow or too busy: {error}\n  hint: uptime"
    return f"the host has no more memory to give\n  hint: {_REMEDIES[errno.ENOMEM]}"
