"""A small client of the QEMU Machine Protocol over an already connected socket.

Source of the format: QEMU's ``docs/interop/qmp-spec.txt``. The package ``qemu.qmp`` needs an event
loop of its own and a path to connect to; this client uses one thread, and a socket that existed
before QEMU started.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from hotplate.errors import HotplateError, MachineLostError
from hotplate.events.background import Background
from hotplate.events.log import EventLog
from hotplate.timing.deadline import Deadline, HostTooSlow

#: Limits of QEMU's answer to a command, and of the reading of its last output.
SECONDS, DRAIN_SECONDS = 30.0, 5.0


class QmpError(HotplateError):
    """QEMU refused a command.

    :ivar kind: QEMU's error class, such as ``GenericError``.
    """

    def __init__(self, command: str, error: dict[str, Any]) -> None:
        super().__init__(f'QEMU refused the command "{command}": {error.get("desc", error)}')
        self.kind = str(error.get("class", ""))


class Qmp:
    """The monitor of one running QEMU.

    :param channel: the connected socket; it is closed by :meth:`close`.
    :param events: log for faults of the reader.
    :param on_event: called in the reader thread with the name and the data of each event.
    """

    def __init__(
        self,
        channel: socket.socket,
        *,
        events: EventLog,
        on_event: Callable[[str, dict[str, object]], None],
    ) -> None:
        self._channel = channel
        self._on_event = on_event
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = Background(events, self._read, name="qmp")
        self._thread.start()

    def negotiate(self, *, seconds: float) -> None:
        """Leave the negotiation mode.

        :raises MachineLostError: when QEMU ended instead of greeting.
        """
        self._next("greeting", Deadline(seconds, "QEMU's greeting"))
        self.execute("qmp_capabilities")

    def execute(
        self,
        command: str,
        *,
        descriptor: int | None = None,
        **arguments: object,
    ) -> Any:
        """Run one command and return its result; ``_`` in argument names stands for ``-``.

        :param descriptor: a file descriptor to send along, for ``getfd``.
        :raises QmpError: when QEMU refuses.
        :raises MachineLostError: when QEMU has ended.
        :raises HostTooSlow: when it does not answer in time.
        """
        message: dict[str, Any] = {"execute": command}
        if arguments:
            message["arguments"] = {
                name.replace("_", "-"): value for name, value in arguments.items()
            }
        data = json.dumps(message).encode() + b"\n"
        # Commands are sent without an id: the next reply is that of the last command.
        with self._lock:
            try:
                if descriptor is None:
                    self._channel.sendall(data)
                else:
                    socket.send_fds(self._channel, [data], [descriptor])
            except OSError as error:
                raise MachineLostError(
                    f'the machine is gone: QEMU took no command "{command}"'
                ) from error
            reply = self._next(command, Deadline(SECONDS, f'QEMU\'s answer to "{command}"'))
        if "error" in reply:
            raise QmpError(command, reply["error"])
        return reply["return"]

    def _next(self, command: str, deadline: Deadline) -> dict[str, Any]:
        try:
            reply = self._replies.get(timeout=deadline.left)
        except queue.Empty:
            # Close this monitor: a late answer must not be taken for that of the next command.
            self._channel.shutdown(socket.SHUT_RDWR)
            raise HostTooSlow(
                f"gave up waiting for {deadline.what} after {deadline.seconds:.0f} s"
            ) from None
        if reply is None:
            # For the next caller, to whom QEMU is gone as well.
            self._replies.put(None)
            raise MachineLostError(f'the machine is gone: QEMU ended at the command "{command}"')
        return reply

    def _read(self) -> None:
        try:
            with self._channel.makefile("rb") as stream:
                # Each message is one line, as the monitor was not given pretty=on.
                for line in stream:
                    message = json.loads(line)
                    if "event" in message:
                        self._on_event(message["event"], message.get("data", {}))
                    else:
                        self._replies.put(message)
        except (OSError, ValueError):
            # QEMU was killed, perhaps in the middle of a message; the None below says so.
            pass
        finally:
            self._replies.put(None)

    def drain(self) -> None:
        """Wait until all output of an ended QEMU has been read."""
        self._thread.join(DRAIN_SECONDS)

    def close(self) -> None:
        """Close the connection; QEMU runs on."""
        with contextlib.suppress(OSError):
            # Closing alone would not wake the reader; the call fails when QEMU has closed its end.
            self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join(DRAIN_SECONDS)
        self._channel.close()
