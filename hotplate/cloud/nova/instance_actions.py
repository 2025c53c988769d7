"""Record of the actions on a server, with caller and time (``os-instance-actions``).

The names, fields and versions are those of ``nova/compute/instance_actions.py`` and
``nova/api/openstack/compute/instance_actions.py``.  Each accepted request gets a record, which ends
when the request has been passed to the machine.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import Answer, HttpError, Request, naive_time
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import HOST
from hotplate.cloud.nova.servers_api import moment
from hotplate.errors import sentence_of

#: Maximum number of actions kept for a server; the oldest are dropped.
MAX_PER_SERVER = 1000
#: Maximum number of actions in total, including those of deleted servers.
MAX_ACTIONS = 20_000
#: Maximum length of an event's details in characters, as in Nova's table.
MAX_DETAILS = 255

#: Nova's name of an action -> the event in it; each of ours has one.
EVENTS = {
    "create": "compute__do_build_and_run_instance",
    "delete": "compute_terminate_instance",
    **{name: f"compute_{name}_instance" for name in ("start", "stop", "pause", "unpause")},
    **{name: f"compute_{name}_instance" for name in ("suspend", "resume", "reboot", "rebuild")},
    "resize": "compute_prep_resize",
    "confirmResize": "compute_confirm_resize",
    "revertResize": "compute_revert_resize",
    "changePassword": "compute_set_admin_password",
    "lock": "api_lock",
    "unlock": "api_unlock",
    **{name: f"compute_{name}" for name in ("attach_interface", "detach_interface")},
    **{name: f"compute_{name}" for name in ("attach_volume", "detach_volume")},
}

#: States of a server in which its newest action is still running.
UNFINISHED = ("BUILD", "REBOOT", "HARD_REBOOT")


@dataclass(frozen=True)
class InstanceAction:
    """One action on a server.

    :param ended: when its event ended, in seconds since the epoch; 0 while it runs.
    :param error: the failure, "" when there was none.
    """

    server: str
    action: str
    request_id: str
    user: str
    project: str
    began: float
    ended: float
    error: str

    @property
    def updated(self) -> float:
        """The time of its last change, to the microsecond, as it is shown."""
        return round(self.ended or self.began, 6)

    def shown(self, caller: Caller) -> dict[str, object]:
        """Return the action without its event."""
        shown: dict[str, object] = {
            "action": self.action,
            "instance_uuid": self.server,
            "request_id": self.request_id,
            "user_id": self.user,
            "project_id": self.project,
            "start_time": naive_time(self.began),
            "message": "Error" if self.error else None,
        }
        return shown | ({"updated_at": naive_time(self.updated)} if caller.since(58) else {})

    def event(self, caller: Caller, *, unfinished: bool) -> dict[str, object]:
        """Return its event, with the fields of the caller's version."""
        over = bool(self.ended) and not unfinished
        # As Nova's generate_hostid(): users of different projects cannot compare hosts.
        host_id = hashlib.sha224(f"{self.project}{HOST}".encode()).hexdigest()
        event: dict[str, object] = {
            "event": EVENTS[self.action],
            "start_time": naive_time(self.began),
            "finish_time": naive_time(self.ended) if over else None,
            "result": ("Error" if self.error else "Success") if over else None,
        }
        return event | ({"hostId": host_id} if caller.since(62) else {})


@contextmanager
def recorded(server_id: str, action: str, caller: Caller) -> Iterator[None]:
    """Record the action that the ``with`` block performs on a server; see :func:`begun`."""
    with begun(server_id, action, caller) as end:
        yield
        end("")


@contextmanager
def begun(server_id: str, action: str, caller: Caller) -> Iterator[Callable[[str], None]]:
    """Record the action that the ``with`` block begins on a server.

    A refused request (an :class:`HttpError` below 500) is not recorded.

    :param action: a name of :data:`EVENTS`.
    :return: a function that ends the action, given the failure, "" when there was none; when
        the block raises, the action has ended.
    """
    store, by, request_id = caller.store, caller.grant, caller.request_id

    def end(error: str) -> None:
        # A forgotten action has no row to update.
        store.write(
            "UPDATE hotplate_action SET ended = ?, error = ? WHERE server = ? AND request_id = ?",
            *(time.time(), error[:MAX_DETAILS], server_id, request_id),
        )

    store.insert(
        "hotplate_action",
        *(None, server_id, action, request_id, by.user.id, by.project, time.time(), 0, ""),
    )
    _forget_old(store, server_id)
    try:
        yield end
    except HttpError as error:
        if error.status < 500:
            store.delete("hotplate_action", server=server_id, request_id=request_id)
        end(str(error))
        raise
    except Exception as error:
        end(sentence_of(error))
        raise


def _forget_old(store: Store, server_id: str) -> None:
    # The newest action beyond the limit, and all before it.
    store.write(
        "DELETE FROM hotplate_action WHERE server = ? AND number <= (SELECT number FROM "
        "hotplate_action WHERE server = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
        *(server_id, server_id, MAX_PER_SERVER),
    )
    store.write(
        "DELETE FROM hotplate_action WHERE number <= (SELECT number FROM "
        "hotplate_action ORDER BY number DESC LIMIT 1 OFFSET ?)",
        MAX_ACTIONS,
    )


def _list(request: Request, caller: Caller) -> Answer:
    rows = _of(request, caller)
    links: dict[str, object] = {}
    # Periods and pages came with 2.58.
    if caller.since(58):
        rows = _between(rows, request, caller)
        rows, links = caller.page(request, rows, lambda each: each.request_id, "links")
    return Answer(body={"instanceActions": [each.shown(caller) for each in rows], **links})


def _show(request: Request, caller: Caller) -> Answer:
    rows, wanted = _of(request, caller), request.parts["request"]
    for place, each in enumerate(rows):
        if each.request_id == wanted:
            status = caller.servers.status_if_present(each.server)
            # Only the newest action can still be running.
            unfinished = place == 0 and status is not None and status[0] in UNFINISHED
            shown = each.shown(caller)
            # Users see them since 2.51.
            if caller.since(51):
                shown["events"] = [each.event(caller, unfinished=unfinished)]
            return Answer(body={"instanceAction": shown})
    raise HttpError(404, f"Action {wanted[:255]} not found")


def _of(request: Request, caller: Caller) -> list[InstanceAction]:
    """Return the actions on a server, newest first; since 2.21 it may be a deleted one."""
    server_id = request.parts["id"]
    found = reversed(caller.store.find("hotplate_action", server=server_id))
    rows = [InstanceAction(*tuple(row)[1:]) for row in found]
    if not (rows and caller.since(21)):
        caller.servers.get(server_id)
    return rows


def _between(rows: list[InstanceAction], request: Request, caller: Caller) -> list[InstanceAction]:
    """Return the actions that were changed in the requested period."""
    since = moment(request, "changes-since", 0.0)
    before = moment(request, "changes-before", float("inf")) if caller.since(66) else float("inf")
    if since > before:
        raise HttpError(
            400, "The value of changes-since must be less than or equal to changes-before."
        )
    return [each for each in rows if since <= each.updated <= before]


#: The routes of instance actions.
ROUTES = (
    ("GET", "/servers/{id}/os-instance-actions", _list),
    ("GET", "/servers/{id}/os-instance-actions/{request}", _show),
)
