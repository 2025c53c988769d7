"""One virtual machine: power, monitor, console, channels."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hotplate.children.keeper import FIRST_CHILD_FD, Child
from hotplate.errors import HostError, HotplateError, MachineLostError, UsageError
from hotplate.events import kinds
from hotplate.events.background import guarded
from hotplate.events.log import EventLog
from hotplate.host_tools import find_tool
from hotplate.machine import snapshot
from hotplate.machine.accelerator import Accelerator, takes_sandbox
from hotplate.machine.config import (
    ARCHITECTURES,
    SANDBOX,
    SANDBOX_THAT_SPAWNS,
    Firmware,
    MachineConfig,
    Names,
    NetworkCard,
    command_line,
    uefi_files,
)
from hotplate.machine.console import Console
from hotplate.machine.files import HandedFiles
from hotplate.machine.machine import Capability, Exit, Machine, Work, work_of
from hotplate.machine.qmp import Qmp, QmpError
from hotplate.machine.snapshot import GuestMemory
from hotplate.machine.timers import TimerSlack
from hotplate.machine.wiring import Cable, Wiring
from hotplate.timing.deadline import Deadline

CHANNELS = ("console", "qmp", "shell")
#: Options of swtpm, which emulates a TPM, but for the state's place and the connection.
SWTPM = ("socket", "--tpm2", "--terminate")
GREETING_SECONDS = 30.0
#: QEMU's message for a device whose removal was requested before.
UNPLUGGING = "already in the process of unplug"


class QemuMachine(Machine):
    """A virtual machine under QEMU; see :class:`~hotplate.machine.machine.Machine`.

    :param config: its configuration.
    :param wiring: its connections, already open; one wiring for each machine.
    :param accelerator: see :func:`hotplate.machine.accelerator.choose`.
    :param directory: for the console, QEMU's messages, the UEFI variables and ``qemu.sh``.
    :param events: gets ``machine/power-on``, ``power-off``, ``exit``, ``panic``, ``reset`` and
        the console's lines.
    :param server_id: goes into these events.
    :param memory: its memory, when its state is saved or continued apart from it; it stays the
        caller's. None keeps it in QEMU, and in the state.
    """

    kind = "qemu"
    capabilities = frozenset(Capability)

    def __init__(
        self,
        config: MachineConfig,
        *,
        wiring: Wiring,
        accelerator: Accelerator,
        directory: Path,
        events: EventLog,
        server_id: str = "",
        memory: GuestMemory | None = None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.disk = config.disk
        self.wiring = wiring
        self.accelerator = accelerator
        self.directory = directory.absolute()
        self.events = events
        self.server_id = server_id
        self.memory = memory
        self.console = Console(
            self.directory / "console.log",
            events=events,
            server_id=server_id,
            on_line=self._on_console_line,
        )
        self._child: Child | None = None
        self._swtpm: Child | None = None
        self._timers: TimerSlack | None = None
        self._qmp: Qmp | None = None
        self._channels: dict[str, socket.socket] = {}
        self._reason = ""
        self._exit: Exit | None = None
        self._started = False
        self._pulled: set[int] = set()
        self._cards: list[int] = []
        self._program = find_tool(ARCHITECTURES[config.arch].program)
        self._tpm_program = find_tool("swtpm") if config.tpm else ""
        self._channel_names = (*CHANNELS, "tpm") if config.tpm else CHANNELS
        self._migration = threading.Condition()
        self._migration_status = ""
        self._unplugging = threading.Condition()
        self._releasing = threading.Lock()
        self._unplugged: set[str] = set()

    # -- power ---------------------------------------------------------------------------------

    def start(self, *, incoming: Path | None = None) -> None:
        """Switch the machine on.

        :param incoming: a state written by :meth:`save_state`, to continue from.
        :raises HostError: when QEMU refuses its command line or the host lacks something.
        :raises MachineLostError: when QEMU ended before it answered, or the state does not fit.
        """
        if self._child is not None:
            raise RuntimeError(f'the machine "{self.name}" is already on')
        self._reason, self._exit, self._migration_status = "", None, ""
        self._started = False
        self._pulled, self._unplugged = set(), set()
        # Written first: when QEMU refuses to start, the error's hint names it.
        self.write_script()
        self._copy_uefi_variables()
        child = self._child = self._spawn(restored=incoming is not None)
        self._emit(kinds.PowerOn(child.pid, restored=incoming is not None, cpu=self.cpu))
        try:
            self._greet(child)
            if incoming is not None:
                self._restore(incoming)
        # A signal to the harness must not leave QEMU running either.
        except BaseException as error:
            self.kill()
            if isinstance(error, MachineLostError):
                raise self._start_error(child.complaint(), incoming) from error
            raise

    def kill(self) -> None:
        """See :meth:`Machine.kill`."""
        child = self._child
        if child is None:
            return
        # Before the kill: _on_exit() reads it in a thread of its own.
        self._reason = self._reason or "power-cut"
        child.kill()
        self._release()

    def shutdown(self, deadline: Deadline) -> Exit:
        """See :meth:`Machine.shutdown`."""
        self.qmp.execute("system_powerdown")
        return self.wait(deadline)

    def wait(self, deadline: Deadline) -> Exit:
        """Wait until the machine is off.

        :raises DeadlineExceeded: when it is still on then.
        """
        child = self._child
        if child is not None:
            child.wait(deadline)
            self._release()
        if self._exit is None:
            raise RuntimeError(f'the machine "{self.name}" was never on')
        return self._exit

    @property
    def pid(self) -> int | None:
        """See :attr:`Machine.pid`."""
        child = self._child
        return child.pid if child is not None and child.status is None else None

    def work(self) -> dict[str, Work]:
        """See :meth:`Machine.work`."""
        return work_of([self.pid] if self.pid is not None else [])

    def facts(self) -> dict[str, str]:
        """See :meth:`Machine.facts`."""
        return {
            "firmware": self.config.firmware.value,
            "cpu": f"{self.cpu} ({reason})" if (reason := self.config.cpu_reason) else self.cpu,
            "memory": f"{self.config.memory_mib} MiB",
        }

    def resident_mib(self) -> float:
        """See :meth:`Machine.resident_mib`; that of QEMU."""
        with contextlib.suppress(OSError):
            # The file is gone when QEMU is off or has just ended.
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) / 1024
        return 0.0

    @property
    def cpu(self) -> str:
        """Return QEMU's CPU model: the configuration's, else the accelerator's."""
        return self.config.cpu or self.accelerator.cpu

    # -- connections -----------------------------------------------------------------------------

    @property
    def qmp(self) -> Qmp:
        """Return the monitor.

        :raises MachineLostError: when the machine is off.
        """
        if self._qmp is None:
            raise MachineLostError(f'the machine "{self.name}" is off')
        return self._qmp

    @property
    def shell_by_metadata(self) -> bool:
        """Return False when a config drive has the metadata."""
        return self.config.config_drive is None

    @property
    def shell_channel(self) -> socket.socket:
        """See :attr:`Machine.shell_channel`; the virtio port ``org.hotplate.shell``."""
        if "shell" not in self._channels:
            raise MachineLostError(f'the machine "{self.name}" is off')
        return self._channels["shell"]

    def _set_card(self, number: int, *, up: bool) -> None:
        self.qmp.execute("set_link", name=f"nic{number}", up=up)

    def attach(self, cable: Cable) -> None:
        """See :meth:`Machine.attach`; the device is on PCI."""
        number = max(self._cards, default=-1) + 1
        nic, net = f"nic{number}", f"net{number}"
        with cable.plug() as end:
            # QEMU keeps a copy under this name until a backend takes it.
            self.qmp.execute("getfd", descriptor=end.fileno(), fdname=net)
        # QEMU takes the descriptor even when the command fails.
        self.qmp.execute("netdev_add", type="dgram", id=net, local={"type": "fd", "str": net})
        try:
            self.qmp.execute(
                "device_add",
                driver=NetworkCard.DRIVER,
                id=nic,
                netdev=net,
                mac=cable.mac,
                romfile=NetworkCard.ROM,
            )
        except QmpError as error:
            self.qmp.execute("netdev_del", id=net)
            raise self._hot_plug_refused(error) from error
        self._cards.append(number)

    def detach(self, place: int, deadline: Deadline) -> None:
        """See :meth:`Machine.detach`; it needs the guest's consent."""
        number = self._cards[place]
        nic = f"nic{number}"
        try:
            self.qmp.execute("device_del", id=nic)
        except QmpError as error:
            # A device whose removal was requested before may be on its way out, or gone.
            if error.kind != "DeviceNotFound" and UNPLUGGING not in error.message:
                raise self._hot_plug_refused(error) from error
        with self._unplugging:
            while nic not in self._unplugged:
                if not self.running:
                    raise MachineLostError(f'the machine "{self.name}" is off')
                # Look again each second: QEMU's end does not notify this condition.
                if not self._unplugging.wait(min(deadline.left, 1.0)):
                    deadline.check()
            self._unplugged.discard(nic)
        self.qmp.execute("netdev_del", id=f"net{number}")
        del self._cards[place]
        self._pulled.discard(number)

    def _hot_plug_refused(self, error: QmpError) -> UsageError:
        return UsageError(
            f'the machine "{self.name}" keeps its interfaces while it runs: {error.message}',
            hint="change them while the server is stopped: openstack server stop",
        )

    def monitor(self, command: str) -> str:
        """See :meth:`Machine.monitor`; QMP calls it ``human-monitor-command``."""
        reply = self.qmp.execute("human-monitor-command", command_line=command)
        # The monitor for people ends its lines by CR LF.
        return str(reply).replace("\r\n", "\n")

    def with_screen(self, directory: Path, events: EventLog) -> QemuMachine:
        """See :meth:`Machine.with_screen`."""
        return QemuMachine(
            replace(self.config, display=True),
            wiring=self.wiring,
            accelerator=self.accelerator,
            directory=directory,
            events=events,
            server_id=self.server_id,
        )

    def screenshot(self, path: Path) -> None:
        """See :meth:`Machine.screenshot`; its configuration needs ``display``."""
        # QEMU cannot open our files by name.
        with path.open("wb") as stream:
            # Without the id of a set, QEMU makes a new one.
            handed = self.qmp.execute("add-fd", descriptor=stream.fileno())
            number = int(handed["fdset-id"])
            try:
                self.qmp.execute("screendump", filename=f"/dev/fdset/{number}", format="png")
            finally:
                self.qmp.execute("remove-fd", fdset_id=number)

    def pause(self) -> None:
        """See :meth:`Machine.pause`."""
        self.qmp.execute("stop")

    def resume(self) -> None:
        """See :meth:`Machine.resume`."""
        self.qmp.execute("cont")

    def save_state(self, path: Path) -> None:
        """Write memory and devices to a file; the guest is stopped after that.

        A :class:`GuestMemory` given to the machine is not in the file. The disk and the UEFI
        variables belong to the state and must be copied before the guest runs on.

        :raises HostError: when the file cannot be written.
        """
        shares = self.memory is not None and self.memory.shared
        snapshot.save(self.qmp, path, self._wait_migration, apart=shares)

    def _wait_migration(self, deadline: Deadline) -> str:
        with self._migration:
            while self._migration_status not in ("completed", "failed"):
                if not self.running:
                    raise MachineLostError("QEMU ended while it moved the machine's state")
                # Look again each second, as in detach().
                if not self._migration.wait(min(deadline.left, 1.0)):
                    deadline.check()
            return self._migration_status

    # -- the command line ------------------------------------------------------------------------

    def arguments(
        self,
        channels: Mapping[str, str],
        *,
        cards: Sequence[NetworkCard],
        names: Names | HandedFiles | None = None,
        memory: str = "",
    ) -> list[str]:
        """Return QEMU's arguments for these character devices.

        :param cards: its network interfaces.
        :param names: the names of its files; by default their paths.
        :param memory: see :func:`hotplate.machine.config.command_line`.
        """
        config = self.config
        if names is None:
            # Started by hand, QEMU finds the backing files in the disk's header.
            names, config = Names(), replace(config, backing=())
        return command_line(
            config,
            names=names,
            accelerator=self.accelerator.options,
            cpu=self.accelerator.cpu,
            cards=cards,
            channels=channels,
            variables=self.directory / "efi-vars.fd",
            memory=memory,
        )

    def write_script(self) -> Path:
        """Write ``qemu.sh``, which starts the same machine by hand; return its path.

        The console is the terminal, the network is closed, and the disks are not written to.
        """
        by_hand = self.arguments(
            {
                # mux=on: the guest's console and the monitor share the terminal. signal=off: Ctrl-C
                # goes to the guest.
                "console": "stdio,mux=on,signal=off",
                "qmp": "socket,path=qmp.sock,server=on,wait=off",
                "shell": "socket,path=shell.sock,server=on,wait=off",
                "tpm": "socket,path=tpm.sock",
            },
            cards=[
                NetworkCard("user,restrict=on", mac)
                for mac in self.wiring.macs or (self.config.mac,)
            ],
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "qemu.sh"
        text = _folded(
            [self._program, *by_hand, "-mon", "chardev=console,mode=readline", "-snapshot"]
        )
        swtpm = ""
        if self.config.tpm:
            place = ("--tpmstate", "dir=.", "--ctrl", "type=unixio,path=tpm.sock", "--daemon")
            swtpm = f"{shlex.join([self._tpm_program, *SWTPM, *place])} || exit 1\n"
        path.write_text(
            "#!/bin/sh\n"
            "# The machine of this run, by hand: the console is this terminal (Ctrl-A X ends it,\n"
            "# Ctrl-A C is the monitor), the network is closed, and no disk is written to.\n"
            "# QMP and the shell port are sockets in a new directory, which goes when the machine\n"
            "# ends.\n"
            'directory=$(mktemp -d) && cd "$directory" || exit 1\n'
            # QEMU takes over this shell's process id by exec, and tail ends with it. The traps
            # keep Ctrl-C or a hang-up from ending the cleanup instead.
            "( trap '' HUP INT TERM; tail --pid=$$ -f /dev/null; rm -rf \"$directory\" ) "
            ">/dev/null 2>&1 &\n"
            'echo "sockets are in $directory" >&2\n'
            f"{swtpm}"
            f'exec {text} "$@"\n'
        )
        path.chmod(0o755)
        return path

    # -- inside ----------------------------------------------------------------------------------

    def _spawn(self, *, restored: bool) -> Child:
        """Start QEMU with its ends of the channels, cables and files."""
        with contextlib.ExitStack() as theirs:
            descriptors = []
            for name in self._channel_names:
                self._channels[name], other = socket.socketpair()
                descriptors.append(theirs.enter_context(other).fileno())
            try:
                if self.config.tpm:
                    self._swtpm = self._spawn_swtpm(self._channels.pop("tpm"))
                # The order of the list sets QEMU's numbers: channels, cables, files.
                first = FIRST_CHILD_FD + len(descriptors)
                cards, cables = self.wiring.plug(self.config.mac, first=first)
                self._cards = [*range(len(cards))]
                descriptors += [theirs.enter_context(cable).fileno() for cable in cables]
                files = theirs.enter_context(
                    HandedFiles(first=FIRST_CHILD_FD + len(descriptors), directory=self.directory)
                )
                arguments = self.arguments(
                    {
                        name: f"socket,fd={FIRST_CHILD_FD + number}"
                        for number, name in enumerate(self._channel_names)
                    },
                    cards=cards,
                    names=files,
                    memory=self._handed_memory(files, restored=restored),
                )
                arguments += [*files.options, *self._sandbox()]
                # Wait for migrate-incoming, before which capabilities have to be set.
                arguments += ["-incoming", "defer"] if restored else []
                return self.wiring.keeper.spawn(
                    [self._program, *arguments],
                    directory=self.directory,
                    stderr=self.directory / "qemu.log",
                    fds=[*descriptors, *files.descriptors],
                    on_exit=guarded(self.events, self._on_exit),
                    confine=True,
                    spawns=self.wiring.spawns,
                )
            except BaseException:
                self._close_channels()
                raise

    def _spawn_swtpm(self, channel: socket.socket) -> Child:
        """Start the TPM, whose state stays over a power cycle, at its end of a connection."""
        state = self.directory / "tpm"
        state.mkdir(mode=0o700, exist_ok=True)
        # It opens them by name, as a user of its own.
        self.wiring.keeper.request("own", paths=[str(path) for path in (state, *state.iterdir())])
        place = ("--tpmstate", "dir=.,mode=0600")
        with channel:
            return self.wiring.keeper.spawn(
                [
                    *(self._tpm_program, *SWTPM, *place),
                    *("--ctrl", f"type=unixio,clientfd={FIRST_CHILD_FD}"),
                ],
                directory=state,
                # QEMU's complaint about it then has its own words beside it.
                stderr=self.directory / "qemu.log",
                fds=[channel.fileno()],
                confine=True,
            )

    def _greet(self, child: Child) -> None:
        """Attach the console and the monitor, and wait until QEMU answers there."""
        # The console and the monitor close these sockets; _close_channels() closes the others.
        self.console.attach(self._channels.pop("console"))
        self._qmp = Qmp(
            self._channels.pop("qmp"),
            events=self.events,
            on_event=guarded(self.events, self._on_qmp_event),
        )
        self._qmp.negotiate(seconds=GREETING_SECONDS)
        self._started = True
        if self.accelerator.name == "tcg":
            self._timers = TimerSlack(child.pid)

    def _restore(self, state: Path) -> None:
        snapshot.restore(self.qmp, state, self._wait_migration, apart=self.memory is not None)
        if self._timers is not None:
            self._timers.restored()

    def _start_error(self, complaint: str, incoming: Path | None) -> HotplateError:
        if incoming is not None:
            return MachineLostError(
                f'the saved state "{incoming}" could not be restored: {complaint}'
            )
        return HostError(
            f'QEMU could not start the machine "{self.name}": {complaint}',
            hint=f"sh {shlex.quote(str(self.directory / 'qemu.sh'))}",
        )

    def _handed_memory(self, files: HandedFiles, *, restored: bool) -> str:
        """Return options of the guest's memory, "" for QEMU's own; lent memory needs a state."""
        memory = self.memory
        if memory is None or not (restored or memory.shared):
            return ""
        share = "on" if memory.shared else "off"
        return f"mem-path={files.memory(memory.descriptor)},share={share}"

    def _sandbox(self) -> list[str]:
        if not takes_sandbox(self._program):
            return []
        return ["-sandbox", SANDBOX_THAT_SPAWNS if self.wiring.spawns else SANDBOX]

    def _copy_uefi_variables(self) -> None:
        target = self.directory / "efi-vars.fd"
        # Boot entries written by the guest stay over a power cycle.
        config = self.config
        if config.firmware is not Firmware.BIOS and not target.exists():
            shutil.copyfile(uefi_files(config.arch, config.firmware)[1], target)
            target.chmod(0o600)

    def _on_console_line(self, line: str) -> None:
        if (timers := self._timers) is not None:
            timers.read(line)

    def _on_qmp_event(self, name: str, data: dict[str, object]) -> None:
        if name == "SHUTDOWN":
            # A cause of ours, such as a power cut, stays the reason.
            self._reason = self._reason or str(data.get("reason", ""))
            self._emit(kinds.PowerOff(self._reason))
        elif name == "RESET":
            if (timers := self._timers) is not None:
                timers.reset()
            self._emit(
                kinds.MachineReset(str(data.get("reason", "")), by_guest=bool(data["guest"]))
            )
        elif name == "GUEST_PANICKED":
            self._emit(kinds.GuestPanic(str(data.get("action", ""))))
        elif name == "BLOCK_IO_ERROR":
            # When the host's disk is full, QEMU stops the guest, which sees no error.
            self._emit(
                kinds.DiskError(
                    full=bool(data.get("nospace")),
                    stopped=data.get("action") == "stop",
                    message=str(data.get("reason", "")),
                )
            )
        elif name == "DEVICE_DELETED":
            with self._unplugging:
                # Its parts have no id, and are unplugged with it.
                self._unplugged.add(str(data.get("device", "")))
                self._unplugging.notify_all()
        elif name == "MIGRATION":
            with self._migration:
                self._migration_status = str(data["status"])
                self._migration.notify_all()

    def _on_exit(self, status: int) -> None:
        # Read the rest of the monitor's socket first: it has the reason for the end.
        if self._qmp is not None:
            self._qmp.drain()
        expected = status == 0 or self._reason == "power-cut"
        unexpected = "lost" if self._started else "not-started"
        self._exit = Exit(status, (self._reason or "lost") if expected else unexpected)
        child = self._child
        complaint = "" if expected or child is None else child.complaint()
        self._emit(kinds.MachineExit(status, self._exit.reason, complaint))

    def _release(self) -> None:
        """Release the resources of a QEMU that has ended."""
        # A thread that waits for the end and one that causes it may both come here.
        with self._releasing:
            self.console.detach()
            if self._qmp is not None:
                self._qmp.close()
            self._close_channels()
            if self._timers is not None:
                self._timers.close()
            self._qmp = None
            self._child = None
            self._timers = None

    def _close_channels(self) -> None:
        for channel in self._channels.values():
            # This wakes a thread that waits on the socket; closing does not.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        self._channels = {}
        if self._swtpm is not None:
            self._swtpm.kill()
            self._swtpm = None


def _folded(words: Sequence[str]) -> str:
    """Return a command for sh, with each option and its value on a line of its own."""
    text = ""
    for word in words:
        text += (" \\\n    " if word.startswith("-") else " ") + shlex.quote(word)
    return text.lstrip()
