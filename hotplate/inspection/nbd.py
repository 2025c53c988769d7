"""A minimal client of a network block device, for reading.

Source of the protocol: ``doc/proto.md`` of the project NBD (fixed newstyle, simple replies).
"""

from __future__ import annotations

import socket
import struct

from hotplate.errors import HostError

_GREETING = b"NBDMAGICIHAVEOPT"
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME = 1
_REQUEST = 0x25609513
_SIMPLE_REPLY = 0x67446698
_CMD_READ = 0

MAX_REQUEST = 1 << 20
"""Limit of the bytes of one request."""


class NbdClient:
    """Reads from the one export of a server.

    :param connection: connected to the server, with a timeout; it stays the caller's.
    :ivar size: bytes of the device.
    :raises HostError: the server is gone, or has another protocol.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        if self._receive(len(_GREETING)) != _GREETING:
            raise HostError("the server of the image does not speak the protocol of NBD")
        (flags,) = struct.unpack(">H", self._receive(2))
        ours = flags & (_FIXED_NEWSTYLE | _NO_ZEROES)
        self._send(struct.pack(">I", ours) + b"IHAVEOPT" + struct.pack(">II", _OPT_EXPORT_NAME, 0))
        self.size, _ = struct.unpack(">QH", self._receive(10))
        if not ours & _NO_ZEROES:
            self._receive(124)
        self._number = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the device.

        :param length: at most :data:`MAX_REQUEST`.
        :raises OSError: they cannot be read; it has the error number of the server.
        :raises HostError: the server is gone.
        """
        self._number += 1
        self._send(struct.pack(">IHHQQI", _REQUEST, 0, _CMD_READ, self._number, offset, length))
        magic, error, number = struct.unpack(">IIQ", self._receive(16))
        if magic != _SIMPLE_REPLY or number != self._number:
            raise HostError("the server of the image answers something else than was asked for")
        if error:
            raise OSError(error, "the image cannot be read there")
        return self._receive(length)

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise _gone(error) from error

    def _receive(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._connection.recv(length - len(data))
            except OSError as error:
                raise _gone(error) from error
            if not part:
                raise HostError("the program that reads the image has ended")
            data += part
        return bytes(data)


def _gone(error: OSError) -> HostError:
    reason = "too slow" if isinstance(error, TimeoutError) else error.strerror
    return HostError(f"the program that reads the image does not answer: {reason}")
