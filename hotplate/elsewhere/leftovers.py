"""Find the resources of runs in a cloud by tags and names, and remove them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hotplate.elsewhere.marks import TAG, Run
from hotplate.elsewhere.os_cloud import OsCloud, one_line
from hotplate.errors import HostError, HotplateError
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

STACK, KEY_PAIR, IMAGE = "stack", "key pair", "image"
ORDER = (STACK, KEY_PAIR, IMAGE)
"""Servers are removed before the image that they boot."""

DELETE_SECONDS = 600.0
TRIES = 3
"""The number of attempts to delete a stack."""


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

    def gone(_: bool) -> bool | None:
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
        return None

    delete()
    retry(gone, Deadline(DELETE_SECONDS, "the stack to be deleted"), every=1.0)
