"""A client of the QEMU guest agent.

Source of the format: QEMU's ``docs/interop/qemu-ga-ref`` and ``qga/qapi-schema.json``.
"""

from __future__ import annotations

import base64
import json
import secrets
import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotplate.errors import HotplateError, MachineLostError
from hotplate.guest.base import (
    COMMAND_SECONDS,
    CommandError,
    CommandResult,
    contents,
    shell_text,
)
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

CHUNK = 1 << 20
DELIMITER = b"\xff"
"""What the agent sends before the answer to ``guest-sync-delimited``."""


class AgentError(HotplateError):
    """The guest agent refused a command."""


class Agent:
    """The guest's agent; a :class:`~hotplate.guest.base.Guest`.

    :param channel: a connected stream socket to the agent's port; stays the caller's.
    """

    name = "agent"

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = b""
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
                self._send(b"\xff", step)
                request = {"execute": "guest-sync-delimited", "arguments": {"id": number}}
                self._send(json.dumps(request).encode() + b"\n", step)
                try:
                    while (mark := self._buffer.rfind(DELIMITER)) < 0:
                        self._receive(step)
                    self._buffer = self._buffer[mark + 1 :]
                    answer = json.loads(self._line(step))
                except (DeadlineExceeded, ValueError):
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
            self._send(json.dumps(request).encode() + b"\n", deadline)
            answer = json.loads(self._line(deadline))
        if "error" in answer:
            raise AgentError(
                f'the guest agent refused "{command}": {answer["error"].get("desc", "")}'
            )
        return answer["return"]

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """See :meth:`hotplate.guest.base.Guest.run`."""
        text = shell_text(command)
        pid = self.execute("guest-exec", path="/bin/sh", arg=["-c", text], capture_output=True)[
            "pid"
        ]

        def ended(_: bool) -> dict[str, Any] | None:
            status: dict[str, Any] = self.execute("guest-exec-status", pid=pid)
            return status if status["exited"] else None

        deadline = Deadline(timeout, f'the command "{text}" in the guest')
        try:
            # The agent tells nobody when a command ends: it has to be asked.
            status = retry(ended, deadline, every=0.02)
        except DeadlineExceeded:
            self.execute("guest-exec", path="/bin/kill", arg=["-9", str(pid)])
            raise
        return CommandResult(
            text,
            status["exitcode"] if "exitcode" in status else 128 + status.get("signal", 0),
            base64.b64decode(status.get("out-data", "")),
            base64.b64decode(status.get("err-data", "")),
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
                    count = self.execute("guest-file-write", handle=handle, buf_b64=text)["count"]
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
                parts.append(base64.b64decode(answer["buf-b64"]))
                if answer["eof"] or not answer["count"]:
                    return b"".join(parts)
        finally:
            self.execute("guest-file-close", handle=handle)

    def _open(self, path: str, mode: str) -> int:
        try:
            handle: int = self.execute("guest-file-open", path=path, mode=mode)
        except AgentError as error:
            raise CommandError(
                CommandResult(f"open {path}", 1, b"", error.message.encode())
            ) from error
        return handle

    def set_time(self, seconds: float) -> None:
        """See :meth:`hotplate.guest.base.Guest.set_time`.

        By a command: the agent's ``guest-set-time`` wants ``hwclock`` in the image.
        """
        self.run(f"date -u -s @{seconds:.3f} || date -u -s @{seconds:.0f}").check()

    def close(self) -> None:
        """See :meth:`hotplate.guest.base.Guest.close`."""

    # -- the wire --------------------------------------------------------------------------------

    def _send(self, data: bytes, deadline: Deadline) -> None:
        self._wait(select.POLLOUT, deadline)
        try:
            self._channel.sendall(data)
        except OSError as error:
            raise MachineLostError("the machine is off: no guest agent answers") from error

    def _receive(self, deadline: Deadline) -> None:
        self._wait(select.POLLIN, deadline)
        try:
            data = self._channel.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            raise MachineLostError("the machine is off: no guest agent answers")
        self._buffer += data

    def _wait(self, mask: int, deadline: Deadline) -> None:
        if self._channel.fileno() < 0:
            raise MachineLostError("the machine is off: no guest agent answers")
        poller = select.poll()
        poller.register(self._channel, mask)
        while not poller.poll(deadline.left * 1000):
            deadline.check()

    def _line(self, deadline: Deadline) -> bytes:
        while b"\n" not in self._buffer:
            self._receive(deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
