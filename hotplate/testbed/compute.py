"""The cloud's servers as machines of this host.

Heat asks its :class:`~hotplate.cloud.nova.compute.Compute` for a server; :class:`LocalCompute`
answers with a wiring, the cloud's services on that wiring, and a machine.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from hotplate.cloud.nova.compute import (
    GuestServices,
    RouterSpec,
    ServerSpec,
    user_data_parts,
)
from hotplate.errors import (
    HostError,
    MachineLostError,
    Outcome,
    UsageError,
    outcome_of,
    sentence_of,
)
from hotplate.events.background import Background, guarded
from hotplate.events.event import Event
from hotplate.events.kinds import BootImage, MachineExit, RouterChange, ServerWaiting, StartFault
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine import admission
from hotplate.machine.wiring import Wiring
from hotplate.settings import MachineChoice, Settings
from hotplate.testbed.boot_images import BootImages
from hotplate.testbed.container_maker import ContainerMaker
from hotplate.testbed.maker import Maker, Start
from hotplate.testbed.qemu_maker import QemuMaker
from hotplate.testbed.segments import Segments, check
from hotplate.testbed.server import Server
from hotplate.testbed.spare import Spare
from hotplate.text import file_name
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline

#: In a server's folder: its id and its nonce, so that a later session can resume it.
IDENTITY = "server.json"
CLOSE_SECONDS = 60.0
#: Time for a system to shut down (Nova: ``[DEFAULT] wait_soft_reboot_seconds``).
REBOOT_SECONDS = 120.0
#: Nova's metadata of a server, by which a template's server may be another kind of machine.
MACHINE_KEY = "hotplate_machine"
REBOOTING = ("REBOOT", "HARD_REBOOT")


class LocalCompute:
    """Runs a cloud's servers; a :class:`~hotplate.cloud.nova.compute.Compute`.

    The host's memory limits how many run at once; a server that waits for memory is ``BUILD``, and
    does not block the caller.

    :param image: the image that every server boots, whatever image its template names.
    :param others: more images by name; with them a server boots the one that it names.
    :param directory: each server gets a folder of its own in it.
    :param networks: the folder for the networks between servers; without it each server is
        isolated, whatever ports it has.
    :param saves: whether its servers' states are going to be saved.
    :ivar networked: whether servers get the ports of their specs.
    :ivar fault: the error of the first server that could not be started, the host's or ours,
        regardless of how Heat reports it.
    """

    def __init__(
        self,
        image: Image,
        *,
        settings: Settings,
        directory: Path,
        events: EventLog,
        networks: Path | None = None,
        others: Mapping[str, Image] | None = None,
        saves: bool = False,
    ) -> None:
        self.images = BootImages(image, others, boots=settings.machine.has_firmware)
        self.settings = settings
        self.directory = directory
        self.events = events
        self.servers: dict[str, Server] = {}
        self.fault: Exception | None = None
        self.segments = (
            Segments(networks, on_loss=guarded(events, self._network_lost)) if networks else None
        )
        self.networked = self.segments is not None
        self._image = image
        self._saves = saves
        self._makers: dict[MachineChoice, Maker] = {}
        # Refused now, and not in a thread of Heat's.
        self.maker()
        self._state: dict[str, tuple[str, str]] = {}
        self._reboots: dict[str, threading.Thread] = {}
        self._waiting: dict[str, Deadline] = {}
        self._workers: list[threading.Thread] = []
        self._spare: Spare | None = None
        self._closed = False
        self._lock = threading.Lock()
        events.subscribe(self._see)

    def maker(self, spec: ServerSpec | None = None) -> Maker:
        """Return the maker of a server's machine; without one, the usual maker.

        :raises UsageError: when the server's metadata names no kind of machine.
        """
        named = spec.metadata.get(MACHINE_KEY, "") if spec is not None else ""
        try:
            kind = MachineChoice(named) if named else self.settings.machine
        except ValueError:
            raise UsageError(
                f'the metadata "{MACHINE_KEY}" of a server is "{named}"; expected one of '
                f"{', '.join(each.value for each in MachineChoice)}"
            ) from None
        if kind not in self._makers:
            self._makers[kind] = self._new_maker(kind)
        return self._makers[kind]

    def _new_maker(self, kind: MachineChoice) -> Maker:
        if kind is MachineChoice.CONTAINER:
            return ContainerMaker(
                self.images,
                settings=self.settings,
                events=self.events,
                segments=self.segments,
                directory=self.directory.parent / "networks",
            )
        return QemuMaker(
            self.images,
            self._image,
            settings=self.settings,
            events=self.events,
            segments=self.segments,
            saves=self._saves,
        )

    # -- requests of Heat ---------------------------------------------------------------------

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        """Start a server on an overlay of the image."""
        self.events.add(user_data_parts(spec.user_data), server=spec.id)
        try:
            image = self.images.of(spec.image)
            if self.images.by_name:
                self.events.add(BootImage(self.images.name_of(spec.image)), server=spec.id)
            self._begin(Start(spec, services, secrets.token_hex(16), image))
        except Exception as error:
            # Heat reports it as a failed stack only.
            self._remember(spec, error)
            raise

    def go_on(self, spec: ServerSpec, services: GuestServices) -> None:
        """Start a server that an earlier session left, from its own disk.

        :raises MachineLostError: when its folder is gone.
        """
        for path in self.directory.glob(f"*/{IDENTITY}"):
            entry = json.loads(path.read_text())
            if entry["id"] == spec.id and self.maker(spec).has_disk(path.parent):
                self._begin(Start(spec, services, entry["nonce"], folder=path.parent))
                return
        raise MachineLostError(f'the disk of the server "{spec.name}" does not exist any more')

    def restore(
        self,
        spec: ServerSpec,
        services: GuestServices,
        *,
        state: Path,
        nonce: str,
    ) -> Server:
        """Start a server from a saved state.

        :param state: its folder, which is not changed; what its maker has saved in it.
        :param nonce: the nonce that the server got when it was booted.
        :raises MachineLostError: when the state does not fit this QEMU or this configuration.
        """
        start = Start(spec, services, nonce, state=state)
        server = self._spare_for(start)
        if server is None:
            deadline = Deadline(self.settings.limit, _wish(spec))
            reserved = self._reserve(spec, deadline, more_mib=self.maker(spec).more_mib(state))
            server = self._run(start, reserved)
        self._state[spec.id] = ("ACTIVE", "")
        return server

    def restore_ahead(
        self, spec: ServerSpec, services: GuestServices, *, state: Path, nonce: str
    ) -> None:
        """Begin to restore the server that the next :meth:`restore` returns.

        Only where that saves time, and the host has the memory for both.
        """
        if not self.maker(spec).boots_restored or spec.ports or self._spare is not None:
            return

        def restore(events: EventLog) -> Server:
            start = Start(spec, services, nonce, state=state, events=events)
            return self._run(start, self._reserve(spec))

        self._spare = Spare(restore, self.events)

    def _spare_for(self, start: Start) -> Server | None:
        """Return the server that was restored ahead, and answer its guest from now on."""
        spare, self._spare = self._spare, None
        server = spare.take() if spare is not None else None
        if server is not None:
            self.servers[start.spec.id] = server
            server.owned.enter_context(self._served(start, server.machine.wiring))
        return server

    def _run(self, start: Start, memory: ExitStack) -> Server:
        """Make a complete server and switch it on; it is kept when that succeeds.

        :param memory: holds the memory reserved for it, and is closed with the server.
        """
        spec, maker = start.spec, self.maker(start.spec)
        with memory as owned:
            # The network, and a folder for the server's files.
            link = maker.wired(spec, owned)
            directory = start.folder or self._folder(spec)
            identity = directory / IDENTITY
            # Private before it has the nonce.
            identity.touch(mode=0o600)
            identity.write_text(json.dumps({"id": spec.id, "nonce": start.nonce}) + "\n")
            if start.events is None:
                owned.enter_context(self._served(start, link))
            machine = maker.make(start, directory, wiring=link, owned=owned)
            owned.enter_context(machine)
            # Known before it is switched on: readers of its first events look it up.
            server = Server(spec, machine, nonce=start.nonce, owned=owned)
            with server.power:
                if start.events is None:
                    self.servers[spec.id] = server
                try:
                    if not start.off:
                        maker.turn_on(machine, start)
                except BaseException:
                    if start.events is None:
                        self.servers.pop(spec.id, None)
                    raise
                # From here on the server closes all of it.
                server.owned = owned.pop_all()
            return server

    def _served(self, start: Start, link: Wiring) -> AbstractContextManager[object]:
        """Answer a guest with the cloud's services, on the interfaces of its server only."""
        return start.services.serve(
            start.spec.id,
            *link.interface_listeners,
            vendor_data=self.maker(start.spec).vendor_data(start.nonce),
            isolated=not link.networked,
        )

    def route(self, routers: Sequence[RouterSpec]) -> None:
        """Connect the servers' networks by these routers only."""
        if self.segments is None:
            return
        try:
            self.segments.route(routers)
            self.events.add(RouterChange([_as_fact(each) for each in routers]))
        except (HostError, MachineLostError, UsageError) as error:
            self._network_lost(error)

    def delete(self, server_id: str) -> None:
        """Cut a server's power and remove it; its folder stays."""
        with self._lock:
            self._state.pop(server_id, None)
            self._reboots.pop(server_id, None)
            if waiting := self._waiting.get(server_id):
                # Its own thread ends it.
                waiting.end()
                return
            server = self.servers.pop(server_id, None)
        if server is not None:
            server.close()

    def stop(self, server_id: str) -> None:
        """Cut a server's power; its disk stays as it is."""
        self._server(server_id).machine.kill()
        self._state[server_id] = ("SHUTOFF", "")

    def start(self, server_id: str) -> None:
        """Switch a server on again, from its disk."""
        self._turn_on(self._server(server_id))
        self._state[server_id] = ("ACTIVE", "")

    def replug(self, spec: ServerSpec, services: GuestServices) -> None:
        """Replace a server's interfaces; its disk stays as it is.

        A running server keeps the interfaces that stay; its guest is asked to release the others.

        :raises UsageError: when it cannot have these, or not now.
        :raises DeadlineExceeded: when the guest does not release one.
        """
        server = self._server(spec.id)
        check(spec)
        if self.status(spec.id)[0] != "SHUTOFF":
            server.replug(spec, self.segments, services)
            return
        server.close()
        try:
            self._run(
                Start(spec, services, server.nonce, folder=server.directory, off=True),
                self._reserve(spec),
            )
        except BaseException as error:
            self.servers.pop(spec.id, None)
            self._set_state(spec.id, "ERROR", str(error))
            raise

    def suspend(self, server_id: str) -> None:
        """Stop a server's processors."""
        self._server(server_id).machine.pause()
        self._state[server_id] = ("SUSPENDED", "")

    def resume(self, server_id: str) -> None:
        """Let a server's processors run on."""
        self._server(server_id).machine.resume()
        self._state[server_id] = ("ACTIVE", "")

    def pause(self, server_id: str) -> None:
        """Stop a server's processors, as :meth:`suspend` does, but with Nova's state PAUSED."""
        self._server(server_id).machine.pause()
        self._state[server_id] = ("PAUSED", "")

    def unpause(self, server_id: str) -> None:
        """Let a paused server's processors run on."""
        self.resume(server_id)

    def reboot(self, server_id: str) -> None:
        """Press a server's power button, and switch it on again once its system has shut down.

        As in Nova, the power is cut when the system takes too long.
        """
        server = self._server(server_id)
        self._set_state(server_id, "REBOOT")
        worker = Background(self.events, self._reboot, server, name=f"reboot-{server.spec.name}")
        self._reboots[server_id] = worker
        self._workers.append(worker)
        worker.start()

    def hard_reboot(self, server_id: str) -> None:
        """Cut a server's power and switch it on again."""
        server = self._server(server_id)
        self._set_state(server_id, "HARD_REBOOT")
        if soft := self._reboots.pop(server_id, None):
            # The soft reboot still waits for the guest; it then leaves the machine to this one.
            server.machine.kill()
            soft.join(CLOSE_SECONDS)
        self._power_cycle(server)

    def console(self, server_id: str) -> str:
        """Return a server's console without control sequences, shortened in the middle.

        "" while the server waits for memory.
        """
        server = self.servers.get(server_id)
        return server.machine.console.text() if server else ""

    def status(self, server_id: str) -> tuple[str, str]:
        """Return Nova's state of a server, and the reason."""
        return self._state.get(server_id, ("ERROR", "there is no such server"))

    # -- inside ----------------------------------------------------------------------------------

    def close(self) -> None:
        """End every server, also those that wait for memory; none is started after that."""
        with self._lock:
            self._closed = True
            everyone = [*self.servers, *self._waiting]
        for server_id in everyone:
            self.delete(server_id)
        if self._spare is not None:
            self._spare.close()
        deadline = Deadline(CLOSE_SECONDS, "the servers to end")
        for worker in self._workers:
            worker.join(deadline.left)
        if self.segments is not None:
            self.segments.close()
        for maker in self._makers.values():
            maker.close()

    def _begin(self, start: Start) -> None:
        """Start a server: now, or in a thread of its own when it has to wait for memory."""
        spec = start.spec
        with self._lock:
            if self._closed:
                raise MachineLostError(f'the server "{spec.name}" comes too late: the run is over')
            self._state[spec.id] = ("BUILD", "")
        try:
            # Try at once, without waiting: Heat's request must not wait for memory.
            memory = self._reserve(spec)
        except DeadlineExceeded:
            deadline = Deadline(self.settings.limit, _wish(spec))
            worker = Background(
                self.events, self._begin_later, start, deadline, name=f"start-{spec.name}"
            )
            with self._lock:
                self._waiting[spec.id] = deadline
                self._workers.append(worker)
            worker.start()
            return
        self._run(start, memory)
        self._set_state(spec.id, "ACTIVE")

    def _begin_later(self, start: Start, deadline: Deadline) -> None:
        spec = start.spec

        def tell(text: str) -> None:
            self.events.add(ServerWaiting(spec.name, text), server=spec.id)

        try:
            try:
                memory = self._reserve(spec, deadline, waiting=tell)
            except DeadlineExceeded as error:
                raise HostError(str(error), hint="hotplate doctor") from error
            self._run(start, memory)
            self._set_state(spec.id, "ACTIVE")
        except Exception as error:
            self._remember(spec, error)
            self._set_state(spec.id, "ERROR", str(error))
            # A fault of hotplate's own: Background reports it to all who wait for events.
            if outcome_of(error) is Outcome.ERROR:
                raise
        finally:
            with self._lock:
                del self._waiting[spec.id]
                # delete() has forgotten the state of a server that was deleted while it waited.
                wanted = spec.id in self._state
                unwanted = None if wanted else self.servers.pop(spec.id, None)
            if unwanted is not None:
                unwanted.close()
            start.services.notify()

    def _reboot(self, server: Server) -> None:
        what = f'the server "{server.spec.name}" to shut down'
        server.was_rebooted = True
        # When the system does not shut down, the power is cut below.
        with contextlib.suppress(DeadlineExceeded, MachineLostError):
            server.machine.shutdown(GuestDeadline(REBOOT_SECONDS, what))
        # A hard reboot or a deletion may have taken the machine over meanwhile.
        mine = self._reboots.get(server.spec.id) is threading.current_thread()
        if mine and self.servers.get(server.spec.id) is server:
            # _power_cycle() has made the error the server's state.
            with contextlib.suppress(HostError, MachineLostError):
                self._power_cycle(server)

    def _power_cycle(self, server: Server) -> None:
        server.was_rebooted = True
        try:
            server.machine.kill()
            self._turn_on(server)
        except Exception as error:
            self._set_state(server.spec.id, "ERROR", str(error))
            raise
        self._set_state(server.spec.id, "ACTIVE")

    def _turn_on(self, server: Server) -> None:
        with server.power:
            # close() of a deleted one may have come first.
            self._server(server.spec.id).machine.start()

    def _remember(self, spec: ServerSpec, error: Exception) -> None:
        with self._lock:
            # A server deleted while it waited for memory is no fault.
            if self._closed or spec.id not in self._state:
                return
            self.fault = self.fault or error
        self.events.add(
            StartFault(outcome=str(outcome_of(error)), message=sentence_of(error)), server=spec.id
        )

    def _reserve(
        self,
        spec: ServerSpec,
        deadline: Deadline | None = None,
        *,
        more_mib: int = 0,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> ExitStack:
        """Reserve the memory of a server, and return its holder.

        :param deadline: how long to wait for it; None does not wait.
        :raises DeadlineExceeded: when there is not enough by then.
        """
        memory = ExitStack()
        memory.enter_context(
            admission.reserve(
                self.settings.memory + more_mib,
                directory=self.settings.cache / "memory",
                deadline=deadline or Deadline(0, _wish(spec)),
                waiting=waiting,
            )
        )
        return memory

    def _network_lost(self, error: HostError | MachineLostError | UsageError) -> None:
        """End a run whose servers lack a network or a router; the image is not to blame."""
        with self._lock:
            if self._closed:
                return
            self.fault = self.fault or error
        self.events.add(StartFault(outcome=str(error.outcome), message=error.message))

    def _set_state(self, server_id: str, word: str, reason: str = "") -> None:
        """Set Nova's state of a server, unless it was deleted meanwhile."""
        with self._lock:
            if server_id in self._state:
                self._state[server_id] = (word, reason)

    def _server(self, server_id: str) -> Server:
        try:
            return self.servers[server_id]
        except KeyError:
            raise MachineLostError(f'there is no server "{server_id}"') from None

    def _folder(self, spec: ServerSpec) -> Path:
        """Return a folder named after the server; a second one of that name gets a number."""
        # The name comes from a template: it must not lead out of the directory.
        plain = file_name(spec.name, longest=60, otherwise="server")
        with self._lock:
            folder, number = self.directory / plain, 1
            while folder.exists():
                number += 1
                folder = self.directory / f"{plain}-{number}"
            folder.mkdir(mode=0o700, parents=True)
            return folder

    def _see(self, event: Event) -> None:
        """Update Nova's state of a server when its machine ends by itself."""
        ended = MachineExit.of(event)
        if ended is None or event.server not in self._state:
            return
        # The end of a machine is a part of its reboot.
        if self._state[event.server][0] in REBOOTING and ended.reason != "lost":
            return
        if ended.reason == "lost":
            self._state[event.server] = ("ERROR", ended.message)
        else:
            self._state[event.server] = ("SHUTOFF", ended.reason)


def _wish(spec: ServerSpec) -> str:
    return f'memory for "{spec.name}"'


def _as_fact(router: RouterSpec) -> dict[str, object]:
    """Return a router in the form of :class:`~hotplate.events.kinds.RouterChange`."""
    interfaces = [
        {"network_id": each.network_id, "address": each.address} for each in router.interfaces
    ]
    return {"name": router.name, "interfaces": interfaces}
