"""Actions on a server's machine over HTTP (``POST /servers/{id}/action``), and its console."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import policy, schemas
from hotplate.cloud.nova.capacity import check_resize, flavor
from hotplate.cloud.nova.instance_actions import InstanceActions
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_create import (
    bootable,
    check_metadata,
    check_supported,
    kept,
    public_keys,
    user_data,
)
from hotplate.cloud.nova.server_records import ServerRecord, check_state
from hotplate.cloud.nova.servers import Action, Servers
from hotplate.cloud.nova.servers_api import changed_view
from hotplate.errors import MachineLostError, sentence_of

#: Maximum number of console lines in an answer.
MAX_CONSOLE_LINES = 10_000

#: Actions that Nova has, and this cloud, whose one host runs one image, has not.
UNSUPPORTED = frozenset(
    {
        "addFixedIp",
        "createBackup",
        "createImage",
        "removeFixedIp",
        "rescue",
        "restore",
        "shelve",
        "trigger_crash_dump",
        "unrescue",
        "unshelve",
    }
)

CONSOLES = frozenset(
    {
        "os-getVNCConsole",
        "os-getSPICEConsole",
        "os-getRDPConsole",
        "os-getSerialConsole",
        "os-getMKSConsole",
    }
)

#: States that allow a hard reboot, which also ends a soft one that the guest ignores (Nova:
#: ``ALLOW_HARD_REBOOT`` of ``vm_states.py`` and ``ALLOW_REBOOT`` of ``task_states.py``).
REBOOT_IN = ("ACTIVE", "PAUSED", "SUSPENDED", "SHUTOFF", "ERROR", "REBOOT", "HARD_REBOOT")

#: Actions on a locked server that are refused to nobody.
WHEN_LOCKED = frozenset(
    {"addSecurityGroup", "lock", "os-getConsoleOutput", "removeSecurityGroup", "unlock"}
)

#: Actions for which Nova records no instance action.
UNRECORDED = frozenset({"addSecurityGroup", "os-getConsoleOutput", "removeSecurityGroup"})

#: Name of an action -> name of its instance action, where they differ.
RECORDED_AS = {"os-start": "start", "os-stop": "stop", "forceDelete": "delete"}


@dataclass(frozen=True)
class _Call:
    """A requested action."""

    body: dict[str, Any]
    caller: Caller
    server: ServerRecord

    def asked(self, name: str, schema: schemas.Schema) -> Any:
        """Return the argument of the action.

        :raises HttpError: 400, when it does not conform to ``schema``.
        """
        schemas.check(self.body, schema)
        return self.body[name]


class ActionsApi:
    """Actions that change the state of a server's machine."""

    def __init__(self, servers: Servers, actions: InstanceActions) -> None:
        self._servers = servers
        self._recorded = actions.recorded
        self._actions: dict[str, tuple[tuple[str, ...], Callable[[_Call], Answer]]] = {
            "os-start": (("SHUTOFF",), partial(self._power, "start")),
            "os-stop": (("ACTIVE", "ERROR"), partial(self._power, "stop")),
            "pause": (("ACTIVE",), partial(self._power, "pause")),
            "unpause": (("PAUSED",), partial(self._power, "unpause")),
            "suspend": (("ACTIVE",), partial(self._power, "suspend")),
            "resume": (("SUSPENDED",), partial(self._power, "resume")),
            "reboot": (REBOOT_IN, self._reboot),
            "rebuild": (("ACTIVE", "SHUTOFF", "ERROR"), self._rebuild),
            "resize": (("ACTIVE", "SHUTOFF"), self._resize),
            "confirmResize": (("VERIFY_RESIZE",), self._confirm_resize),
            "revertResize": (("VERIFY_RESIZE",), self._revert_resize),
            "changePassword": (("ACTIVE",), self._change_password),
            "os-getConsoleOutput": ((), self._console),
            "addSecurityGroup": ((), self._change_groups),
            "removeSecurityGroup": ((), self._change_groups),
            "lock": ((), self._lock),
            "unlock": ((), self._unlock),
            "forceDelete": ((), self._delete),
        }

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of server actions and remote consoles."""
        routes.add("POST", "/servers/{id}/action", self._act)
        routes.add("POST", "/servers/{id}/remote-consoles", self._remote_console)

    def _act(self, request: Request, caller: Caller) -> Answer:
        server = self._servers.get(request.parts["id"])
        body = request.json()
        # The only key of the body names the action.
        name = next(iter(body), "")
        if len(body) != 1:
            raise HttpError(400, "Malformed request body: it must name one action.")
        if name in CONSOLES:
            raise _no_console(body[name])
        if name in policy.ADMIN_ACTIONS:
            raise policy.forbidden(policy.ADMIN_ACTIONS[name])
        if name in UNSUPPORTED:
            raise HttpError(400, f"This cloud does not support the action {name}.")
        if name not in self._actions:
            raise HttpError(400, f"There is no such action: {name[:100]}")
        allowed, do = self._actions[name]
        if name not in WHEN_LOCKED:
            policy.check_lock(server)
        self._check_state(server, name, allowed)
        try:
            if name in UNRECORDED:
                return do(_Call(body, caller, server))
            with self._recorded(server.spec.id, RECORDED_AS.get(name, name), caller):
                return do(_Call(body, caller, server))
        except MachineLostError as error:
            raise HttpError(409, sentence_of(error)) from error

    def _check_state(self, server: ServerRecord, name: str, allowed: tuple[str, ...]) -> None:
        word, _ = self._servers.status(server.spec.id)
        if allowed:
            check_state(server.spec.id, word, name.removeprefix("os-"), allowed)

    # -- power --------------------

    def _power(self, action: Action, call: _Call) -> Answer:
        self._servers.act(call.server.spec.id, action)
        return Answer(202)

    def _reboot(self, call: _Call) -> Answer:
        kind = call.asked("reboot", schemas.REBOOT)["type"].upper()
        # The guest has to run for a soft one; REBOOT_IN has the states for a hard one.
        if kind == "SOFT":
            self._check_state(call.server, "reboot", ("ACTIVE",))
        self._servers.act(call.server.spec.id, "reboot" if kind == "SOFT" else "hard_reboot")
        return Answer(202)

    def _delete(self, call: _Call) -> Answer:
        self._servers.delete(call.server.spec.id)
        return Answer(202)

    # -- another image or size --------------------

    def _rebuild(self, call: _Call) -> Answer:
        asked = call.asked("rebuild", schemas.REBUILD)
        check_metadata(self._servers, asked.get("metadata") or {})
        check_supported(asked)
        server_id = call.server.spec.id
        changes, notes = self._rebuild_changes(asked), kept(asked)
        try:
            self._servers.rebuild(server_id, changes)
        except HttpError:
            raise
        except Exception as error:
            raise HttpError(500, sentence_of(error)) from error
        if notes:
            self._servers.note(server_id, **notes)
        shown = changed_view(self._servers, server_id, call.caller, rebuilt=True)
        shown["adminPass"] = asked.get("adminPass") or secrets.token_urlsafe(9)
        return Answer(202, {"server": shown})

    def _rebuild_changes(self, asked: dict[str, Any]) -> dict[str, Any]:
        changes: dict[str, Any] = {"image": bootable(self._servers, asked["imageRef"])}
        changes |= {name: asked[name] for name in ("name", "metadata") if name in asked}
        if "user_data" in asked:
            changes["user_data"] = user_data(asked["user_data"])
        if "key_name" in asked:
            key_name = asked["key_name"] or ""
            changes["key_name"] = key_name
            changes["public_keys"] = public_keys(self._servers, key_name)
        return changes

    def _resize(self, call: _Call) -> Answer:
        """Record another flavor; the machine stays as it is."""
        asked = call.asked("resize", schemas.RESIZE)
        name = flavor(str(asked["flavorRef"])).name
        spec = call.server.spec
        if name == spec.flavor:
            raise HttpError(400, "When resizing, instances must change flavor!")
        check_resize(self._servers, flavor(spec.flavor), flavor(name))
        self._servers.change(spec.id, lambda spec: replace(spec, flavor=name))
        self._servers.note(spec.id, old_flavor=spec.flavor, **kept(asked))
        return Answer(202)

    def _confirm_resize(self, call: _Call) -> Answer:
        self._servers.note(call.server.spec.id, old_flavor="")
        return Answer(204)

    def _revert_resize(self, call: _Call) -> Answer:
        spec, old = call.server.spec, call.server.notes.old_flavor
        self._servers.change(spec.id, lambda spec: replace(spec, flavor=old))
        self._servers.note(spec.id, old_flavor="")
        return Answer(202)

    # -- the rest --------------------

    def _change_password(self, call: _Call) -> Answer:
        """Accept the password and ignore it: there is no guest agent that Nova could ask."""
        call.asked("changePassword", schemas.PASSWORD)
        return Answer(202)

    def _change_groups(self, call: _Call) -> Answer:
        (action,) = call.body
        name = call.asked(action, schemas.GROUP_CHANGES[action])["name"]
        server_id = call.server.spec.id
        ports = self._servers.ports_of(server_id)
        change = ports.add_group if action == "addSecurityGroup" else ports.remove_group
        change(server_id, name)
        return Answer(202)

    def _lock(self, call: _Call) -> Answer:
        """Record the lock, which keeps out users until one of them unlocks the server."""
        asked = call.asked("lock", schemas.LOCK) or {}
        reason = asked.get("locked_reason", "")
        self._servers.note(call.server.spec.id, locked=True, locked_reason=reason)
        return Answer(202)

    def _unlock(self, call: _Call) -> Answer:
        self._servers.note(call.server.spec.id, locked=False, locked_reason="")
        return Answer(202)

    def _console(self, call: _Call) -> Answer:
        asked = call.asked("os-getConsoleOutput", schemas.CONSOLE)
        length = asked.get("length")
        wanted = MAX_CONSOLE_LINES if length in (None, "") else int(length)
        wanted = min(wanted, MAX_CONSOLE_LINES) if wanted >= 0 else MAX_CONSOLE_LINES
        lines = self._servers.console(call.server.spec.id).splitlines()
        # A slice from -0 would have all lines.
        return Answer(body={"output": "\n".join(lines[-wanted:] if wanted else [])})

    def _remote_console(self, request: Request, _caller: Caller) -> Answer:
        self._servers.get(request.parts["id"])
        raise _no_console(request.json().get("remote_console"))


def _no_console(asked: object) -> HttpError:
    kind = asked.get("type", "") if isinstance(asked, dict) else ""
    return HttpError(400, f"Unavailable console type {str(kind)[:50]}.")
