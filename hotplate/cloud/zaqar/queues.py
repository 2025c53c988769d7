"""Message queues: Zaqar's v2 API, over HTTP and, for clients that wait, over a websocket.

The queues belong to a project; a token of that project or a signed URL gives access.  No claims.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.database.store import Store
from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, respond
from hotplate.cloud.keystone.identity import Identity, IdentityError
from hotplate.cloud.zaqar.validation import (
    DEFAULT_TTL,
    MAX_POST,
    RESERVED,
    BodyError,
    QueueError,
    check_client,
    check_deletion,
    check_metadata,
    check_metadata_size,
    check_name,
    check_page,
    check_post_size,
    checked_messages,
    number,
    patched,
)

_PATCH = "application/openstack-messaging-v2.0-json-patch"
_LATER = "%Y-%m-%dT%H:%M:%S"
_VERSION = {
    "id": "2",
    "status": "CURRENT",
    "updated": "2014-9-24T04:06:47Z",
    "media-types": [{"base": "application/json", "type": ""}],
    "links": [{"rel": "self", "href": "/v2/"}],
}


class QuotaError(HttpError):
    """There is no room for more queues or messages."""

    def __init__(self) -> None:
        super().__init__(503, "No room is left.", kind="Service temporarily unavailable")


class Queues:
    """The queues of all projects.

    :param lift_limits: accept posts above Zaqar's default limit.
    """

    def __init__(
        self, store: Store, *, notify: Callable[[], None], lift_limits: bool = False
    ) -> None:
        self._store = store
        self._max_post = limits.MAX_BODY_LIFTED if lift_limits else limits.ZAQAR_POST
        self._notify = notify
        self._listeners: dict[tuple[str, str], list[Callable[[object], None]]] = {}
        self._lock = threading.Lock()

    def create(self, project: str, queue: str, metadata: dict[str, object] | None = None) -> bool:
        """Create a queue; return False when it exists.

        :raises QueueError: for an invalid name or metadata.
        :raises QuotaError: when the project has no room for it.
        """
        check_name(queue)
        if not isinstance(metadata or {}, dict):
            raise QueueError("Queue metadata must be an object.")
        check_metadata(metadata or {})
        self._check_room(project)
        return bool(
            self._store.write(
                "INSERT OR IGNORE INTO hotplate_queue VALUES (?, ?, ?)",
                project,
                queue,
                json.dumps(metadata or {}),
            )
        )

    def names(self, project: str) -> list[str]:
        """Return the names of a project's queues."""
        rows = self._store.rows(
            "SELECT name FROM hotplate_queue WHERE project = ? ORDER BY name", project
        )
        return [row["name"] for row in rows]

    def metadata(self, project: str, queue: str) -> dict[str, object] | None:
        """Return the metadata of a queue; None when it does not exist."""
        row = self._store.first("hotplate_queue", project=project, name=queue)
        return dict(json.loads(row["metadata"])) if row else None

    def set_metadata(self, project: str, queue: str, metadata: dict[str, object]) -> None:
        """Replace the metadata of a queue.

        :raises QuotaError: when the project has no room left.
        """
        self._check_room(project)
        self._store.write(
            "UPDATE hotplate_queue SET metadata = ? WHERE project = ? AND name = ?",
            json.dumps(metadata),
            project,
            queue,
        )

    def delete(self, project: str, queue: str) -> None:
        """Delete a queue and its messages."""
        self.purge(project, queue)
        self._store.delete("hotplate_queue", project=project, name=queue)

    def purge(self, project: str, queue: str) -> None:
        """Delete the messages of a queue."""
        self._store.delete("hotplate_message", project=project, queue=queue)

    def post(self, project: str, queue: str, messages: object) -> list[str]:
        """Append messages (``body``, ``ttl``); return their ids.  Creates the queue if necessary.

        :raises QueueError: for invalid messages.
        :raises QuotaError: when the project has no room for them.
        """
        # All messages are checked before the first one is stored.
        default = (self.metadata(project, queue) or {}).get(DEFAULT_TTL)
        checked = checked_messages(messages, default)
        self.create(project, queue)
        ids = []
        for body, ttl in checked:
            # 24 hexadecimal digits, as the ids of Zaqar's MongoDB store.
            ids.append(uuid.uuid4().hex[:24])
            values = ids[-1], project, queue, json.dumps(body), ttl, time.time()
            self._store.insert("hotplate_message", None, *values)
        with self._lock:
            listeners = list(self._listeners.get((project, queue), ()))
        # Without the lock: a listener writes to a socket, and may block.
        for listener in listeners:
            for body, _ in checked:
                listener(body)
        # A task of Heat may wait for one of them as its signal.
        self._notify()
        return ids

    def check_size(self, project: str, queue: str, size: int) -> None:
        """Refuse a post of too many bytes.

        :raises QueueError: for more than the queue or Zaqar accepts.
        """
        metadata = self.metadata(project, queue) or {}
        check_post_size(size, of_queue=metadata.get(MAX_POST), most=self._max_post)

    def _check_room(self, project: str) -> None:
        self._drop_old()
        if self._store.stored("zaqar", project) > limits.STORED:
            raise QuotaError

    def count(self, project: str, queue: str) -> int:
        """Return the number of messages in a queue."""
        self._drop_old()
        row = self._store.row(
            "SELECT count(*) AS count FROM hotplate_message WHERE project = ? AND queue = ?",
            project,
            queue,
        )
        return int(row["count"]) if row else 0

    def message(self, project: str, queue: str, message_id: str) -> dict[str, object] | None:
        """Return a message without removing it; None when there is none with that id."""
        self._drop_old()
        row = self._store.first("hotplate_message", project=project, queue=queue, id=message_id)
        return _message(row, queue) if row else None

    def _drop_old(self) -> None:
        self._store.write("DELETE FROM hotplate_message WHERE posted + ttl < ?", time.time())

    def peek(
        self, project: str, queue: str, limit: int, *, marker: str = ""
    ) -> list[dict[str, object]]:
        """Return the oldest messages without removing them.

        :param marker: id of the message after which to begin; nothing is returned when it is gone.
        """
        self._drop_old()
        return [
            _message(row, queue)
            for row in self._store.rows(
                # The number of a marker that is gone is NULL, and no number is greater than that.
                "SELECT * FROM hotplate_message WHERE project = ? AND queue = ? AND number >"
                " CASE ? WHEN '' THEN 0 ELSE (SELECT number FROM hotplate_message WHERE id = ?) END"
                " ORDER BY number LIMIT ?",
                project,
                queue,
                marker,
                marker,
                limit,
            )
        ]

    def pop(self, project: str, queue: str, count: int) -> list[dict[str, Any]]:
        """Remove and return the oldest messages; no two callers get the same."""
        self._drop_old()
        with self._store.transaction():
            rows = self._store.rows(
                "SELECT * FROM hotplate_message WHERE project = ? AND queue = ?"
                " ORDER BY number LIMIT ?",
                project,
                queue,
                count,
            )
            for row in rows:
                self._store.delete("hotplate_message", number=row["number"])
        return [_message(row, queue) for row in rows]

    def remove(self, project: str, queue: str, message_id: str) -> None:
        """Delete a message."""
        self._store.delete("hotplate_message", project=project, queue=queue, id=message_id)

    def subscribe(
        self, project: str, queue: str, listener: Callable[[object], None]
    ) -> Callable[[], None]:
        """Call ``listener`` with the body of each new message; return a function to end it."""
        with self._lock:
            self._listeners.setdefault((project, queue), []).append(listener)

        def end() -> None:
            with self._lock:
                listeners = self._listeners.get((project, queue), [])
                if listener in listeners:
                    listeners.remove(listener)
                if not listeners:
                    self._listeners.pop((project, queue), None)

        return end


class ZaqarApi:
    """Zaqar's WSGI application.

    :param secret: the key of signed URLs.
    """

    def __init__(self, queues: Queues, identity: Identity, *, secret: str) -> None:
        self._queues = queues
        self._identity = identity
        self._secret = secret.encode()
        one, messages = "/v2/queues/{queue}", "/v2/queues/{queue}/messages"
        self._routes: Routes[str] = Routes(
            ("GET", "/v2/queues", self._list),
            ("PUT", one, self._create),
            ("GET", one, self._show),
            ("PATCH", one, self._change),
            ("DELETE", one, self._delete),
            ("POST", one + "/share", self._share),
            ("GET", one + "/stats", self._stats),
            ("POST", one + "/purge", self._purge),
            ("POST", messages, self._post),
            ("GET", messages, self._messages),
            ("DELETE", messages, self._remove_messages),
            ("GET", messages + "/{message}", self._message),
            ("DELETE", messages + "/{message}", self._remove_message),
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return respond(environ, start_response, self._answer, describe=_description)

    def _answer(self, request: Request) -> Answer:
        if request.path == "":
            return Answer(300, {"versions": [_VERSION]})
        if request.path in ("/v2", "/v2/ping", "/v2/health"):
            return Answer(body={})
        project = self._project(request)
        check_client(request.header("Client-ID"))
        return self._routes.answer(request, project)

    # -- queues --------------------

    def _list(self, request: Request, project: str) -> Answer:
        """Return a page of queues; the last page is empty, as Zaqar's clients expect."""
        limit, marker = number("limit", request.one("limit", "10")), request.one("marker")
        check_page(limit, words="Limit must be at least 1 and no greater than")
        names = self._queues.names(project)
        chosen = [name for name in names if name > marker][:limit]
        queues: list[dict[str, object]] = [
            {"name": name, "href": f"/v2/queues/{name}"} for name in chosen
        ]
        if _is_true(request, "detailed"):
            for each in queues:
                each["metadata"] = self._shown(project, str(each["name"]))
        count = {"count": len(names)} if _is_true(request, "with_count") else {}
        links = _next(request, limit, chosen[-1] if chosen else "")
        return Answer(body={"queues": queues, "links": links, **count})

    def _create(self, request: Request, project: str) -> Answer:
        check_metadata_size(request.size)
        made = self._queues.create(project, _queue(request), _json(request))
        return Answer(201 if made else 204)

    def _show(self, request: Request, project: str) -> Answer:
        return Answer(body=self._shown(project, _queue(request)))

    def _change(self, request: Request, project: str) -> Answer:
        queue = _queue(request)
        check_metadata_size(request.size)
        if request.environ.get("CONTENT_TYPE", "") != _PATCH:
            raise HttpError(
                415,
                f"Accepted media type for PATCH: {{'Accept-Patch': '{_PATCH}'}}.",
                kind="415 Unsupported Media Type",
            )
        try:
            changes = request.document()
        except HttpError:
            raise BodyError("Request body could not be parsed.") from None
        metadata = self._queues.metadata(project, queue)
        if metadata is None:
            words = f"Queue {queue} does not exist for project {project}"
            raise HttpError(404, words, kind="Not found")
        self._queues.set_metadata(project, queue, patched(metadata, changes))
        return Answer(body=self._shown(project, queue))

    def _shown(self, project: str, queue: str) -> dict[str, object]:
        # A queue is created on first use, so reading a missing one is no error.
        metadata = self._queues.metadata(project, queue) or {}
        # Zaqar shows its default for every value that is false.
        return {**metadata, **{k: v for k, v in RESERVED.items() if not metadata.get(k)}}

    def _delete(self, request: Request, project: str) -> Answer:
        self._queues.delete(project, _queue(request))
        return Answer(204)

    def _stats(self, request: Request, project: str) -> Answer:
        count = self._queues.count(project, _queue(request))
        return Answer(body={"messages": {"claimed": 0, "free": count, "total": count}})

    def _purge(self, request: Request, project: str) -> Answer:
        self._queues.purge(project, _queue(request))
        return Answer(204)

    # -- messages --------------------

    def _post(self, request: Request, project: str) -> Answer:
        queue = _queue(request)
        self._queues.check_size(project, queue, request.size)
        body = _json(request)
        if "messages" not in body:
            raise QueueError("No messages were found in the request body.")
        ids = self._queues.post(project, queue, body["messages"])
        return Answer(201, {"resources": [f"{request.path}/{made}" for made in ids]})

    def _messages(self, request: Request, project: str) -> Answer:
        queue = _queue(request)
        if "ids" in request.query:
            wanted = request.one("ids").split(",")
            check_page(len(wanted))
            found = [self._queues.message(project, queue, each) for each in wanted]
            chosen = [each for each in found if each]
            if not chosen:
                raise HttpError(
                    404,
                    f"No messages with IDs: {wanted} found in the queue {queue} for project "
                    f"{project}.",
                    kind="Not found",
                )
            return Answer(body={"messages": chosen})
        limit, marker = number("limit", request.one("limit", "10")), request.one("marker")
        check_page(limit)
        messages = self._queues.peek(project, queue, limit, marker=marker)
        links = _next(request, limit, str(messages[-1]["id"]) if messages else "")
        return Answer(body={"messages": messages, "links": links})

    def _message(self, request: Request, project: str) -> Answer:
        message = self._queues.message(project, _queue(request), request.parts["message"])
        if message is None:
            raise HttpError(404, request.parts["message"])
        return Answer(body=message)

    def _remove_messages(self, request: Request, project: str) -> Answer:
        queue = _queue(request)
        pop = number("pop", request.one("pop")) if "pop" in request.query else None
        ids = request.one("ids").split(",") if "ids" in request.query else None
        check_deletion(pop=pop, ids=ids)
        if pop is not None:
            return Answer(body={"messages": self._queues.pop(project, queue, pop)})
        for each in ids or ():
            self._queues.remove(project, queue, each)
        return Answer(204)

    def _remove_message(self, request: Request, project: str) -> Answer:
        self._queues.remove(project, _queue(request), request.parts["message"])
        return Answer(204)

    # -- authorisation --------------------

    def _project(self, request: Request) -> str:
        # A pre-signed URL needs no token: its headers name project, paths, methods and end.
        if request.header("URL-Signature"):
            return self._signed_project(request)
        try:
            return self._identity.read_token(request.header("X-Auth-Token")).project
        except IdentityError as error:
            raise HttpError(401, "The request requires authentication.") from error

    def _share(self, request: Request, project: str) -> Answer:
        body, queue = _json(request), _queue(request)
        signed: dict[str, Any] = {
            "project": project,
            "paths": [f"/v2/queues/{queue}/{path}" for path in body.get("paths") or ["messages"]],
            "methods": sorted(body.get("methods") or ["GET"]),
            "expires": body.get("expires")
            or (datetime.now(UTC) + timedelta(days=1)).strftime(_LATER),
        }
        return Answer(body={**signed, "signature": self._signature(**signed)})

    def _signature(self, project: str, paths: list[str], expires: str, methods: list[str]) -> str:
        text = "\n".join([*sorted(paths), *sorted(methods), expires, project])
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _signed_project(self, request: Request) -> str:
        project, expires = request.header("X-Project-ID"), request.header("URL-Expires")
        paths = request.header("URL-Paths").split(",")
        methods = request.header("URL-Methods").split(",")
        made = self._signature(project, paths, expires, methods)
        refused = HttpError(404, "The URL signature is not valid.")
        if not hmac.compare_digest(made.encode(), request.header("URL-Signature").encode()):
            raise refused
        try:
            # A fraction or a zone may follow the seconds.
            end = datetime.strptime(expires[:19], _LATER).replace(tzinfo=UTC)
        except ValueError:
            raise refused from None
        if end < datetime.now(UTC) or request.method not in methods or request.path not in paths:
            raise refused
        return project


def _message(row: Any, queue: str) -> dict[str, Any]:
    return {
        "id": row["id"],
        "href": f"/v2/queues/{queue}/messages/{row['id']}",
        "ttl": row["ttl"],
        "age": int(time.time() - row["posted"]),
        "body": json.loads(row["body"]),
    }


def _is_true(request: Request, name: str) -> bool:
    return request.one(name).lower() in ("true", "1", "yes")


def _next(request: Request, limit: int, marker: str) -> list[dict[str, str]]:
    """Return the link to the page after ``marker``; none after an empty page."""
    if not marker:
        return []
    words = {name: values[0] for name, values in request.query.items()}
    following = urlencode({**words, "limit": limit, "marker": marker})
    return [{"rel": "next", "href": f"{request.path}?{following}"}]


def _queue(request: Request) -> str:
    """Return the queue of a path (Zaqar's hook ``validate_queue_identification``)."""
    queue = request.parts["queue"]
    try:
        check_name(queue)
    except QueueError:
        raise QueueError(
            "The format of the submitted queue name or project id is not valid.",
            title="Invalid queue identification",
        ) from None
    return queue


def _json(request: Request) -> dict[str, Any]:
    """Return the body of a request, which may be missing."""
    try:
        return request.json() if request.size else {}
    except HttpError:
        raise BodyError("Request body could not be parsed.") from None


def _description(error: HttpError) -> dict[str, str]:
    """Return an error in Zaqar's form."""
    return {"title": error.kind or HTTPStatus(error.status).phrase, "description": str(error)}
