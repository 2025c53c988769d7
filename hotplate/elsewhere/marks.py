"""By what the things of a run are known in a cloud: names and tags that hold the run's id."""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import re
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hotplate import locks

TAG = "hotplate-test"
"""Each stack and image that a run makes has it, besides the tag of the run."""

_PREFIX = "hotplate-"
_NAME = re.compile(_PREFIX + r"(\d{8}t\d{6}z-[0-9a-f]{6}-[0-9a-f]{8})(?:-\d+)?")
_TIME = "%Y%m%dt%H%M%Sz"


@dataclass(frozen=True)
class Run:
    """One run.

    :param id: when it began, a hash of its host's name, and chance.

    >>> run = Run("20260102t030405z-0a1b2c-01234567")
    >>> run.name
    'hotplate-20260102t030405z-0a1b2c-01234567'
    >>> Run.of(run.name) == run, Run.of("hotplate-of-mine")
    (True, None)
    """

    id: str

    @classmethod
    def begin(cls) -> Self:
        """Return a new run of this host."""
        return cls(f"{time.strftime(_TIME, time.gmtime())}-{_host()}-{secrets.token_hex(4)}")

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Return the run whose thing has that name or tag, None for what is no run's.

        A run of several stacks has a number behind the name of each.
        """
        match = _NAME.fullmatch(name)
        return cls(match[1]) if match else None

    @property
    def name(self) -> str:
        """The name of its stack, its image and its key pair, and its tag."""
        return f"{_PREFIX}{self.id}"

    @property
    def tags(self) -> list[str]:
        """The tags of its stack and its image."""
        return [TAG, self.name]

    @property
    def is_of_this_host(self) -> bool:
        """Whether it began on this host, as far as its name tells."""
        return self.id.split("-")[1] == _host()

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.time() - calendar.timegm(time.strptime(self.id.split("-")[0], _TIME))

    @contextlib.contextmanager
    def going_on(self, folder: Path) -> Iterator[None]:
        """Let others of this host know that it goes on, until the block ends or we are killed.

        :param folder: where the runs of this host are known.
        """
        mine = folder / self.id
        with locks.exclusive(mine, make=True):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    mine.rmdir()

    def goes_on(self, folder: Path) -> bool:
        """Whether it goes on on this host."""
        try:
            with locks.exclusive(folder / self.id, wait=False):
                return False
        except locks.InUse:
            return True
        except OSError:
            return False


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
