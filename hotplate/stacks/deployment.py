"""One deployment on a running server, for tests of a hook.

Each is a stack of its own, with one config and one deployment, so that the guest gets Heat's own
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotplate.events.event import Event
from hotplate.events.kinds import ServiceRequest
from hotplate.hookkit.run import heat_type
from hotplate.stacks.stack import HeatCloud, Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import DeadlineExceeded

SECONDS = 300.0
RESOURCE = "deployment"

#: The config of a hook: text, a map, or the configs of a ``component``.
Config = str | Mapping[str, object] | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class DeploymentSpec:
    """The specification of a deployment, as a test words it.

    >>> spec = DeploymentSpec(group="script", config="true", inputs={"retries": 3})
    >>> spec.template("SERVER").template["resources"]["config"]["properties"]["inputs"]
    [{'name': 'retries', 'type': 'Number'}]

    :param group: of the config; ``component`` takes a list of configs with their actions.
    :param config: text, or a map for a group that takes one.
    :param inputs: values by name; their types are derived from the values.
    :param outputs: names, or Heat's maps with ``name`` and ``error_output``.
    :param options: of the config, for the hook.
    :param transport: Heat's ``signal_transport``.
    :param actions: the stack actions at which it is deployed; not for a ``component``.
    :param name: of the deployment; Heat makes one when it is "".
    """

    group: str
    config: Config
    inputs: Mapping[str, object] = field(default_factory=dict)
    outputs: Sequence[str | Mapping[str, object]] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    transport: str = "CFN_SIGNAL"
    actions: Sequence[str] = ("CREATE", "UPDATE")
    name: str = ""

    def template(self, server: str) -> Template:
        """Return the template of a stack with this one deployment.

        :param server: Nova's id of the server.
        """
        return Template(
            source=f"a deployment of the group {self.group}",
            template={
                "heat_template_version": "2018-08-31",
                "resources": {
                    "config": self._config_resource(),
                    RESOURCE: self._deployment_resource(server),
                },
            },
        )

    @property
    def _is_structured(self) -> bool:
        return self.group != "component" and isinstance(self.config, Mapping)

    def _config_resource(self) -> dict[str, object]:
        properties: dict[str, object] = {
            "inputs": [{"name": key, "type": heat_type(each)} for key, each in self.inputs.items()],
            "outputs": [
                {"name": each} if isinstance(each, str) else dict(each) for each in self.outputs
            ],
            "options": dict(self.options),
        }
        if self.group == "component":
            properties["configs"] = self.config
            return {"type": "OS::Heat::SoftwareComponent", "properties": properties}
        config = dict(self.config) if isinstance(self.config, Mapping) else self.config
        properties |= {"group": self.group, "config": config}
        kind = "StructuredConfig" if self._is_structured else "SoftwareConfig"
        return {"type": f"OS::Heat::{kind}", "properties": properties}

    def _deployment_resource(self, server: str) -> dict[str, object]:
        properties: dict[str, object] = {
            "config": {"get_resource": "config"},
            "server": server,
            "signal_transport": self.transport,
            "input_values": dict(self.inputs),
        }
        # Each config of a component has its own actions.
        if self.group != "component":
            properties["actions"] = list(self.actions)
        if self.name:
            properties["name"] = self.name
        kind = "StructuredDeployment" if self._is_structured else "SoftwareDeployment"
        return {"type": f"OS::Heat::{kind}", "properties": properties}


class Deployment:
    r"""A deployment started on a server; its actions return at once.

    ``stack`` and ``tags`` are the name and the tags of its stack; by default it has a number.

    ::

        done = server.deploy(group="script", config="#!/bin/sh\nexit 3\n").wait()
        assert done.status == "FAILED"
        assert done.outputs["deploy_status_code"] == 3
    """

    def __init__(
        self,
        cloud: HeatCloud,
        server: str,
        spec: DeploymentSpec,
        *,
        stack: str = "",
        tags: Iterable[str] = (),
    ) -> None:
        self.server = server
        self.spec = spec
        self._cloud = cloud
        self._heat = cloud.heat()
        self.stack = Stack.create(cloud, spec.template(server), name=stack, tags=tags)

    def update(self, **changes: Any) -> Deployment:
        """Change the deployment; fields that are not given stay as they were.

        >>> done = server.deploy(group="script", config="true", transport="NO_SIGNAL").wait()
        >>> done.update(config="uptime").wait().status
        'COMPLETE'

        :param changes: fields of :class:`DeploymentSpec`, as ``server.deploy`` takes them.
        :raises TypeError: for an unknown field.
        :raises TemplateError: when Heat refuses it.
        """
        self.spec = replace(self.spec, **changes)
        self.stack.update(self.spec.template(self.server))
        return self

    def suspend(self) -> Deployment:
        """Suspend it; a ``component`` may have a config for that action.

        >>> done = server.deploy(group="script", config="true", transport="NO_SIGNAL").wait()
        >>> done.suspend().wait().status
        'COMPLETE'
        >>> done.resume().wait().status
        'COMPLETE'
        """
        self.stack.suspend()
        return self

    def resume(self) -> Deployment:
        """Resume it; see :meth:`suspend`."""
        self.stack.resume()
        return self

    def delete(self) -> Deployment:
        """Delete it.

        >>> done = server.deploy(group="script", config="true", transport="NO_SIGNAL").wait()
        >>> done.delete().wait().status
        'COMPLETE'
        """
        self.stack.delete()
        return self

    def wait(self, *, seconds: float = SECONDS) -> Deployment:
        """Wait for the end of the last action, and return the deployment.

        >>> done = server.deploy(group="script", config="true", transport="NO_SIGNAL").wait()
        >>> done.status, done.stack.status
        ('COMPLETE', 'CREATE_COMPLETE')

        :param seconds: those of a host that is not slow.
        :raises DeadlineExceeded: when it has not ended by then.
        :raises HostError: when the host's disk is full.
        :raises MachineLostError: when a machine went away by itself meanwhile.
        :raises SubjectError: when the kernel of a guest panicked meanwhile.
        """
        try:
            self.stack.wait(seconds=seconds)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error} ({self.group})") from error
        return self

    @property
    def group(self) -> str:
        """Return the hook's group."""
        return self.spec.group

    @property
    def status(self) -> str:
        """Return ``IN_PROGRESS``, ``COMPLETE`` or ``FAILED``, as of the last :meth:`wait`."""
        return self.stack.state

    @property
    def reason(self) -> str:
        """Return Heat's reason for the status of the last action."""
        return self.stack.reason

    @property
    def outputs(self) -> dict[str, Any]:
        """Return the outputs that the hook sent back, ``deploy_stdout`` and the like included."""
        return dict(self._shown().output_values or {})

    @property
    def config_id(self) -> str:
        """Return the id by which the guest knows it; each action makes a new one."""
        return str(self._shown().config_id)

    @property
    def signals(self) -> list[Event]:
        """Return the signals received for it, as requests in the event log."""
        events = self._cloud.events
        # Heat may end the stack before the request with the last signal has been answered.
        events.settle()
        return [event for event in events if self._is_signal(ServiceRequest.of(event))]

    def _is_signal(self, asked: ServiceRequest | None) -> bool:
        return (
            asked is not None
            and asked.side == "guest"
            and asked.method in ("POST", "PUT")
            and f"/{self.stack.name}/" in (asked.path or "")
        )

    def forget(self) -> None:
        """Remove it from its server, whatever its state; for the end of a test."""
        self.stack.forget()

    def __str__(self) -> str:
        return f"{self.group}: {self.stack}"

    def __repr__(self) -> str:
        """Return the text that pytest shows for ``assert ..., done``."""
        return f"<Deployment {self}>"

    def _shown(self) -> Any:
        return self._heat.software_deployments.get(self.stack.physical_id(RESOURCE))
