"""One server: its machine, and the connections to its guest."""

from __future__ import annotations

import secrets
import shlex
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cloud.nova.compute import GuestServices, ServerPort, ServerSpec
from hotplate.errors import MachineLostError, UsageError
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.guest.base import BOOT_ID, Guest, GuestGoneError
from hotplate.guest.shell import Shell
from hotplate.machine.console import Console
from hotplate.machine.machine import Capability, Machine
from hotplate.machine.wiring import Cables
from hotplate.network.segment import Port
from hotplate.testbed.links import Links
from hotplate.testbed.segments import Segments
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline, retry

if TYPE_CHECKING:
    from hotplate.guest.ssh import Ssh

SSH_PORT = 22
#: How long to wait for one answer of a guest that reboots, on a host that is not slow.
ANSWER_SECONDS = 20.0

UNPLUG_SECONDS = 20.0
#: How long a guest has to release an interface per request, and how many requests are made (Nova:
#: ``[libvirt] device_detach_timeout`` and ``device_detach_attempts``). A guest that still boots
#: does not hear the first; QEMU passes on further ones from 8.0 and 7.2.2 on.
UNPLUG_ATTEMPTS = 8


class Server:
    """One server: its machine, its network links, and the connections to its guest.

    :ivar nonce: known to this guest only; proves that the answering guest is the one started.
    :ivar restored: whether it was continued from a saved state instead of booted.
    :ivar login: connects to its guest by ssh, given seconds; set where it has no root shell.
    :ivar power: held while its machine is switched on, so that it is not closed meanwhile.
    """

    def __init__(self, spec: ServerSpec, machine: Machine, *, nonce: str, owned: ExitStack) -> None:
        self.spec = spec
        self.machine = machine
        self.nonce = nonce
        self.restored = False
        self.was_rebooted = False
        self.owned = owned
        self.power = threading.RLock()
        # cloud-init gives the guest this nonce again at each boot.
        self._boot_nonce = nonce
        self._shell: Shell | None = None
        self._shell_of: int | None = None
        self.login: Callable[[float], Ssh] | None = None
        self._ssh: Ssh | None = None
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        """Return Nova's id."""
        return self.spec.id

    @property
    def name(self) -> str:
        """Return Nova's name."""
        return self.spec.name

    @property
    def kind(self) -> str:
        """Return words that complete "this server is ..."."""
        return f"a {self.machine.kind}"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the abilities of its machine."""
        return self.machine.capabilities

    @property
    def console(self) -> Console:
        """Return the serial console."""
        return self.machine.console

    @property
    def links(self) -> Links:
        """Return its links to its networks."""
        return Links(self.spec, self.machine)

    def address(self, network: str = "") -> str:
        """Return its address on a network; see :meth:`Links.address`."""
        return self.links.address(network)

    @property
    def directory(self) -> Path:
        """Return the folder of this server's console, QEMU's messages and ``qemu.sh``."""
        return self.machine.directory

    def shell(self, *, seconds: float = 120.0) -> Shell:
        """Return a root shell in the guest, over a virtio port; a new one after a power cut.

        :param seconds: how long to wait for the guest to answer on it.
        :raises DeadlineExceeded: when the guest did not start it.
        :raises MachineLostError: when the machine is off.
        """
        with self._lock:
            # Another process id means that the machine was off meanwhile.
            fits = self._shell_of == self.machine.pid
            if self._shell is None or not fits or not self._shell.is_alive:
                way = Shell(self.machine.shell_channel, nonce=self.nonce, at_boot=self._boot_nonce)
                what = f'a root shell in the server "{self.spec.name}"'
                way.attach(GuestDeadline(seconds, what))
                if self.restored:
                    nonce = secrets.token_hex(16)
                    way.renew(nonce)
                    self.nonce = nonce
                self._shell, self._shell_of = way, self.machine.pid
            return self._shell

    def drop_shell(self) -> None:
        """Forget the shell: after a reboot, its next words may be the rest of an old answer."""
        with self._lock:
            self._shell = None

    def guest(self, *, seconds: float = 120.0) -> Guest:
        """Return the connection to its guest: the root shell or, where it has none, ssh.

        :param seconds: how long to wait for an answer.
        :raises DeadlineExceeded: and HotplateError, when there is none.
        """
        if self.login is None:
            return self.shell(seconds=seconds)
        if self._ssh is None or not self._ssh.is_alive:
            self._ssh = self.login(seconds)
        return self._ssh

    def ssh(self, *, seconds: float = 120.0) -> Ssh:
        """Return an ssh connection as root; a new one when the last was lost.

        The guest gets a key for this server only, over its shell.

        :param seconds: how long to wait for the guest's ssh server.
        :raises DeadlineExceeded: when none answers.
        :raises SubjectError: when the ssh server answers but refuses root.
        :raises HostError: when this host's wiring does not reach the guest's ports.
        """
        # Imported here: paramiko is slow to load, and most tests do without it.
        from paramiko import ECDSAKey

        from hotplate.guest.ssh import Ssh

        deadline = GuestDeadline(seconds, f'ssh to the server "{self.spec.name}"')
        if self._ssh is None or not self._ssh.is_alive:
            key = ECDSAKey.generate()
            self.let_root_in(f"{key.get_name()} {key.get_base64()} hotplate", seconds=deadline.left)
            way = Ssh(lambda: self.machine.wiring.connect(SSH_PORT), keys=[key])
            way.attach(deadline)
            self._ssh = way
        return self._ssh

    def let_root_in(self, public_key: str, *, seconds: float) -> None:
        """Put a key first among root's; cloud-init's own entry only refuses a login.

        :param public_key: a line of OpenSSH's.
        :param seconds: how long to wait for the guest's shell.
        """
        # The file is replaced at once, so that sshd never reads a part of it.
        line = shlex.quote(public_key)
        self.shell(seconds=seconds).run(
            "umask 077; mkdir -p /root/.ssh; cd /root/.ssh; touch authorized_keys; "
            f"if ! grep -qxF {line} authorized_keys; then "
            f"{{ echo {line}; cat authorized_keys; }} >.new && mv .new authorized_keys; fi"
        )

    def renew(self, *, seconds: float = 30.0) -> None:
        """Make a restored server unique: with a nonce of its own, and the right time.

        :param seconds: how long to wait for it to answer.
        :raises DeadlineExceeded: when it does not.
        """
        self.restored = True
        way = self.shell(seconds=seconds)
        if Capability.KERNEL in self.machine.capabilities:
            # The guest's clock lags by the time since the state was saved.
            way.set_time(time.time())

    def reboot(self, deadline: Deadline) -> None:
        """Reboot the guest gracefully and wait until its shell answers again."""
        before = self.shell()
        boot = before.run(BOOT_ID).check().text
        self.was_rebooted = True
        # --no-block: the shell answers before the guest goes down.
        before.run("systemctl --no-block reboot")
        self.drop_shell()

        def is_up(_last_try: bool) -> bool:
            limit = GuestDeadline(min(ANSWER_SECONDS, deadline.left), deadline.what)
            try:
                way = self.shell(seconds=limit.left)
                # The guest may go down before it answers; the next shell reports that.
                return way.run(BOOT_ID, timeout=limit.left).text != boot
            except (MachineLostError, DeadlineExceeded) as error:
                if not self.machine.running and not isinstance(error, GuestGoneError):
                    raise
                # When it goes down within an answer, its next words are read as the rest of that
                # answer.
                self.drop_shell()
                return False

        retry(is_up, deadline, every=0.5)

    def picture_boot(
        self,
        picture: Path,
        *,
        directory: Path,
        until: Callable[[Event], bool],
        seconds: float,
    ) -> None:
        """Cut the power, and start the same machine again with a screen, to take a picture of it.

        :param picture: the PNG to write.
        :param directory: an empty one, for the files of that machine.
        :param until: ends the wait early, given an event of that machine.
        :param seconds: how long to watch it.
        """
        first = self.machine
        first.kill()
        # A log of its own: this boot is no part of the run.
        events = EventLog()
        with first.with_screen(directory, events) as machine:
            machine.start()
            events.wait(until, seconds=seconds)
            machine.screenshot(picture)

    def replug(self, spec: ServerSpec, segments: Segments | None, services: GuestServices) -> None:
        """Replace the ports of the running server by those of ``spec``.

        New ports come last.

        :raises UsageError: when the machine takes none while it runs.
        :raises DeadlineExceeded: when the guest keeps an interface; earlier ones are already
            removed.
        """
        wiring = self.machine.wiring
        if segments is None or not isinstance(wiring, Cables) or not wiring.networked:
            raise UsageError(
                f'the server "{spec.name}" is by itself, on no network with others, and keeps its '
                "interface while it runs",
                hint="stop it first: openstack server stop",
            )
        wanted = {each.id for each in spec.ports}
        for port in self.spec.ports:
            if port.id not in wanted:
                self._unplug(port, wiring, segments)
        present = {each.id for each in self.spec.ports}
        for port in spec.ports:
            if port.id not in present:
                self._plug(port, wiring, segments, services)

    def _unplug(self, port: ServerPort, wiring: Cables, segments: Segments) -> None:
        place = self.spec.ports.index(port)
        what = f'the guest of "{self.spec.name}" to let go of its interface {port.mac}'
        for left in reversed(range(UNPLUG_ATTEMPTS)):
            try:
                self.machine.detach(place, GuestDeadline(UNPLUG_SECONDS, what))
                break
            except DeadlineExceeded:
                if not left:
                    raise
        # Only now: a guest that keeps the interface keeps its cable.
        cable = wiring.cables[place]
        wiring.remove(place)
        ports = tuple(each for each in self.spec.ports if each is not port)
        self.spec = replace(self.spec, ports=ports)
        if isinstance(cable, Port):
            segments.detach(port, cable)

    def _plug(
        self, port: ServerPort, wiring: Cables, segments: Segments, services: GuestServices
    ) -> None:
        spec = replace(self.spec, ports=(*self.spec.ports, port))
        with ExitStack() as owned:
            cable = owned.enter_context(segments.attached(spec, port))
            # The services answer before the guest sees the interface.
            owned.enter_context(services.serve(spec.id, cable.listeners, cable.ipv6_listeners))
            self.machine.attach(cable)
            self.owned.enter_context(owned.pop_all())
        wiring.add(cable)
        self.spec = spec

    def close(self) -> None:
        """Cut the power and release all resources."""
        if self._ssh is not None:
            self._ssh.close()
        # Not in the middle of a start: that would leave a running machine behind.
        with self.power:
            self.owned.close()
