"""Find out whether a cloud has no host for a server because of its image's own properties."""

from __future__ import annotations

import json
from typing import Any

from hotplate.elsewhere import leftovers
from hotplate.elsewhere.leftovers import STACK, Leftover
from hotplate.elsewhere.project import Project
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import Deadline, retry

#: Nova's message for everything that no host fits: room, the image's properties, a zone.
NO_HOST = "No valid host was found"

#: The properties of an uploaded image (:mod:`hotplate.elsewhere.images`) that hosts have to fit.
PROPERTIES = ("architecture", "hw_firmware_type")

PATCH_TYPE = "application/openstack-images-v2.1-json-patch"
TRY_SECONDS = 180.0


def misfits(project: Project, *, image: str, flavor: str) -> list[str]:
    """Return the properties of an uploaded image for which there is no host, as ``NAME=VALUE``.

    Nova tells an ordinary user nothing more than :data:`NO_HOST`. So two servers are tried, which
    differ in these properties only; the image gets them back.

    :param image: the id of the run's own image.
    :param flavor: the name or id of the flavor of the server that found no host.
    :return: none when they are not the reason.
    :raises HotplateError: and DeadlineExceeded, when that cannot be found out.
    """
    cloud = project.cloud
    with cloud.translated("the image"):
        shown = cloud.sdk.image.get(f"/images/{image}").json()
    own = {name: shown[name] for name in PROPERTIES if shown.get(name)}
    if not own or _finds_host(project, 1, image=image, flavor=flavor):
        return []
    _patch(project, image, [{"op": "remove", "path": f"/{name}"} for name in own])
    try:
        found = _finds_host(project, 2, image=image, flavor=flavor)
    finally:
        back = [{"op": "add", "path": f"/{name}", "value": value} for name, value in own.items()]
        _patch(project, image, back)
    return [f"{name}={value}" for name, value in own.items()] if found else []


def _finds_host(project: Project, number: int, *, image: str, flavor: str) -> bool:
    """Make a server without networks, which boots anywhere, and remove it."""
    properties = {"image": image, "flavor": flavor, "networks": [{"allocate_network": "none"}]}
    server = {"type": "OS::Nova::Server", "properties": properties}
    body = {"heat_template_version": "2018-08-31", "resources": {"server": server}}
    cloud, run = project.cloud, project.run
    template = Template(source="a server that looks for a host", template=body)
    with cloud.translated("a stack"):
        stack = Stack.create(cloud, template, name=f"{run.name}-{number}", tags=run.tags)

    def ends(_: bool) -> set[str]:
        # The first end, in events: the stack goes on to try (action_retry_limit, by default 5).
        with cloud.translated("the stack's events"):
            states = {
                each.resource_status
                for each in cloud.heat().events.list(stack.id)
                if each.resource_name == "server"
            }
        return states & {"CREATE_COMPLETE", "CREATE_FAILED"}

    try:
        seen = retry(ends, Deadline(TRY_SECONDS, "a server that looks for a host"), every=1.0)
        return "CREATE_COMPLETE" in seen
    finally:
        leftovers.remove(cloud, [Leftover(STACK, stack.id, run)])


def _patch(project: Project, image: str, changes: list[dict[str, Any]]) -> None:
    from openstack import exceptions

    with project.cloud.translated("a change of the image"):
        answer = project.cloud.sdk.image.patch(
            f"/images/{image}",
            headers={"Content-Type": PATCH_TYPE},
            data=json.dumps(changes),
        )
        exceptions.raise_from_response(answer)
