"""The resources of a stack and of those nested in it, as Heat lists them for a client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hotplate.events.classify import STACK_TYPE
from hotplate.events.kinds import StackResource

SERVER_TYPES = frozenset({"OS::Nova::Server", "AWS::EC2::Instance"})
MOST_NESTED = 10


@dataclass(frozen=True)
class Resource:
    """One resource.

    :param stack: the id of its stack.
    :param physical: its id in its service.
    """

    stack: str
    name: str
    type: str
    physical: str


class StackTree:
    """The resources of one stack, by which deployments are named.

    See :func:`hotplate.cloud.expected_deployments.deployments`.

    :param name: of the stack, and ``identity`` its id.
    """

    def __init__(self, name: str, identity: str) -> None:
        self._name = name
        self._id = identity
        self._resources: dict[tuple[str, str], Resource] = {}
        self._within: dict[str, tuple[str, str]] = {}

    def learn(self, listed: Iterable[Any]) -> None:
        """Add the answer of ``resources.list`` with ``nested_depth``."""
        for each in listed:
            links = {link["rel"]: link["href"] for link in each.links}
            stack = stack_of(links.get("stack", "")) or self._id
            made = Resource(
                stack, each.resource_name, each.resource_type, each.physical_resource_id or ""
            )
            self._resources[stack, made.name] = made
            if nested := stack_of(links.get("nested", "")):
                self._within[nested] = (stack, made.name)

    @property
    def servers(self) -> list[Resource]:
        """Return the existing servers."""
        return [
            each for each in self._resources.values() if each.type in SERVER_TYPES and each.physical
        ]

    def label(self, stack_id: str, resource: str) -> str:
        """Return the name of a resource, with the names of those that it is nested in."""
        words = [resource]
        while stack_id in self._within and len(words) <= MOST_NESTED:
            stack_id, outer = self._within[stack_id]
            words.insert(0, outer)
        return ".".join(words)

    def change(self, event: Any) -> StackResource:
        """Return the change in an event of Heat's API.

        Events have no types; those are taken from the resources (heat/api/openstack/v1/events.py).
        """
        links = {link["rel"]: link["href"] for link in event.links}
        stack = stack_of(links.get("stack", "")) or self._id
        name = event.resource_name
        whole = event.physical_resource_id == stack
        resource = self._resources.get((stack, name))
        action, _, status = event.resource_status.partition("_")
        return StackResource(
            stack=links["stack"].split("/")[-2] if "stack" in links else self._name,
            stack_id=stack,
            resource=name,
            label=self.label(stack, name),
            type=STACK_TYPE if whole else resource.type if resource else "",
            action=action,
            status=status,
            reason=event.resource_status_reason or "",
        )


def stack_of(href: str) -> str:
    """Return the id of the stack in a URL of Heat's, "" when it has none.

    >>> stack_of("http://heat/v1/project/stacks/web/1234")
    '1234'
    """
    before, _, rest = href.partition("/stacks/")
    parts = rest.split("/")
    return parts[1] if before and len(parts) > 1 else ""
