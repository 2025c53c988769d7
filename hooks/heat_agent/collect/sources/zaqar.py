"""zaqar: the newest metadata from a queue (API v2), over HTTP or a websocket.

Heat posts a message with the whole metadata for each change. A message is removed from the queue
when it is read; while the queue is empty, the last message stays valid.
"""

from __future__ import annotations

import os

from heat_config.address import Target, redacted
from heat_config.deadline import Deadline

from .. import documents, keystone, web
from ..problems import NotConfigured, Unavailable
from ..websocket import WebSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from heat_config.http1 import Answer
    from heat_config.stream import Stream

    from ..keystone import Token
    from . import Surroundings

    Documents = list[tuple[str, Any]]

NEEDED = ("auth_url", "password", "project_id", "user_id", "queue_id")
EMPTY = 204
SECONDS = 10.0
#: Lifetime of a subscription in seconds; the connection is renewed after a third of it.
SUBSCRIPTION = 10000

#: Maximum frames to read in one round.
FRAMES = 100

#: Maximum messages to take from the queue in one round.
MESSAGES = 100


class Zaqar:
    """Take messages from ``[zaqar] queue_id``."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._options = surroundings.settings.zaqar
        self._keys = surroundings.settings.deployment_key
        self._client = surroundings.client
        self._warn = surroundings.warn
        self._keystone = keystone.of_user(surroundings.client, self._options)
        self._id = _uuid()
        self._subscription: Subscription | None = None
        if not self._options.ssl_certificate_validation and self._options.auth_url:
            surroundings.log.warning(
                "[zaqar] ssl_certificate_validation is false: an attacker on the network"
                " could read the token and change the metadata"
            )

    def collect(self) -> Documents:
        for name in NEEDED:
            if not getattr(self._options, name):
                raise NotConfigured(f"[zaqar] {name} is not set")
        body = self._pushed() if self._options.use_websockets else self._popped()
        if body is None:
            raise Unavailable("the queue is empty", quiet=True)
        if not isinstance(body, dict):
            raise Unavailable("the message in the queue is not a JSON object")
        return documents.explode("zaqar", body, self._keys, self._warn)

    def wakes(self) -> Stream | None:
        """Return the Stream on which a message may arrive between two rounds, or None."""
        return None if self._subscription is None else self._subscription.socket.stream

    def _popped(self) -> Any:
        """Return the body of the newest message in the queue, or None."""
        newest = None
        for _ in range(MESSAGES):
            try:
                body = self._pop()
            except Unavailable:
                # Messages taken before are gone from the queue.
                if newest is None:
                    raise
                break
            if body is None:
                break
            newest = body
        return newest

    def _pop(self) -> Any:
        """Remove the oldest message from the queue and return its body, or None."""
        answer = self._keystone.authorized(self._delete)
        if answer.status == EMPTY:
            return None
        where = f'the answer of "{redacted(answer.url)}"'
        return _body(documents.decode_object(answer.body, where).get("messages"), where)

    def _delete(self, token: Token) -> Answer:
        from urllib.parse import quote

        base = keystone.endpoint(token, "messaging", self._options.region_name)
        # The catalog's URL may have the version or not.
        if not base.endswith(("/v2", "/v2.0")):
            base += "/v2"
        headers = {
            "X-Auth-Token": token.value,
            "X-Project-Id": self._options.project_id,
            "Client-ID": self._id,
            "Content-Type": "application/json",
            "Accept": "application/json",
        }
        return self._client.ask(
            f"{base}/queues/{quote(self._options.queue_id, safe='')}/messages?pop=1",
            method="DELETE",
            headers=headers,
            ca_file=self._options.ca_file or None,
            verify=self._options.ssl_certificate_validation,
        )

    def _pushed(self) -> Any:
        try:
            if self._subscription is None or self._subscription.is_old():
                self.close()
                self._subscription = self._subscribe()
            return self._subscription.newest()
        except Unavailable:
            self.close()
            raise
        except OSError as error:
            self.close()
            reason = error.strerror or str(error) or "no answer in time"
            raise Unavailable(f"the websocket failed: {reason}", overloaded=True) from None

    def _subscribe(self) -> Subscription:
        token = self._keystone.token()
        url = keystone.endpoint(token, "messaging-websocket", self._options.region_name)
        try:
            # Target knows only http and https; ws and wss have the same ports.
            target = Target("http" + url[2:] if url.startswith(("ws:", "wss:")) else url)
        except ValueError:
            raise Unavailable(f'"{redacted(url)}" is not a valid websocket URL') from None
        stream = self._client.open_stream(
            target,
            seconds=SECONDS,
            ca_file=self._options.ca_file or None,
            verify=self._options.ssl_certificate_validation,
        )
        made = Subscription(WebSocket(stream, web.DOCUMENT_LIMIT), self._options, self._id)
        try:
            made.begin(target, token.value)
        except Refused:
            made.socket.close()
            # The next round begins with a new token.
            self._keystone.forget()
            raise
        except BaseException:
            made.socket.close()
            raise
        return made

    def close(self) -> None:
        """Close the websocket."""
        if self._subscription is not None:
            self._subscription.socket.close()
            self._subscription = None


class Refused(Unavailable):
    """Zaqar refused the token."""


class Subscription:
    """A websocket with a subscription to the queue in *options*, as zaqarclient makes it."""

    def __init__(self, socket: WebSocket, options: Any, client_id: str) -> None:
        self.socket = socket
        self._queue = options.queue_id
        self._headers = {"Client-ID": client_id, "X-Project-ID": options.project_id}
        self._since = keystone.uptime()
        self._waiting = None

    def is_old(self) -> bool:
        return keystone.uptime() - self._since > SUBSCRIPTION / 3

    def begin(self, target: Target, token: str) -> None:
        """Shake hands, authenticate, subscribe. Raises Unavailable, OSError."""
        deadline = Deadline(SECONDS, 6 * SECONDS)
        self.socket.begin(target, deadline)
        # In the order of zaqarclient and of upstream's get_data_websocket().
        self._ask("authenticate", None, deadline, {"X-Auth-Token": token})
        self._ask("queue_create", {}, deadline)
        self._ask("subscription_create", {"ttl": SUBSCRIPTION}, deadline)

    def newest(self) -> Any:
        """Return the body of the newest message, or None if there is no new one.

        A pushed message may still be in the queue; other messages there are newer.
        """
        deadline = Deadline(SECONDS, 6 * SECONDS)
        # First the frames that have arrived.
        for _ in range(FRAMES):
            if not self.socket.stream.holds():
                break
            text = self.socket.step(deadline)
            if text is not None:
                self._keep(_frame(text))
        # Then the queue: what was posted before the subscription was never pushed.
        popped = None
        for _ in range(FRAMES):
            reply = self._ask("message_delete_many", {"pop": 1}, deadline)
            body = _body(reply.get("messages"), "the websocket's answer")
            if body is None:
                break
            popped = body
        pushed, self._waiting = self._waiting, None
        return pushed if popped is None else popped

    def _ask(
        self,
        action: str,
        body: dict[str, Any] | None,
        deadline: Deadline,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the body of the reply to *action*. Raises Unavailable, OSError."""
        import json

        request = {"action": action, "headers": {**(headers or {}), **self._headers}}
        if body is not None:
            request["body"] = {"queue_name": self._queue, **body}
        self.socket.send(json.dumps(request), deadline)
        for _ in range(FRAMES):
            reply = _frame(self.socket.receive(deadline))
            if _answers(reply, action):
                break
            # A frame that was pushed before the reply must not be lost.
            self._keep(reply)
        else:
            raise Unavailable("the websocket does not answer", overloaded=True)
        status = reply["headers"]["status"]
        if status in (401, 403):
            raise Refused(f'Zaqar answered {status} to "{action}" over the websocket')
        if not 200 <= status < 300:
            raise Unavailable(
                f'Zaqar answered {status} to "{action}" over the websocket',
                overloaded=status >= 500,
            )
        body = reply.get("body")
        return body if isinstance(body, dict) else {}

    def _keep(self, pushed: dict[str, Any]) -> None:
        if isinstance(pushed.get("body"), dict):
            self._waiting = pushed["body"]


def _frame(text: str) -> dict[str, Any]:
    return documents.decode_object(text, "the websocket's frame")


def _answers(reply: dict[str, Any], action: str) -> bool:
    """Return whether a frame is the reply to *action*, and not a pushed message."""
    headers = reply.get("headers")
    status = headers.get("status") if isinstance(headers, dict) else None
    # A pushed message has no status, or it has a "Message_Type".
    if not isinstance(status, int) or isinstance(status, bool) or "Message_Type" in reply:
        return False
    request = reply.get("request")
    if isinstance(request, dict):
        return request.get("action") == action
    # Without the request in the reply, its content has to tell whose it is.
    body = reply.get("body")
    if action != "message_delete_many" or status >= 300:
        return True
    return isinstance(body, dict) and isinstance(body.get("messages"), list)


def _body(messages: Any, where: str) -> Any:
    """Return the body of the first message, or None if there is none."""
    if not isinstance(messages, list):
        raise Unavailable(f"{where} has no list of messages")
    if not messages:
        return None
    if not isinstance(messages[0], dict) or not isinstance(messages[0].get("body"), dict):
        raise Unavailable(f"{where} has a message whose body is not a JSON object")
    return messages[0]["body"]


def _uuid() -> str:
    number = os.urandom(16).hex()
    # A random UUID (version 4, RFC 4122 4.4), without the import of uuid.
    parts = (number[:8], number[8:12], "4" + number[13:16], "8" + number[17:20], number[20:])
    return "-".join(parts)
