"""The harness's end of a channel to a guest, which may send any bytes, endlessly."""

from __future__ import annotations

import select
import socket

from hotplate.errors import MachineLostError
from hotplate.guest.base import GuestReplyError
from hotplate.timing.deadline import Deadline

CHUNK = 1 << 16


class Channel:
    """Sends and receives until a deadline; received data is bounded.

    The deadline is checked in every turn, also while data comes.

    :param channel: a connected stream socket, owned by the caller.
    :param off: the error text for a machine that is off.
    :ivar ended: the other end was closed.
    """

    def __init__(self, channel: socket.socket, *, off: str) -> None:
        self._channel = channel
        self._off = off
        self._buffer = bytearray()
        self.ended = False

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all of ``data``; a guest reads none before it has opened its end.

        :raises DeadlineExceeded: when the guest does not read it in time.
        :raises MachineLostError: when the machine is off.
        """
        view = memoryview(data)
        while view:
            self._wait(select.POLLOUT, deadline)
            try:
                # A blocking send() would wait beyond the deadline until all of it fits.
                view = view[self._channel.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue
            except OSError as error:
                self.ended = True
                raise MachineLostError(self._off) from error

    def line(self, deadline: Deadline, *, limit: int) -> bytes:
        """Return the next line without its end; a longer line is truncated.

        The rest of an abandoned answer may precede the next one, so that a long line is no error;
        its rest is dropped.

        :param limit: bytes.
        """
        head = b""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > limit:
                # Keep the head only, until the line ends.
                head = head or bytes(self._buffer[:limit])
                self._buffer.clear()
            self._receive(deadline)
        line = bytes(self._buffer[: min(end, limit)])
        del self._buffer[: end + 1]
        return head or line

    def exactly(self, count: int, deadline: Deadline) -> bytes:
        """Return the next ``count`` bytes; the caller has checked the count."""
        data = self._buffer[:count]
        del self._buffer[:count]
        while len(data) < count:
            self._wait(select.POLLIN, deadline)
            data += self._some(min(CHUNK, count - len(data)))
        return bytes(data)

    def _receive(self, deadline: Deadline) -> None:
        self._wait(select.POLLIN, deadline)
        self._buffer += self._some(CHUNK)

    def _some(self, count: int) -> bytes:
        try:
            data = self._channel.recv(count)
        except OSError:
            # A connection that was reset has ended too.
            data = b""
        if not data:
            self.ended = True
            raise MachineLostError(self._off)
        return data

    def _wait(self, mask: int, deadline: Deadline) -> None:
        """Wait until the channel is ready; raise when the deadline has passed, ready or not."""
        poller = select.poll()
        while True:
            deadline.check()
            # Another thread has closed it; poll() takes no -1.
            if self._channel.fileno() < 0:
                raise MachineLostError(self._off)
            poller.register(self._channel, mask)
            if poller.poll(deadline.left * 1000):
                return


def number(word: bytes, *, what: str, limit: int) -> int:
    """Return a number sent by a guest.

    :param what: the counted thing, as in "bytes of output".
    :raises GuestReplyError: for anything but up to ten digits, or more than ``limit``.
    """
    if not word.isdigit() or len(word) > 10:
        raise GuestReplyError(f'the guest answered with "{_shown(word)}" {what}; expected a number')
    value = int(word)
    if value > limit:
        raise GuestReplyError(f"the guest answered with {value} {what}; at most {limit} are taken")
    return value


def _shown(data: bytes) -> str:
    return data[:60].decode(errors="replace")
