"""A client of the QEMU guest agent.

Source of the format: QEMU's ``docs/interop/qemu-ga-ref`` and ``qga/qapi-schema.json``.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from hotplate.errors import HotplateError
from hotplate.guest import wire
from hotplate.guest.base import (
    COMMAND_SECONDS,
    FILE_BYTES,
    OUTPUT_BYTES,
    CommandError,
    CommandResult,
    GuestReplyError,
    contents,
    shell_text,
)
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

CHUNK = 1 << 20
DELIMITER = b"\xff"
"""What the agent sends before the answer to ``guest-sync-delimited``."""
OFF = "the machine is off: no guest agent answers"
LONGEST_LINE = OUTPUT_BYTES * 3 // 2
"""Bytes: the output of a command in base64."""


T = TypeVar("T")


class AgentError(HotplateError):
    """The guest agent refused a command."""


class Agent:
    """The guest's agent; a :class:`~hotplate.guest.base.Guest`.

    :param channel: a connected stream socket to the agent's port; stays the caller's.
    """

    name = "agent"

    def __init__(self, channel: socket.socket) -> None:
        self._channel = wire.Channel(channel, off=OFF)
        self._lock = threading.Lock()

    def attach(self, deadline: Deadline) -> None:
        """Wait until the agent answers, and drop what was said before.

        :raises DeadlineExceeded: when it does not; it is perhaps not in the image.
        :raises MachineLostError: when the machine is off.
        """

        def attempt(_: bool) -> bool | None:
            number = secrets.randbelow(1 << 31)
            step = Deadline(min(2.0, max(deadline.left, 0.1)), "the guest agent")
            with self._lock:
                # The delimiter makes the agent forget half a command that it may have read.
                self._channel.send(b"\xff", step)
                request = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
                self._channel.send(json.dumps(request).encode() + b"\n", step)
                try:
                    self._channel.skip_past(DELIMITER, step)
                    answer = self._answer(step)
                except (DeadlineExceeded, GuestReplyError):
                    return None
            return True if answer.get("return") == number else None

        retry(attempt, deadline, every=0.0)

    def execute(self, command: str, *, seconds: float = 30.0, **arguments: Any) -> Any:
        """Run one command of the agent's and return what it returns.

        ``_`` in the names of arguments stands for ``-``.

        :raises AgentError: when the agent refuses.
        :raises DeadlineExceeded: when it does not answer.
        """
        deadline = Deadline(seconds, f'the guest agent\'s answer to "{command}"')
        request = {
            "execute": command,
            "arguments": {name.replace("_", "-"): value for name, value in arguments.items()},
        }
        with self._lock:
            self._channel.send(json.dumps(request).encode() + b"\n", deadline)
            answer = self._answer(deadline)
        if "error" in answer:
            error = answer["error"]
            why = error.get("desc", "") if isinstance(error, dict) else error
            raise AgentError(f'the guest agent refused "{command}": {why}')
        if "return" not in answer:
            raise GuestReplyError(f'the guest agent\'s answer to "{command}" has no "return"')
        return answer["return"]

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """See :meth:`hotplate.guest.base.Guest.run`."""
        text = shell_text(command)
        started = self.execute("guest-exec", path="/bin/sh", arg=["-c", text], capture_output=True)
        pid = _field(started, "pid", int)

        def ended(_: bool) -> dict[str, Any] | None:
            status = self.execute("guest-exec-status", pid=pid)
            return status if _field(status, "exited", bool) else None

        deadline = Deadline(timeout, f'the command "{text}" in the guest')
        try:
            # The agent tells nobody when a command ends: it has to be asked.
            status = retry(ended, deadline, every=0.02)
        except DeadlineExceeded:
            self.execute("guest-exec", path="/bin/kill", arg=["-9", str(pid)])
            raise
        return CommandResult(
            text,
            _field(status, "exitcode", int, default=128 + _field(status, "signal", int, default=0)),
            _bytes(status, "out-data"),
            _bytes(status, "err-data"),
        )

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        """See :meth:`hotplate.guest.base.Guest.copy_in`."""
        whole = contents(data)
        handle = self._open(target, "w")
        try:
            for start in range(0, len(whole), CHUNK):
                part = whole[start : start + CHUNK]
                while part:
                    text = base64.b64encode(part).decode()
                    written = self.execute("guest-file-write", handle=handle, buf_b64=text)
                    count = _field(written, "count", int)
                    if not 0 < count <= len(part):
                        raise GuestReplyError(f"the guest agent wrote {count} of {len(part)} bytes")
                    part = part[count:]
        finally:
            self.execute("guest-file-close", handle=handle)
        self.run(["chmod", f"{mode:o}", target]).check()

    def copy_out(self, source: str) -> bytes:
        """See :meth:`hotplate.guest.base.Guest.copy_out`."""
        handle = self._open(source, "r")
        parts = []
        try:
            while True:
                answer = self.execute("guest-file-read", handle=handle, count=CHUNK)
                parts.append(_bytes(answer, "buf-b64"))
                if _field(answer, "eof", bool) or not parts[-1]:
                    return b"".join(parts)
                if sum(map(len, parts)) > FILE_BYTES:
                    raise GuestReplyError(
                        f'the file "{source}" in the guest has more than {FILE_BYTES} bytes'
                    )
        finally:
            self.execute("guest-file-close", handle=handle)

    def _open(self, path: str, mode: str) -> int:
        try:
            handle = self.execute("guest-file-open", path=path, mode=mode)
        except AgentError as error:
            raise CommandError(
                CommandResult(f"open {path}", 1, b"", error.message.encode())
            ) from error
        return _checked(handle, "the handle of a file", int)

    def set_time(self, seconds: float) -> None:
        """See :meth:`hotplate.guest.base.Guest.set_time`.

        By a command: the agent's ``guest-set-time`` wants ``hwclock`` in the image.
        """
        self.run(f"date -u -s @{seconds:.3f} || date -u -s @{seconds:.0f}").check()

    def close(self) -> None:
        """See :meth:`hotplate.guest.base.Guest.close`."""

    # -- the wire --------------------------------------------------------------------------------

    def _answer(self, deadline: Deadline) -> dict[str, Any]:
        return wire.document(self._channel.line(deadline, longest=LONGEST_LINE))


def _checked(value: Any, what: str, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise GuestReplyError(
            f'the guest agent answered with {value!r:.60} as {what}; expected "{kind.__name__}"'
        )
    return value


def _field(answer: Any, name: str, kind: type[T], *, default: T | None = None) -> T:
    """Return a field of an answer, of the kind that the agent's schema says."""
    if not isinstance(answer, dict):
        answer = {}
    return _checked(answer.get(name, default), f'"{name}"', kind)


def _bytes(answer: Any, name: str) -> bytes:
    try:
        return base64.b64decode(_field(answer, name, str, default=""), validate=True)
    except ValueError as error:
        raise GuestReplyError(f'the guest agent\'s "{name}" is not base64: {error}') from error
