"""CPU models: each level's model runs programs of that level, and a guest shows that it lacks one.

The guests are a kernel whose init is a program for a level, or one that is marked as needing it.
"""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import tiny_guest

from hotplate.errors import UsageError
from hotplate.events import classify
from hotplate.events.kinds import ConsoleLine, GuestJournal, PowerOn
from hotplate.events.log import EventLog
from hotplate.machine import cpu_models
from hotplate.machine.accelerator import emulation
from hotplate.machine.config import ARCHITECTURES, Firmware
from hotplate.machine.cpu_models import LEVELS, missing_level

X86 = ARCHITECTURES["x86_64"]
V1, V2, V3 = LEVELS["x86_64"]
QEMU = {
    "arch": "x86_64",
    "machine": X86.machines[Firmware.BIOS],
    "program": X86.program,
    "accelerator": ("-accel", "tcg"),
}
SECONDS = 120.0


def boots(test):
    """Mark a test that boots the tiny guest, whose kernel is fetched."""
    return pytest.mark.boots(pytest.mark.network(pytest.mark.tool(X86.program)(test)))


#: Prints a line, and then stays, as the kernel panics when its init ends.
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    volatile unsigned seed = argc;
    unsigned bits = __builtin_popcount(seed);
#ifdef __AVX2__
    /* By hand, as the compiler finds a way with a part of the level. */
    __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
#endif
    printf("the program ran, %u\\n", bits);
    fflush(stdout);
    for (;;) pause();
}
"""

#: The same for ARM, with an instruction of SVE: "ptrue p0.b"; write(1, ...); "b .".
ARM_CODE = struct.pack(
    "<8I", 0x2518E3E0, 0xD2800020, 0x100000C1, 0xD2800222, 0xD2800808, 0xD4000001, 0x14000000, 0
)
ARM_TEXT = b"the program ran!\n"


def initrd_of(init: bytes, directory: Path, tiny: tiny_guest.TinyGuest, **programs: bytes) -> Path:
    """Return the tiny guest's initramfs with another init, and more programs in ``/bin``."""
    root = directory / "root"
    (root / "bin").mkdir(parents=True)
    files = {"init": init, **{f"bin/{name}": each for name, each in programs.items()}}
    for name, program in files.items():
        (root / name).write_bytes(program)
        (root / name).chmod(0o755)
    path = directory / "initrd"
    # The kernel unpacks one archive after the other.
    path.write_bytes(tiny.initrd.read_bytes() + gzip.compress(tiny_guest.cpio(root)))
    return path


def compiled(level: str, directory: Path) -> bytes:
    (directory / "init.c").write_text(PROGRAM)
    # GCC has no name for the lowest level but the architecture's own.
    march = "x86-64" if level == V1 else level
    command = ["gcc", "-static", "-O2", f"-march={march}", "-o", "init", "init.c"]
    subprocess.run(command, cwd=directory, check=True)
    return (directory / "init").read_bytes()


def arm_program() -> bytes:
    """Return a program of one segment, without a C library (elf(5))."""
    code, base = ARM_CODE + ARM_TEXT, 0x400000
    size = 64 + 56 + len(code)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + code


def console_of(make, initrd: Path, **options) -> tuple[EventLog, str]:
    """Start a guest, and return its events and the line with which its init ran or died."""
    made = make(initrd=initrd, **options)
    end = made.events.wait(
        lambda event: (
            "the program ran" in (classify.console_text(event) or "")
            or bool(classify.hopeless(event))
        ),
        seconds=SECONDS,
    )
    made.machine.kill()
    assert end is not None
    return made.events, classify.console_text(end) or ""


@pytest.mark.parametrize(
    ("arch", "cpu"), [(arch, cpu) for arch, row in LEVELS.items() for cpu in row.values()]
)
def test_model_of_a_level_makes_qemu_warn_of_nothing(arch, cpu):
    row = ARCHITECTURES[arch]
    if shutil.which(row.program) is None:
        pytest.skip(f"needs {row.program} on this host")
    command = [row.program, "-machine", row.machines[Firmware.BIOS], "-accel", "tcg", "-cpu", cpu]
    more = ["-nodefaults", "-display", "none", "-S", "-monitor", "stdio"]
    done = subprocess.run([*command, *more], input="quit\n", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


#: Lists the levels that the C library finds in this CPU, and becomes the program.
LOADER_FIRST = b"""#!/bin/busybox sh
[ ! -e /bin/loader ] || /bin/loader --help
exec /bin/program
"""


@boots
@pytest.mark.tool("gcc")
@pytest.mark.parametrize("needed", LEVELS["x86_64"])
def test_init_runs_on_its_level_and_not_below(make, tiny, tmp_path, needed):
    """The loader of this host's distribution says itself which levels it finds."""
    program = compiled(needed, tmp_path)
    more = {"program": program}
    loader = Path("/lib64/ld-linux-x86-64.so.2")
    if loader.exists():
        more["loader"] = loader.read_bytes()
    initrd = initrd_of(LOADER_FIRST, tmp_path / "same", tiny, **more)
    events, line = console_of(make, initrd, name="same", cpu=LEVELS["x86_64"][needed])
    assert "the program ran" in line
    assert missing_level(events, needed) == ("", "")
    if loader.exists():
        text = "\n".join(line.text for event in events if (line := ConsoleLine.of(event)))
        supported = [name for name in (V3, V2) if f"{name} (supported, searched)" in text]
        assert supported == {V1: [], V2: [V2], V3: [V3, V2]}[needed]
        assert "x86-64-v4\n" in text.replace("\r", "")
    for below in [*LEVELS["x86_64"]][: [*LEVELS["x86_64"]].index(needed)][-1:]:
        initrd = initrd_of(program, tmp_path / "below", tiny)
        events, line = console_of(make, initrd, name="below", cpu=LEVELS["x86_64"][below])
        assert missing_level(events, below) == (needed, line.strip())


@boots
@pytest.mark.tool("qemu-system-aarch64")
def test_arm_init_runs_on_its_level_only(make, tmp_path):
    tiny = tiny_guest.make(arch="aarch64")
    initrd = initrd_of(arm_program(), tmp_path, tiny)
    seen = {}
    for level, cpu in LEVELS["aarch64"].items():
        events, line = console_of(
            make,
            initrd,
            name=level,
            arch="aarch64",
            cpu=cpu,
            kernel=tiny.kernel,
            append=tiny.append,
        )
        seen[level] = ("the program ran" in line, missing_level(events, level)[0])
    assert seen == {"armv8-a": (False, "armv9-a"), "armv9-a": (True, "")}


PANIC = "[    2.2] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000004"


@pytest.mark.parametrize(
    ("cpu", "line", "level"),
    [
        (V1, "Fatal glibc error: CPU does not support x86-64-v2", V2),
        (V1, "Fatal glibc error: CPU does not support x86-64-v3", V3),
        (V2, "Fatal glibc error: CPU does not support x86-64-v3", V3),
        (V1, PANIC, V2),
        (V2, PANIC, V3),
        (V3, PANIC, ""),
        ("armv8-a", PANIC, "armv9-a"),
        ("armv9-a", PANIC, ""),
        # QEMU emulates no CPU that would do.
        (V1, "Fatal glibc error: CPU does not support x86-64-v4", ""),
        (V1, "[   14.2] traps: wide[431] trap invalid opcode ip:401a2c sp:7ffe error:0", V2),
        (
            V1,
            "[    9.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
            "",
        ),
        (V1, "[    9.1] traps: wide[431] general protection fault ip:401a2c sp:7ffe", ""),
    ],
)
def test_line_shows_the_missing_level(cpu, line, level):
    models = {name: model for row in LEVELS.values() for name, model in row.items()}
    events = EventLog()
    events.add(PowerOn(1, cpu=models[cpu]), server="web")
    events.add(ConsoleLine(line), server="web")
    assert missing_level(events) == (level, line if level else "")


def test_journal_and_each_server_count():
    events = EventLog()
    for server, cpu in (("web", LEVELS["x86_64"][V1]), ("db", LEVELS["x86_64"][V2])):
        events.add(PowerOn(1, cpu=cpu), server=server)
    line = "systemd[1]: wide.service: Main process exited, code=dumped, status=4/ILL"
    events.add(GuestJournal((f"[ 1.0] {line}",)), server="web")
    assert missing_level(events)[0] == V2
    events.add(GuestJournal((f"[ 2.0] {line}",)), server="db")
    assert missing_level(events) == (V3, f"[ 2.0] {line}")
    # With the host's own CPU there is nothing better.
    events.add(PowerOn(1, cpu="host"), server="db")
    events.add(ConsoleLine(PANIC), server="db")
    assert missing_level(events)[0] == V3


@pytest.mark.parametrize(("setting", "level"), [("auto", V2), (V1, V2), (V2, V3), ("qemu64", "")])
def test_retry_never_begins_with_the_same_cpu(setting, level):
    """The model may be another than the level's, on an accelerator that has only this one."""
    events = EventLog()
    events.add(PowerOn(1, cpu="qemu64"), server="web")
    events.add(ConsoleLine(PANIC), server="web")
    assert missing_level(events, setting)[0] == level


@pytest.mark.tool(X86.program)
@pytest.mark.parametrize(
    "cpu", ["auto", V1, V2, V3, "Nehalem", "Haswell,-avx2", "max,-la57", "qemu64,model_id=My CPU"]
)
def test_known_cpu_is_accepted(cpu):
    cpu_models.check(cpu, **QEMU)


@pytest.mark.tool(X86.program)
@pytest.mark.parametrize(
    ("cpu", "sentence"),
    [
        ("nehalem", 'the CPU model "nehalem" is not known; did you mean Nehalem or'),
        ("x86-64-v9", 'the CPU model "x86-64-v9" is not known; did you mean x86-64-v'),
        ("zzz", 'the CPU model "zzz" is not known'),
        ("", 'the CPU model "" is not known'),
        ("help", 'the CPU model "help" is not known'),
        ("?,", r'the CPU model "\?" is not known'),
        ("armv9-a", 'the CPU model "armv9-a" is not known'),
        ("host", 'QEMU does not make a CPU "host": .*requires KVM'),
        ("Nehalem,+warp", 'QEMU does not make a CPU "Nehalem,.warp": .*warp. not found'),
        ("x86-64-v3,-avx2", "QEMU does not make a CPU .*: .*unable to find CPU model 'x86-64-v3'"),
    ],
)
def test_unknown_cpu_is_refused_by_a_sentence(cpu, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        cpu_models.check(cpu, **QEMU)
    assert f"{X86.program} -cpu help" in caught.value.hint
    assert caught.value.exit_status == 2


@pytest.mark.tool("qemu-system-aarch64")
def test_cpu_that_the_machine_does_not_take_is_refused():
    row = ARCHITECTURES["aarch64"]
    with pytest.raises(UsageError, match='does not make a CPU "cortex-m3": '):
        cpu_models.check(
            "cortex-m3",
            arch="aarch64",
            machine=row.machines[Firmware.UEFI],
            program=row.program,
            accelerator=("-accel", "tcg"),
        )


@pytest.mark.parametrize("arch", LEVELS)
def test_emulation_begins_with_the_lowest_level(arch):
    if shutil.which(ARCHITECTURES[arch].program) is None:
        pytest.skip("needs QEMU for this architecture on this host")
    assert emulation("a test", arch=arch).cpu == next(iter(LEVELS[arch].values()))
