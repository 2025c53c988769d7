"""Nova's servers and key pairs.

The servers run in a :class:`~hotplate.cloud.nova.compute.Compute`.
"""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import HttpError, now
from hotplate.cloud.nova.compute import Compute, GuestServices, ServerPort, ServerSpec
from hotplate.cloud.nova.interfaces import Interface, RequestedNetwork, Wanted, own_link
from hotplate.cloud.nova.server_records import (
    DEFAULTS,
    KeyPair,
    NoSuchServerError,
    Notes,
    ServerQuotas,
    ServerRecord,
    check_state,
    naive,
)
from hotplate.errors import is_unforeseen, sentence_of
from hotplate.events.background import Background
from hotplate.events.kinds import InterfaceChange, ServerBoot
from hotplate.events.log import EventLog

if TYPE_CHECKING:
    # Not imported: servers without ports need no Neutron, whose library takes seconds to import.
    from hotplate.cloud.nova.neutron import ServerPorts

#: Base64 characters (Nova: ``MAX_USERDATA_SIZE``).
MAX_USER_DATA = 65535
ATTACH_IN = ("ACTIVE", "PAUSED", "SHUTOFF")
#: The states in which a server can get an interface, and lose one: a running guest has to release
#: it.
DETACH_IN = ("ACTIVE", "SHUTOFF")


#: All records of servers; read in one query, since other threads delete servers meanwhile.
RECORDS = "SELECT * FROM hotplate_server LEFT JOIN hotplate_server_note USING (id)"

#: Actions on a server, by Nova's names.
Action = Literal["suspend", "resume", "pause", "unpause", "stop", "start", "reboot", "hard_reboot"]


def _check_has(server: ServerRecord, port_id: str) -> None:
    """Refuse a request for a port that the server does not have.

    :raises HttpError: 404.
    """
    if all(each.id != port_id for each in server.spec.ports):
        raise HttpError(404, f"Port id {port_id} could not be found.")


def _record(row: sqlite3.Row) -> ServerRecord:
    spec = ServerSpec.from_json(json.loads(row["spec"]))
    notes = Notes(**json.loads(row["notes"] or "{}"))
    return ServerRecord(spec, row["number"], row["random_seed"], row["created"], notes)


class Servers:
    """The servers and key pairs of one cloud.

    :param services: services of the cloud that ``compute`` needs for guests.
    :param public_key: the public key of every key pair that no user created.
    :param ports: gives servers their ports; None when guests have none.
    :param requested_networks: returns the requested networks of servers without ports.
    :param image_refusal: returns the reason why an image cannot be booted, "" when it can.
    :param quotas: the limits of the project.
    :param image_id: returns the id of an image by the name or id that a server has of it.
    """

    def __init__(
        self,
        store: Store,
        compute: Compute,
        events: EventLog,
        *,
        services: GuestServices,
        request_limit: int,
        public_key: str = "",
        ports: ServerPorts | None = None,
        requested_networks: Callable[[Wanted], list[RequestedNetwork]] = lambda _: [],
        image_refusal: Callable[[str], str] = lambda _: "",
        image_id: Callable[[str], str] = lambda name: name,
        quotas: ServerQuotas = DEFAULTS,
    ) -> None:
        self._store = store
        self._compute = compute
        self._events = events
        self._services = services
        self._request_limit = request_limit
        self._public_key = public_key
        self._ports = ports
        self.requested_networks = requested_networks
        self.image_refusal = image_refusal
        self.image_id = image_id
        self.quotas = quotas
        # Key pairs that no user created are as old as the cloud.
        self._began = naive(now())
        self._lock = threading.Lock()
        self._plugs: dict[str, threading.Lock] = {}
        self._closed = False

    def close(self) -> None:
        """Ignore failures of detachments in progress, because the cloud ends."""
        self._closed = True

    def check_size(self, spec: ServerSpec) -> None:
        """Refuse user data or a request that is too large for a real Nova, with its messages.

        :raises HttpError: 400 or 413.
        """
        encoded = len(base64.b64encode(spec.user_data))
        if encoded > MAX_USER_DATA:
            raise HttpError(
                400,
                "User data too large. User data must be no larger than "
                f"{MAX_USER_DATA} bytes once base64 encoded. "
                f"Your data is {encoded} bytes",
            )
        # Names, metadata and the JSON around them.
        request = encoded + len(json.dumps({**spec.to_json(), "user_data": "", "ports": []}))
        if self._request_limit and request > self._request_limit:
            raise HttpError(
                413,
                "Over limit: the request body must be no larger than "
                f"{self._request_limit} bytes (osapi_max_request_body_size). "
                f"Your request is {request} bytes",
            )

    def boot(self, spec: ServerSpec, notes: Notes | None = None) -> ServerRecord:
        """Check, store and start a server.

        :raises HttpError: 400 or 413 when the user data is too large, 500 with the reason when the
            host could not start the server.
        """
        self.check_size(spec)
        notes = notes or Notes()
        # Two servers must not get the same number.
        with self._lock:
            number = self._next_number()
            server = ServerRecord(
                spec,
                number,
                # 512 bytes, as in Nova.
                base64.b64encode(secrets.token_bytes(512)).decode(),
                now(),
                notes,
            )
            self._write_notes(spec.id, notes)
            self._store.insert(
                "hotplate_server",
                *(spec.id, number, json.dumps(spec.to_json()), server.random_seed, ""),
                server.created,
            )
        try:
            self._start(spec)
        except BaseException:
            # A server that did not start leaves no record.
            self._forget(spec.id)
            raise
        return server

    def _next_number(self) -> int:
        """Return a number that no server has had; MySQL does not reuse numbers either."""
        row = self._store.row("SELECT max(number) AS last FROM hotplate_server")
        present = (row["last"] or 0) if row else 0
        number = 1 + max(present, int(self._store.setting("last_server", "0")))
        self._store.write(
            "UPDATE hotplate_setting SET value = ? WHERE name = 'last_server'", str(number)
        )
        return number

    def rebuild(self, server_id: str, changes: Mapping[str, Any]) -> None:
        """Start an existing server anew from its image; it keeps its id and number.

        One that was off is off afterwards, too (``_do_rebuild_instance`` of Nova's manager).

        :param changes: fields of :class:`~hotplate.cloud.nova.compute.ServerSpec`.
        """
        with self._plugging(server_id):
            # Checked first: a refused rebuild leaves the server as it is.
            self.check_size(replace(self.get(server_id).spec, **changes))
            was_off = self._compute.status(server_id)[0] == "SHUTOFF"
            self._compute.delete(server_id)
            self._start(self.change(server_id, lambda spec: replace(spec, **changes)))
        if was_off:
            self.act(server_id, "stop")

    def _start(self, spec: ServerSpec) -> None:
        self._events.add(
            ServerBoot(
                name=spec.name,
                stack=spec.stack_name,
                resource=spec.resource_name,
                user_data_bytes=len(spec.user_data),
                ports=[port.shown() for port in spec.ports],
            ),
            server=spec.id,
        )
        try:
            self._compute.boot(spec, self._services)
        except Exception as error:
            raise HttpError(500, sentence_of(error)) from error

    def _forget(self, server_id: str) -> None:
        for table in ("hotplate_server", "hotplate_server_note"):
            self._store.delete(table, id=server_id)

    def get(self, server_id: str) -> ServerRecord:
        """Return the server with that id.

        :raises NoSuchServerError: when there is none.
        """
        row = self._store.row(f"{RECORDS} WHERE id = ?", server_id)
        if row is None:
            raise NoSuchServerError(server_id)
        return _record(row)

    def all(self) -> list[ServerRecord]:
        """Return all servers, oldest first, as of one moment."""
        return [_record(row) for row in self._store.rows(f"{RECORDS} ORDER BY number")]

    def change(self, server_id: str, changed: Callable[[ServerSpec], ServerSpec]) -> ServerSpec:
        """Replace the spec of a server (rename, metadata).

        :param changed: derives the new spec from the present one; concurrent changes wait for it.
        :raises NoSuchServerError: when the server has been deleted meanwhile.
        """
        with self._store.transaction():
            spec = changed(self.get(server_id).spec)
            self._store.write(
                "UPDATE hotplate_server SET spec = ? WHERE id = ?",
                json.dumps(spec.to_json()),
                server_id,
            )
            # This sets the time of the change.
            self.note(server_id)
        return spec

    def note(self, server_id: str, **changes: Any) -> None:
        """Change the notes of a server.

        :param changes: fields of :class:`Notes`; a function derives a field from its present value.
        :raises NoSuchServerError: when the server has been deleted meanwhile.
        """
        with self._store.transaction():
            notes = self.get(server_id).notes
            values = {
                name: each(getattr(notes, name)) if callable(each) else each
                for name, each in changes.items()
            }
            self._write_notes(server_id, replace(notes, updated=now(), **values))

    def _write_notes(self, server_id: str, notes: Notes) -> None:
        self._store.insert("hotplate_server_note", server_id, json.dumps(asdict(notes)))

    def status(self, server_id: str) -> tuple[str, str]:
        """Return Nova's word for the state of a server, and the reason."""
        notes = self.get(server_id).notes
        word, reason = self._compute.status(server_id)
        if word in ("ACTIVE", "SHUTOFF") and notes.old_flavor:
            word = "VERIFY_RESIZE"
        return word, reason

    def status_if_present(self, server_id: str) -> tuple[str, str] | None:
        """Return the status of a server, None when it has been deleted meanwhile."""
        try:
            return self.status(server_id)
        except NoSuchServerError:
            return None

    def console(self, server_id: str) -> str:
        """Return the console output of a server that is still kept."""
        self.get(server_id)
        return self._compute.console(server_id)

    def delete(self, server_id: str) -> None:
        """Stop a server and forget it."""
        self.get(server_id)
        # The machine ends before its ports are free for others.
        self._compute.delete(server_id)
        if self._ports is not None:
            self._ports.release(server_id)
        self._forget(server_id)
        self._plugs.pop(server_id, None)
        self._events.emit("nova", "delete", server=server_id)

    def act(self, server_id: str, action: Action) -> None:
        """Perform an action on an existing server."""
        self.get(server_id)
        # The compute's methods have Nova's names.
        getattr(self._compute, action)(server_id)
        self._events.emit("nova", action, server=server_id)

    # -- its interfaces --------------------

    @contextmanager
    def ports_for(self, wanted: Wanted) -> Iterator[tuple[ServerPort, ...] | None]:
        """Give a new server ports; they are released again when the ``with`` block fails.

        :return: None when guests have no ports.
        :raises HttpError: Nova's answer to a refusal by Neutron.
        """
        if self._ports is None:
            yield None
            return
        given = self._ports.give(wanted)
        try:
            yield given
        except BaseException:
            self._ports.release(wanted.server_id)
            raise

    def interfaces(self, server: ServerRecord) -> list[Interface]:
        """Return the current interfaces of a server."""
        if self._ports is None or not server.notes.has_ports:
            server_id = server.spec.id
            requested = [RequestedNetwork(**each) for each in server.notes.requested_networks]
            requested = (
                requested or self.requested_networks(Wanted(server_id, "")) or [RequestedNetwork()]
            )
            return [own_link(server_id, each) for each in requested]
        return self._ports.shown(server.spec)

    def ports_of(self, server_id: str) -> ServerPorts:
        """Return the one that can change the security groups of a server's ports.

        :raises HttpError: 404 for a server without ports.
        """
        if self._ports is None or not self.get(server_id).spec.ports:
            raise HttpError(
                404, f"instance_id {server_id} could not be found as device id on any ports"
            )
        return self._ports

    def attach(self, server_id: str, wanted: Wanted) -> Interface:
        """Give a server another interface, at once if it runs.

        A server without ports keeps its one interface.

        :raises HttpError: 409 in a state that does not allow it; Nova's answer to a refusal by
            Neutron.
        """
        server = self.get(server_id)
        if self._ports is None or not server.notes.has_ports:
            return own_link(server_id)
        check_state(server_id, self._compute.status(server_id)[0], "attach_interface", ATTACH_IN)
        with self._plugging(server_id):
            # Read again: another change may have ended while this one waited for the lock.
            server = self.get(server_id)
            port = self._ports.attach(wanted)
            spec = replace(server.spec, ports=(*server.spec.ports, port))
            try:
                self._compute.replug(spec, self._services)
            except Exception as error:
                self._ports.detach(spec, port.id)
                raise HttpError(500, sentence_of(error)) from error
            self._change_ports(spec.id, spec.ports)
        return next(each for each in self._ports.shown(spec) if each.port.id == port.id)

    def detach(self, server_id: str, port_id: str, end: Callable[[str], None]) -> None:
        """Begin to take an interface away from a server.

        As in Nova, the caller gets an answer at once, and the guest of a running server, which has
        to release the interface, is asked in the background.  If it refuses, the port stays.

        :param end: called with the failure, "" when there was none.
        :raises HttpError: 404 when it has no such port, 409 in a state that does not allow it.
        """
        server = self.get(server_id)
        if self._ports is None or not server.notes.has_ports:
            end("")
            return
        _check_has(server, port_id)
        check_state(server_id, self._compute.status(server_id)[0], "detach_interface", DETACH_IN)
        name = f"detach-{server.spec.name}"
        Background(self._events, self._detach, server_id, port_id, end, name=name).start()

    def _detach(self, server_id: str, port_id: str, end: Callable[[str], None]) -> None:
        try:
            with self._plugging(server_id):
                self._take_away(server_id, port_id)
        except Exception as error:
            if self._closed:
                return
            # The action fails with the guest's refusal, or with the server's end meanwhile.
            end(sentence_of(error))
            if is_unforeseen(error) and not isinstance(error, HttpError):
                raise
        else:
            end("")
        # A task of Heat may wait for the end of the detachment.
        self._services.notify()

    def _take_away(self, server_id: str, port_id: str) -> None:
        server = self.get(server_id)
        _check_has(server, port_id)
        kept = tuple(each for each in server.spec.ports if each.id != port_id)
        spec = replace(server.spec, ports=kept)
        self._compute.replug(spec, self._services)
        if self._ports is not None:
            self._ports.detach(server.spec, port_id)
        self._change_ports(server_id, kept)

    @contextmanager
    def _plugging(self, server_id: str) -> Iterator[None]:
        """Serialise changes of a server's interfaces: each starts from the last one's result."""
        # For the look-up only: a guest may take long to release an interface.
        with self._lock:
            lock = self._plugs.setdefault(server_id, threading.Lock())
        with lock:
            yield

    def _change_ports(self, server_id: str, ports: tuple[ServerPort, ...]) -> None:
        # Everything else may have been changed while the guest was asked.
        self.change(server_id, lambda spec: replace(spec, ports=ports))
        self._events.add(InterfaceChange(ports=[port.shown() for port in ports]), server=server_id)

    # -- guest passwords --------------------

    def password(self, server_id: str) -> str:
        """Return the password that the guest posted, "" before it did."""
        row = self._store.first("hotplate_server", id=server_id)
        return str(row["password"]) if row else ""

    def set_password(self, server_id: str, password: str) -> bool:
        """Store the guest's password; return False when it has been set before."""
        # In one statement: of two posts at the same time, one is too late.
        return bool(
            self._store.write(
                "UPDATE hotplate_server SET password = ? WHERE id = ? AND password = ''",
                password,
                server_id,
            )
        )

    def clear_password(self, server_id: str) -> None:
        """Forget the guest's password."""
        self._store.write("UPDATE hotplate_server SET password = '' WHERE id = ?", server_id)

    # -- key pairs --------------------

    def create_keypair(self, keypair: KeyPair, user: str) -> None:
        """Store a key pair."""
        values = keypair.name, keypair.public_key, keypair.type, user, keypair.created
        self._store.insert("hotplate_keypair", *values)

    def keypair(self, name: str) -> KeyPair:
        """Return the key pair with that name, or the harness's own when no user created one."""
        row = self._store.first("hotplate_keypair", name=name)
        if row is None:
            return KeyPair(name, self._public_key, created=self._began)
        return KeyPair(row["name"], row["public_key"], row["type"], row["created"])

    def keypairs(self) -> list[KeyPair]:
        """Return all key pairs that a user created, by name."""
        rows = self._store.rows("SELECT * FROM hotplate_keypair ORDER BY name")
        return [KeyPair(row["name"], row["public_key"], row["type"]) for row in rows]

    def has_keypair(self, name: str) -> bool:
        """Return True when a user created that key pair."""
        return self._store.first("hotplate_keypair", name=name) is not None

    def delete_keypair(self, name: str) -> bool:
        """Delete a key pair; return False when no user created one of that name."""
        return bool(self._store.delete("hotplate_keypair", name=name))
