"""The schedule of a signal's retries."""

from __future__ import annotations

import os
import time

from . import process, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .refusal import NotAccepted

#: Tries that follow the agent's own spacing; later pauses grow.
PATIENT = 3

#: Seconds between two tries, at most.
MAX_PAUSE = 60.0

#: The same while the answer is a refusal.
MAX_REFUSED_PAUSE = 300.0

REFUSALS = 20
#: This many refusals in a row, over this many seconds of uptime, are final: a day is longer than
#: it takes to correct a clock or to repair Keystone.
REFUSED_FOR = 86400.0


def is_due(note: Any) -> bool:
    """Return False while a signal that failed several times has to wait."""
    # Uptime of another boot means nothing here. After a reboot a signal is due at once.
    if not isinstance(note, dict) or note.get("boot") != process.boot_id():
        return True
    after = note.get("after")
    return not isinstance(after, (int, float)) or uptime() >= after


def failed_try(note: Any, error: NotAccepted) -> dict[str, Any]:
    """Return the note of a try that failed with *error*, NotAccepted; *note* is the last one's.

    The tries follow the agent's own spacing first, then wait for up to a few minutes. Time is
    counted while the machine is up: a wrong clock may be the cause of the failure.
    """
    note = note if isinstance(note, dict) else {}
    tries = _number(note, "tries") + 1
    boot, now = process.boot_id(), uptime()
    longest = MAX_PAUSE
    refusals: float = 0
    refused: float = 0
    if error.refused:
        longest = MAX_REFUSED_PAUSE
        refusals = _number(note, "refusals") + 1
        refused = _number(note, "refused")
        # The pause since the last refusal counts only if the machine was up all the time.
        if refusals > 1 and note.get("boot") == boot:
            refused += max(0, now - _number(note, "at"))
    wait = 0.0
    if tries > PATIENT:
        # Between half of the pause and all of it: the guests of a stack must not come back in step
        # after an outage. os.urandom, because the random module takes long to import.
        spread = int.from_bytes(os.urandom(2), "big") / 65536
        wait = min(longest, 5.0 * 2 ** min(tries - PATIENT - 1, 10)) * (0.5 + spread / 2)
    return {
        "tries": tries,
        "boot": boot,
        "at": now,
        "refusals": refusals,
        "refused": refused,
        "after": now + wait,
    }


def is_final(note: dict[str, Any], error: NotAccepted) -> bool:
    """Return whether further tries are pointless."""
    enough = note["refusals"] >= REFUSALS and note["refused"] >= REFUSED_FOR
    return error.final or bool(enough)


def address(inputs: dict[str, Any]) -> str:
    """Return a digest of the signal's address and user in *inputs*."""
    from hashlib import sha256

    # A digest, because it stays in the record after the credentials are removed from it.
    text = values.encode([values.text(inputs.get(name)) for name in ADDRESS])
    return sha256(text.encode("ascii")).hexdigest()


ADDRESS = (
    "deploy_signal_id",
    "deploy_signal_verb",
    "deploy_queue_id",
    "deploy_auth_url",
    "deploy_user_id",
    "deploy_password",
    "deploy_project_id",
    "deploy_stack_id",
    "deploy_resource_name",
)


def _number(note: dict[str, Any], key: str) -> float:
    value = note.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def uptime() -> float:
    # Includes the time in suspend, and does not jump when the clock is set.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
