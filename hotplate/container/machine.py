"""A container of systemd-nspawn as a machine."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from hotplate.children.keeper import Child, Keeper
from hotplate.children.mounts import IDS
from hotplate.container import guest_files
from hotplate.container.root import Root
from hotplate.errors import HostError, ImageError, MachineLostError, UsageError
from hotplate.events import kinds
from hotplate.events.background import guarded
from hotplate.events.log import EventLog
from hotplate.host_tools import find_tool
from hotplate.machine.console import Console
from hotplate.machine.machine import Capability, Exit, Machine, Work, work_of
from hotplate.machine.wiring import Cable, Cables, Wiring
from hotplate.network.segment import SYSTEM_PROGRAMS
from hotplate.timing.deadline import Deadline, DeadlineExceeded

#: The programs that a container needs, and their Debian packages.
TOOLS = ("systemd-nspawn", "mkfs.ext4", "ip")
#: The limit of a container's processes and threads.
PROCESSES = 4096
#: The host's user ids for containers, as nspawn takes them by itself (systemd's UIDS-GIDS.md).
FIRST_ID, LAST_ID = 524288, 1878982656
#: nspawn's exit status for a guest that wants to be booted again (EXIT_FORCE_RESTART).
REBOOT = 133
#: The number of the first descriptor that is handed over (SD_LISTEN_FDS_START).
LISTENER = 3
START_SECONDS = 60.0
END_SECONDS = 30.0
LAYER = "changes.ext4"
#: The module of the helper process.
HELPER = "hotplate.container.helper"
#: Where everything is mounted, in the helper's mount namespace only: nothing is made on the host.
PLACES = ("/mnt", "/media", "/srv", "/opt")

#: The guest's init does not die with nspawn, but all processes of a process namespace die with its
#: first one, which nspawn is; and that one dies with the helper.
_ALONE = ("unshare", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--")
#: Enters the control groups, makes descriptor 4 the guest's console, and becomes nspawn. The
#: arguments are the groups' files, ``--`` and nspawn's command line. Descriptor 3 is the listener,
#: which nspawn hands on to the guest's init (sd_listen_fds(3)).
_BECOME = """\
while [ "$1" != -- ]; do echo $$ >"$1" || exit 1; shift; done
shift
export LISTEN_PID=$$ LISTEN_FDS=1
exec "$@" 1>&4 4>&-
"""


@dataclass(frozen=True)
class ContainerConfig:
    """Configuration of one container.

    :param name: a short name, for messages.
    :param uuid: the server's id; systemd makes the machine's id of it.
    :param root: the root file system of its image.
    :param nonce: see :func:`hotplate.container.guest_files.units`.
    :param layer_bytes: limit of the bytes that it may write in all.
    :param interfaces: name prefix of its interfaces; their number follows.
    :param first_interface: the number of the first.
    :param environment: variables of its init, for data source detection.
    :param restored: its layer is that of a guest that was booted before: cloud-init, which has done
        its work there, is left out.
    :param seeds: files by path, by the folder in which cloud-init looks for them.
    """

    name: str
    uuid: str
    root: Root
    nonce: str
    memory_mib: int = 1024
    layer_bytes: int = 2 << 30
    interfaces: str = "ens"
    first_interface: int = 4
    environment: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    restored: bool = False


class ContainerMachine(Machine):
    """A container; see :class:`~hotplate.machine.machine.Machine`.

    Needs root. The image's file system is mounted read-only; changes go to a layer in the
    machine's folder, which stays over a power cycle.

    :param config: its configuration.
    :param wiring: its connections; cables only.
    :param directory: for the console, nspawn's messages and the layer.
    :param events: see :class:`~hotplate.machine.machine.Machine`.
    :param server_id: goes into the events.
    """

    kind = "container"
    capabilities = frozenset({Capability.POWER, Capability.LINKS})

    def __init__(
        self,
        config: ContainerConfig,
        *,
        wiring: Wiring,
        directory: Path,
        events: EventLog,
        server_id: str = "",
    ) -> None:
        self.config = config
        self.name = config.name
        self.wiring = wiring
        self.directory = directory.absolute()
        self.events = events
        self.server_id = server_id
        self.unbounded = ""
        self.console = Console(self.directory / "console.log", events=events, server_id=server_id)
        self._keeper: Keeper | None = None
        self._child: Child | None = None
        self._place = next(each for each in PLACES if Path(each).is_dir())
        self._shell: socket.socket | None = None
        self._killed = self._started = self._rebooting = self._over = False
        self._exit: Exit | None = None
        self._ended = threading.Event()
        # Serialises the changes of power; an end by the guest comes in a thread of its own.
        self._power = threading.RLock()
        # Our number of each interface, by its place in the guest's order, and its name there.
        self._cards: dict[int, str] = {}
        self._pulled: set[int] = set()
        self._last = 0
        self._first = True

    # -- power ---------------------------------------------------------------------------------

    def start(self) -> None:
        """See :meth:`Machine.start`."""
        with self._power:
            if self._child is not None:
                raise RuntimeError(f'the container "{self.name}" is already on')
            self._killed, self._exit = False, None
            self._ended.clear()
        try:
            with self._power:
                self._open()
                self._boot()
        except HostError:
            # When nspawn has ended by itself, that is the end to be noted, and no power cut.
            if (child := self._child) is not None:
                child.wait(Deadline(END_SECONDS, "the end of systemd-nspawn"))
            self.kill()
            raise
        # A signal to the harness must not leave it running either.
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.kill()

    def kill(self) -> None:
        """See :meth:`Machine.kill`."""
        self._killed = True
        was_on = False
        while True:
            # Not under the lock: the kill waits for _on_exit(), which may have begun to boot it
            # again.
            if (child := self._child) is not None:
                child.kill()
                was_on = True
            with self._power:
                if self._child is not child:
                    # It was booted again meanwhile, or its own end was noted.
                    continue
                self._child = None
                self._release()
                if was_on and self._exit is None:
                    self._note_exit(-signal.SIGKILL, "power-cut")
                return

    def shutdown(self, deadline: Deadline) -> Exit:
        """See :meth:`Machine.shutdown`; systemd's own signal for it."""
        child = self._child
        if child is None:
            raise MachineLostError(f'the container "{self.name}" is off')
        # To nspawn, which sends its --kill-signal to the guest's init: unshare(1) ignores it.
        os.kill(_child_of(child.pid), signal.SIGTERM)
        return self.wait(deadline)

    def wait(self, deadline: Deadline) -> Exit:
        """Wait until the guest has ended.

        :raises DeadlineExceeded: when it still runs then.
        """
        while not self._ended.wait(min(1.0, deadline.left)):
            deadline.check()
        assert self._exit is not None
        return self._exit

    @property
    def pid(self) -> int | None:
        """See :attr:`Machine.pid`; that of nspawn."""
        child = self._child
        return child.pid if child is not None else None

    @property
    def running(self) -> bool:
        """See :attr:`Machine.running`; also while it is booted again."""
        return self._child is not None or self._rebooting

    def work(self) -> dict[str, Work]:
        """See :meth:`Machine.work`."""
        return work_of(self._ask("processes")) if self.running else {}

    def facts(self) -> dict[str, str]:
        """See :meth:`Machine.facts`."""
        bounds = f"not bounded: {self.unbounded}" if self.unbounded else ""
        return {"memory": bounds or f"{self.config.memory_mib} MiB at most"}

    def resident_mib(self) -> float:
        """See :meth:`Machine.resident_mib`."""
        return self._ask("memory") / (1 << 20) if self.running else 0.0

    def pause(self) -> None:
        """See :meth:`Machine.pause`; by the freezer of its control group."""
        self._ask("freeze", frozen=True)

    def resume(self) -> None:
        """See :meth:`Machine.resume`."""
        self._ask("freeze", frozen=False)

    # -- connections -----------------------------------------------------------------------------

    @property
    def shell_channel(self) -> socket.socket:
        """See :attr:`Machine.shell_channel`; a connection to the guest's init, which starts it."""
        if not self.running:
            raise MachineLostError(f'the container "{self.name}" is off')
        _, (descriptor,) = self._request("connect_shell")
        if self._shell is not None:
            self._shell.close()
        self._shell = socket.socket(fileno=descriptor)
        return self._shell

    def _set_card(self, number: int, *, up: bool) -> None:
        self._ask("link", number=number, up=up)

    def attach(self, cable: Cable) -> None:
        """See :meth:`Machine.attach`."""
        self._plug(cable, pid=self._init())

    def detach(self, place: int, deadline: Deadline) -> None:
        """See :meth:`Machine.detach`; it needs no consent of the guest."""
        del deadline
        number = [*self._cards][place]
        self._ask("remove_interface", number=number)
        del self._cards[number]
        self._pulled.discard(number)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Start the helper, and mount the root."""
        check_host()
        config, root = self.config, self.config.root
        self.directory.mkdir(parents=True, exist_ok=True)
        layer = self.directory / LAYER
        new = not layer.exists()
        keeper = self._keeper = Keeper(HELPER)
        keeper.__enter__()
        files = guest_files.units(
            config.nonce,
            listener=f"{self._place}/shell",
            restored=config.restored,
            kept=root.kept,
        )
        seeds: dict[str, str] = {}
        for folder, tree in config.seeds.items():
            seeds |= guest_files.seed(tree, folder=folder)
        with contextlib.ExitStack() as opened:
            image = opened.enter_context(root.path.open("rb"))
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            changes = os.open(layer, flags, 0o600)
            opened.callback(os.close, changes)
            lists = os.memfd_create("hotplate-files", os.MFD_CLOEXEC)
            opened.callback(os.close, lists)
            os.pwrite(lists, json.dumps({"files": files, "seeds": seeds}).encode(), 0)
            if new:
                # Sparse: it takes as much of the host's disk as the guest has written.
                os.ftruncate(changes, config.layer_bytes)
            try:
                answer, _ = keeper.request(
                    "open",
                    [image.fileno(), changes, lists],
                    place=self._place,
                    ip=find_tool("ip", besides=SYSTEM_PROGRAMS),
                    file_system=root.file_system,
                    options=root.options,
                    offset=root.offset,
                    size=root.size,
                    layer_bytes=config.layer_bytes if new else 0,
                    first_id=first_id(config.uuid),
                    memory_mib=config.memory_mib,
                    processes=PROCESSES,
                )
            except OSError as error:
                if new:
                    layer.unlink()
                # A layer that was used may be damaged, too.
                damaged = new and error.errno in (errno.EBADMSG, errno.EUCLEAN)
                raise (ImageError if damaged else HostError)(
                    f"this host cannot mount the root of a container: {error}",
                    hint="--machine qemu",
                ) from error
        self.unbounded = answer
        for cable in self._cables():
            self._plug(cable)

    def _plug(self, cable: Cable, *, pid: int = 0) -> None:
        """Give the guest an interface, after its others.

        :param pid: of its init; 0 before it is started.
        """
        number, self._last = self._last, self._last + 1
        numbers = (int(each.removeprefix(self.config.interfaces)) for each in self._cards.values())
        place = max(numbers, default=self.config.first_interface - 1) + 1
        name = f"{self.config.interfaces}{place}"
        _, (descriptor,) = self._request(
            "interface", number=number, name=name, mac=cable.mac, pid=pid
        )
        with socket.socket(fileno=descriptor) as end:
            cable.plug_in(end)
        self._cards[number] = name

    def _boot(self) -> None:
        """Start nspawn, and wait until the guest's init runs."""
        entrances = self._ask("entrances")
        _, (listener, notify) = self._request("sockets")
        with contextlib.ExitStack() as theirs:
            notices = theirs.enter_context(socket.socket(fileno=notify))
            theirs.callback(os.close, listener)
            ours, console = socket.socketpair()
            theirs.enter_context(console)
            # Its place is known by the path, which is in the helper's mount namespace.
            ended = theirs.enter_context(_Ended())
            assert self._keeper is not None
            self.console.attach(ours)
            child = self._child = self._keeper.spawn(
                [*_ALONE, "/bin/sh", "-c", _BECOME, "sh", *entrances, "--", *self._command()],
                directory=Path("/"),
                stderr=self.directory / "nspawn.log",
                fds=[listener, console.fileno()],
                first=LISTENER,
                on_exit=guarded(self.events, partial(self._on_exit, ended)),
            )
            if self._killed:
                # kill() waits for the lock, and has not seen this one.
                child.send_signal(signal.SIGKILL)
            self._emit(
                kinds.PowerOn(
                    child.pid,
                    restored=self._first and self.config.restored,
                    machine=self.kind,
                    seed="".join(self.config.seeds),
                )
            )
            self._first = False
            self._started = False
            self._wait_for_init(notices, ended, child)
            # systemd-networkd-wait-online waits for these addresses, up to two seconds.
            with contextlib.suppress(OSError, MachineLostError):
                self._ask("quick_addresses", pid=self._init())

    def _command(self) -> list[str]:
        config = self.config
        environment = {
            **config.environment,
            "SYSTEMD_UNIT_PATH": f"{guest_files.FOLDER}:",
            "SYSTEMD_ENVIRONMENT_GENERATOR_PATH": f"{guest_files.FOLDER}/{guest_files.GENERATORS}:",
        }
        first = first_id(config.uuid)
        return [
            "env",
            f"NOTIFY_SOCKET={self._place}/notify",
            # Guests of today have no systemd that works with version 1 of control groups.
            "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1",
            find_tool("systemd-nspawn"),
            "--quiet",
            "--boot",
            # Our settings only: not those in the host's /etc/systemd/nspawn.
            "--settings=no",
            f"--directory={self._place}/root",
            f"--machine=hotplate-{zlib.crc32(config.uuid.encode()):08x}",
            "--hostname=localhost",
            f"--uuid={config.uuid}",
            # Neither systemd-machined nor a unit of the host: the helper owns it.
            "--register=no",
            "--keep-unit",
            "--private-network",
            *(f"--network-interface={name}" for name in self._cards.values()),
            f"--private-users={first}:{IDS}",
            # The mounts have the ids moved already.
            "--private-users-ownership=off",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            # Power off, and not halt, which is nspawn's own choice.
            "--kill-signal=SIGRTMIN+4",
            "--console=read-only",
            f"--bind-ro={self._place}/files:{guest_files.FOLDER}",
            *(f"--setenv={name}={value}" for name, value in environment.items()),
        ]

    def _wait_for_init(self, notices: socket.socket, ended: _Ended, child: Child) -> None:
        """Wait until nspawn says that the guest's init runs (sd_notify(3))."""
        deadline = Deadline(START_SECONDS, f'the container "{self.name}" to start')
        said = b""
        while True:
            deadline.check()
            if ended.before(notices, seconds=deadline.left):
                raise HostError(
                    f'systemd-nspawn could not start the container "{self.name}": '
                    f"{child.complaint()}",
                    hint="--machine qemu",
                )
            with contextlib.suppress(BlockingIOError):
                said = notices.recv(4096, socket.MSG_DONTWAIT)
            # The second of its messages: of a socket that is closed before, nspawn would complain,
            # and these would be the last words of a later failure.
            if b"READY=1" in said.split(b"\n"):
                self._started = True
                return

    def _on_exit(self, ended: _Ended, status: int) -> None:
        """Take note of nspawn's end, and boot again what the guest wants to be booted again."""
        ended.set()
        with self._power:
            if self._killed:
                return
            complaint = self._child.complaint() if self._child is not None else ""
            self._rebooting = status == REBOOT and self._started
            self._child = None
            if not self._started:
                self._release()
                self._note_exit(status, "not-started", complaint)
                return
            if status == REBOOT:
                try:
                    self._boot_again()
                except (HostError, MachineLostError, OSError, DeadlineExceeded) as error:
                    self._give_up(str(error))
                return
            self._release()
            # nspawn itself was killed; or the guest's init ended with an error, which in a
            # virtual machine is a panic.
            reason = "lost" if status < 0 else "guest-panic" if status else "guest-shutdown"
            self._note_exit(status, reason, complaint if status else "")

    def _boot_again(self) -> None:
        self._rebooting = True
        try:
            self._boot_after_reset()
        finally:
            self._rebooting = False

    def _boot_after_reset(self) -> None:
        self._ask("end")
        # Its last lines come first.
        self.console.detach()
        self._emit(kinds.MachineReset("guest-reset", by_guest=True))
        # The interfaces went with the container's network namespace.
        self._cards, self._pulled = {}, set()
        for cable in self._cables():
            self._plug(cable)
        self._boot()

    def _give_up(self, complaint: str) -> None:
        """End a machine that could not be booted again."""
        if (child := self._child) is not None:
            # Its own end is noted, if it was not already there.
            child.send_signal(signal.SIGKILL)
            return
        self._release()
        self._note_exit(-signal.SIGKILL, "power-cut" if self._killed else "lost", complaint)

    def _note_exit(self, status: int, reason: str, complaint: str = "") -> None:
        self._exit = Exit(status, reason)
        if reason != "power-cut":
            self._emit(kinds.PowerOff(reason))
        self._emit(kinds.MachineExit(status, reason, complaint))
        self._ended.set()

    def _release(self) -> None:
        if self._keeper is not None:
            # It ends all processes of the guest; the interfaces go with its network namespace.
            if self._over:
                self._keeper.leave()
            else:
                # The next start mounts the same layer.
                self._keeper.close()
            self._keeper = None
        self.console.detach()
        if self._shell is not None:
            self._shell.close()
            self._shell = None
        self._cards, self._pulled = {}, set()

    def _init(self) -> int:
        """Return the process id of the guest's init."""
        if (pid := self.pid) is None:
            raise MachineLostError(f'the container "{self.name}" is off')
        return _child_of(_child_of(pid))

    def _cables(self) -> Sequence[Cable]:
        if not isinstance(self.wiring, Cables):
            raise UsageError(
                f'the wiring "{self.wiring.name}" is QEMU\'s own, and "{self.name}" is a container',
                hint="--wiring auto, or --machine qemu",
            )
        return self.wiring.cables

    def _request(self, do: str, **arguments: object) -> tuple[Any, list[int]]:
        if self._keeper is None:
            raise MachineLostError(f'the container "{self.name}" is off')
        return self._keeper.request(do, (), **arguments)

    def _ask(self, do: str, **arguments: object) -> Any:
        return self._request(do, **arguments)[0]


def _child_of(pid: int) -> int:
    """Return the only child of a process.

    :raises MachineLostError: when it has ended.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    raise MachineLostError("the container is off")


class _Ended:
    """The end of a program, to be waited for together with a socket; a context manager."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            os.close(self._event)
            self._event = -1

    def set(self) -> None:
        """Note the end; do nothing when nobody waits any more."""
        with self._lock:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def before(self, other: socket.socket, *, seconds: float) -> bool:
        """Wait for the end or for data; return True for the end, False otherwise."""
        poller = select.poll()
        for descriptor in (self._event, other.fileno()):
            poller.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(seconds * 1000)}
        return self._event in ready and other.fileno() not in ready


def first_id(uuid: str) -> int:
    """Return the host's user id of a container's root, the same for a server at each start."""
    ranges = (LAST_ID + 1 - FIRST_ID) // IDS
    return FIRST_ID + zlib.crc32(uuid.encode()) % ranges * IDS


def check_host() -> None:
    """Refuse to run containers without root or their programs.

    :raises HostError: says what is missing.
    """
    if os.geteuid() != 0:
        raise HostError(
            "a container needs root: systemd-nspawn mounts the image's file system",
            hint="put sudo before the command, or take --machine qemu",
        )
    for name in TOOLS:
        find_tool(name, besides=SYSTEM_PROGRAMS)


def nspawn_version() -> str:
    """Return the version of systemd-nspawn, as it tells it.

    :raises HostError: when it is missing.
    """
    program = find_tool("systemd-nspawn")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\n")[0]
