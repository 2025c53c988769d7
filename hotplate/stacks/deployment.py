"""One deployment on a server that is already there: what a test of a hook does.

Each is a stack of its own, with one config and one deployment, so that what the guest gets is
Heat's own to the byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotplate.cloud.cloud import Cloud
from hotplate.events.log import Event
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import DeadlineExceeded

SECONDS = 300.0
RESOURCE = "deployment"


def input_type(value: object) -> str:
    """Heat's name for the type of an input that has this value."""
    if isinstance(value, bool):
        return "Boolean"
    if isinstance(value, (int, float)):
        return "Number"
    if isinstance(value, (dict, list)):
        return "Json"
    return "String"


def make_template(
    server: str,
    *,
    group: str,
    config: Any,
    inputs: Mapping[str, Any] | None = None,
    outputs: Sequence[str | Mapping[str, Any]] = (),
    options: Mapping[str, Any] | None = None,
    transport: str = "CFN_SIGNAL",
    actions: Sequence[str] = ("CREATE", "UPDATE"),
    name: str = "",
) -> Template:
    """The template of a stack with one deployment.

    :param server: Nova's id of the server.
    :param group: of the config; ``component`` takes a list of configs with their actions.
    :param config: text, or a map for a group that takes one.
    """
    values = dict(inputs or {})
    properties: dict[str, Any] = {
        "inputs": [{"name": key, "type": input_type(value)} for key, value in values.items()],
        "outputs": [{"name": each} if isinstance(each, str) else dict(each) for each in outputs],
        "options": dict(options or {}),
    }
    deployment = "OS::Heat::SoftwareDeployment"
    if group == "component":
        kind = "OS::Heat::SoftwareComponent"
        properties["configs"] = config
    elif isinstance(config, Mapping):
        kind, deployment = "OS::Heat::StructuredConfig", "OS::Heat::StructuredDeployment"
        properties |= {"group": group, "config": dict(config)}
    else:
        kind = "OS::Heat::SoftwareConfig"
        properties |= {"group": group, "config": config}
    deployed: dict[str, Any] = {
        "config": {"get_resource": "config"},
        "server": server,
        "signal_transport": transport,
        "input_values": values,
    }
    if group != "component":
        deployed["actions"] = list(actions)
    if name:
        deployed["name"] = name
    return Template(
        source=f"a deployment of the group {group}",
        template={
            "heat_template_version": "2018-08-31",
            "resources": {
                "config": {"type": kind, "properties": properties},
                RESOURCE: {"type": deployment, "properties": deployed},
            },
        },
    )


class Deployment:
    """A deployment that was begun on a server; its actions return at once.

    ::

        done = server.deploy(group="script", config="#!/bin/sh\\nexit 3\\n").wait()
        assert done.status == "FAILED"
        assert done.outputs["deploy_status_code"] == 3
    """

    def __init__(self, cloud: Cloud, server: str, **arguments: Any) -> None:
        self.server = server
        self._cloud = cloud
        self._heat = cloud.heat()
        self._arguments = arguments
        self.stack = Stack.create(cloud, make_template(server, **arguments))

    def update(self, **arguments: Any) -> Deployment:
        """Change what is deployed; what is not given stays as it was."""
        self._arguments |= arguments
        self.stack.update(make_template(self.server, **self._arguments))
        return self

    def suspend(self) -> Deployment:
        """Suspend it, which a ``component`` may have a config for."""
        self.stack.suspend()
        return self

    def resume(self) -> Deployment:
        """Resume it."""
        self.stack.resume()
        return self

    def delete(self) -> Deployment:
        """Delete it."""
        self.stack.delete()
        return self

    def wait(self, *, seconds: float = SECONDS) -> Deployment:
        """Wait for the end of the last action.

        :raises DeadlineExceeded: when it has not ended by then.
        """
        try:
            self.stack.wait(seconds=seconds)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error} ({self.group})") from error
        return self

    @property
    def group(self) -> str:
        """The hook's group."""
        return str(self._arguments.get("group", ""))

    @property
    def status(self) -> str:
        """``IN_PROGRESS``, ``COMPLETE`` or ``FAILED``, as of the last :meth:`wait`."""
        return self.stack.state

    @property
    def reason(self) -> str:
        """Heat's words about the last action."""
        return self.stack.reason

    @property
    def outputs(self) -> dict[str, Any]:
        """What the hook sent back: the outputs, ``deploy_stdout``, ``deploy_stderr`` and
        ``deploy_status_code``."""
        return dict(self._shown().output_values or {})

    @property
    def config_id(self) -> str:
        """The id by which the guest knows it; a new one with each action."""
        return str(self._shown().config_id)

    @property
    def signals(self) -> list[Event]:
        """The signals that came for it, as requests in the event log."""
        return [
            event
            for event in self._cloud.events
            if event.kind == "request"
            and event.detail.get("side") == "guest"
            and event.detail.get("method") in ("POST", "PUT")
            and f"/{self.stack.name}/" in str(event.detail.get("path", ""))
        ]

    def forget(self) -> None:
        """Take it away from its server, whatever state it is in; for the end of a test."""
        self.stack.forget()

    def __str__(self) -> str:
        return f"{self.group}: {self.stack}"

    def __repr__(self) -> str:
        """What ``assert ..., done`` shows: pytest shows the representation."""
        return f"<Deployment {self}>"

    def _shown(self) -> Any:
        physical = self.stack.resource(RESOURCE).physical_resource_id
        return self._heat.software_deployments.get(physical)
