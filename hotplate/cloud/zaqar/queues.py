"""Message queues: Zaqar's v2 API, over HTTP and, for clients that wait, over a websocket.

The queues belong to a project; a token of that project or a signed URL gives access.  No claims.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.database.store import Store
from hotplate.cloud.http import limits
from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.keystone.identity import Identity, IdentityError

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
_QUEUE = re.compile(
    rf"^/v2/queues/(?P<queue>{_NAME.pattern})"
    r"(?:/(?P<below>messages|share|stats|purge)(?:/(?P<message>[^/]+))?)?$"
)
DEFAULT_TTL = "_default_message_ttl"
"""Key of a queue's metadata for the TTL of messages that have none of their own."""
_LATER = "%Y-%m-%dT%H:%M:%S"


class QueueError(Exception):
    """Zaqar refuses the request with 400; ``str()`` is the description in its answer."""


class QuotaError(Exception):
    """There is no room for more queues or messages."""


class Queues:
    """The queues of all projects.

    :param lift_limits: accept posts above Zaqar's default limit.
    """

    def __init__(
        self, store: Store, *, notify: Callable[[], None], lift_limits: bool = False
    ) -> None:
        self._store = store
        self.largest_post = limits.MAX_BODY_LIFTED if lift_limits else limits.ZAQAR_POST
        self._notify = notify
        self._listeners: dict[tuple[str, str], list[Callable[[dict[str, object]], None]]] = {}
        self._lock = threading.Lock()

    def create(self, project: str, queue: str, metadata: dict[str, object] | None = None) -> bool:
        """Create a queue; return False when it exists.

        :raises QueueError: for an invalid name, and for metadata that is no object or too large.
        :raises QuotaError: when the project has no room for it.
        """
        check_name(queue)
        if not isinstance(metadata or {}, dict):
            raise QueueError("Queue metadata must be an object.")
        if metadata and len(json.dumps(metadata)) > limits.ZAQAR_METADATA:
            raise QueueError(f"Queue metadata is too large. Max size: {limits.ZAQAR_METADATA}")
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
        row = self._store.row(
            "SELECT metadata FROM hotplate_queue WHERE project = ? AND name = ?", project, queue
        )
        return dict(json.loads(row["metadata"])) if row else None

    def delete(self, project: str, queue: str) -> None:
        """Delete a queue and its messages."""
        self.purge(project, queue)
        self._store.write(
            "DELETE FROM hotplate_queue WHERE project = ? AND name = ?", project, queue
        )

    def purge(self, project: str, queue: str) -> None:
        """Delete the messages of a queue."""
        self._store.write(
            "DELETE FROM hotplate_message WHERE project = ? AND queue = ?", project, queue
        )

    def post(self, project: str, queue: str, messages: object) -> list[str]:
        """Append messages (``body``, ``ttl``); return their ids.  Creates the queue if necessary.

        :raises QueueError: for invalid messages.
        :raises QuotaError: when the project has no room for them.
        """
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and "body" in message for message in messages
        ):
            raise QueueError("No messages to enqueue")
        if any(message.get("delay") for message in messages):
            raise QueueError("Messages are not delayed here: delay must be 0.")
        default = (self.metadata(project, queue) or {}).get(DEFAULT_TTL)
        times = [_ttl(message.get("ttl", default)) for message in messages]
        self.create(project, queue)
        ids = []
        for message, ttl in zip(messages, times, strict=True):
            ids.append(uuid.uuid4().hex[:24])
            self._store.write(
                "INSERT INTO hotplate_message (id, project, queue, body, ttl, posted)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                ids[-1],
                project,
                queue,
                json.dumps(message["body"]),
                ttl,
                time.time(),
            )
        with self._lock:
            listeners = list(self._listeners.get((project, queue), ()))
        for listener in listeners:
            for message in messages:
                listener(message)
        self._notify()
        return ids

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
        row = self._store.row(
            "SELECT * FROM hotplate_message WHERE project = ? AND queue = ? AND id = ?",
            project,
            queue,
            message_id,
        )
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
        rows = self._store.take(
            "SELECT * FROM hotplate_message WHERE project = ? AND queue = ?"
            " ORDER BY number LIMIT ?",
            "DELETE FROM hotplate_message WHERE number = ?",
            project,
            queue,
            count,
        )
        return [_message(row, queue) for row in rows]

    def remove(self, project: str, queue: str, message_id: str) -> None:
        """Delete a message."""
        self._store.write(
            "DELETE FROM hotplate_message WHERE project = ? AND queue = ? AND id = ?",
            project,
            queue,
            message_id,
        )

    def subscribe(
        self, project: str, queue: str, listener: Callable[[dict[str, object]], None]
    ) -> Callable[[], None]:
        """Call ``listener`` with each message posted from now on; return a function to end it."""
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


def check_name(queue: str) -> None:
    """Refuse names that Zaqar refuses (``queue_identification`` of its ``validation.py``).

    :raises QueueError: for an invalid name.
    """
    if not _NAME.fullmatch(queue):
        raise QueueError(
            "Queue names may only contain ASCII letters, digits, underscores, and dashes, and may "
            "not be more than 64 characters long."
        )


class ZaqarApi:
    """Zaqar's WSGI application."""

    def __init__(self, queues: Queues, identity: Identity, *, secret: str) -> None:
        self._queues = queues
        self._identity = identity
        self._secret = secret.encode()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        try:
            status, body = self._answer(environ)
        except _ZaqarHttpError as error:
            status = error.status
            body = {"title": error.title, "description": str(error)}
        except QueueError as error:
            status = "400 Bad Request"
            body = {"title": "Invalid API request", "description": str(error)}
        except QuotaError:
            status = "503 Service Unavailable"
            body = {"title": "Service temporarily unavailable", "description": "No room is left."}
        payload = b"" if body is None else json.dumps(body).encode()
        start_response(
            status,
            [("Content-Type", "application/json"), ("Content-Length", str(len(payload)))],
        )
        return [payload]

    def _answer(self, environ: WSGIEnvironment) -> tuple[str, object]:
        method = environ["REQUEST_METHOD"]
        path = environ.get("PATH_INFO", "").rstrip("/")
        if path == "":
            return "300 Multiple Choices", {
                "versions": [
                    {
                        "id": "2",
                        "status": "CURRENT",
                        "updated": "2014-9-24T04:06:47Z",
                        "media-types": [{"base": "application/json", "type": ""}],
                        "links": [{"rel": "self", "href": "/v2/"}],
                    }
                ]
            }
        if path in ("/v2", "/v2/ping", "/v2/health"):
            return "200 OK", {}
        project = self._project(environ, method, path)
        if path == "/v2/queues" and method == "GET":
            return "200 OK", self._list(environ, project)
        match = _QUEUE.match(path)
        if match is None:
            raise _ZaqarHttpError("404 Not Found", "Not found", path)
        queue, below = match["queue"], match["below"]
        if below == "messages":
            return self._messages(environ, method, project, queue, match["message"])
        if below == "share" and method == "POST":
            return "200 OK", self._share(project, queue, _read_json(environ))
        if below == "stats" and method == "GET":
            count = self._queues.count(project, queue)
            return "200 OK", {"messages": {"claimed": 0, "free": count, "total": count}}
        if below == "purge" and method == "POST":
            self._queues.purge(project, queue)
            return "204 No Content", None
        if below is None:
            return self._queue(environ, method, project, queue)
        raise _ZaqarHttpError("405 Method Not Allowed", "Method not allowed", method)

    def _list(self, environ: WSGIEnvironment, project: str) -> dict[str, object]:
        """Return a page of queues; the last page is empty, as Zaqar's clients expect."""
        query = parse_qs(environ.get("QUERY_STRING", ""))
        limit, marker = _number(query.get("limit", ["10"])[0]), query.get("marker", [""])[0]
        names = self._queues.names(project)
        chosen = [name for name in names if name > marker][:limit]
        queues: list[dict[str, object]] = [
            {"name": name, "href": f"/v2/queues/{name}"} for name in chosen
        ]
        if _is_true(query, "detailed"):
            for each in queues:
                each["metadata"] = self._queues.metadata(project, str(each["name"])) or {}
        count = {"count": len(names)} if _is_true(query, "with_count") else {}
        last = chosen[-1] if chosen else ""
        return {"queues": queues, "links": _next("/v2/queues", query, limit, last), **count}

    def _queue(
        self, environ: WSGIEnvironment, method: str, project: str, queue: str
    ) -> tuple[str, object]:
        if method == "PUT":
            made = self._queues.create(project, queue, _read_json(environ) or {})
            return ("201 Created" if made else "204 No Content"), None
        if method == "DELETE":
            self._queues.delete(project, queue)
            return "204 No Content", None
        if method == "GET":
            metadata = self._queues.metadata(project, queue)
            if metadata is None:
                # A queue is created on first use, so reading a missing one is no error.
                metadata = {}
            return "200 OK", {
                "_max_messages_post_size": limits.ZAQAR_POST,
                DEFAULT_TTL: 3600,
                **metadata,
            }
        raise _ZaqarHttpError("405 Method Not Allowed", "Method not allowed", method)

    def _messages(
        self,
        environ: WSGIEnvironment,
        method: str,
        project: str,
        queue: str,
        message_id: str | None,
    ) -> tuple[str, object]:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if method == "POST":
            largest = self._queues.largest_post
            if int(environ.get("CONTENT_LENGTH") or 0) > largest:
                raise QueueError(f"Message collection size is too large. Max size {largest}")
            body = _read_json(environ)
            messages = body.get("messages") if isinstance(body, dict) else None
            ids = self._queues.post(project, queue, messages)
            return "201 Created", {
                "resources": [f"/v2/queues/{queue}/messages/{made}" for made in ids]
            }
        if method == "DELETE":
            if message_id is not None:
                self._queues.remove(project, queue, message_id)
                return "204 No Content", None
            if "pop" in query:
                count = _number(query["pop"][0])
                return "200 OK", {"messages": self._queues.pop(project, queue, count)}
            for each in query.get("ids", [""])[0].split(","):
                self._queues.remove(project, queue, each)
            return "204 No Content", None
        if method == "GET":
            if message_id is None and "ids" in query:
                wanted = query["ids"][0].split(",")[: limits.ZAQAR_PAGE]
                chosen = [self._queues.message(project, queue, each) for each in wanted]
                return "200 OK", {"messages": [each for each in chosen if each]}
            if message_id is None:
                limit = _number(query.get("limit", ["10"])[0])
                marker = query.get("marker", [""])[0]
                messages = self._queues.peek(project, queue, limit, marker=marker)
                last = str(messages[-1]["id"]) if messages else ""
                links = _next(f"/v2/queues/{queue}/messages", query, limit, last)
                return "200 OK", {"messages": messages, "links": links}
            if message := self._queues.message(project, queue, message_id):
                return "200 OK", message
            raise _ZaqarHttpError("404 Not Found", "Not found", message_id)
        raise _ZaqarHttpError("405 Method Not Allowed", "Method not allowed", method)

    # -- authorisation --------------------

    def _project(self, environ: WSGIEnvironment, method: str, path: str) -> str:
        if "HTTP_URL_SIGNATURE" in environ:
            return self._signed_project(environ, method, path)
        try:
            grant = self._identity.read_token(environ.get("HTTP_X_AUTH_TOKEN", ""))
        except IdentityError as error:
            raise _ZaqarHttpError(
                "401 Unauthorized", "Unauthorized", "The request requires authentication."
            ) from error
        return grant.project

    def _share(self, project: str, queue: str, body: object) -> dict[str, object]:
        body = body if isinstance(body, dict) else {}
        paths = [f"/v2/queues/{queue}/{path}" for path in body.get("paths") or ["messages"]]
        methods = sorted(body.get("methods") or ["GET"])
        expires = body.get("expires") or (datetime.now(UTC) + timedelta(days=1)).strftime(_LATER)
        return {
            "project": project,
            "paths": paths,
            "methods": methods,
            "expires": expires,
            "signature": self._signature(project, paths, expires, methods),
        }

    def _signature(self, project: str, paths: list[str], expires: str, methods: list[str]) -> str:
        text = "\n".join([*sorted(paths), *sorted(methods), expires, project])
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _signed_project(self, environ: WSGIEnvironment, method: str, path: str) -> str:
        project: str = environ.get("HTTP_X_PROJECT_ID", "")
        paths = environ.get("HTTP_URL_PATHS", "").split(",")
        methods = environ.get("HTTP_URL_METHODS", "").split(",")
        expires: str = environ.get("HTTP_URL_EXPIRES", "")
        made = self._signature(project, paths, expires, methods)
        refused = _ZaqarHttpError("404 Not Found", "Not found", "The URL signature is not valid.")
        if not hmac.compare_digest(made.encode(), environ["HTTP_URL_SIGNATURE"].encode()):
            raise refused
        try:
            end = datetime.strptime(expires[:19], _LATER).replace(tzinfo=UTC)
        except ValueError:
            raise refused from None
        if end < datetime.now(UTC) or method not in methods or path not in paths:
            raise refused
        return project


class _ZaqarHttpError(Exception):
    def __init__(self, status: str, title: str, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.title = title


def app(queues: Queues, identity: Identity, *, secret: str) -> WSGIApp:
    """Return Zaqar as a WSGI application.

    :param secret: the key of signed URLs.
    """
    return ZaqarApi(queues, identity, secret=secret)


def _message(row: Any, queue: str) -> dict[str, Any]:
    return {
        "id": row["id"],
        "href": f"/v2/queues/{queue}/messages/{row['id']}",
        "ttl": row["ttl"],
        "age": int(time.time() - row["posted"]),
        "body": json.loads(row["body"]),
    }


def _is_true(query: dict[str, list[str]], name: str) -> bool:
    return query.get(name, [""])[0].lower() in ("true", "1", "yes")


def _next(path: str, query: dict[str, list[str]], limit: int, marker: str) -> list[dict[str, str]]:
    """Return the link to the page after ``marker``; none after an empty page."""
    if not marker:
        return []
    words = {name: values[0] for name, values in query.items()}
    following = urlencode({**words, "limit": limit, "marker": marker})
    return [{"rel": "next", "href": f"{path}?{following}"}]


def _number(text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) < 6
    if not digits or not 0 < int(text) <= limits.ZAQAR_PAGE:
        raise QueueError(f"Limit must be at least 1 and no greater than {limits.ZAQAR_PAGE}.")
    return int(text)


def _ttl(value: object) -> int:
    """Return the lifetime of a message in seconds (Zaqar's ``message_content``)."""
    if value is None:
        return 3600
    shortest, longest = limits.ZAQAR_TTL
    if not isinstance(value, int) or not shortest <= value <= longest:
        raise QueueError(
            f"The TTL for a message may not exceed {longest} seconds, and must be at least "
            f"{shortest} seconds long."
        )
    return value


def _read_json(environ: WSGIEnvironment) -> Any:
    raw = environ["wsgi.input"].read()
    if not raw:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise _ZaqarHttpError(
            "400 Bad Request", "Invalid API request", "Request body could not be parsed."
        ) from None
