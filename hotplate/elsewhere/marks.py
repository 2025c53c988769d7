"""The marks of a run's resources in a cloud: names and tags with the run's id."""

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
"""The tag of all stacks and images of runs, besides the tag of the run."""

_PREFIX = "hotplate-"
_NAME = re.compile(_PREFIX + r"(\d{8}t\d{6}z-[0-9a-f]{6}-[0-9a-f]{8})(?:-\d+)?")
_TIME = "%Y%m%dt%H%M%Sz"


@dataclass(frozen=True)
class Run:
    """One run.

    :param id: the time of its start, a hash of its host's name, and a random part.

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
        """Return the run whose resource has that name or tag, None for any other name.

        In a run of several stacks, each stack's name ends in a number.
        """
        match = _NAME.fullmatch(name)
        return cls(match[1]) if match else None

    @property
    def name(self) -> str:
        """Return the name of its stack, its image and its key pair, which is also its tag."""
        return f"{_PREFIX}{self.id}"

    @property
    def tags(self) -> list[str]:
        """Return the tags of its stack and its image."""
        return [TAG, self.name]

    @property
    def is_of_this_host(self) -> bool:
        """Return whether it began on this host, by its name."""
        return self.id.split("-")[1] == _host()

    @property
    def age(self) -> float:
        """Return the seconds since it began."""
        return time.time() - calendar.timegm(time.strptime(self.id.split("-")[0], _TIME))

    @contextlib.contextmanager
    def going_on(self, folder: Path) -> Iterator[None]:
        """Mark it as running on this host, until the block ends or this process is killed.

        :param folder: the folder of this host's runs.
        """
        mine = folder / self.id
        with locks.exclusive(mine, make=True):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    mine.rmdir()

    def goes_on(self, folder: Path) -> bool:
        """Return True when it is running on this host."""
        try:
            with locks.exclusive(folder / self.id, wait=False):
                return False
        except locks.InUse:
            return True
        except OSError:
            return False


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
