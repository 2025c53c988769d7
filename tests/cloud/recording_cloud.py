"""A cloud that records servers, and the templates and stacks of its tests."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova.compute import GuestServices, RouterSpec, ServerSpec
from hotplate.timing.deadline import Deadline, retry


class RecordingCompute:
    """Records servers instead of running them; a test plays the guest."""

    networked = True

    def __init__(self) -> None:
        self.specs: dict[str, ServerSpec] = {}
        self.states: dict[str, tuple[str, str]] = {}
        self.boot_state = ("ACTIVE", "")
        self.consoles: dict[str, str] = {}
        self.on_boot: Callable[[ServerSpec], None] = lambda spec: None
        self.calls: list[tuple[str, str]] = []
        self.routers: tuple[RouterSpec, ...] = ()
        self._lock = threading.Lock()

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        del services
        with self._lock:
            self.specs[spec.id] = spec
            self.states[spec.id] = self.boot_state
        self.on_boot(spec)

    def _note(self, call: str, server_id: str, state: str) -> None:
        self.calls.append((call, server_id))
        self.states[server_id] = (state, "")

    def route(self, routers: Sequence[RouterSpec]) -> None:
        self.routers = tuple(routers)

    def delete(self, server_id: str) -> None:
        self.calls.append(("delete", server_id))
        del self.specs[server_id]

    def stop(self, server_id: str) -> None:
        self._note("stop", server_id, "SHUTOFF")

    def start(self, server_id: str) -> None:
        self._note("start", server_id, "ACTIVE")

    def replug(self, spec: ServerSpec, services: GuestServices) -> None:
        del services
        self.specs[spec.id] = spec

    def suspend(self, server_id: str) -> None:
        self._note("suspend", server_id, "SUSPENDED")

    def resume(self, server_id: str) -> None:
        self._note("resume", server_id, "ACTIVE")

    def pause(self, server_id: str) -> None:
        self._note("pause", server_id, "PAUSED")

    def unpause(self, server_id: str) -> None:
        self._note("unpause", server_id, "ACTIVE")

    def reboot(self, server_id: str) -> None:
        self._note("reboot", server_id, "ACTIVE")

    def hard_reboot(self, server_id: str) -> None:
        self._note("hard_reboot", server_id, "ACTIVE")

    def console(self, server_id: str) -> str:
        return self.consoles.get(server_id, "")

    def status(self, server_id: str) -> tuple[str, str]:
        return self.states[server_id]


def hot(outputs: dict[str, Any] | None = None, /, **resources: Any) -> dict[str, Any]:
    """Return a template.

    :param outputs: name -> value.
    """
    shown = {name: {"value": value} for name, value in (outputs or {}).items()}
    return {"heat_template_version": "2018-08-31", "resources": resources, "outputs": shown}


def resource(kind: str, *needed: str, **properties: Any) -> dict[str, Any]:
    """Return a resource of a template.

    :param kind: its type; ``OS::`` may be left out.
    :param needed: the resources that it depends on, beside those it refers to.
    """
    depends = {"depends_on": list(needed)} if needed else {}
    kind = kind if kind.startswith("AWS::") else f"OS::{kind.removeprefix('OS::')}"
    return {"type": kind, "properties": properties, **depends}


def ref(name: str) -> dict[str, str]:
    """Return a reference to a resource."""
    return {"get_resource": name}


def attribute(*path: Any) -> dict[str, Any]:
    """Return a reference to an attribute of a resource."""
    return {"get_attr": list(path)}


#: For names of stacks: the tests of a module share a cloud.
NUMBERS = itertools.count(1)


class Stacks:
    """Creates stacks through heatclient and waits for them."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.client = cloud.heat()
        self._made: list[str] = []

    def create(self, template: Any, *, name: str = "", **fields: Any) -> str:
        made = self.client.stacks.create(
            stack_name=name or f"test-{next(NUMBERS)}", template=template, **fields
        )
        stack_id: str = made["stack"]["id"]
        self._made.append(stack_id)
        return stack_id

    def complete(self, template: Any, **fields: Any) -> str:
        """Create a stack, and wait until it is complete."""
        stack_id = self.create(template, **fields)
        self.wait(stack_id, "CREATE_COMPLETE")
        return stack_id

    def update(self, stack_id: str, template: Any) -> None:
        """Update a stack, and wait until that is complete."""
        self.client.stacks.update(stack_id, template=template)
        self.wait(stack_id, "UPDATE_COMPLETE")

    def wait(self, stack_id: str, status: str, *, seconds: float = 300) -> Any:
        """Return the stack once it has the status, and Heat accepts another action on it."""

        def look(last: bool) -> Any:
            stack = self.client.stacks.get(stack_id)
            if stack.stack_status == status:
                return stack
            if last or stack.stack_status.endswith(("_FAILED", "_COMPLETE")):
                raise AssertionError(
                    f"{stack.stack_status}, not {status}: {stack.stack_status_reason}"
                )
            return None

        deadline = Deadline(seconds, status)
        shown = retry(look, deadline, every=0.05)
        # Heat stores the end of an update before it releases the stack.
        retry(lambda _: not self._is_locked(stack_id), deadline, every=0.05)
        return shown

    def _is_locked(self, stack_id: str) -> bool:
        path = self.cloud.directory / "heat.db"
        with contextlib.closing(sqlite3.connect(path, timeout=120)) as database:
            lock = "SELECT 1 FROM stack_lock WHERE stack_id = ?"
            return database.execute(lock, (stack_id,)).fetchone() is not None

    def wait_for_resource(self, stack_id: str, name: str, status: str) -> None:
        def look(last: bool) -> bool:
            state: str = self.client.resources.get(stack_id, name).resource_status
            assert not last, f"{name} is {state}, not {status}"
            return state == status

        retry(look, Deadline(120, f"{name} to be {status}"), every=0.05)

    def outputs(self, stack_id: str) -> dict[str, Any]:
        stack = self.client.stacks.get(stack_id)
        return {output["output_key"]: output.get("output_value") for output in stack.outputs}

    def delete(self, stack_id: str) -> None:
        """Delete a stack, and wait for Heat to finish."""
        self.client.stacks.delete(stack_id)

        def look(last: bool) -> bool:
            # A stack that is still being created fails before it is deleted.
            status: str = self.client.stacks.get(stack_id).stack_status
            assert not last, status
            return status == "DELETE_COMPLETE"

        retry(look, Deadline(120, "the stack to be deleted"), every=0.05)

    def clean(self) -> None:
        """Begin to delete all stacks; their resources may remain for a moment."""
        while self._made:
            stack_id = self._made.pop()
            try:
                self.client.stacks.delete(stack_id)
            except Exception as error:
                if getattr(error, "code", None) != 404:
                    raise


def owner_headers(cloud: Cloud) -> dict[str, str]:
    """Return the headers of a request of the owner, made without a request to Keystone."""
    owner = cloud.identity.user(cloud.credentials.user_id)
    assert owner is not None
    return {"X-Auth-Token": cloud.identity.token(cloud.identity.grant(owner))}
