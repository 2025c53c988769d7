"""The case that is sent to a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate import __version__
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice
from hotplate.image.image_set import ImageSet

if TYPE_CHECKING:
    from hotplate.stacks.template import Template


@dataclass(frozen=True)
class SentTemplate(TemplateChoice):
    """A template that was read on the submitting host, and sent with its files.

    :param loaded: the template.
    :param text: the file itself, for the folder of the run.
    :param called: its name on that host.
    """

    loaded: Template | None = None
    text: bytes = b""
    called: str = ""

    @property
    def source(self) -> str:
        """Return the file it was read from on that host."""
        return self.called

    def load(self) -> Template:
        """Return the template read there."""
        assert self.loaded is not None
        return self.loaded


@dataclass(frozen=True)
class Job:
    """A case as it is sent.

    :param run: the id of the command; the topic of the events contains it.
    :param request: the command, with the settings of the case.
    :param image: the files of its image.
    :param others: the files of the named images, by name.
    :param environments: the files of ``--environment-dir``, by name; None without one.
    """

    run: str
    request: Request
    case: Case
    image: ImageSet
    others: Mapping[str, ImageSet] = field(default_factory=dict)
    environments: Mapping[str, bytes] | None = None
    version: str = __version__


def topic_of(run: str) -> str:
    """Return the topic of Dask's events for the progress of a command's cases."""
    return f"hotplate-{run}"


def read_all(folder: Path) -> dict[str, bytes]:
    """Return the global environments in a folder, by name, for a :class:`Job`.

    :raises OSError: when one cannot be read.
    """
    return {each.name: each.read_bytes() for each in sorted(folder.glob("*.yaml"))}
