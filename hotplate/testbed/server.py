"""One server: its machine, and the ways into it."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.guest import shell
from hotplate.guest.base import GuestGoneError
from hotplate.guest.shell import Shell
from hotplate.machine.machine import Machine
from hotplate.timing.deadline import Deadline, GuestDeadline, retry

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


class Server:
    """One server: its machine, what connects it, and the ways into it.

    :ivar nonce: known to this guest alone; proves that the one that answers is the one started.
    :ivar restored: whether it was continued from a saved state, not booted.
    """

    def __init__(self, spec: ServerSpec, machine: Machine, *, nonce: str, owned: ExitStack) -> None:
        self.spec = spec
        self.machine = machine
        self.nonce = nonce
        self.restored = False
        self.was_rebooted = False
        self.owned = owned
        # cloud-init gives the guest this one again whenever it boots.
        self._boot_nonce = nonce
        self._shell: shell.Shell | None = None
        self._shell_of: int | None = None
        self._lock = threading.Lock()

    @property
    def directory(self) -> Path:
        """Where the console, QEMU's messages and ``qemu.sh`` of this server are."""
        return self.machine.directory

    def shell(self, *, seconds: float = 120.0) -> shell.Shell:
        """Return a root shell in the guest, over a virtio port; made anew after a power cut.

        :param seconds: how long to wait for the guest to answer on it.
        :raises DeadlineExceeded: when the guest did not start it.
        :raises MachineLostError: when the machine is off.
        """
        with self._lock:
            if self._shell is None or self._shell_of != self.machine.pid:
                way = shell.Shell(
                    self.machine.shell_channel, nonce=self.nonce, at_boot=self._boot_nonce
                )
                what = f'a root shell in the server "{self.spec.name}"'
                way.attach(GuestDeadline(seconds, what))
                if self.restored:
                    self._give_nonce(way)
                self._shell, self._shell_of = way, self.machine.pid
            return self._shell

    def renew(self, *, seconds: float = 30.0) -> None:
        """Make a restored server one of its own: a nonce that only it has, and the right time.

        :param seconds: how long to wait for it to answer.
        :raises DeadlineExceeded: when it does not.
        """
        self.restored = True
        self.shell(seconds=seconds).set_time(time.time())

    def _give_nonce(self, way: Shell) -> None:
        nonce = secrets.token_hex(16)
        way.renew(nonce)
        self.nonce = nonce

    def reboot(self, deadline: Deadline) -> None:
        """Reboot the guest gracefully and wait until its shell answers again."""
        before = self.shell()
        boot = before.run(BOOT_ID).check().text
        self.was_rebooted = True
        before.run("systemctl --no-block reboot")
        with self._lock:
            self._shell = None

        def is_up(_last_try: bool) -> bool | None:
            try:
                way = self.shell(seconds=deadline.left)
                # The guest may go down before it answers; then its next shell says so.
                return way.run(BOOT_ID, timeout=deadline.left).text != boot or None
            except GuestGoneError:
                with self._lock:
                    self._shell = None
                return None

        retry(is_up, deadline, every=0.5)

    def close(self) -> None:
        """Cut the power and give everything back."""
        self.owned.close()
