"""The resources of runs in a cloud: marked by names and tags, found by them, and removed."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hotplate import locks
from hotplate.elsewhere.os_cloud import OsCloud, one_line
from hotplate.errors import HostError, HotplateError
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

#: The tag of all stacks and images of runs, besides the tag of the run.
TAG = "hotplate-test"

#: Short: Heat names a server ``RUN-RESOURCE-`` and 12 characters more, and of its name it keeps 53
#: (its option ``max_server_name_length``), which are the guest's host name. So a resource's name of
#: up to 16 characters stays whole.
_PREFIX = "hotplate-"
_NAME = re.compile(_PREFIX + r"([0-9a-f]{14})(?:-\d+)?")

#: 1 January 2026, from which an id counts minutes: six digits last for 31 years.
_BEGIN = 1767225600


@dataclass(frozen=True)
class Run:
    """One run.

    :param id: in hexadecimal digits: the minute of its start (6), a hash of its host's name (4),
        and a random part (4).

    >>> run = Run("0000b70a1b0123")
    >>> run.name
    'hotplate-0000b70a1b0123'
    >>> Run.of(run.name) == run, Run.of("hotplate-of-mine")
    (True, None)
    """

    id: str

    @classmethod
    def begin(cls) -> Self:
        """Return a new run of this host."""
        minutes = int(time.time() - _BEGIN) // 60
        return cls(f"{minutes:06x}{_host()}{secrets.token_hex(2)}")

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
        return self.id[6:10] == _host()

    @property
    def age(self) -> float:
        """Return the seconds since the minute in which it began."""
        return time.time() - (_BEGIN + 60 * int(self.id[:6], 16))

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
        return locks.is_held(folder / self.id)


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


STACK, KEY_PAIR, IMAGE = "stack", "key pair", "image"
#: Servers are removed before the image that they boot.
ORDER = (STACK, KEY_PAIR, IMAGE)

DELETE_SECONDS = 600.0
#: The number of attempts to delete a stack.
TRIES = 3


@dataclass(frozen=True)
class Leftover:
    """One resource of a run.

    :param kind: one of :data:`ORDER`.
    """

    kind: str
    id: str
    run: Run

    def __str__(self) -> str:
        return f'{self.kind} "{self.run.name}"'


def find(cloud: OsCloud) -> list[Leftover]:
    """Return all resources of runs in a project, in the order of their removal.

    A resource with the tag, but a name that no run gives, is not ours.

    :raises HotplateError: when the cloud does not answer.
    """
    with cloud.translated("its stacks"):
        stacks = [*cloud.heat().stacks.list(tags=TAG, show_hidden=True)]
    with cloud.translated("its key pairs"):
        pairs = [*cloud.sdk.compute.keypairs()]
    with cloud.translated("its images"):
        images = [*cloud.sdk.image.images(tag=TAG, owner=cloud.sdk.current_project_id)]
    named = [
        *((STACK, each.id, each.stack_name) for each in stacks),
        *((KEY_PAIR, each.name, each.name) for each in pairs),
        *((IMAGE, each.id, each.name) for each in images),
    ]
    return [
        Leftover(kind, str(identity), run)
        for kind, identity, name in named
        if (run := Run.of(name or "")) is not None
    ]


def of(cloud: OsCloud, run: Run) -> list[Leftover]:
    """Return the resources of one run."""
    return [each for each in find(cloud) if each.run == run]


def remove(
    cloud: OsCloud, leftovers: Iterable[Leftover], *, say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Remove resources, and wait until they are gone.

    :param say: called with each removed resource.
    :return: a sentence for each resource that could not be removed.
    """
    problems: list[str] = []
    failed: set[Run] = set()
    for each in sorted(leftovers, key=lambda one: ORDER.index(one.kind)):
        # An image is in use while its stack has servers.
        if each.run in failed and each.kind == IMAGE:
            problems.append(f"the {each} was left, as servers may use it")
            continue
        try:
            _remove(cloud, each)
            say(f"removed: {each}")
        except (HotplateError, DeadlineExceeded) as error:
            failed.add(each.run)
            message = error.message if isinstance(error, HotplateError) else str(error)
            problems.append(f"the {each} could not be removed: {message}")
    return problems


def _remove(cloud: OsCloud, leftover: Leftover) -> None:
    with cloud.translated(f"removing the {leftover}"):
        if leftover.kind == STACK:
            _remove_stack(cloud, leftover.id)
        elif leftover.kind == KEY_PAIR:
            cloud.sdk.compute.delete_keypair(leftover.id, ignore_missing=True)
        else:
            cloud.sdk.image.delete_image(leftover.id, ignore_missing=True)


def _remove_stack(cloud: OsCloud, identity: str) -> None:
    from heatclient import exc

    heat = cloud.heat()
    tries = 0

    def delete() -> None:
        nonlocal tries
        tries += 1
        with contextlib.suppress(exc.HTTPNotFound):
            heat.stacks.delete(identity)

    def gone(_: bool) -> bool:
        try:
            stack = heat.stacks.get(identity, resolve_outputs=False)
        except exc.HTTPNotFound:
            return True
        if stack.stack_status == "DELETE_COMPLETE":
            return True
        if stack.stack_status == "DELETE_FAILED":
            if tries >= TRIES:
                raise HostError(f"Heat says {one_line(stack.stack_status_reason)}")
            delete()
        return False

    delete()
    retry(gone, Deadline(DELETE_SECONDS, "the stack to be deleted"), every=1.0)
