"""A store on the disk for pieces of data that are read again later."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path
from typing import IO, Self

_LENGTH = struct.Struct("<Q")
"""The header of each piece in the file: its length."""


class Spool:
    """Keeps pieces of data in a file without a name, which goes with the process.

    A piece for which the disk has no room is kept in memory, so that none is lost.

    ::

        with Spool(folder) as spool:
            place = spool.add(b"...")
            spool.read(place)

    :param folder: the folder of the file; None keeps all in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = 0
        self._in_memory: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, data: bytes) -> int:
        """Keep a piece; return its place, for :meth:`read`."""
        if self._folder is None:
            return self._remember(data)
        try:
            return self._write(_LENGTH.pack(len(data)) + data)
        except OSError:
            return self._remember(data)

    def read(self, place: int) -> bytes:
        """Return the piece at a place.

        :raises OSError: when the disk does not give it back.
        """
        if place < 0:
            return self._in_memory[-place - 1]
        assert self._file is not None
        handle = self._file.fileno()
        (length,) = _LENGTH.unpack(os.pread(handle, _LENGTH.size, place))
        return os.pread(handle, length, place + _LENGTH.size)

    def close(self) -> None:
        """Free the disk space; all pieces are gone."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._in_memory.clear()

    def _remember(self, data: bytes) -> int:
        self._in_memory.append(data)
        return -len(self._in_memory)

    def _write(self, record: bytes) -> int:
        """Append a record; return the place where it begins.

        :raises OSError: when there is no room for all of it.
        """
        file = self._opened()
        place = self._end
        # A partial record is overwritten by the next one.
        if os.pwrite(file.fileno(), record, place) < len(record):
            raise OSError(f"no room for {len(record)} bytes")
        self._end += len(record)
        return place

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            # Closed with the spool.
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        return self._file
