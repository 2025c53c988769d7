"""The standard checks of a booted guest, from its answers as data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.errors import Outcome, UsageError
from hotplate.inspection.standard import STANDARD
from hotplate.verdict.guest_standard import (
    CHECKS,
    HARMLESS,
    MACHINE_CHECKS,
    SCRIPT,
    check_ids,
    faults,
)

#: The answer of a guest with nothing wrong in it: a disk of 10 GiB with an EFI partition.
GOOD = {
    "state": "running",
    "machine-id": "0123456789abcdef0123456789abcdef",
    "arch": "x86_64",
    "cmdline": "BOOT_IMAGE=/boot/vmlinuz root=LABEL=root ro console=tty0 console=ttyS0,115200",
    "root": "vda 20971520 20971486 20707295 2540000 4096",
    "swap": "",
    "time": "chronyd",
    "failed": "",
    "kernel": "",
    "end": "",
}


def answer(**sections: str) -> str:
    texts = {**GOOD, **{name.replace("_", "-"): text for name, text in sections.items()}}
    return "".join(f"=== {name}\n{text}\n" for name, text in texts.items())


def ids(text: str, *, container: bool = False) -> list[str]:
    return [each.id for each in faults(text, container=container)]


BAD = [
    ("machine-id-not-set", {"machine_id": ""}, ""),
    ("machine-id-not-set", {"machine_id": "uninitialized"}, "uninitialized"),
    ("machine-id-not-set", {"machine_id": "0" * 32}, "000"),
    ("failed-unit", {"failed": "site.service loaded failed failed The site"}, "site.service"),
    ("no-serial-console", {"cmdline": "root=/dev/vda1 ro quiet console=tty0"}, "console=ttyS0"),
    # 2 GiB of partitions on a disk of 10.
    ("root-does-not-grow", {"root": "vda 20971520 4194304 4190208 510000 4096"}, "8192 MiB"),
    # The partition has grown, and its file system has not.
    ("root-does-not-grow", {"root": "vda 20971520 20971486 20707295 510000 4096"}, "1992 of"),
    # The disk has no partitions.
    ("root-does-not-grow", {"root": "vda 20971520 0 20971520 510000 4096"}, "1992 of 10240 MiB"),
    ("swap-on-root-disk", {"swap": "/swapfile vda"}, "/swapfile"),
    ("swap-on-root-disk", {"swap": "/dev/vda2 vda"}, "/dev/vda2"),
    ("no-time-sync", {"time": ""}, "clock"),
    ("no-time-sync", {"time": "", "state": "degraded"}, "clock"),
    (
        "kernel-error",
        {"kernel": "<3>[    4.2] EXT4-fs error (device vda1): ext4_lookup: deleted inode"},
        "EXT4-fs error",
    ),
    ("kernel-error", {"kernel": "<2>[    4.2] nouveau: \x1b[31mred"}, "red"),
]


@pytest.mark.parametrize(("kind", "sections", "words"), BAD)
def test_each_fault_is_named_and_no_other(kind, sections, words):
    (fault,) = faults(answer(**sections), container=False)
    assert fault.id == kind
    assert words in fault.sentence
    assert "\x1b" not in fault.sentence


ALIKE = {
    "arm64, whose firmware names the console": {"arch": "aarch64", "cmdline": "root=/dev/vda1"},
    "xfs with a log": {"root": "vda 20971520 20971486 20707295 2440000 4096"},
    "a partition image of 591 MiB": {"root": "vda 1210368 0 1210368 125184 4096"},
    "a small disk": {"root": "vda 409600 307200 307200 37000 4096"},
    "a root that is known of no disk": {"root": ""},
    "swap of a flavor": {"swap": "/dev/vdb vdb"},
    "compressed memory": {"swap": "/dev/zram0 zram0"},
    "a boot that goes on": {"time": "", "state": "starting"},
    "a long command line": {"cmdline": "\n".join(["x=" + "y" * 30] * 20 + ["console=hvc0"])},
}


@pytest.mark.parametrize("case", ALIKE)
def test_similar_answer_is_no_fault(case):
    assert ids(answer(**ALIKE[case])) == []


def test_good_guest_has_no_fault():
    assert ids(answer()) == []


def test_cut_answer_is_not_judged():
    assert ids("=== state\nrunning\n=== machine-id\n") == []
    assert ids("=== machine-id\n=== end\n") == []
    assert ids("") == []


def test_container_is_judged_by_its_own_parts_only():
    bad = {"machine_id": "", "cmdline": "", "time": "", "kernel": "<3>[1.0] disk on fire"}
    assert ids(answer(**bad), container=True) == ["machine-id-not-set"]


#: A line of each harmless error, as kernels and LISA's list have it.
LINES = (
    "tsc: Fast TSC calibration failed",
    "rcu: INFO: rcu_sched self-detected stall on CPU",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 23s! [swapper/0:1]",
    "RETBleed: WARNING: Spectre v2 mitigation leaves CPU vulnerable to RETBleed attacks",
    "Failed to access perfctr msr (MSR c0010007 is 0)",
    "kvm_intel: VMX not supported by CPU 0",
    "i8042: No controller found",
    "piix4_smbus 0000:00:01.3: SMBus Host Controller not enabled!",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
    "shpchp 0000:01:00.0: Cannot reserve MMIO region",
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0], AE_NOT_FOUND",
    "integrity: Problem loading X.509 certificate -65",
    "cfg80211: failed to load regulatory.db",
    "Error: Driver 'pcspkr' is already registered, aborting...",
)


def test_each_harmless_error_is_left_out():
    for row, line in zip(HARMLESS, LINES, strict=True):
        assert row.line.search(line), line
        assert ids(answer(kernel=f"<3>[    1.5] {line}")) == []
    assert ids(answer(kernel="<3>[    1.5] dev vda: I/O error")) == ["kernel-error"]


def test_firmware_of_a_wireless_network_is_no_error_in_debians_words():
    """Seen with linux-image-amd64 6.1 of Debian 12."""
    for line in (
        "platform regulatory.0: firmware: failed to load regulatory.db (-2)",
        "firmware_class: See https://wiki.debian.org/Firmware for information about missing firm"
        "ware",
    ):
        assert ids(answer(kernel=f"<3>[    1.5] {line}")) == []
    other = "<3>[    1.5] qla2xxx 0000:00:05.0: firmware: failed to load ql2500_fw.bin (-2)"
    assert ids(answer(kernel=other)) == ["kernel-error"]


def test_checks_are_the_rows_of_a_guest():
    assert {*CHECKS, *MACHINE_CHECKS} == {each.id for each in STANDARD if each.guest}


def test_fault_is_listed_fails_a_strict_run_and_can_be_skipped(passed):
    passed.probe("standard", answer(time="", swap="/dev/vda2 vda"))
    verdict = passed.result()
    assert verdict.passed
    assert [each.kind for each in verdict.noticed] == ["swap-on-root-disk", "no-time-sync"]
    strict = passed.result(strict=True, skip=["swap-on-root-disk"])
    assert strict.outcome is Outcome.FAILED
    assert strict.last_line() == "FAILED: no program that synchronises the clock is running"
    skipped = passed.result(strict=True, skip=["swap-on-root-disk", "no-time-sync"])
    assert skipped.passed
    assert skipped.noticed == ()


def test_failed_unit_is_listed_once(passed):
    passed.probe("standard", answer(failed="site.service loaded failed failed The site"))
    passed.console("[   12.2] web systemd[1]: site.service: Failed with result 'exit-code'.")
    passed.probe("standard", answer(failed="hotplate-shell.service loaded failed failed x"))
    assert [each.sentence for each in passed.result().noticed] == ['the unit "site.service" failed']


def test_unknown_id_is_refused_with_near_ones():
    check_ids(["no-agent", "kernel-error"])
    with pytest.raises(UsageError, match='no check "machineid" to skip; near ones: machine-id'):
        check_ids(["no-agent", "machineid"])
    with pytest.raises(UsageError, match=r'no check "web" to skip\n'):
        check_ids(["web"])


SHELLS = (["sh"], ["bash", "--posix"], ["busybox", "sh"])


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_script_answers_all_sections_on_this_host(shell):
    if shutil.which(shell[0]) is None:
        pytest.skip(f"needs {shell[0]}")
    done = subprocess.run(
        [*shell, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=True
    )
    sections = [line[4:] for line in done.stdout.splitlines() if line.startswith("=== ")]
    assert sections == list(GOOD)
    words = Path("/proc/cmdline").read_text().split()
    assert done.stdout.partition("=== cmdline\n")[2].split()[: len(words)] == words
