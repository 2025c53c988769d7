"""The limits of Zaqar's requests (its ``zaqar/transport/validation.py``)."""

from __future__ import annotations

import re

from hotplate.cloud.http import limits

_NAME = re.compile("[a-zA-Z0-9_-]{1,64}")


class QueueError(Exception):
    """Zaqar refuses the request with 400; ``str()`` is the description in its answer."""


def check_name(queue: str) -> None:
    """Refuse names that Zaqar refuses (``queue_identification`` of its ``validation.py``).

    :raises QueueError: for an invalid name.
    """
    if not _NAME.fullmatch(queue):
        raise QueueError(
            "Queue names may only contain ASCII letters, digits, underscores, and dashes, and may "
            "not be more than 64 characters long."
        )


def number(text: str) -> int:
    """Return the number of messages or queues of a request."""
    # isdigit() alone accepts digits such as a superscript two, which int() refuses.
    digits = text.isascii() and text.isdigit() and len(text) < 6
    if not digits or not 0 < int(text) <= limits.ZAQAR_PAGE:
        raise QueueError(f"Limit must be at least 1 and no greater than {limits.ZAQAR_PAGE}.")
    return int(text)


def message_ttl(value: object) -> int:
    """Return the lifetime of a message in seconds (Zaqar's ``message_content``)."""
    if value is None:
        # Zaqar: ``[transport] default_message_ttl``.
        return 3600
    shortest, longest = limits.ZAQAR_TTL
    if not isinstance(value, int) or not shortest <= value <= longest:
        raise QueueError(
            f"The TTL for a message may not exceed {longest} seconds, and must be at least "
            f"{shortest} seconds long."
        )
    return value
