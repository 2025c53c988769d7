"""Every pattern matches a line from a real guest, and none matches a line of a good boot."""

from __future__ import annotations

import pytest

from hotplate.events.console_patterns import BY_NAME, PATTERNS, match, scan

SAMPLES = {
    # From OVMF 2022.11 with Secure Boot, shim 16.1 and GRUB 2.06 of Debian 12.
    "unsigned-loader": [
        'BdsDxe: failed to load Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0): Access '
        "Denied",
        'BdsDxe: failed to start Boot0001 "UEFI Misc Device" from PciRoot(0x0)/Pci(0x1,0x0): '
        "Security Violation",
    ],
    "unsigned-grub": [
        "\ufffd                Verification failed: (0x1A) Security Violation                \ufffd",
    ],
    "unsigned-kernel": [
        "error: bad shim signature.",
        "error: ../../grub-core/kern/efi/sb.c:182:bad shim signature.",
        "error: shim_lock protocol not found.",
        "error: prohibited by secure boot policy.",
    ],
    "unsigned-module": [
        "[    9.8] Lockdown: modprobe: unsigned module loading is restricted; see man "
        "kernel_lockdown.7",
        "[    9.8] Loading of unsigned module is rejected",
    ],
    "no-bootable-device": [
        "No bootable device.",
        "BdsDxe: No bootable option or device was found.",
    ],
    "boot-entry-failed": [
        "Boot failed: not a bootable disk",
        'BdsDxe: failed to load Boot0001 "UEFI QEMU HARDDISK QM00001 " from PciRoot(0x0): Not '
        "Found",
    ],
    "grub-error": [
        "error: no such partition.",
        "error: ../../grub-core/kern/disk.c:236:no such device: 8f3c-11",
        "error: unknown filesystem.",
        "error: file `/boot/grub/i386-pc/normal.mod' not found.",
    ],
    "root-waited-for": [
        "dracut-initqueue[282]: Warning: dracut-initqueue: timeout, still waiting for following",
        "Begin: Waiting for root file system ... Begin: Running /scripts/local-block ... done.",
    ],
    "uefi-shell": ["UEFI Interactive Shell v2.2", "Shell> "],
    "grub-no-kernel": [
        "error: file `/boot/vmlinuz-6.1.0-28-amd64' not found.",
        "error: ../../grub-core/fs/fshelp.c:257:file `/boot/vmlinuz' not found.",
        "error: you need to load the kernel first.",
    ],
    "grub-out-of-memory": [
        "error: out of memory.",
        "error: ../../grub-core/kern/mm.c:376:out of memory.",
    ],
    "grub-menu": ["      Press enter to boot the selected OS, `e' to edit the commands       "],
    "grub-rescue": [
        "grub rescue> ",
        "   Minimal BASH-like line editing is supported. For the first word, TAB",
    ],
    "initramfs-shell": [
        "Gave up waiting for root file system device.  Common problems:",
        "ALERT!  UUID=4d1f-ab does not exist.  Dropping to a shell!",
        "(initramfs) ",
        "Warning: /dev/disk/by-label/img-rootfs does not exist",
        # dracut with systemd.
        "[FAILED] Failed to mount sysroot.mount - /sysroot.",
        'Generating "/run/initramfs/rdsosreport.txt"',
        "Entering emergency mode. Exit the shell to continue.",
        "dracut:/# ",
        # Alpine 3.20, then mkinitfs before 3.19.
        "mount: mounting /dev/vda on /sysroot failed: No such file or directory",
        "Launching initramfs emergency recovery shell.",
        "initramfs emergency recovery shell launched. Type 'exit' to continue boot",
        "You are now being dropped into an emergency shell.",
    ],
    "no-root-filesystem": [
        'VFS: Cannot open root device "vda1" or unknown-block(0,0): error -6',
        'Please append a correct "root=" boot option; here are the available partitions:',
        "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(254,1)",
    ],
    "no-init": [
        "Kernel panic - not syncing: No working init found.  Try passing init= option to kernel.",
        "run-init: can't execute '/sbin/init': No such file or directory\nNo init found. "
        "Try passing init= bootarg.",
        "Target filesystem doesn't have requested /sbin/init.",
    ],
    "initramfs-unpack": [
        "[    0.61] Initramfs unpacking failed: invalid magic at start of compressed archive",
        "[    0.70] Initramfs unpacking failed: junk within compressed archive",
    ],
    # From a guest under QEMU 7.2, and from Linux 6.4, which omits "Oops".
    "stray-breakpoint": [
        "[    4.034736] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI",
        "[    3.093098] int3: 0000 [#1] PREEMPT SMP NOPTI",
    ],
    # From a guest under TCG whose QEMU got the processor in turns of 50 ms.
    "timer-too-late": [
        "[    0.060221] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot with "
        "apic=debug and send a report.  Then try booting with the 'noapic' option.",
    ],
    "kernel-panic": [
        "[    1.9] Kernel panic - not syncing: Fatal exception in interrupt",
        # Follows SeaBIOS' "Booting from ROM..." on a busy host.
        ".[    3.215494] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000000",
    ],
    "rescue-mode": [
        'You are in rescue mode. After logging in, type "journalctl -xb" to view system logs',
        "[  OK  ] Started rescue.service - Rescue Shell.",
        "[   19.1] systemd[1]: Reached target rescue.target - Rescue Mode.",
    ],
    "emergency-mode": [
        'You are in emergency mode. After logging in, type "journalctl -xb" to view',
        "[  OK  ] Reached target emergency.target - Emergency Mode.",
        "Give root password for maintenance",
        "Cannot open access to console, the root account is locked.",
    ],
    "bad-cpu": [
        "This kernel requires the following features not present on the CPU:",
        "Fatal glibc error: CPU does not support x86-64-v2",
        "Fatal glibc error: CPU does not support x86-64-v3",
        "[    1.93] traps: init[1] trap invalid opcode ip:7f3b sp:7ffe error:0 in libc.so.6",
        "/sbin/init: error while loading shared libraries: /lib64/libc.so.6: CPU ISA level is "
        "lower than required",
        "[    2.28] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000004",
        "[    2.28] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000084",
    ],
    "illegal-instruction": [
        "[   14.20] traps: wide[431] trap invalid opcode ip:401a2c sp:7ffe error:0 in wide[401000]",
        "[   14.31] systemd[1]: wide.service: Main process exited, code=killed, status=4/ILL",
        "[   14.31] systemd[1]: wide.service: Main process exited, code=dumped, status=4/ILL",
        "wide[431]: Fatal glibc error: CPU does not support x86-64-v2",
        "wide[431]: /opt/wide: error while loading shared libraries: /opt/lib/libwide.so: CPU ISA "
        "level is lower than required",
    ],
    "out-of-memory": [
        "[  44.1] python3 invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0",
        "[  44.2] Out of memory: Killed process 612 (puppet) total-vm:812344kB",
    ],
    "disk-full": ["cp: error writing '/var/lib/x': No space left on device"],
    "read-only-root": [
        "[   12.1] EXT4-fs (vda1): Remounting filesystem read-only",
        "touch: cannot touch '/var/lib/heat-config/x': Read-only file system",
    ],
    "disk-errors": [
        "[   20.3] blk_update_request: I/O error, dev vda, sector 2048 op 0x0:(READ)",
        "[   20.4] EXT4-fs error (device vda1): ext4_find_entry:1455: inode #2",
    ],
    "soft-lockup": [
        "[  133.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [kworker/1:1:33]",
        "[   60.1] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "[   60.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
    ],
    "no-dhcp-lease": [
        # trixie, with the cable unplugged from the first second
        "[   56.9] cloud-init[317]: dhcp.py[ERROR]: No valid DHCP lease configuration found in "
        "dhcpcd lease: ''",
        "No DHCPOFFERS received.",
        "[FAILED] Failed to start systemd-networkd-wait-online.service - Wait for Network to be "
        "Configured.",
        "[FAILED] Failed to start Raise network interfaces.",
        "ci-info: |  ens3  | False |     .     |     .     |   .   | fa:16:3e:aa:bb:cc |",
        "[ ***  ] A start job is running for Wait for Network to be Configured (1min 2s / "
        "no limit)",
    ],
    "no-datasource": [
        "Cloud-init v. 22.4.2 finished at Sat, 21 Nov. Datasource DataSourceNone.  Up 31.2 seconds",
        "cloud-init[411]: 2026-11-21 util.py[WARNING]: No instance datasource found! Likely bad "
        "things to come!",
        "Cloud-init disabled by cloud-init-generator",
    ],
    "metadata-unreachable": [
        "url_helper.py[WARNING]: Calling 'http://169.254.169.254/openstack' failed [0/-1s]: "
        "request error",
        "DataSourceEc2.py[CRITICAL]: Giving up on md from ['http://169.254.169.254/2009-04-04/"
        "meta-data/instance-id'] after 126 seconds",
    ],
    "cloud-init-broken": [
        "cloud-init[512]: Traceback (most recent call last):",
        "[FAILED] Failed to start cloud-init.service - Initial cloud-init job (metadata service).",
    ],
    "agent-failed": [
        "[FAILED] Failed to start os-collect-config.service - Collect metadata and run hooks.",
        "systemd[1]: os-collect-config.service: Main process exited, code=exited, status=1/FAILURE",
        "os-collect-config[733]: Traceback (most recent call last):",
        "systemd[1]: os-collect-config.service: Scheduled restart job, restart counter is at 5.",
    ],
    "refresh-failed": [
        "os-refresh-config: [ERROR] during configure phase. [Command '['dib-run-parts'] failed",
    ],
    "user-data-program-missing": [
        "[  166.5] cloud-init[444]: /var/lib/cloud/instance/scripts/part-001: 3: curl: not found",
        "cloud-init[812]: /var/lib/cloud/instance/scripts/part-001: line 3: jq: command not found",
    ],
    "ordering-cycle": [
        "[ SKIP ] Ordering cycle found, skipping cloud-init-local.service - Initial cloud-init job",
        "[    9.1] systemd[1]: sysinit.target: Job cloud-init-local.service/start deleted to break "
        "ordering cycle starting with sysinit.target/start",
    ],
    "slow-host": ["[ TIME ] Timed out waiting for device dev-ttyS0.device - /dev/ttyS0."],
    "device-timeout": [
        "[ TIME ] Timed out waiting for device dev-disk-by\\x2dlabel-ESP.device - "
        "/dev/disk/by-label",
    ],
    "dependency-failed": ["[DEPEND] Dependency failed for boot-efi.mount - /boot/efi."],
    "unit-failed": ["[FAILED] Failed to start systemd-modules-load.service - Load Kernel Modules."],
}

# ruff: noqa: E501
GOOD_BOOT = """\
SeaBIOS (version 1.16.2-debian-1.16.2-1)
Booting from Hard Disk...
GRUB loading.
[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel@lists.debian.org)
[    0.000000] Command line: BOOT_IMAGE=/boot/vmlinuz root=LABEL=cloudimg-rootfs ro console=ttyS0
[    0.312] Trying to unpack rootfs image as initramfs...
[    1.201] EXT4-fs (vda1): mounted filesystem with ordered data mode. Quota mode: none.
[    1.9] systemd[1]: Detected virtualization qemu.
[   16.3] systemd[1]: Failed to populate /etc with preset unit settings, ignoring: Read-only file system
Welcome to Debian GNU/Linux 12 (bookworm)!
[    9.2] systemd[1]: Failed to add inotify watch for /run/x: No space left on device
[  OK  ] Created slice system-getty.slice - Slice /system/getty.
[  OK  ] Reached target local-fs.target - Local File Systems.
[  OK  ] Listening on systemd-initctl.socket - initctl Compatibility Named Pipe.
[  OK  ] Finished systemd-networkd-wait-online.service - Wait for Network to be Configured.
[  OK  ] Started os-collect-config.service - Collect metadata and run hooks.
cloud-init[301]: Cloud-init v. 22.4.2 running 'init' at Sat, 21 Nov 2026 09:00:00 +0000.
ci-info: |   lo   |  True |   127.0.0.1    |   255.0.0.0   |  host  |         .         |
ci-info: |   lo   |  True |    ::1/128     |       .       |  host  |         .         |
ci-info: |  eth0  |  True | 169.254.169.15 | 255.255.255.0 | global | fa:16:3e:11:22:33 |
[   54.7] cloud-init[299]: util.py[WARNING]: Failed generating key type ed25519 to file /etc/ssh/x
heat-config: finished id=5c9f group=script name="demo-deployment-3p6v2ckq7xan" status=0
Cloud-init v. 22.4.2 finished at Sat, 21 Nov. Datasource DataSourceOpenStackLocal.  Up 31 seconds
Debian GNU/Linux 12 debian ttyS0
debian login:
"""

LINES = [(name, line) for name, lines in SAMPLES.items() for line in lines]


@pytest.mark.parametrize(("name", "line"), LINES)
def test_pattern_matches_real_line(name, line):
    finding = match(line)
    assert finding is not None
    assert BY_NAME[name].regex.search(line), "the pattern itself does not know the line"
    assert finding.name == name


def test_every_pattern_has_sample_reason_and_advice():
    assert set(SAMPLES) == {pattern.name for pattern in PATTERNS} == set(BY_NAME)
    for pattern in PATTERNS:
        assert pattern.reason
        assert pattern.advice


@pytest.mark.parametrize(
    "line",
    [
        'BdsDxe: failed to load Boot0001 "UEFI QEMU DVD-ROM QM00003 " from PciRoot(0x0): Not Found',
        "error: no such device: /.disk/info.",
        "Begin: Waiting for root file system ... Begin: Running /scripts/local-block ... done.",
        "[   20.1] Out of memory: Killed process 900 (mandb)",
        "error: out of memory.",
        "      Press enter to boot the selected OS, `e' to edit the commands       ",
        "cp: error writing '/var/lib/x': No space left on device",
    ],
)
def test_survivable_failure_is_not_fatal(line):
    assert not match(line).fatal


@pytest.mark.parametrize("line", GOOD_BOOT.splitlines())
def test_good_boot_matches_no_pattern(line):
    assert match(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "myapp: test 12: simulate 'Kernel panic - not syncing' ... ok",
        "[   31.2] myapp[412]: Kernel panic - not syncing: quoted by a test",
        "[   31.2][  T412] myapp[412]: VFS: Unable to mount root fs",
        "motd: Missing operating system notes?",
        "Missing operating system notes are at https://wiki.example.com",
        "[   22.9] cloud-init[512]: Failed to execute /sbin/initctl",
        "Failed to execute /sbin/initctl: No such file or directory",
        "docs: press Enter at 'grub rescue>' and type normal",
        "cloud-init[512]: You are in emergency mode, said nobody",
        "setup.sh: Give root password for maintenance? no",
        "deploy: waiting until Reached target emergency.target - Emergency Mode. is gone",
        "check: (initramfs) ",
        "notes: dracut:/# is dracut's prompt",
        "myapp: Launching initramfs emergency recovery shell.",
        "[   31.2] traps: myapp[412] trap invalid opcode ip:7f3b sp:7ffe error:0 in libc.so.6",
        "ci: expected 'No bootable device', got a kernel",
        "powershell: PowerShell> ",
        'heat-config: finished id=1 group=script name="Kernel panic - not syncing" status=0',
        "myapp[1]: No working init found in the container",
        "node: Requested init container failed",
        "hook: This image requires a x86-64 CPU",
        "+ echo 'error: you need to load the kernel first.'",
    ],
)
def test_quoted_fatal_line_is_not_fatal(line):
    finding = match(line)
    assert finding is None or not finding.fatal


def test_colours_do_not_hide_failure():
    assert match(
        "[\x1b[0;1;31mFAILED\x1b[0m] Failed to start \x1b[0;1;39mfoo.service\x1b[0m - Foo."
    )


def test_scan_sorts_by_table_and_gives_line_number():
    findings = scan(
        [
            "[    1.0] booting",
            "[    2.0] Kernel panic - not syncing: VFS: Unable to mount root fs on "
            "unknown-block(0,0)",
        ]
    )
    assert [each.pattern.name for each in findings] == ["no-root-filesystem", "kernel-panic"]
    assert findings[0].number == 2
