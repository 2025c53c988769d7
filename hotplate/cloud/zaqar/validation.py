"""The limits of Zaqar's requests, in its words.

The rules and messages are those of ``zaqar/transport/validation.py`` and
``zaqar/transport/wsgi/utils.py``, the numbers the defaults of ``zaqar/conf/transport.py``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import HttpError

#: Keys of a queue's metadata for its messages: the lifetime of those that have none of their own,
#: and the maximum size of a post.
DEFAULT_TTL = "_default_message_ttl"
MAX_POST = "_max_messages_post_size"
_DELAY = "_default_message_delay"
_DEAD_TTL = "_dead_letter_queue_messages_ttl"
#: The metadata that Zaqar shows of a queue that does not have it.
RESERVED: Mapping[str, object] = {
    MAX_POST: limits.ZAQAR_POST,
    DEFAULT_TTL: limits.ZAQAR_DEFAULT_TTL,
    _DELAY: 0,
    "_dead_letter_queue": None,
    _DEAD_TTL: None,
    "_max_claim_count": None,
    "_enable_encrypt_messages": False,
}
_NAME = re.compile(r"[a-zA-Z0-9_\-.]+")
_SHORTEST, _LONGEST = limits.ZAQAR_TTL
_TTL = f"may not exceed {_LONGEST} seconds, and must be at least {_SHORTEST} seconds long."


class QueueError(HttpError):
    """Zaqar refuses the request with 400; ``str()`` is the description in its answer.

    :param title: the title in its answer.
    """

    def __init__(self, text: str, *, title: str = "Invalid API request") -> None:
        super().__init__(400, text, kind=title)


class BodyError(QueueError):
    """The body of the request is not one that Zaqar reads."""

    def __init__(self, text: str) -> None:
        super().__init__(text, title="Invalid request body")


def check_name(queue: str) -> None:
    """Refuse names that Zaqar refuses (``queue_identification``).

    :raises QueueError: for an invalid name.
    """
    if len(queue) > limits.ZAQAR_NAME:
        raise QueueError(f"Queue names may not be more than {limits.ZAQAR_NAME} characters long.")
    if not _NAME.fullmatch(queue):
        raise QueueError(
            "Queue names may only contain ASCII letters, digits, underscores, and dashes."
        )


def check_client(client_id: str) -> None:
    """Refuse a request without the id of its client (``client_id_uuid_safe = strict``).

    :raises QueueError: when it is missing, or no UUID.
    """
    if not client_id:
        # The words of Falcon's HTTPMissingHeader.
        raise QueueError('The "Client-Id" header is required.', title="Missing header value")
    try:
        uuid.UUID(client_id)
    except ValueError:
        raise QueueError("Malformed hexadecimal UUID.", title="Wrong UUID value") from None


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuse metadata that Zaqar refuses (``queue_metadata_putting``).

    :raises QueueError: for an invalid value of a reserved name, and for a queue with a delay.
    """
    for name in (DEFAULT_TTL, MAX_POST, "_max_claim_count", _DEAD_TTL, _DELAY):
        # Zaqar itself fails on a value like "" here.
        if metadata.get(name) is not None and not isinstance(metadata[name], int):
            raise QueueError(f"{name} must be integer.")
    if not isinstance(metadata.get("_enable_encrypt_messages") or False, bool):
        raise QueueError("_enable_encrypt_messages must be boolean.")
    ttl, size = metadata.get(DEFAULT_TTL), metadata.get(MAX_POST)
    if ttl is not None and not _SHORTEST <= ttl <= _LONGEST:
        raise QueueError(
            f"{DEFAULT_TTL} can not exceed {_LONGEST} seconds, and must be at least {_SHORTEST} "
            "seconds long."
        )
    if size is not None and not 0 < size <= limits.ZAQAR_POST:
        raise QueueError(
            f"{MAX_POST} can not exceed {limits.ZAQAR_POST},  and must be at least greater than 0."
        )
    dead, delay = metadata.get(_DEAD_TTL), metadata.get(_DELAY)
    if dead is not None and not _SHORTEST <= dead <= _LONGEST:
        raise QueueError(f"The TTL for a message {_TTL}")
    if delay is not None and not 0 <= delay <= limits.ZAQAR_DELAY:
        raise QueueError(
            f"The TTL can not exceed {limits.ZAQAR_DELAY} seconds, and must be at least 0 seconds "
            "long."
        )
    if delay:
        raise QueueError(f"Messages are not delayed here: {_DELAY} must be 0.")


def patched(metadata: Mapping[str, Any], changes: object) -> dict[str, Any]:
    """Return metadata with the operations of a JSON patch (``queue_patching``).

    :raises QueueError: for an invalid operation or value.
    :raises HttpError: 409, for a value that is not there to be changed.
    """
    if not isinstance(changes, list) or not all(isinstance(each, dict) for each in changes):
        raise BodyError("Request body must be a JSON array of operation objects.")
    result = dict(metadata)
    for each in changes:
        op, path = each.get("op"), str(each.get("path", ""))
        if op not in ("add", "remove", "replace"):
            raise BodyError(
                f"Invalid operation: `{op}`. It must be one of the following: add, remove, replace."
            )
        root, _, name = path.removeprefix("/").partition("/")
        if root != "metadata" or not name or "/" in name:
            raise BodyError(f"Invalid JSON pointer for this resource: '{path}, e.g /metadata/key'")
        # RFC 6901: "~1" is replaced first, so that "~01" becomes "~1" and not "/".
        name = name.replace("~1", "/").replace("~0", "~")
        if op != "add" and name not in result and name not in RESERVED:
            words = f"Can't {op} non-existent object {name}."
            raise HttpError(409, words, kind="Resource conflict")
        if op == "remove":
            result.pop(name, None)
        elif "value" not in each:
            raise BodyError(f'Operation "{op}" requires a member named "value".')
        else:
            result[name] = each["value"]
    check_metadata(result)
    return result


def check_metadata_size(size: int) -> None:
    """Refuse metadata of more bytes than ``max_queue_metadata``.

    :raises QueueError: for more.
    """
    if size > limits.ZAQAR_METADATA:
        raise QueueError(f"Queue metadata is too large. Max size: {limits.ZAQAR_METADATA}")


def check_post_size(size: int, *, of_queue: object, most: int) -> None:
    """Refuse a post of too many bytes (``message_length``).

    :param of_queue: the maximum in the queue's metadata; None for none.
    :param most: the maximum of all queues.
    :raises QueueError: for more.
    """
    if isinstance(of_queue, int) and size > min(of_queue, most):
        raise QueueError(
            "Message collection size is too large. The max size for current queue is "
            f"{min(of_queue, most)}. It is calculated by max size = "
            f"min(max_messages_post_size_config: {most}, max_messages_post_size_queue: {of_queue})."
        )
    if size > most:
        raise QueueError(f"Message collection size is too large. Max size {most}")


def checked_messages(messages: object, default_ttl: object) -> list[tuple[object, int]]:
    """Return the body and the lifetime in seconds of each message of a post.

    :param default_ttl: the lifetime in the queue's metadata; None for none.
    :raises QueueError: for invalid messages.
    """
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BodyError("Document type not supported.")
    if not messages:
        raise QueueError("No messages to enqueu.")
    checked = []
    for each in messages:
        ttl = each.get("ttl", default_ttl or limits.ZAQAR_DEFAULT_TTL)
        if not isinstance(ttl, int):
            raise BodyError('The value of the "ttl" field must be a int.')
        if "body" not in each:
            raise BodyError('Missing "body" field.')
        if not _SHORTEST <= ttl <= _LONGEST:
            raise QueueError(f"The TTL for a message {_TTL}")
        if each.get("delay"):
            raise QueueError("Messages are not delayed here: delay must be 0.")
        checked.append((each["body"], ttl))
    return checked


def number(name: str, text: str) -> int:
    """Return a number in the query of a request.

    :raises QueueError: when it is none.
    """
    # int() alone accepts "1_0", and digits of every script.
    if not re.fullmatch("-?[0-9]{1,18}", text):
        # The words of Falcon's HTTPInvalidParam.
        raise QueueError(
            f'The "{name}" parameter is invalid. The value must be an integer.',
            title="Invalid parameter",
        )
    return int(text)


def check_page(
    count: int, *, words: str = "Limit must be at least 1 and may not be greater than"
) -> None:
    """Refuse a page of more queues or messages than Zaqar accepts.

    :param words: of the error, without the maximum.
    :raises QueueError: for more, and for none.
    """
    if not 0 < count <= limits.ZAQAR_PAGE:
        raise QueueError(f"{words} {limits.ZAQAR_PAGE}.")


def check_deletion(*, pop: int | None, ids: list[str] | None) -> None:
    """Refuse to remove neither or both of messages by id and the oldest ones, and too many.

    :raises QueueError: for these.
    """
    if pop is not None and ids is not None:
        raise QueueError("pop and id params cannot be present together in the delete request.")
    if pop is None and ids is None:
        raise QueueError(
            'The request should have either "ids" or "pop" parameter in the request, to be able to '
            "delete."
        )
    if pop is not None:
        check_page(pop, words="Pop value must be at least 1 and may not be greater than")
    if ids is not None and not 0 < len(ids) <= limits.ZAQAR_PAGE:
        raise QueueError(
            f"ids parameter should have at least 1 and not greater than {limits.ZAQAR_PAGE} values."
        )
