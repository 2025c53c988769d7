"""Known failures on a console: patterns, each with its reason and advice.

The first row that matches the latest lines wins, so specific rows stand before general ones: a
kernel that panics because it found no root is reported as "no root".

A fatal pattern matches only at the beginning of a line, after at most the kernel's timestamp and
a dot of the firmware's last output.  A program in the guest that quotes such a line, in a test
or in a message of the day, has its name or other words before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, lru_cache

from hotplate.text import clean

#: The number of console lines whose matches are kept; a line has at most 1,024 characters.
CACHED_LINES = 4096

#: The kernel's timestamp before a line; some settings add the task or CPU.
_KERNEL = r"(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? )?"
_PANIC = r"(?:Kernel panic - not syncing: )?"
_SYSTEMD = r"(?:systemd\[1\]: |\[ +OK +\] |\[!+\] )?"


@dataclass(frozen=True)
class Pattern:
    """A known failure.

    :param name: a stable word for tests and for machines.
    :param words: a regular expression for the console line; of a fatal one for its beginning.
    :param reason: the meaning, worded to follow "the console shows".
    :param advice: the remedy.
    :param in_cloud: the advice for a run in a cloud, where ``advice`` applies only to a run on
        this host; "" for the same.
    :param fatal: True when the guest never continues after it, so that a run can be given up.
    :param of_host: True when a panic beside it says nothing about the image.
    """

    name: str
    words: str
    reason: str
    advice: str
    _: KW_ONLY
    fatal: bool = True
    in_cloud: str = ""
    of_host: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Return the regular expression, compiled."""
        # SeaBIOS writes to a serial console when it has time: the last dot of "Booting from ROM..."
        # may follow the end of its line.
        whole = rf"^[\s.]*{_KERNEL}(?:{self.words})" if self.fatal else self.words
        return re.compile(whole, re.MULTILINE)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ConsoleFinding:
    """A console line that matches a pattern."""

    pattern: Pattern
    line: str
    number: int


PATTERNS: tuple[Pattern, ...] = (
    # Firmware and boot loader.
    Pattern(
        "unsigned-loader",
        # Secure Boot refuses the firmware's own shell as well, where nothing else boots.
        r'BdsDxe: failed to (?:load|start) Boot[0-9A-F]{4} (?!"EFI Internal Shell").*'
        r": (?:Access Denied|Security Violation)",
        "Secure Boot refused the boot loader, which no key of the firmware has signed",
        "install shim, which Microsoft has signed, as EFI/BOOT/BOOTX64.EFI (ARM: BOOTAA64.EFI) and "
        "the signed GRUB of the distribution beside it: packages shim-signed and "
        "grub-efi-amd64-signed of Debian, or hotplate build --secure-boot",
        # It goes on with the next device.
        fatal=False,
    ),
    Pattern(
        "unsigned-grub",
        # In a box of its own; it waits for a key.
        r"\W*Verification failed: \(0x1A\) Security Violation",
        "Secure Boot's shim refused the boot loader beside it",
        "use shim and the signed GRUB of the same distribution, as EFI/BOOT/grubx64.efi: packages "
        "shim-signed and grub-efi-amd64-signed of Debian, or hotplate build --secure-boot",
    ),
    Pattern(
        "unsigned-kernel",
        r"error: (?:\S+:\d+: ?)?(?:bad shim signature|prohibited by secure boot policy"
        r"|shim_lock protocol not found)",
        "GRUB refused the kernel, which no key of Secure Boot's shim has signed",
        "use the signed kernel of the distribution whose shim is in the image",
        # It may have another entry.
        fatal=False,
    ),
    Pattern(
        "no-bootable-device",
        r"No bootable device|(?:BdsDxe: )?No bootable option or device was found"
        r"|(?:Operating System not found|Missing operating system)\W*$",
        "the firmware found nothing to boot on the disk",
        "check that the image is a whole disk with a boot loader for this firmware (BIOS needs "
        'the "bootloader" element with a BIOS layout, UEFI an EFI system partition), or give a '
        "kernel and initrd beside a partition image",
    ),
    Pattern(
        "uefi-shell",
        r"UEFI Interactive Shell v|Shell> ?$",
        "the firmware fell into its UEFI shell because no boot entry worked",
        "check that the EFI system partition holds EFI/BOOT/BOOTX64.EFI (element block-device-efi)",
    ),
    Pattern(
        "grub-out-of-memory",
        r"error: (?:\S+:\d+: ?)?out of memory\.?",
        "GRUB had too little memory for the kernel or the initrd",
        "give the guest more memory (--memory)",
        fatal=False,
        in_cloud="take a flavor with more memory",
    ),
    # GRUB's countdown cannot be matched: its line has no end while it counts.
    Pattern(
        "grub-menu",
        r"Press enter to boot the selected OS",
        "GRUB showed its menu",
        "let GRUB's menu end by itself: GRUB_TIMEOUT=0 (or more) in the image's /etc/default/grub, "
        "then update-grub",
        fatal=False,
    ),
    Pattern(
        "grub-no-kernel",
        r"error: (?:\S+:\d+: ?)?file [^/ ]?/\S*(?:vmlinuz|initrd|kernel)\S* not found"
        r"|error: (?:\S+:\d+: ?)?you need to load the kernel first",
        "GRUB did not find the kernel or initrd that its menu names",
        "check that a kernel package is installed in the image and that grub.cfg was made after it",
    ),
    Pattern(
        "grub-rescue",
        r"grub rescue>|Minimal BASH-like line editing",
        "GRUB started but did not find its files or its partition",
        "check that grub-install ran on the finished disk and that the label or UUID in grub.cfg "
        "is that of the root file system",
    ),
    # Root file system.
    Pattern(
        "initramfs-shell",
        r"Gave up waiting for (?:root file system|root) device|ALERT! +\S+ +does not exist"
        r"|\(initramfs\) ?$|(?:dracut\S*: )?Warning: /dev/disk/by-\S+ does not exist"
        # dracut, with and without systemd.
        r"|Entering emergency mode\. Exit the shell to continue|dracut:[^ ]*# ?$"
        r"|Generating \"/run/initramfs/rdsosreport\.txt\""
        r"|(?:\[FAILED\] |systemd\[1\]: )Failed to mount .*/sysroot\.?$"
        # Alpine's mkinitfs, before and since 3.19, and Arch's mkinitcpio.
        r"|mount: mounting \S+ on /sysroot failed"
        r"|(?:Launching )?initramfs emergency recovery shell(?: launched)?\."
        r"|You are now being dropped into an emergency shell",
        "the initrd did not find the root file system, or could not mount it",
        "compare root= on the kernel command line with the label or UUID of the image's root file "
        "system, and check that the initrd holds the disk's driver (virtio_blk, virtio_scsi) and "
        "loads it (Alpine's loads those of modules= on that command line)",
    ),
    Pattern(
        "no-root-filesystem",
        rf"{_PANIC}VFS: (?:Unable to mount|Cannot open) root"
        r"|Please append a correct \"root=\" boot option"
        r"|No filesystem could mount root|Run /init as init process.*failed",
        "the kernel could not mount the root file system",
        "check root= on the kernel command line, and that an initrd is given when the kernel has "
        "the disk's driver or file system as a module",
    ),
    Pattern(
        "no-init",
        rf"{_PANIC}No working init found|{_PANIC}Requested init \S+ failed"
        rf"|{_SYSTEMD}Failed to execute /sbin/init(?![\w./-])"
        r"|Target filesystem doesn't have requested"
        r"|No init found\. Try passing init=",
        "the root file system was mounted but has no init",
        'check that the image contains an init system (package "systemd-sysv") and that the right '
        "partition was taken as root",
    ),
    Pattern(
        "initramfs-unpack",
        r"Initramfs unpacking failed|junk (?:within|in|at the end of) compressed archive"
        r"|invalid magic at start of compressed archive|decompression failed",
        "the kernel could not unpack the initrd",
        "check that kernel and initrd belong together and that the kernel knows the compression",
        fatal=False,
    ),
    # The kernel writes this instruction only while it patches its own code, and handles it then.
    Pattern(
        "stray-breakpoint",
        r"(?<![\w.])int3: 0000 \[#\d+\]",
        "the kernel ran a breakpoint that it had already taken back",
        "give the guest one processor (--cpus 1), or use QEMU 8.1 or later",
        fatal=False,
        in_cloud="try again: the cloud's hypervisor emulates a processor with a fault",
        of_host=True,
    ),
    # Linux, arch/x86/kernel/apic/io_apic.c, check_timer(): it counts the ticks in a period that it
    # measures in processor cycles, not by the timer.
    Pattern(
        "timer-too-late",
        r"Kernel panic - not syncing: IO-APIC \+ timer doesn't work!",
        "the machine's timer did not tick while the kernel waited for it",
        "the host is too busy for QEMU: try again, with less beside it",
        in_cloud="the cloud's host is overloaded: try again, or another availability zone",
        of_host=True,
    ),
    # Before the panic that such a death of init ends in.
    Pattern(
        "bad-cpu",
        r"This kernel requires the following features not present"
        r"|This kernel requires an? x86-64 CPU|Fatal glibc error: CPU does not support"
        # glibc's loader, of a library whose .note.gnu.property asks for more (dl-prop.h).
        r"|\S*init: error while loading shared libraries: .*CPU ISA level is lower than required"
        # From an init without glibc's test (Linux, arch/x86/kernel/traps.c); it is killed by this.
        r"|traps: [^ ]+\[1\] trap invalid opcode"
        # The same with "quiet" and on ARM: signal 4 is SIGILL, and 0x80 is set with a core dump.
        rf"|{_PANIC}Attempted to kill init! exitcode=0x000000[08]4",
        "the image's programs need a CPU with more features than the machine has",
        "name a CPU model that has them (--cpu), try it on a host with KVM, whose guests have the "
        "host's own CPU (hotplate doctor), or build the image for x86-64-v1",
        in_cloud="boot with a flavor whose hosts have a newer CPU, or build the image for "
        "x86-64-v1",
    ),
    Pattern(
        "kernel-panic",
        r"Kernel panic - not syncing",
        "the kernel panicked",
        "read the lines above the panic in console.log; a panic in the middle of nowhere is often "
        "too little memory or a CPU model the image was not built for",
    ),
    Pattern(
        "rescue-mode",
        rf"You are in rescue mode|{_SYSTEMD}Started .*Rescue Shell"
        rf"|{_SYSTEMD}Reached target .*Rescue Mode",
        "systemd stopped in rescue mode",
        "make multi-user.target the image's default (systemctl set-default multi-user.target), and "
        'look for "rescue", "single" or "1" on the kernel command line',
    ),
    Pattern(
        "emergency-mode",
        rf"You are in emergency mode|{_SYSTEMD}Started .*Emergency Shell"
        rf"|{_SYSTEMD}Reached target .*[Ee]mergency [Mm]ode"
        r"|Give root password for maintenance|Cannot open access to console, the root account is",
        "systemd stopped in emergency mode",
        "a mount of /etc/fstab or a unit that local-fs.target requires failed: look for [FAILED] "
        "and [DEPEND] lines in console.log",
    ),
    # Symptoms of an earlier failure; on their own the guest may continue after them.
    Pattern(
        "boot-entry-failed",
        r"BdsDxe: failed to (?:load|start) Boot|Boot failed: not a bootable disk",
        "the firmware could not boot from one of its devices",
        "check that the disk has a boot loader for this firmware",
        fatal=False,
    ),
    Pattern(
        "grub-error",
        r"error: (?:\S+:\d+: ?)?(?:no such (?:partition|device)|unknown filesystem"
        r"|file [^/ ]?/\S+ not found)",
        "GRUB misses a file or a partition",
        "check that the label or UUID in grub.cfg is that of the root file system",
        fatal=False,
    ),
    Pattern(
        "root-waited-for",
        r"dracut-initqueue.*timeout|Warning: dracut-initqueue|Waiting for root file system \.\.\."
        r"|Begin: Waiting for root file system",
        "the initrd waits for the root file system",
        "compare root= on the kernel command line with the label or UUID of the image's root file "
        "system",
        fatal=False,
    ),
    Pattern(
        "unsigned-module",
        # Linux, security/lockdown/lockdown.c and kernel/module/signing.c.
        r"Lockdown: \S+: unsigned module loading is restricted"
        r"|Loading of (?:unsigned module|module with unavailable key) is rejected",
        "the kernel refused an unsigned module, as it does with Secure Boot",
        "use modules of the kernel's own package, or sign those of DKMS with a key that shim knows",
        fatal=False,
    ),
    # The machine's resources.
    # A program may also end itself so: compilers put such an instruction behind an assertion.
    Pattern(
        "illegal-instruction",
        r"traps: [^ ]+\[\d+\] trap invalid opcode|code=(?:killed|dumped), status=4/ILL"
        r"|Fatal glibc error: CPU does not support|CPU ISA level is lower than required",
        "a program has an instruction that the machine's CPU lacks",
        "name a CPU model that has it (--cpu), or build the program for an older CPU",
        fatal=False,
        in_cloud="boot with a flavor whose hosts have a newer CPU, or build the program for an "
        "older one",
    ),
    Pattern(
        "out-of-memory",
        r"Out of memory: Kill(?:ed)? process|invoked oom-killer|oom-kill:constraint"
        r"|System is deadlocked on memory",
        "the kernel killed processes because memory ran out",
        "give the guest more memory, and see in console.log which process took it",
        fatal=False,
    ),
    Pattern(
        "disk-full",
        # inotify reports its own limit with the same words.
        r"^(?!.*(?:inotify|file watch)).*(?:No space left on device|ENOSPC)",
        "a disk of the guest is full",
        "make the image's root file system larger (DIB_IMAGE_SIZE), or let it grow at boot "
        "(element growroot)",
        fatal=False,
    ),
    Pattern(
        "read-only-root",
        r"Remounting filesystem read-only|(?<!ignoring: )Read-only file system",
        "the root file system is read-only",
        "check the root file system with e2fsck, and the options of / in /etc/fstab",
        fatal=False,
    ),
    Pattern(
        "disk-errors",
        r"(?:blk_update_request|Buffer I/O error|I/O error, dev [sv]d)|EXT4-fs error"
        r"|XFS \(\S+\): Corruption",
        "reads or writes of the disk fail",
        "check the image (qemu-img check) and the space on the host where the overlay lies",
        fatal=False,
        in_cloud="check the image (qemu-img check), and ask who runs the cloud about its storage",
    ),
    Pattern(
        "soft-lockup",
        r"watchdog: BUG: soft lockup|rcu_(?:sched|preempt) (?:self-)?detected stalls?"
        r"|rcu: INFO: rcu_\S+ (?:self-)?detected stall",
        "a CPU of the guest made no progress for a long time",
        "the host is overloaded, or KVM does not really work here: see hotplate doctor",
        fatal=False,
        in_cloud="the cloud's host is overloaded: try again, or another availability zone",
    ),
    # Network and cloud-init.
    Pattern(
        "no-dhcp-lease",
        r"No DHCPOFFERS received|No working leases in persistent database"
        # From cloud-init 25.1, about dhcpcd.
        r"|No valid DHCP lease configuration found"
        r"|systemd-networkd-wait-online\.service: (?:Main process exited|Failed)"
        r"|Failed to start .*(?:[Ww]ait for [Nn]etwork|[Rr]aise network interfaces)"
        r"|A start job is running for .*[Ww]ait for [Nn]etwork.*\(\dmin"
        r"|ci-info: \| +(?:e|en|eth|ens|enp)\w* +\| +False",
        "no network device of the guest got an address",
        "check that a network renderer is installed and enabled in the image and that it matches "
        "the device's name (systemd-networkd with a .network file for en* eth*)",
        fatal=False,
    ),
    Pattern(
        "no-datasource",
        r"DataSourceNone|No instance datasource found|did not find any data source"
        r"|cloud-init(?:-generator)?(?:\[\d+\])?:? .*(?:disabled|no datasource)"
        r"|Used fallback datasource|Cloud-init disabled by",
        "cloud-init found no datasource",
        "check datasource_list in /etc/cloud/cloud.cfg.d (it must name OpenStack or Ec2) and that "
        "ds-identify is not told to be strict",
        fatal=False,
    ),
    Pattern(
        "metadata-unreachable",
        r"Calling '?http://169\.254\.169\.254\S* failed|Giving up on (?:OpenStack )?md from"
        r"|169\.254\.169\.254.*(?:Connection refused|timed out|No route to host|is unreachable)",
        "cloud-init could not reach the metadata service",
        "check the guest's route to 169.254.169.254 and its firewall",
        fatal=False,
    ),
    Pattern(
        "cloud-init-broken",
        r"cloud-init\[\d+\]: Traceback|util\.py\[WARNING\]: Failed (?:running|loading)"
        r"|Failed to start .*[Cc]loud-init|cc_\S+\.py\[(?:ERROR|CRITICAL)\]|stages\.py\[ERROR\]",
        "a part of cloud-init failed",
        "read /var/log/cloud-init.log in the guest (guest/ in the artifacts)",
        fatal=False,
    ),
    # The agent.
    Pattern(
        "agent-failed",
        r"Failed to start .*os-collect-config|os-collect-config\.service: (?:Failed|Main process "
        r"exited|Start request repeated|Scheduled restart)|os-collect-config\[\d+\]: Traceback"
        r"|os-collect-config.*(?:ModuleNotFoundError|ImportError|No such file or directory)",
        "the agent os-collect-config fails",
        "journalctl -u os-collect-config in the guest shows its traceback",
        fatal=False,
    ),
    Pattern(
        "refresh-failed",
        r"os-refresh-config:? .*(?:failed|ERROR)|dib-run-parts.*(?:failed|ERROR)"
        r"|Command '?.*os-refresh-config.*returned non-zero",
        "a script of os-refresh-config fails",
        "journalctl -u os-collect-config in the guest names the script",
        fatal=False,
    ),
    Pattern(
        "user-data-program-missing",
        # Heat's own boothook.sh calls a program of heat-cfntools, and goes on without it.
        r"cloud-init\[\d+\]: (?!\S*/boothooks/boothook\.sh)\S+: (?:line )?\d+: \S+: "
        r"(?:command )?not found",
        "the user data calls a program that the image does not have",
        "put its package into the image (hotplate build --package, or -p of disk-image-create), or "
        "have the user data install it first",
        fatal=False,
    ),
    # Units in general: last, because they are often the consequence of something above.
    Pattern(
        "ordering-cycle",
        r"Ordering cycle found, skipping|deleted to break ordering cycle",
        "systemd left out a unit, which is in an ordering cycle",
        "correct After= and Before= of the units in the cycle: systemctl cat",
        fatal=False,
    ),
    # The kernel has this device from its start, and this line was just written to it.
    Pattern(
        "slow-host",
        r"[Tt]imed out waiting for device (?:/dev/|dev-)(?:tty|hvc)",
        "the guest is so slow that systemd gave up waiting for the console's own device",
        "try again with less beside it on this host, or with KVM (hotplate doctor)",
        fatal=False,
        in_cloud="the cloud's host is overloaded: try again, or another availability zone",
    ),
    Pattern(
        "device-timeout",
        r"[Tt]imed out waiting for device (?!(?:/dev/|dev-)(?:tty|hvc))",
        "systemd waited for a device that never came",
        "a device named in /etc/fstab or on the kernel command line does not exist in this "
        "machine: use LABEL= or UUID= of the image's own file systems",
        fatal=False,
    ),
    Pattern(
        "dependency-failed",
        r"\[DEPEND\]|Dependency failed for",
        "a unit was not started because one that it requires failed",
        "look for the first [FAILED] or timeout above it in console.log",
        fatal=False,
    ),
    Pattern(
        "unit-failed",
        # Except hotplate's own shell, which is no unit of the image.
        r"\[FAILED\] Failed to (?:start|mount|listen)(?! on hotplate-| hotplate-)",
        "a unit failed to start",
        "systemctl --failed and journalctl -b in the guest tell why",
        fatal=False,
    ),
)
BY_NAME: dict[str, Pattern] = {pattern.name: pattern for pattern in PATTERNS}


# A line is looked at several times in a run, and most lines are the same in each test of an image.
@lru_cache(CACHED_LINES)
def match(line: str) -> Pattern | None:
    """Return the first pattern that matches a console line, or None."""
    text = clean(line)
    return next((pattern for pattern in PATTERNS if pattern.regex.search(text)), None)


def scan(lines: Iterable[str]) -> list[ConsoleFinding]:
    """Return one finding for each pattern that matches a line, in the order of the table.

    ::

        scan(["[    1.2] Kernel panic - not syncing: VFS: Unable to mount root fs"])[0].pattern.name
        # "no-root-filesystem"
    """
    first: dict[str, ConsoleFinding] = {}
    for number, line in enumerate(lines, start=1):
        text = clean(line)
        for pattern in PATTERNS:
            if pattern.name not in first and pattern.regex.search(text):
                first[pattern.name] = ConsoleFinding(pattern, text.strip(), number)
    return [first[pattern.name] for pattern in PATTERNS if pattern.name in first]
