"""One stack of the embedded Heat, as a client sees it: begin an action, wait for its end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol, Self

from hotplate.errors import (
    HostError,
    HotplateError,
    MachineLostError,
    Outcome,
    SubjectError,
    TemplateError,
    error_of,
)
from hotplate.events import classify
from hotplate.events.classify import STACK_TYPE
from hotplate.events.event import Event
from hotplate.events.kinds import (
    DiskError,
    GuestPanic,
    MachineExit,
    ServerBoot,
    StackResource,
    StartFault,
)
from hotplate.events.log import EventLog
from hotplate.stacks.template import Template
from hotplate.timing.deadline import GuestDeadline, retry

SECONDS = 600.0
HTTP_SERVER_ERROR = 500
BEGIN_SECONDS = 60.0
#: Heat needs milliseconds to store the end of an action and to release the stack.
STORE_SECONDS = 10.0

SERVER_TYPE = "OS::Nova::Server"
MAX_NESTED = 10

#: The input by which Heat gives a guest the password that it signals with.
SIGNAL_PASSWORD_INPUT = "deploy_password"  # noqa: S105 - the name of an input

_numbers = itertools.count(1)


class HeatCloud(Protocol):
    """A cloud with a Heat."""

    @property
    def events(self) -> EventLog:
        """Return the events of its stacks."""
        ...

    def heat(self) -> Any:
        """Return python-heatclient (v1)."""
        ...


class Stack:
    """A stack; its actions return at once, :meth:`wait` waits for the last one.

    >>> stack = Stack.create(cloud, load(folder / "greeting.yaml"), name="web")
    >>> stack.wait().status
    'CREATE_COMPLETE'
    >>> stack.outputs
    {'greeting': 'hello'}
    """

    def __init__(self, cloud: HeatCloud, name: str, template: Template) -> None:
        self.name = name
        self.id = ""
        self.template = template
        self.reason = ""
        self._cloud = cloud
        self._heat = cloud.heat()
        self._action = "CREATE"
        self._state = "IN_PROGRESS"
        self._since = len(cloud.events)

    @classmethod
    def create(
        cls, cloud: HeatCloud, template: Template, *, name: str = "", tags: Iterable[str] = ()
    ) -> Self:
        """Begin to create a stack.

        >>> Stack.create(cloud, load(folder / "greeting.yaml"), name="another").status
        'CREATE_IN_PROGRESS'

        :param name: by default ``stack-N``.
        :param tags: by which it can be found.
        :raises TemplateError: when Heat refuses the template.
        """
        self = cls(cloud, name or f"stack-{next(_numbers)}", template)
        arguments = template.create_arguments()
        # Heat's API takes them as one text.
        if words := ",".join(tags):
            arguments["tags"] = words

        def begin() -> None:
            # No rollback: the resources of a failed stack stay, to be looked into.
            made = self._heat.stacks.create(
                stack_name=self.name, disable_rollback=True, **arguments
            )
            self.id = str(made["stack"]["id"])

        self._ask(begin)
        return self

    def update(
        self, template: Template | None = None, parameters: Mapping[str, object] | None = None
    ) -> Stack:
        """Update the stack: to another template, or with other parameters.

        >>> stack.update(parameters={"greeting": "good night"}).wait().status
        'UPDATE_COMPLETE'
        >>> stack.outputs["greeting"]
        'good night'

        :param parameters: by name; those not given stay as they were.
        :raises TemplateError: when Heat refuses it.
        """
        # Heat takes the default of a parameter that is not sent: the earlier values are sent again.
        given = template or self.template
        new = replace(given, parameters={**given.parameters, **(parameters or {})})
        arguments = new.create_arguments()
        self._act("UPDATE", lambda: self._heat.stacks.update(self._identity, **arguments))
        # Only after Heat has accepted it.
        self.template = new
        return self

    def suspend(self) -> Stack:
        """Suspend it.

        >>> stack.suspend().wait().status
        'SUSPEND_COMPLETE'
        """
        self._act("SUSPEND", lambda: self._heat.actions.suspend(self._identity))
        return self

    def resume(self) -> Stack:
        """Resume it after :meth:`suspend`.

        >>> _ = stack.suspend().wait()
        >>> stack.resume().wait().status
        'RESUME_COMPLETE'
        """
        self._act("RESUME", lambda: self._heat.actions.resume(self._identity))
        return self

    def delete(self) -> Stack:
        """Delete it.

        >>> stack.delete().wait().status
        'DELETE_COMPLETE'
        """
        self._act("DELETE", lambda: self._heat.stacks.delete(self._identity))
        return self

    def forget(self) -> None:
        """Delete it, whatever its state, and wait until that has begun; for the end of a test.

        Heat then stops any earlier action: it creates nothing more.
        """
        if (self._action, self._state) == ("DELETE", "COMPLETE"):
            return
        # Heat refuses to delete a stack that is gone already.
        with contextlib.suppress(TemplateError):
            self.delete()
            self._cloud.events.wait(
                lambda event: (own := self._own(event)) is not None and own.action == "DELETE",
                seconds=BEGIN_SECONDS,
                since=self._since,
            )

    def wait(self, *, seconds: float = SECONDS) -> Stack:
        """Wait for the end of the last action, and return the stack.

        >>> stack.wait(seconds=60).state
        'COMPLETE'

        :param seconds: those of a host that is not slow.
        :raises DeadlineExceeded: when it has not ended by then.
        :raises HostError: when the host's disk is full, or it could not start a server.
        :raises MachineLostError: when a machine went away by itself during the wait.
        :raises SubjectError: when the kernel of a guest panicked meanwhile.
        :raises ThreadFault: when a thread of hotplate's own failed meanwhile.
        """
        deadline = GuestDeadline(seconds, f'{self._action} of the stack "{self.name}"')

        def decisive(event: Event) -> bool:
            ends = (
                self._end,
                StartFault.of,
                classify.is_loss,
                classify.is_stop,
                classify.is_panic,
            )
            return any(each(event) for each in ends)

        events = self._cloud.events
        # The deadline may be stretched for a slow host: check() decides whether the time is over.
        while (ended := events.wait(decisive, seconds=deadline.left, since=self._since)) is None:
            deadline.check()
        if fault := StartFault.of(ended):
            # Heat reports it as a server that failed.
            raise error_of(Outcome(fault.outcome), fault.message)
        if machine := MachineExit.of(ended):
            why = machine.message or f"QEMU ended with {machine.status}"
            raise MachineLostError(f"the machine was lost while {deadline.what} ran: {why}")
        if error := DiskError.of(ended):
            why = "the host's disk is full" if error.full else error.message
            raise HostError(f"QEMU stopped the guest while {deadline.what} ran: {why}")
        if GuestPanic.of(ended):
            # A halted guest does nothing more, however long we wait.
            raise SubjectError(
                f'the kernel of the server "{self._name_of(ended.server)}" panicked while '
                f"{deadline.what} ran",
                hint="see the end of its console.log",
            )
        if end := self._end(ended):
            self._wait_until_stored()
            self._state, self.reason = end.status, end.reason
        return self

    def _wait_until_stored(self) -> None:
        """Wait until Heat shows the end of an action, which it stores after its event."""
        from heatclient import exc

        def stored(_: bool) -> bool:
            try:
                shown = self._heat.stacks.get(self._identity, resolve_outputs=False)
            except exc.HTTPNotFound:
                return True
            return bool(shown.stack_status != f"{self._action}_IN_PROGRESS")

        what = f'{self._action} of the stack "{self.name}" to be stored'
        retry(stored, GuestDeadline(STORE_SECONDS, what), every=0.02)

    @property
    def status(self) -> str:
        """Return Heat's status, such as ``CREATE_COMPLETE``, as of the last :meth:`wait`."""
        return f"{self._action}_{self._state}"

    @property
    def state(self) -> str:
        """Return ``IN_PROGRESS``, ``COMPLETE`` or ``FAILED``, as of the last :meth:`wait`."""
        return self._state

    @property
    def outputs(self) -> dict[str, Any]:
        """Return the stack's current outputs."""
        stack = self._heat.stacks.get(self._identity)
        return {each["output_key"]: each.get("output_value") for each in stack.outputs}

    def output_errors(self) -> dict[str, str]:
        """Return the outputs that Heat cannot resolve, with its reasons; their values are None."""
        stack = self._heat.stacks.get(self._identity)
        return {
            each["output_key"]: str(each["output_error"])
            for each in stack.outputs
            if each.get("output_error")
        }

    def failed_outputs(self, servers: Iterable[str]) -> dict[str, dict[str, object]]:
        """Return the outputs of each failed deployment, by the id that the guest knows it by.

        :param servers: the Nova ids of the servers.
        """
        outputs = {}
        for server in servers:
            for each in self._heat.software_deployments.list(server_id=server):
                if each.status == "FAILED" and each.output_values:
                    outputs[str(each.config_id)] = dict(each.output_values)
        return outputs

    def secrets(self, servers: Iterable[str]) -> set[str]:
        """Return the secret values: hidden parameters, and passwords for signals.

        :param servers: the Nova ids of the servers.
        """
        secrets = self.template.hidden_values()
        for server in servers:
            for config in self._heat.software_deployments.metadata(server_id=server):
                inputs = config.get("inputs") or ()
                secrets |= {
                    str(each["value"]) for each in inputs if each["name"] == SIGNAL_PASSWORD_INPUT
                }
        return secrets

    def unsent_outputs(self, servers: Iterable[str]) -> dict[str, list[str]]:
        """Return the outputs that a complete deployment declares but did not send, by config id.

        :param servers: the Nova ids of the servers.
        """
        from heatclient import exc

        unsent = {}
        for server in servers:
            for each in self._heat.software_deployments.list(server_id=server):
                # The stack may be replacing it at this moment.
                with contextlib.suppress(exc.HTTPNotFound):
                    if each.status == "COMPLETE" and (names := self._unsent(each)):
                        unsent[str(each.config_id)] = names
        return unsent

    def _unsent(self, deployment: Any) -> list[str]:
        config = self._heat.software_configs.get(deployment.config_id)
        inputs = {item["name"]: item.get("value") for item in config.inputs or []}
        if inputs.get("deploy_signal_transport") == "NO_SIGNAL":
            return []
        sent = deployment.output_values or {}
        # Outputs with Heat's error_output are sent only when there is an error.
        names = [item["name"] for item in config.outputs or [] if not item.get("error_output")]
        return [name for name in names if name not in sent]

    def resource(self, name: str) -> Any:
        """Return a resource of the stack, as python-heatclient shows it."""
        return self._heat.resources.get(self._identity, name)

    def physical_id(self, name: str) -> str:
        """Return the id of the object of a resource, without resolving the resource's attributes.

        :raises KeyError: when the stack has no such resource.
        """
        listed = self._heat.resources.list(self._identity)
        return {each.resource_name: str(each.physical_resource_id) for each in listed}[name]

    def servers(self) -> list[tuple[str, str]]:
        """Return its current servers, those of nested stacks included: resource and Nova id.

        >>> made = Stack.create(cloud, load(folder / "server.yaml")).wait()
        >>> [resource for resource, _ in made.servers()]
        ['server']
        """
        resources = self._heat.resources.list(self._identity, nested_depth=MAX_NESTED)
        return [
            (each.resource_name, each.physical_resource_id)
            for each in resources
            if each.resource_type == SERVER_TYPE and each.physical_resource_id
        ]

    def __str__(self) -> str:
        return f'stack "{self.name}": {self.status} {self.reason}'.rstrip()

    def __repr__(self) -> str:
        """Return the text that pytest shows for ``assert ..., made``."""
        return f"<{self}>"

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _identity(self) -> str:
        """Name and id, which Heat's API answers at once; to a name it answers with a redirect."""
        return f"{self.name}/{self.id}"

    def _act(self, action: str, call: Callable[[], object]) -> None:
        """Ask Heat for an action; again where it has not yet released the stack after the last."""
        from heatclient import exc

        ended = self._state != "IN_PROGRESS"
        # Before the request, whose first events may come at once.
        self._action, self._state, self.reason = action, "IN_PROGRESS", ""
        self._since = len(self._cloud.events)

        def accepted(last_try: bool) -> bool:
            try:
                call()
            except exc.HTTPConflict as error:
                if last_try or not ended or "ActionInProgress" not in str(error.error):
                    raise
                return False
            return True

        what = f'the stack "{self.name}" to be released'
        self._ask(lambda: retry(accepted, GuestDeadline(STORE_SECONDS, what), every=0.02))

    def _name_of(self, server: str) -> str:
        """Return the name of a server, or its id when this log has no boot of it."""
        boots = (ServerBoot.of(each) for each in self._cloud.events if each.server == server)
        return next((boot.name for boot in boots if boot), server)

    def _own(self, event: Event) -> StackResource | None:
        """Return the change of the stack as a whole that an event reports, if any."""
        change = StackResource.of(event)
        own = change is not None and (change.type, change.resource) == (STACK_TYPE, self.name)
        return change if own else None

    def _end(self, event: Event) -> StackResource | None:
        """Return the end of the last action that an event reports, if any."""
        own = self._own(event)
        if own is None or own.action != self._action:
            return None
        return own if own.status in ("COMPLETE", "FAILED") else None

    def _ask(self, call: Callable[[], object]) -> None:
        from heatclient import exc

        try:
            call()
        except exc.HTTPException as error:
            message = " ".join(str(error).removeprefix("ERROR: ").split())
            if isinstance(error.code, int) and error.code >= HTTP_SERVER_ERROR:
                raise HotplateError(f"the embedded Heat itself failed: {message}") from error
            raise TemplateError(f'Heat refused "{self.template.source}": {message}') from error
