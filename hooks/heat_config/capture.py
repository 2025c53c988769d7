"""Bound the output of programs: keep the head and the tail, and count the omitted middle.

Programs write to pipes. A pump, a process of its own, copies the pipes to files and outlives the
process that started it: output is kept even if the hook or the runner is killed, and a process
that a script leaves in the background has a reader as long as it lives. No file grows beyond its
bounds; on a disk that is nearly full they are narrower.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import socket

from . import files, process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHUNK = 32 << 10
HEAD = 2 << 20
#: Bytes kept of a file's start, and at least of its end (at most twice as many).
TAIL = 6 << 20

SHORT_HEAD = 16 << 10
#: The same while the disk is nearly full.
SHORT_TAIL = 48 << 10

#: The disk counts as nearly full when it has fewer free bytes.
ROOM = 16 << 20

#: Seconds to wait for the pump of another process: on a loaded machine it may lag by seconds.
IDLE_TIME = 10.0

# The count is padded to a fixed width: so a mark has one size, is found at a fixed offset, and is
# overwritten by a later one without moving the tail.
_MARK = b"\n[... %15d bytes are left out here ...]\n"
_MARK_SIZE = len(_MARK % 0)
_MARK_READ = re.compile(rb"\n\[\.\.\. +([0-9]+) bytes are left out here \.\.\.\]\n")


class Kept:
    """An open file that keeps the head and the tail of the data appended to it.

    descriptor: open for reading and writing, not with O_APPEND: that would move each write to the
    end. head, tail: bounds in bytes. All state is in the file itself, so several processes may
    append to it, each with a Kept of its own.
    """

    def __init__(self, descriptor: int, head: int = HEAD, tail: int = TAIL) -> None:
        self.descriptor = descriptor
        self._head = head
        self._tail = tail
        self._lost = 0

    def append(self, data: bytes) -> None:
        """Append *data*; bytes that do not fit on the disk are counted, and noted with the next."""
        # A piece must be smaller than the tail's bound, or one append could exceed the bounds.
        for start in range(0, len(data), CHUNK):
            self._append(data[start : start + CHUNK])

    def shrink(self) -> None:
        """Shrink the file to the bounds for a nearly full disk."""
        with self._locked():
            self._compact(min(self._head, SHORT_HEAD), min(self._tail, SHORT_TAIL))

    def extent(self) -> tuple[int, int]:
        """Return (bytes of the file, bytes that are left out in it)."""
        size = os.fstat(self.descriptor).st_size
        return size, self._mark(size)[1]

    def read(self, limit: int) -> bytes:
        """Return the content, at most about *limit* bytes: a quarter from its start."""
        size = os.fstat(self.descriptor).st_size
        at, left_out = self._mark(size)
        # A file that was compacted has its own head and mark; else the limit alone divides it.
        head = self._part(0, at if left_out else min(size, limit // 4))
        tail_start = at + _MARK_SIZE if left_out else len(head)
        if not left_out and size <= limit:
            return self._part(0, size)
        # The padded mark is for the file only: a reader gets the plain one.
        if left_out and size - _MARK_SIZE <= limit:
            return head + files.left_out_mark(left_out) + self._part(tail_start, size)
        left_out += max(0, len(head) - limit // 4)
        head = head[: limit // 4]
        start = max(tail_start, size - (limit - limit // 4))
        left_out += start - tail_start
        return head + files.left_out_mark(left_out) + self._part(start, size)

    def _append(self, data: bytes) -> None:
        head, tail = self._head, self._tail
        if is_short(self.descriptor):
            head, tail = min(head, SHORT_HEAD), min(tail, SHORT_TAIL)
        # Bytes that a full disk refused are noted as soon as something fits again.
        if self._lost:
            data = _MARK % self._lost + data
        with self._locked():
            # Compact only when the tail has doubled: then each byte is copied once on average, not
            # at each append.
            if os.fstat(self.descriptor).st_size + len(data) > head + _MARK_SIZE + 2 * tail:
                self._compact(head, tail)
            self._lost = 0
            start = os.lseek(self.descriptor, 0, os.SEEK_END)
            try:
                files.write_all(self.descriptor, data)
            except OSError:
                # Half a mark would be worse than none: drop it.
                self._lost = len(data)
                with contextlib.suppress(OSError):
                    os.ftruncate(self.descriptor, start)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            # A record lock (fcntl), because the flock of on_disk() is held shared all the time; on
            # a local filesystem the two kinds do not meet.
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        except OSError:  # a filesystem without locks
            yield
            return
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def _compact(self, head: int, tail: int) -> None:
        """Omit the middle, so that *tail* bytes stay of the end."""
        size = os.fstat(self.descriptor).st_size
        at, left_out = self._mark(size)
        head_end = min(at, head)
        middle = at + _MARK_SIZE if left_out else at
        start = max(middle, size - tail)
        left_out += at - head_end + start - middle
        if start == middle and head_end == at:
            return
        # Read the tail before the write, which may overlap it, and cut the file after it.
        kept = _MARK % left_out + self._part(start, size)
        with contextlib.suppress(OSError):
            os.lseek(self.descriptor, head_end, os.SEEK_SET)
            files.write_all(self.descriptor, kept)
            os.ftruncate(self.descriptor, head_end + len(kept))

    def _mark(self, size: int) -> tuple[int, int]:
        """Return (where the head ends, bytes that are left out after it, 0 when none are)."""
        # The mark is at one of two offsets: a file that was compacted on a nearly full disk has the
        # short head.
        for at in sorted({min(self._head, SHORT_HEAD), self._head}):
            match = _MARK_READ.fullmatch(self._part(at, min(at + _MARK_SIZE, size)))
            if match:
                return at, int(match.group(1))
        return min(self._head, size), 0

    def _part(self, start: int, end: int) -> bytes:
        return files.read_range(self.descriptor, start, max(0, end - start))


class Whole:
    """An open file that accepts data until it has *limit* bytes."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self._left = limit

    def append(self, data: bytes) -> None:
        """Append as much of *data* as fits."""
        data = data[: self._left]
        try:
            files.write_all(self.descriptor, data)
            self._left -= len(data)
        except OSError:
            self._left = 0  # never continue after a gap


class Stream:
    """A pipe on its way into *sinks*, each with ``append(data)`` and a ``descriptor``.

    Hand ``writer`` to a program. The first sink stays open here, to be read; the others belong to
    the pump alone.
    """

    def __init__(self, *sinks: Kept | Whole) -> None:
        self.sinks = sinks
        # Close on exec: a copy of the writer in any other program would keep the stream from
        # ending.
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)

    def close_writer(self) -> None:
        """Close our copy of the writing end, which the program has now."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        os.close(self.sinks[0].descriptor)


class Pump:
    """The process that reads *streams* until the last writer has closed them."""

    #: Ids of pumps that still have writers; once ended, they are reaped by the next Pump.
    _left: list[int] = []

    def __init__(self, streams: Sequence[Stream]) -> None:
        # Reap the pumps that have ended since, or each would stay a zombie as long as this process.
        self._left[:] = [pid for pid in self._left if not _has_ended(pid)]
        self._control, theirs = socket.socketpair()
        self._is_apart = False
        self._pid: int | None = os.fork()
        if self._pid == 0:
            try:
                _be_pump(streams, theirs)
            finally:
                # The fork must not run this process's cleanup, nor flush its buffers a second time.
                os._exit(0)
        # With our copy closed, recv() on the other end returns when the pump dies.
        theirs.close()
        for stream in streams:
            os.close(stream.reader)
            for sink in stream.sinks[1:]:
                os.close(sink.descriptor)

    def stand_apart(self) -> None:
        """Wait until the pump is in a process group of its own, so that it survives ours.

        No writer may start before that: the pump, and with it the output, would be lost if the
        runner's group were killed.
        """
        if not self._is_apart:
            self._is_apart = True
            with contextlib.suppress(OSError):
                self._control.recv(1)

    def settle(self) -> None:
        """Wait until everything written to the pipes so far is in the files."""
        self.stand_apart()
        try:
            self._control.sendall(b"?")
            # The pump answers after it has emptied the pipes; an end of file means that it has
            # ended.
            if self._control.recv(1):
                return
        except OSError:
            pass
        # The pump has read to the end, or is dead.
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None

    def close(self) -> None:
        """Detach from the pump; it ends by itself."""
        self._control.close()
        if self._pid is not None and not _has_ended(self._pid):
            self._left.append(self._pid)


def memory(limit: int) -> Kept:
    """Return a Kept in memory that is large enough for read(*limit*)."""
    # The same division as in read(), so that read(limit) cuts nothing that was kept.
    return Kept(os.memfd_create("capture"), limit // 4, limit - limit // 4)


def on_disk(descriptor: int) -> Kept:
    """Return a Kept of an open file, which a shared lock marks as in use while it is open."""
    with contextlib.suppress(OSError):
        # The lock belongs to the open file, which the fork shares: it lasts until the pump's copy
        # of the descriptor is closed too, and wait_idle() waits for that.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return Kept(descriptor)


def wait_idle(path: str) -> None:
    """Wait until no pump writes to the file *path*, but at most IDLE_TIME."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        with process.at_most(IDLE_TIME):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # or TimeoutError: a background process still writes to it
        pass
    finally:
        os.close(descriptor)


def is_short(descriptor: int | str) -> bool:
    """Return whether the disk of an open file, or of a path, is nearly full."""
    try:
        disk = os.statvfs(descriptor)
    except OSError:
        return False
    return bool(disk.f_blocks) and disk.f_bavail * disk.f_frsize < ROOM


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _be_pump(streams: Sequence[Stream], control: socket.socket) -> None:
    """Run the pump: read until all streams have ended; answer a byte on *control* when idle."""
    # The end of a hook's process group (process.end_group) must not end the pump.
    os.setsid()
    # Only the end of the last writer, or SIGKILL, ends the pump: otherwise writers would die of
    # SIGPIPE.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    _answer(control)
    # The writers are among the descriptors closed here: a pump that held one would never see the
    # end.
    _keep_only({control.fileno()}.union(*map(_descriptors, streams)))
    # ps(1) shows this name instead of the hook's or the runner's.
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write("heat-config-out")
    open_streams = {stream.reader: stream.sinks for stream in streams}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    for reader in open_streams:
        # So that the pipes can be emptied before an answer without waiting for more.
        os.set_blocking(reader, False)
        poll.register(reader, select.POLLIN)
    while open_streams:
        asked = False
        for ready, _events in poll.poll():
            if ready == control.fileno():
                asked = True
            else:
                _take(ready, open_streams, poll)
        if asked:
            # The other side has detached. Go on for the writers in the background.
            if not control.recv(1):
                poll.unregister(control)
                continue
            # Everything written before the question is in the pipes by now: empty them, then
            # answer.
            for reader in list(open_streams):
                while _take(reader, open_streams, poll):
                    pass
            if open_streams:  # else the pump's end is the answer
                _answer(control)


def _answer(control: socket.socket) -> None:
    """Answer the process that waits; it may be gone."""
    with contextlib.suppress(OSError):
        # MSG_NOSIGNAL: an asker that has been killed must not end the pump by SIGPIPE.
        control.send(b"!", socket.MSG_NOSIGNAL)


def _take(
    reader: int, open_streams: dict[int, tuple[Kept | Whole, ...]], poll: select.poll
) -> bool:
    """Read once; return False when the stream was empty."""
    try:
        data = os.read(reader, CHUNK)
    except BlockingIOError:
        return False
    if not data:
        poll.unregister(reader)
        os.close(reader)
        del open_streams[reader]
        return False
    for sink in open_streams[reader]:
        sink.append(data)
    return True


def _descriptors(stream: Stream) -> set[int]:
    return {stream.reader, *(sink.descriptor for sink in stream.sinks)}


def _keep_only(wanted: set[int]) -> None:
    """Close all descriptors but *wanted*: a lock, another process's pipe, the agent's journal."""
    null = os.open(os.devnull, os.O_RDWR)
    # These may be the journal's socket or a pipe that somebody reads to its end.
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))
    # A pump can live for days; it must not keep a filesystem from being unmounted.
    os.chdir("/")
