"""The standard checks of a booted guest: one script that asks it, and the faults in its answer.

The table with reasons and sources is :data:`hotplate.inspection.standard.STANDARD`.  The script
reads only, and needs ``sh`` and the tools of coreutils or busybox.  It runs as root, or as a user
of an image without an agent, where ``sudo -n`` reads the kernel's messages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hotplate.errors import UsageError
from hotplate.inspection.findings import named
from hotplate.inspection.standard import BY_ID, SERIAL_CONSOLE, TIME_UNITS
from hotplate.text import clean_line
from hotplate.verdict.health import Health

SECTOR = 512
#: Bytes that may stay unused: alignment, the backup of a GPT, the tables of a file system.
SLACK_BYTES = 64 << 20
#: The part of a device that an ext4 file system has, after its tables and journal, at least: 0.83
#: of 591 MiB, of which the journal alone has 64.
FILE_SYSTEM_PART = 0.75

# The kernel cuts the name of a process to 15 characters (proc_pid_comm(5)).
_TIME_PROGRAMS = "|".join(sorted({name[:15] for name in TIME_UNITS}))

SCRIPT = rf"""
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
section() {{ echo "=== $1"; }}
as_root() {{
    if [ "$(id -u)" = 0 ]; then timeout 30 "$@"; else timeout 30 sudo -n "$@"; fi 2> /dev/null
}}
# Print the disk below a block device, through LVM and partitions.
disk_of() {{
    sys=/sys/class/block/$1
    while below=$(ls "$sys/slaves" 2> /dev/null | head -n 1) && [ -n "$below" ]; do
        sys=/sys/class/block/$below
    done
    sys=$(readlink -f "$sys")
    [ -e "$sys/partition" ] && sys=${{sys%/*}}
    echo "${{sys##*/}}"
}}
section state
systemctl is-system-running 2> /dev/null
section machine-id
cat /etc/machine-id
section arch
uname -m
section cmdline
# A word to a line, as long lines are cut.
tr ' ' '\n' < /proc/cmdline
section root
device=
while read -r source point rest; do
    [ "$point" = / ] && device=$source
done < /proc/mounts
# Without an initrd it is "/dev/root", which is no file.
if [ -b "$device" ]; then
    name=$(readlink -f "$device")
    name=${{name##*/}}
else
    name=$(readlink -f "/sys/dev/block/$(mountpoint -d / 2> /dev/null)")
    name=${{name##*/}}
fi
if [ -n "$name" ] && [ -e "/sys/class/block/$name/size" ]; then
    disk=$(disk_of "$name")
    end=0
    for part in "/sys/class/block/$disk"/*/partition; do
        [ -e "$part" ] || continue
        part=${{part%/*}}
        last=$(($(cat "$part/start") + $(cat "$part/size")))
        [ "$last" -gt "$end" ] && end=$last
    done
    echo "$disk $(cat "/sys/class/block/$disk/size") $end" \
        "$(cat "/sys/class/block/$name/size") $(stat -f -c '%b %S' /)"
fi
section swap
sed 1d /proc/swaps | while read -r path kind rest; do
    if [ "$kind" = file ]; then
        [ "$(stat -c %d "$path" 2> /dev/null)" = "$(stat -c %d /)" ] && echo "$path $disk"
    else
        name=$(readlink -f "$path")
        echo "$path $(disk_of "${{name##*/}}")"
    fi
done
section time
cat /proc/[0-9]*/comm 2> /dev/null | grep -xE '{_TIME_PROGRAMS}' | sort -u
section failed
systemctl --failed --plain --no-legend --no-pager 2> /dev/null
section kernel
# Raw, as busybox knows no levels: those of the kernel itself (facility 0), from "err" on.
as_root dmesg -r | grep -E '^<[0-3]>' | head -n 50 | cut -c 1-200
section end
"""


@dataclass(frozen=True)
class GuestFault:
    """A standard check that a guest failed.

    :param id: of the check.
    :param what: distinguishes it from others of its id, such as the name of a unit.
    :param sentence: without the server and without a full stop.
    :param title: the description of a unit, by which a console may name it.
    """

    id: str
    what: str
    sentence: str
    title: str = ""


@dataclass(frozen=True)
class HarmlessLine:
    """A row of :data:`HARMLESS`: an error of the kernel that says nothing about the image."""

    line: re.Pattern[str]
    reason: str


HARMLESS: tuple[HarmlessLine, ...] = (
    HarmlessLine(
        re.compile(r"tsc: (?:Fast TSC calibration failed|Unable to calibrate)"),
        "the emulator's counter is no processor's",
    ),
    HarmlessLine(
        re.compile(r"rcu: INFO: rcu_\w+ (?:self-)?detected|rcu: .*kthread starved|rcu:\s+\d+-"),
        "the host gave an emulated processor no time",
    ),
    HarmlessLine(
        re.compile(r"watchdog: BUG: soft lockup|hrtimer: interrupt took"),
        "the host gave an emulated processor no time",
    ),
    HarmlessLine(
        re.compile(r"(?:RETBleed|MDS|MMIO Stale Data|TAA|SRBDS|Spectre V\d|Speculative|VMSCAPE)\b"),
        "the emulated processor reports no fixes of its own",
    ),
    HarmlessLine(
        re.compile(r"[Ff]ailed to access perfctr msr|perfctr|unchecked MSR access"),
        "the emulated processor has no such register",
    ),
    HarmlessLine(
        re.compile(r"kvm(?:_intel|_amd)?: .*(?:not supported|disabled by bios|no hardware)", re.I),
        "a guest of this harness runs no guests",
    ),
    HarmlessLine(
        re.compile(r"i8042: (?:No controller found|Can't read CTR)"),
        "a cloud's machine has no keyboard",
    ),
    HarmlessLine(
        re.compile(r"SMBus Host Controller not enabled|SMBus base address uninitialized"),
        "QEMU's chipset has it turned off",
    ),
    HarmlessLine(
        re.compile(r"\bdev (?:fd0|sr\d)\b|floppy: error"),
        "the emulated drive is empty, or a config drive read beyond its end",
    ),
    HarmlessLine(
        re.compile(r"shpchp .*Cannot reserve MMIO|pciehp: Failed to check link status"),
        "the slot of QEMU's chipset is empty",
    ),
    HarmlessLine(
        re.compile(r"ACPI (?:BIOS )?Error|ACPI: .*failed to evaluate"),
        "it is of the firmware, and not of the image",
    ),
    HarmlessLine(
        re.compile(r"integrity: Problem loading X\.509|Couldn't get size: 0x|MODSIGN: Couldn't"),
        "the firmware has no keys enrolled",
    ),
    HarmlessLine(
        # Debian's kernels have words of their own, and a second line.
        re.compile(
            r"cfg80211: failed to load regulatory\.db|regulatory\.db failed with error -2"
            r"|firmware: failed to load regulatory\.db|firmware_class: See https://wiki\.debian"
        ),
        "a server has no wireless network",
    ),
    HarmlessLine(
        re.compile(r"Error: Driver 'pcspkr' is already registered"),
        "two drivers of the kernel know the loudspeaker",
    ),
)

Check = Callable[[Health], Iterator[GuestFault]]


def faults(text: str, *, container: bool) -> list[GuestFault]:
    """Return the standard checks that a guest failed.

    :param text: the answer to :data:`SCRIPT`.
    :param container: it is a container, whose clock, kernel and disk are the host's.
    """
    answer = Health.read(text)
    # An answer without its beginning or end, as of a guest that was cut off, says nothing of what
    # it lacks.
    if not {"state", "end"} <= {*answer.sections}:
        return []
    checks = [*CHECKS.items(), *({} if container else MACHINE_CHECKS).items()]
    return [fault for _, check in checks for fault in check(answer)]


def check_ids(ids: Iterable[str]) -> None:
    """Check the ids of checks to skip.

    :raises UsageError: for an unknown one; lists near ones, if there are any.
    """
    for each in ids:
        if each not in BY_ID:
            near = ", ".join(difflib.get_close_matches(each, BY_ID, n=3, cutoff=0.6))
            raise UsageError(
                f'there is no check "{each}" to skip{near and f"; near ones: {near}"}',
                hint="the ids are in the first column of the table in docs/inspect.rst",
            )


def machine_id(answer: Health) -> Iterator[GuestFault]:
    """Report that the server has no id; "uninitialized" is one of a first boot that goes on."""
    text = "".join(answer.lines("machine-id"))
    if not re.fullmatch(r"[0-9a-f]{32}", text) or not text.strip("0"):
        yield GuestFault(
            "machine-id-not-set", "", f'"/etc/machine-id" has no id after the boot: "{text}"'
        )


def failed_units(answer: Health) -> Iterator[GuestFault]:
    """Report each failed unit."""
    for unit, *_, title in answer.rows("failed", 5):
        yield GuestFault("failed-unit", unit, f'the unit "{unit}" failed', title)


def serial_console(answer: Health) -> Iterator[GuestFault]:
    """Report that the kernel writes to no serial port; arm64's firmware names one."""
    words = " ".join(answer.lines("cmdline")).split()
    if answer.lines("arch") == ["aarch64"] or any(map(SERIAL_CONSOLE.match, words)):
        return
    yield GuestFault(
        "no-serial-console", "", "the kernel's command line has no serial console (console=ttyS0)"
    )


def root_does_not_grow(answer: Health) -> Iterator[GuestFault]:
    """Report that the disk is larger than its partitions, or the partition than the root."""
    for line in answer.lines("root"):
        row = re.fullmatch(r"(\S+)((?: \d{1,18}){5})", line)
        if row is None:
            continue
        disk, end, device, blocks, block_size = map(int, row[2].split())
        # Without a partition table the file system has all of the disk.
        unused = (disk - end) * SECTOR if end else 0
        if unused > max(SLACK_BYTES, disk * SECTOR // 20):
            yield _not_grown(f'{unused >> 20} MiB of the disk "{row[1]}" are in no partition')
        elif (
            blocks * block_size < device * SECTOR * FILE_SYSTEM_PART
            and device * SECTOR - blocks * block_size > SLACK_BYTES
        ):
            sizes = f"{blocks * block_size >> 20} of {device * SECTOR >> 20} MiB"
            yield _not_grown(f"it has {sizes} of its device")


def _not_grown(why: str) -> GuestFault:
    return GuestFault("root-does-not-grow", "", f"the root file system has not grown: {why}")


def swap(answer: Health) -> Iterator[GuestFault]:
    """Report swap on the disk of the root file system."""
    root = {line.partition(" ")[0] for line in answer.lines("root")}
    for path, disk in answer.rows("swap", 2):
        if disk in root:
            yield GuestFault("swap-on-root-disk", path, f'the swap "{path}" is on the root disk')


def time_sync(answer: Health) -> Iterator[GuestFault]:
    """Report that no program synchronises the clock, once the boot has ended."""
    if not answer.lines("time") and answer.lines("state") not in (["starting"], ["initializing"]):
        yield GuestFault("no-time-sync", "", "no program that synchronises the clock is running")


def kernel_errors(answer: Health) -> Iterator[GuestFault]:
    """Report errors of the kernel that are not known as harmless."""
    texts = [re.sub(r"^<\d>\[[^]]*\] ?", "", line) for line in answer.lines("kernel")]
    errors = tuple(
        clean_line(text)
        for text in dict.fromkeys(texts)
        if not any(row.line.search(text) for row in HARMLESS)
    )
    if errors:
        yield GuestFault("kernel-error", "", f"the kernel reported {named(errors)}")


#: The checks of any guest, and those of one with a kernel and a disk of its own, by id.
CHECKS: Mapping[str, Check] = {"machine-id-not-set": machine_id, "failed-unit": failed_units}
MACHINE_CHECKS: Mapping[str, Check] = {
    "no-serial-console": serial_console,
    "root-does-not-grow": root_does_not_grow,
    "swap-on-root-disk": swap,
    "no-time-sync": time_sync,
    "kernel-error": kernel_errors,
}
