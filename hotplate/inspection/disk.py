"""The bytes of a disk as a guest would see them, read without booting or copying it.

A qcow2 image is read through ``qemu-nbd``, which gets the files as descriptors, with the backing
files that were checked, so that it opens no file named by the image. A raw copy would take as much
disk as the image holds; see "How an image is read" in docs/inspect.rst for figures.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import stat
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hotplate.children.keeper import FIRST_CHILD_FD, Child, Keeper
from hotplate.errors import HostError, ImageError
from hotplate.host_tools import find_tool
from hotplate.image.inspect import ImageFile
from hotplate.image.overlay import bounded
from hotplate.timing.deadline import Deadline

#: Bytes of one read: a cluster of qcow2.
BLOCK = 64 << 10

BLOCKS_KEPT = 1024
#: Limit of one answer of ``qemu-nbd``.
SECONDS = 60.0

#: Limit of the inspection of an image, by default.
ALL_SECONDS = 600.0

#: The errors of ``qemu-nbd`` that are no fault of an image.
_HOST_ERRORS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENOSPC)


class Disk:
    """Reads a disk in blocks, with a cache of the last ones.

    :param read: returns bytes at an offset.
    :param size: bytes.
    :param name: the image's name, for error messages.
    :param seconds: after which it cannot be read any more.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        name: str,
        *,
        seconds: float = ALL_SECONDS,
    ) -> None:
        self.size = size
        self.name = name
        self._read = read
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._deadline = Deadline(seconds, "the image to be read")

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes; fewer at the end of the disk.

        :raises ImageError: the image is damaged there, or takes too long, as one with a loop does.
        """
        self.check_time()
        end = min(offset + length, self.size)
        parts = []
        while offset < end:
            number, start = divmod(offset, BLOCK)
            part = self._block(number)[start : start + end - offset]
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def check_time(self) -> None:
        """Do nothing until the time limit is over.

        :raises ImageError: it is over.
        """
        if self._deadline.passed:
            raise ImageError(
                f'"{self.name}" takes longer than {self._deadline.seconds:.0f} s to read: it has '
                "too many files, or its file system leads in circles"
            )

    def part(self, extents: Sequence[tuple[int, int]]) -> Disk:
        """Return a part of the disk as a disk of its own.

        :param extents: offset and bytes of each piece, in the order of the part.
        """
        return _Part(self, extents)

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        try:
            data = self._read(number * BLOCK, min(BLOCK, self.size - number * BLOCK))
        except OSError as error:
            raise ImageError(
                f'the image "{self.name}" cannot be read at byte {number * BLOCK}',
                hint=f"qemu-img check {shlex.quote(str(self.name))}",
            ) from error
        self._blocks[number] = data
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return data


class _Part(Disk):
    """Pieces of a disk, in a row; the disk has the cache and the time limit."""

    def __init__(self, disk: Disk, extents: Sequence[tuple[int, int]]) -> None:
        self.size = sum(length for _, length in extents)
        self.name = disk.name
        self._disk, self._extents = disk, extents

    def check_time(self) -> None:
        self._disk.check_time()

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        for start, size in self._extents:
            if length > 0 and offset < size:
                wanted = min(length, size - offset)
                parts.append(self._disk.read(start + offset, wanted))
                # The disk ends before its table says.
                if len(parts[-1]) < wanted:
                    break
                length -= wanted
            offset = max(0, offset - size)
        return b"".join(parts)


@contextlib.contextmanager
def open_disk(file: ImageFile, *, seconds: float = ALL_SECONDS) -> Iterator[Disk]:
    """Open a disk for reading, for as long as the context lasts.

    :param file: the image; a machine may write it meanwhile.
    :param seconds: the limit of all reading.
    :raises HostError: ``qemu-nbd`` is missing, or cannot be started.
    """
    with contextlib.ExitStack() as stack:
        descriptors = opened_files(file, stack)
        if file.format == "raw":
            (only,) = descriptors
            yield Disk(
                lambda at, length: os.pread(only, length, at),
                file.virtual_size,
                str(file.path),
                seconds=seconds,
            )
            return
        client = stack.enter_context(_served(file, descriptors))
        yield Disk(client.read, client.size, str(file.path), seconds=seconds)


@contextlib.contextmanager
def _served(file: ImageFile, descriptors: Sequence[int]) -> Iterator[NbdClient]:
    """Serve an image to us alone, by a child that dies with us."""
    find_tool("qemu-nbd")
    with contextlib.ExitStack() as stack:
        # Its mode keeps other users from the socket.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hotplate-look-")))
        keeper = stack.enter_context(Keeper())
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "nbd"))
            listener.listen(1)
            child = keeper.spawn(
                _command(file),
                directory=Path("/"),
                stderr=folder / "stderr",
                fds=[listener.fileno(), *descriptors],
                confine=all_may_read(descriptors),
            )
            # While we listen ourselves, as a child that has ended already refuses the connection.
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(SECONDS)
            connection.connect(str(folder / "nbd"))
        yield _greeted(connection, child, str(file.path))


def _greeted(connection: socket.socket, child: Child, name: str) -> NbdClient:
    try:
        return NbdClient(connection)
    except HostError as error:
        child.kill()
        words = child.complaint()
        # What it says is about the image, unless the host refused something: see outcome_of().
        of_the_host = not words or any(os.strerror(each) in words for each in _HOST_ERRORS)
        raise ImageError(
            f'"{name}" cannot be opened by qemu-nbd: {words or error.message}',
            hint=f"qemu-img check {shlex.quote(str(name))}",
        ) from (error if of_the_host else None)


def _command(file: ImageFile) -> list[str]:
    """Return the command line of a ``qemu-nbd`` that inherits its listener as from systemd.

    Source: sd_listen_fds(3): the descriptor 3, for the process whose id is in the environment.
    """
    hand_over = f'exec 3<&{FIRST_CHILD_FD} && exec env LISTEN_PID=$$ LISTEN_FDS=1 "$@"'
    serve = [*bounded(find_tool("qemu-nbd")), "--read-only"]
    options = image_options(file, FIRST_CHILD_FD + 1)
    return ["bash", "-c", hand_over, "bash", *serve, "--image-opts", options]


def opened_files(file: ImageFile, stack: contextlib.ExitStack) -> list[int]:
    """Open an image and its backing files for reading, for as long as a stack lasts."""
    descriptors = []
    for link in file.chain:
        descriptors.append(os.open(link.path, os.O_RDONLY | os.O_CLOEXEC))
        stack.callback(os.close, descriptors[-1])
    return descriptors


def image_options(file: ImageFile, first: int) -> str:
    """Return an image as an option of QEMU's tools, which then open no file that it names.

    :param first: the number of the image's descriptor in that tool; those of its backing files
        follow.
    """
    options, prefix = [], ""
    for number, link in enumerate(file.chain, first):
        options += [f"{prefix}driver={link.format}", f"{prefix}file.driver=file"]
        options += [f"{prefix}file.filename=/proc/self/fd/{number}", f"{prefix}force-share=on"]
        prefix += "backing."
    return ",".join(options)


def all_may_read(descriptors: Sequence[int]) -> bool:
    """Return whether any user can open the files; the server is safer as another user."""
    return all(os.fstat(each).st_mode & stat.S_IROTH for each in descriptors)


_GREETING = b"NBDMAGICIHAVEOPT"
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME = 1
_REQUEST = 0x25609513
_SIMPLE_REPLY = 0x67446698
_CMD_READ = 0


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
