"""Actions on a server's machine over HTTP (``POST /servers/{id}/action``), and its console."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request
from hotplate.cloud.nova import policy, schemas
from hotplate.cloud.nova.capacity import check_resize, flavor
from hotplate.cloud.nova.instance_actions import recorded
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
from hotplate.cloud.nova.servers import Action as Power
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


def _act(request: Request, caller: Caller) -> Answer:
    server = caller.server(request)
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
    if name not in ACTIONS:
        raise HttpError(400, f"There is no such action: {name[:100]}")
    action = ACTIONS[name]
    if not action.when_locked:
        policy.check_lock(server)
    if action.states:
        word, _ = caller.servers.status(server.spec.id)
        check_state(server.spec.id, word, name.removeprefix("os-"), action.states)
    if action.schema:
        schemas.check(body, action.schema)
    record = recorded(server.spec.id, action.recorded, caller) if action.recorded else nullcontext()
    try:
        with record:
            return action.do(server, body[name], caller) or Answer(202)
    except MachineLostError as error:
        raise HttpError(409, sentence_of(error)) from error


def _remote_console(request: Request, caller: Caller) -> Answer:
    caller.server(request)
    raise _no_console(request.json().get("remote_console"))


def _no_console(asked: object) -> HttpError:
    kind = asked.get("type", "") if isinstance(asked, dict) else ""
    return HttpError(400, f"Unavailable console type {str(kind)[:50]}.")


# -- power --------------------


def _power(action: Power, server: ServerRecord, _: object, caller: Caller) -> None:
    caller.servers.act(server.spec.id, action)


def _reboot(server: ServerRecord, asked: Any, caller: Caller) -> None:
    if asked["type"].upper() == "HARD":
        caller.servers.act(server.spec.id, "hard_reboot")
        return
    # The guest has to run for a soft one; REBOOT_IN has the states for a hard one.
    check_state(server.spec.id, caller.servers.status(server.spec.id)[0], "reboot", ("ACTIVE",))
    caller.servers.act(server.spec.id, "reboot")


def _delete(server: ServerRecord, _: object, caller: Caller) -> None:
    caller.servers.delete(server.spec.id)


# -- another image or size --------------------


def _rebuild(server: ServerRecord, asked: Any, caller: Caller) -> Answer:
    check_metadata(caller.servers, asked.get("metadata") or {})
    check_supported(asked)
    server_id = server.spec.id
    changes, notes = _rebuild_changes(asked, caller), kept(asked)
    try:
        caller.servers.rebuild(server_id, changes)
    except HttpError:
        raise
    except Exception as error:
        raise HttpError(500, sentence_of(error)) from error
    if notes:
        caller.servers.note(server_id, **notes)
    shown = changed_view(server_id, caller, rebuilt=True)
    shown["adminPass"] = asked.get("adminPass") or secrets.token_urlsafe(9)
    return Answer(202, {"server": shown})


def _rebuild_changes(asked: dict[str, Any], caller: Caller) -> dict[str, Any]:
    changes: dict[str, Any] = {"image": bootable(caller.servers, asked["imageRef"])}
    changes |= {name: asked[name] for name in ("name", "metadata") if name in asked}
    if "user_data" in asked:
        changes["user_data"] = user_data(asked["user_data"])
    if "key_name" in asked:
        key_name = asked["key_name"] or ""
        changes["key_name"] = key_name
        changes["public_keys"] = public_keys(caller.servers, key_name)
    return changes


def _resize(server: ServerRecord, asked: Any, caller: Caller) -> None:
    """Record another flavor; the machine stays as it is."""
    name = flavor(str(asked["flavorRef"])).name
    spec = server.spec
    if name == spec.flavor:
        raise HttpError(400, "When resizing, instances must change flavor!")
    check_resize(caller.servers, flavor(spec.flavor), flavor(name))
    caller.servers.change(spec.id, lambda spec: replace(spec, flavor=name))
    caller.servers.note(spec.id, old_flavor=spec.flavor, **kept(asked))


def _confirm_resize(server: ServerRecord, _: object, caller: Caller) -> Answer:
    caller.servers.note(server.spec.id, old_flavor="")
    return Answer(204)


def _revert_resize(server: ServerRecord, _: object, caller: Caller) -> None:
    old = server.notes.old_flavor
    caller.servers.change(server.spec.id, lambda spec: replace(spec, flavor=old))
    caller.servers.note(server.spec.id, old_flavor="")


# -- the rest --------------------


def _change_password(*_: object) -> None:
    """Ignore the password: there is no guest agent that Nova could ask."""


def _add_group(server: ServerRecord, asked: Any, caller: Caller) -> None:
    caller.servers.ports_of(server.spec.id).add_group(server.spec.id, asked["name"])


def _remove_group(server: ServerRecord, asked: Any, caller: Caller) -> None:
    caller.servers.ports_of(server.spec.id).remove_group(server.spec.id, asked["name"])


def _lock(server: ServerRecord, asked: Any, caller: Caller) -> None:
    """Record the lock, which keeps out users until one of them unlocks the server."""
    reason = (asked or {}).get("locked_reason", "")
    caller.servers.note(server.spec.id, locked=True, locked_reason=reason)


def _unlock(server: ServerRecord, _: object, caller: Caller) -> None:
    caller.servers.note(server.spec.id, locked=False, locked_reason="")


def _console(server: ServerRecord, asked: Any, caller: Caller) -> Answer:
    length = asked.get("length")
    wanted = MAX_CONSOLE_LINES if length in (None, "") else int(length)
    wanted = min(wanted, MAX_CONSOLE_LINES) if wanted >= 0 else MAX_CONSOLE_LINES
    lines = caller.servers.console(server.spec.id).splitlines()
    # A slice from -0 would have all lines.
    return Answer(body={"output": "\n".join(lines[-wanted:] if wanted else [])})


@dataclass(frozen=True)
class _Action:
    """An action on a server.

    :param recorded: the name of its instance action, "" when Nova records none.
    :param do: performs it, given the server, the action's argument and the caller; the answer is an
        empty one with 202 unless it returns another.
    :param states: the statuses that allow it; () for all.
    :param schema: of the body; None for an action whose argument does not count.
    :param when_locked: it is performed on a locked server, too.
    """

    recorded: str
    do: Callable[[ServerRecord, Any, Caller], Answer | None]
    states: tuple[str, ...] = ()
    schema: schemas.Schema | None = None
    when_locked: bool = False


ACTIONS = {
    "os-start": _Action("start", partial(_power, "start"), ("SHUTOFF",)),
    "os-stop": _Action("stop", partial(_power, "stop"), ("ACTIVE", "ERROR")),
    "pause": _Action("pause", partial(_power, "pause"), ("ACTIVE",)),
    "unpause": _Action("unpause", partial(_power, "unpause"), ("PAUSED",)),
    "suspend": _Action("suspend", partial(_power, "suspend"), ("ACTIVE",)),
    "resume": _Action("resume", partial(_power, "resume"), ("SUSPENDED",)),
    "reboot": _Action("reboot", _reboot, REBOOT_IN, schemas.REBOOT),
    "rebuild": _Action("rebuild", _rebuild, ("ACTIVE", "SHUTOFF", "ERROR"), schemas.REBUILD),
    "resize": _Action("resize", _resize, ("ACTIVE", "SHUTOFF"), schemas.RESIZE),
    "confirmResize": _Action("confirmResize", _confirm_resize, ("VERIFY_RESIZE",)),
    "revertResize": _Action("revertResize", _revert_resize, ("VERIFY_RESIZE",)),
    "changePassword": _Action("changePassword", _change_password, ("ACTIVE",), schemas.PASSWORD),
    "os-getConsoleOutput": _Action("", _console, schema=schemas.CONSOLE, when_locked=True),
    "addSecurityGroup": _Action("", _add_group, schema=schemas.ADD_GROUP, when_locked=True),
    "removeSecurityGroup": _Action(
        "", _remove_group, schema=schemas.REMOVE_GROUP, when_locked=True
    ),
    "lock": _Action("lock", _lock, schema=schemas.LOCK, when_locked=True),
    "unlock": _Action("unlock", _unlock, when_locked=True),
    "forceDelete": _Action("delete", _delete),
}

#: The routes of server actions and remote consoles.
ROUTES = (
    ("POST", "/servers/{id}/action", _act),
    ("POST", "/servers/{id}/remote-consoles", _remote_console),
)
