"""What can go wrong, told apart by who has to act.

Three kinds of failure stay apart: the image or template under test failed
(:class:`SubjectError`), the machine was lost (:class:`MachineLostError`), and the harness itself
is at fault, which is any other exception and is shown with its traceback.
"""

from __future__ import annotations


class HotplateError(Exception):
    """A failure that is reported as one sentence, without a traceback.

    :param message: a sentence that names the thing in quotes and says what was expected.
    :param hint: what to do about it; where possible a command that can be pasted.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class SubjectError(HotplateError):
    """The image or the template under test is at fault (exit status 1)."""


class ImageError(SubjectError):
    """The image cannot be used: not an image, truncated, nothing in it that boots."""


class TemplateError(SubjectError):
    """The template cannot be used: unreadable, refused by Heat, a file it names is missing."""


class UsageError(HotplateError):
    """The command line, a settings file or an argument is wrong (exit status 2)."""

    exit_status = 2


class HostError(HotplateError):
    """This host lacks something: a tool, a device, space on a disk (exit status 3)."""

    exit_status = 3


class MachineLostError(HotplateError):
    """The virtual machine went away or stopped answering; says nothing about the image.

    A run that ends so may be tried once more.
    """
