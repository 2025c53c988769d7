"""Count a guest's boots, tell shutdowns from crashes, and detect the end of the boot.

Boots are counted by the boot loader or kernel that writes on the console.  QEMU's RESET event
cannot be counted: 7.2 reports one reboot of an emulated guest several times within 50 ms, and
its events come by another channel than the console, so that the last lines of the previous
kernel may come after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import BootEnd, MachineReset, PowerOn

#: Resets no further apart count as one reboot, where a guest writes nothing on its console.
SAME_RESET_SECONDS = 1.0

#: The firmware starts a boot loader (SeaBIOS, EDK2), or a boot loader or kernel writes itself.
_LOADED = re.compile(
    r"^\s*Booting from |BdsDxe: starting Boot|Welcome to GRUB|GNU GRUB|GRUB loading|EFI stub: "
    r"|Linux version \d"
)
#: The kernel, or its init where the command line has "quiet".
_SYSTEM = re.compile(r"Linux version \d|Welcome to (?!GRUB)\S")
_ORDERLY = re.compile(
    # systemd; since version 249 with the unit's name.
    r"Reached target (?:reboot\.target|System Reboot|Reboot\b)|systemd-shutdown\[1\]: Rebooting"
    # The kernel's kernel_restart(); a panic or a watchdog takes another way.
    r"|reboot: (?:Restarting system|machine restart)"
)
_CLOUD_INIT = re.compile(r"Cloud-init v\. \S+ running ")
_USER_DATA = re.compile(r"Cloud-init v\. \S+ running 'modules:final'")
_CLOUD_INIT_ENDED = re.compile(
    # The first is cloud-init's own message, which the user data may change (final_message).
    r"Cloud-init v\. \S+ finished at |Reached target .*(?i:cloud-init)"
    r"|(?:Finished|Failed to start) (?:cloud-final\.service|.*(?i:cloud user/final|final stage))"
)
_ENDED = re.compile(
    r"Reached target .*(?i:multi-user|graphical|cloud-init)|Startup finished in|login: ?$"
    # BusyBox's init, after OpenRC's last runlevel.
    r"|init: starting pid \d+, tty '[^']*': '\S*getty "
)


@dataclass
class Reboot:
    """A reboot by the guest itself.

    :param at: seconds on the monotonic clock.
    :param orderly: True when its system was shut down before; False when it crashed.
    :param system: True when a kernel had started before; False when only a boot loader had.
    """

    at: float
    orderly: bool
    system: bool


class Boots:
    """The boots of one server; :meth:`see` takes its events.

    :ivar reboots: the reboots by the guest itself.
    :ivar rebooting: its system is rebooting, and has not come up again.
    :ivar unsettled: nothing has booted since a reset; the last lines before it may still come.
    :ivar number: of this boot, from 1; incremented by each reboot, reset by the host and power-on.
    :ivar began: its system has written on the console in this boot.
    """

    def __init__(self) -> None:
        self.reboots: list[Reboot] = []
        self.rebooting = False
        self.number = 0
        self._spoke = False
        self._reset_at = float("-inf")
        self._new_boot()

    @property
    def ended(self) -> bool:
        """True when the boot has ended: cloud-init's last stage or, without cloud-init, systemd's.

        A login prompt may come before cloud-init has run the user data.
        """
        by_systemd = self._ended and not self._cloud_init
        return self._told_ended or self._cloud_init_ended or by_systemd

    @property
    def runs_user_data(self) -> bool:
        """True while cloud-init is in its last stage, which runs the scripts of the user data."""
        return self._user_data and not self._cloud_init_ended

    def see(self, event: Event) -> None:
        """Take an event of the server into account."""
        if (started := PowerOn.of(event)) is not None:
            self.rebooting = False
            self._new_boot()
            # The kernel of a restored guest started long ago.
            self._loaded = self.began = self._told_ended = started.restored
        elif (reset := MachineReset.of(event)) is not None:
            self._see_reset(event, by_guest=reset.by_guest)
        elif BootEnd.of(event) is not None:
            self._told_ended = True
        elif text := classify.console_text(event):
            self._see_line(text, event)

    def come_up(self) -> None:
        """Note a sign of the guest's system; during a shutdown it does not count."""
        if not self._shutting_down:
            self.rebooting = False

    # -- inside ----------------------------------------------------------------------------------

    def _new_boot(self) -> None:
        self.number += 1
        self.unsettled = self.began = self._loaded = self._shutting_down = self._told_ended = False
        self._cloud_init = self._cloud_init_ended = self._user_data = self._ended = False

    def _see_reset(self, event: Event, *, by_guest: bool) -> None:
        apart = event.at - self._reset_at > SAME_RESET_SECONDS
        self._reset_at = event.at
        if not by_guest:
            self._new_boot()
        elif self._loaded or (apart and not self._spoke):
            self._reboot(event)

    def _reboot(self, event: Event) -> None:
        self.reboots.append(Reboot(event.at, orderly=self._shutting_down, system=self.began))
        self._new_boot()
        self.unsettled = True

    def _see_line(self, text: str, event: Event) -> None:
        if _ORDERLY.search(text):
            if self.reboots and not self._loaded:
                # The last lines of the previous kernel may come after the reset.
                self.reboots[-1].orderly = True
                self.rebooting = self.reboots[-1].system
            else:
                self._shutting_down = self.rebooting = True
        elif _LOADED.search(text) or _SYSTEM.search(text):
            # A kernel that starts another one (kexec), and a cloud, report no reset.
            if self._shutting_down:
                self._reboot(event)
            self._spoke = self._loaded = True
            self.unsettled = False
            self.began = self.began or bool(_SYSTEM.search(text))
        self._cloud_init = self._cloud_init or bool(_CLOUD_INIT.search(text))
        self._user_data = self._user_data or bool(_USER_DATA.search(text))
        self._cloud_init_ended = self._cloud_init_ended or bool(_CLOUD_INIT_ENDED.search(text))
        self._ended = self._ended or bool(_ENDED.search(text))
