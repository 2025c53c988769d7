"""Helper process between the harness and QEMU, so that QEMU never outlives the harness.

It is run as a file (``python -I -S reaper.py FD PID``) and uses the standard library only. It is
the parent of all that it starts, single-threaded and long-lived, which makes ``PR_SET_PDEATHSIG``
dependable (the signal fires when the parent *thread* ends). Two more signs tell it that the
harness is gone, however it ended: end of file on the control socket, and a pidfd of the harness,
because a forked copy of the harness could keep the socket open.

On request it enters a network namespace of its own, binds the listeners there and hands them out:
a socket stays in the namespace in which it was made, even in another process.

Requests and answers are single JSON messages on a ``SOCK_SEQPACKET`` socket, descriptors go
along as ``SCM_RIGHTS``.  An answer is ``{"ok": ...}`` or ``{"error": sentence, "errno": n}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# From Linux' sched.h, prctl.h, sockios.h and if.h; Python has none of them before 3.12.
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
#: A request is one message; that of ``spawn`` contains a program's whole command line.
MESSAGE_BYTES = 1 << 17
#: A start of QEMU passes its channels, cables and files.
MAX_DESCRIPTORS = 32
#: The users that systemd reserves for services without a user of their own (``DynamicUser``):
#: nobody logs in as one, and none owns a file. As root, each machine gets another of them.
FIRST_USER, LAST_USER = 61184, 65519
NOBODY = 65534
#: Limit of additional processes and threads of a QEMU that starts one per connection of its
#: guest.
MAX_PROCESSES = 512
#: First number in the child of the descriptors that come with a ``spawn`` request, by default.
FIRST_CHILD_FD = 10

# Without use_errno, ctypes.get_errno() would not have a failed call's error.
libc = ctypes.CDLL(None, use_errno=True)


def checked(status: int, what: str) -> None:
    """Raise OSError for a libc call that returned -1."""
    if status == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message and its descriptors, which are closed on exec."""
    size = struct.calcsize("i")
    # socket.recv_fds of Python before 3.12 ignores its flags, so that they would be inherited.
    message, ancillary, _, _ = control.recvmsg(
        MESSAGE_BYTES, socket.CMSG_LEN(MAX_DESCRIPTORS * size), socket.MSG_CMSG_CLOEXEC
    )
    descriptors: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(data) // size
            descriptors += struct.unpack(f"{count}i", data[: count * size])
    return message, descriptors


def unshare_as_ourselves() -> None:
    """Enter a user and a network namespace in which only our user exists."""
    uid, gid = os.geteuid(), os.getegid()
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), "unshare of user and network")
    # Linux 3.19 and later demand this before an ordinary user may write gid_map.
    Path("/proc/self/setgroups").write_text("deny")
    # The ids stay the same: QEMU, once executed, has no capability left.
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def enter_namespace() -> str:
    """Enter a network namespace with ``lo`` up; as an ordinary user also a user namespace.

    :return: the namespaces entered, for messages.
    """
    if os.geteuid() == 0:
        checked(libc.unshare(CLONE_NEWNET), "unshare of the network namespace")
        kind = "network namespace"
    else:
        unshare_as_ourselves()
        kind = "user and network namespace"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # A new namespace's "lo" is down. The format is struct ifreq (netdevice(7)): an interface's
        # name and its flags.
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
    return kind


def is_mapped(user: int) -> bool:
    """Return True when our user namespace knows a user and the group of the same number."""
    for name in ("uid_map", "gid_map"):
        # A row: the first id inside, the first id outside, their number (user_namespaces(7)).
        rows = [line.split() for line in Path(f"/proc/self/{name}").read_text().splitlines()]
        if not any(int(first) <= user < int(first) + int(count) for first, _, count in rows):
            return False
    return True


def choose_user() -> int:
    """Return the user that a child of root runs as; -1 when we are not root.

    In a namespace with a single user, such as an ordinary user's, we do not count as root.
    """
    if os.geteuid() != 0:
        return -1
    size = LAST_USER - FIRST_USER + 1
    for number in range(size):
        # Begin at our process id, so that helpers seldom share a user.
        user = FIRST_USER + (os.getpid() + number) % size
        # A container may have fewer users; setresuid() would fail there.
        if not is_mapped(user):
            break
        try:
            pwd.getpwuid(user)
        except KeyError:
            return user
    return NOBODY if is_mapped(NOBODY) else -1


def become_user(user: int) -> None:
    """Give up root for good; KVM stays usable where its group may use it."""
    groups = []
    with contextlib.suppress(OSError):
        device = os.stat("/dev/kvm")  # noqa: PTH116 - this program uses as little as it can
        if device.st_mode & 0o060 == 0o060:
            groups.append(device.st_gid)
    # In this order: without the user id of root, neither groups nor group id could be changed.
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def processes_of(user: int) -> int:
    """Return how many processes and threads a user has now, as RLIMIT_NPROC counts them."""
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError):
                # A process may end while it is looked at.
                if os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116
                    count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


class Reaper:
    """Answers the harness and looks after the children.

    A request ``{"do": "spawn", ...}`` calls :meth:`do_spawn` with the other fields as keyword
    arguments.

    :ivar received: the descriptors that came with the request; closed after it, unless taken out.
    :ivar handed_out: the descriptors that go with the answer, and are closed then.
    :ivar handlers: the callable for each descriptor that becomes readable.
    """

    def __init__(self, control: socket.socket, harness: int) -> None:
        self.control = control
        self.harness = os.pidfd_open(harness)
        self.exit_pipes: dict[int, int] = {}
        self.received: list[int] = []
        self.handed_out: list[int] = []
        self.user = choose_user()
        self.alive = True
        self.wakeup, writer = os.pipe()
        # signal.set_wakeup_fd() demands it.
        os.set_blocking(writer, False)
        # Only a signal with a handler is written to the wakeup descriptor.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer)
        self.watched = select.poll()
        self.handlers: dict[int, Callable[[], None]] = {}
        self.watch(control.fileno(), self.answer)
        self.watch(self.harness, self.stop)
        self.watch(self.wakeup, self.reap)

    def watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        """Call ``handler`` whenever ``descriptor`` is readable."""
        self.handlers[descriptor] = handler
        self.watched.register(descriptor, select.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self.watched.unregister(descriptor)
        del self.handlers[descriptor]

    def run(self) -> None:
        """Serve until the harness is gone, then end the children."""
        try:
            while self.alive:
                for descriptor, _ in self.watched.poll(self.milliseconds()):
                    # An earlier handler may have removed this one.
                    self.handlers.get(descriptor, self.nothing)()
                self.tick()
        finally:
            self.end_children()

    def milliseconds(self) -> float | None:
        """Return how long to wait for input; None for no limit."""
        return None

    def tick(self) -> None:
        """Run timed work that is due."""

    def nothing(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Stop serving, which ends the children as well."""
        self.alive = False

    def answer(self) -> None:
        """Take one request; stop at end of file."""
        try:
            message, self.received = receive(self.control)
        except OSError:
            # A connection that was reset by the harness' death is the same as its end of file.
            message = b""
        if not message:
            self.stop()
            return
        self.handed_out = []
        try:
            request = json.loads(message)
            reply = {"ok": getattr(self, "do_" + request.pop("do"))(**request)}
        except OSError as error:
            reply = {"error": error.strerror or str(error), "errno": error.errno}
        try:
            socket.send_fds(self.control, [json.dumps(reply).encode()], self.handed_out)
        except OSError:
            self.stop()
        finally:
            for descriptor in self.received + self.handed_out:
                os.close(descriptor)

    def do_namespace(self) -> str:
        """Enter new namespaces and return their kind; a failure becomes the error answer."""
        return enter_namespace()

    def do_own(self, *, paths: list[str]) -> None:
        """Let the child use our files that it has to open by name."""
        if self.user >= 0:
            for path in paths:
                os.chown(path, self.user, -1)

    def do_listen(self, *, ports: list[int]) -> None:
        """Listen on ports of the loopback interface."""
        for port in ports:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen(128)
                self.handed_out.append(os.dup(listener.fileno()))

    def do_connect(self, *, port: int, seconds: float) -> None:
        """Connect to a port of the loopback interface."""
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
            # The timeout made it non-blocking, which the harness' copy of the descriptor would
            # share.
            connection.settimeout(None)
            self.handed_out.append(os.dup(connection.fileno()))

    def do_spawn(
        self,
        *,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        confine: bool,
        spawns: bool,
        first: int,
    ) -> int:
        """Start a child: its exit goes to the first descriptor, its stderr to the second."""
        exit_pipe, stderr, *channels = self.received
        # Both ends close on exec (PEP 446): end of file without a text means that the program runs.
        failure, error_pipe = os.pipe()
        parent = os.getpid()
        # RLIMIT_NPROC counts all processes of a user, and not those of the child alone.
        processes = MAX_PROCESSES + processes_of(os.geteuid()) if spawns else 0
        child = os.fork()
        if child == 0:
            try:
                # Before the change of user: the other one may not enter our directories.
                os.chdir(cwd)
                self.give_up(confine=confine, processes=processes)
            except OSError as error:
                os.write(error_pipe, f"{error.errno} {error.strerror}".encode())
                # No return and no exception: the parent's cleanup code must not run in the child.
                os._exit(127)
            self.become(
                argv,
                env,
                stderr=stderr,
                channels=channels,
                first=first,
                error_pipe=error_pipe,
                parent=parent,
            )
        os.close(error_pipe)
        problem = os.read(failure, 4096)
        os.close(failure)
        if problem:
            # It is not in exit_pipes, so that reap() does not collect it.
            os.waitpid(child, 0)
            number, _, text = problem.decode().partition(" ")
            raise OSError(int(number), text)
        # answer() closes the descriptors that came with the request.
        self.exit_pipes[child] = os.dup(exit_pipe)
        self.handed_out.append(os.pidfd_open(child))
        return child

    def give_up(self, *, confine: bool, processes: int) -> None:
        """In the forked child: give up privileges that the program must not have.

        :param processes: how many processes its user may then have in all; 0 for no limit.
        """
        # A core dump would have the guest's memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if confine and self.user >= 0:
            become_user(self.user)
            processes = min(processes, MAX_PROCESSES)
        if processes:
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            # A lower limit of the host stays: only CAP_SYS_RESOURCE could raise it.
            if hard == resource.RLIM_INFINITY or processes < hard:
                resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
        if confine:
            # No set-user-ID program gives it rights.
            checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")

    def become(
        self,
        argv: list[str],
        env: dict[str, str],
        *,
        stderr: int,
        channels: list[int],
        first: int,
        error_pipe: int,
        parent: int,
    ) -> None:
        """In the forked child: turn into ``argv``; never returns."""
        try:
            # Set it after the change of user, which makes the kernel forget it.
            checked(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
            # If the parent died before prctl(), its signal never comes.
            if os.getppid() != parent:
                os._exit(127)
            # A signal that arrives before exec must not be written into the parent's pipe.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Python ignores it too; QEMU must not die when we close a channel.
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            # Move them first out of the way of their final numbers: a child may have few in all.
            free = first + len(channels)
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, free) for fd in [*channels, error_pipe]]
            error_pipe = high.pop()
            for number, target in ((null, 0), (stderr, 1), (stderr, 2)):
                # os.dup2() makes copies that stay open on exec; all other descriptors close.
                os.dup2(number, target)
            for target, number in enumerate(high, first):
                os.dup2(number, target)
            os.execvpe(argv[0], argv, env)  # noqa: S606
        except OSError as error:
            os.write(error_pipe, f"{error.errno} {error.strerror}".encode())
        finally:
            os._exit(127)

    def reap(self) -> None:
        """Send the exit statuses of ended children down their exit pipes."""
        # Several signals of one kind may arrive as one, so each child is asked for.
        os.read(self.wakeup, 64)
        for child in tuple(self.exit_pipes):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                exit_pipe = self.exit_pipes.pop(child)
                with contextlib.suppress(OSError):
                    # The harness may be gone, and with it the other end.
                    os.write(exit_pipe, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(exit_pipe)

    def end_children(self) -> None:
        """Kill all children and collect their exit statuses."""
        for child in self.exit_pipes:
            # It was not waited for, so that its number is not another process's.
            os.kill(child, signal.SIGKILL)
        for child in self.exit_pipes:
            os.waitpid(child, 0)


def main(arguments: list[str], kind: type[Reaper] = Reaper) -> None:
    """Run the keeper on the inherited descriptor ``FD`` for the harness with pid ``PID``."""
    descriptor, harness = (int(argument) for argument in arguments)
    control: Any = socket.socket(fileno=descriptor)
    # A child that inherited it would keep the harness from seeing our end of file.
    os.set_inheritable(descriptor, False)
    try:
        reaper = kind(control, harness)
    except ProcessLookupError:
        # The harness was gone before we had opened its pidfd: there is nobody to serve.
        return
    reaper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
