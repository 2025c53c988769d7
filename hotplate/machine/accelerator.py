"""Choice of the accelerator: KVM where a probe proves that it works, TCG otherwise."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from hotplate.children.keeper import Keeper
from hotplate.errors import HostError
from hotplate.host_tools import find_tool
from hotplate.machine import kvm_probe
from hotplate.machine.config import ARCHITECTURES
from hotplate.machine.cpu_models import LEVELS
from hotplate.timing.deadline import Deadline, DeadlineExceeded

#: Limit of the probe, which takes 0.2 s under TCG; ten times that is no acceleration.
PROBE_SECONDS = 2.0

#: The model with everything that the host's own CPU has; KVM alone has it.
HOST_CPU = "host"

#: CPU models that are tried under KVM, best first.
KVM_CPUS = (HOST_CPU, "qemu64")

#: Processors of a guest.
CPUS = 2

#: The first version of QEMU that emulates several processors of a PC faithfully. Earlier ones may
#: execute a breakpoint that another processor has just removed from the kernel's code, which
#: panics: once in some thousand boots (https://bugzilla.redhat.com/show_bug.cgi?id=2216496).
SAFE_EMULATION = (8, 1)

#: Limit of TCG's cache of translated code. QEMU's default is 1,024 MiB for each machine, which a
#: boot fills: its resident memory is then twice as large, and the boot no faster.
TRANSLATED_MIB = 256


@dataclass(frozen=True)
class Accelerator:
    """The chosen accelerator.

    :param name: ``kvm`` or ``tcg``.
    :param cpu: the CPU model that goes with it.
    :param cpus: the default number of a guest's processors.
    :param options: QEMU's arguments.
    :param reason: the reason for the choice, as a sentence.
    """

    name: str
    cpu: str
    cpus: int
    options: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class KvmResult:
    """Result of a probe of KVM with one CPU model.

    :param works: the probe did its work in time.
    :param seen: the observation, as a sentence.
    """

    works: bool
    seen: str


def choose(wanted: str = "auto", *, arch: str = "x86_64", cache: Path | None = None) -> Accelerator:
    """Return the accelerator to use.

    KVM is chosen when a small program has really run on it in time. The probe runs once for each
    boot of the host, version of QEMU and CPU model, and its result is cached.

    :param wanted: ``kvm``, ``tcg`` or ``auto``, which takes TCG where KVM does not work.
    :param arch: the guest's architecture.
    :param cache: the cache directory, whose ``kvm.json`` has earlier results; None probes again.
    :raises HostError: when ``kvm`` is wanted and does not work here, or QEMU is missing.
    """
    program = find_tool(ARCHITECTURES[arch].program)
    if wanted == "tcg":
        return emulation("it was asked for", arch=arch)
    refusal = _refusal(arch)
    if refusal is None:
        seen = []
        for cpu in KVM_CPUS:
            verdict = (
                probe(program, accelerator="kvm", cpu=cpu)
                if cache is None
                else _remembered(program, cpu, cache / "kvm.json")
            )
            if verdict.works:
                return Accelerator("kvm", cpu, CPUS, ("-accel", "kvm"), verdict.seen)
            seen.append(f"-cpu {cpu}: {verdict.seen}")
        refusal = "KVM was tried and does not work here: " + "; ".join(seen)
    if wanted == "kvm":
        raise HostError(
            f"KVM was asked for, but {refusal}", hint="use the accelerator tcg, or another host"
        )
    return emulation(refusal, arch=arch)


def emulation(reason: str, *, arch: str = "x86_64") -> Accelerator:
    """Return TCG, QEMU's translator, which runs everywhere."""
    return Accelerator(
        name="tcg",
        # The cheapest; a boot takes 18 % longer with ``max``, whose features are emulated.
        cpu=next(iter(LEVELS[arch].values())),
        cpus=cpus_emulated(qemu_version(find_tool(ARCHITECTURES[arch].program)), arch=arch),
        options=("-accel", f"tcg,thread=multi,tb-size={TRANSLATED_MIB}"),
        reason=reason,
    )


def cpus_emulated(version: str, *, arch: str = "x86_64") -> int:
    """Return the default number of a guest's processors under TCG.

    :param version: QEMU's, such as ``7.2.22``.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return 1 if arch == "x86_64" and numbers < SAFE_EMULATION else CPUS


@functools.cache
def takes_sandbox(program: str) -> bool:
    """Return whether this QEMU was built with seccomp, and so takes ``-sandbox``."""
    done = subprocess.run(
        # Options are read in their order: without seccomp the first is an error, and the second
        # ends QEMU before it makes a machine.
        [program, "-sandbox", "on", "-version"],
        capture_output=True,
        timeout=30,
    )
    return done.returncode == 0


@functools.cache
def qemu_version(program: str) -> str:
    """Return QEMU's version, such as ``7.2.22``, with the distribution's suffix.

    :raises HostError: when QEMU does not run.
    """
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30)
    match = re.search(r"version (.+)", done.stdout)
    if done.returncode != 0 or match is None:
        raise HostError(f'"{program} --version" fails: {done.stderr.strip()}')
    return match[1]


def _refusal(arch: str) -> str | None:
    """Return the reason not to try KVM, or None when it should be tried."""
    if platform.machine() != arch:
        return f"this host is {platform.machine()} and the guest is {arch}"
    if arch != "x86_64":
        return f"there is no probe that would prove KVM on {arch}"
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return "this host has no /dev/kvm"
    except PermissionError:
        return "/dev/kvm may not be opened by this user (adduser $USER kvm)"
    except OSError as error:
        return f"/dev/kvm cannot be opened: {error.strerror}"
    return None


def probe(program: str, *, accelerator: str, cpu: str, rom: bytes | None = None) -> KvmResult:
    """Run the probe of :mod:`hotplate.machine.kvm_probe` on an accelerator.

    Takes :data:`PROBE_SECONDS` at most and leaves nothing running.

    :param accelerator: the value of QEMU's ``-accel``.
    :param rom: another firmware image than the probe's own.
    """
    with tempfile.TemporaryDirectory(prefix="hotplate-") as name, Keeper() as keeper:
        directory = Path(name)
        (directory / "probe.rom").write_bytes(kvm_probe.rom() if rom is None else rom)
        began = time.monotonic()
        child = keeper.spawn(
            [
                *(program, "-nodefaults", "-no-user-config", "-display", "none"),
                # 32 MiB, as the ROM writes to the first 16.
                *("-machine", "pc", "-accel", accelerator, "-cpu", cpu, "-m", "32"),
                *("-bios", "probe.rom", "-device"),
                f"isa-debug-exit,iobase={kvm_probe.EXIT_PORT},iosize=1",
            ],
            directory=directory,
            stderr=directory / "log",
        )
        try:
            status = child.wait(Deadline(PROBE_SECONDS, "the probe"))
        except DeadlineExceeded:
            with contextlib.suppress(DeadlineExceeded):
                child.kill()
            return KvmResult(False, f"a small program did not end within {PROBE_SECONDS:.0f} s")
        if status == kvm_probe.SUCCESS:
            seconds = time.monotonic() - began
            return KvmResult(True, f"a small program did its work in {seconds:.1f} s")
        complaint = child.complaint().split("; ")[0].removeprefix(f"{Path(program).name}: ")
        return KvmResult(False, f"QEMU ended with status {status}: {complaint}")


def _remembered(program: str, cpu: str, cache: Path) -> KvmResult:
    """Return the result for a CPU model under KVM, from the cache or by a probe."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    key = f"{boot} {qemu_version(program)} {cpu}"
    verdicts: dict[str, list[object]] = {}
    with contextlib.suppress(OSError, ValueError):
        # A missing or damaged cache costs another probe, no more.
        verdicts = json.loads(cache.read_text())
    with contextlib.suppress(KeyError, TypeError, ValueError):
        works, seen = verdicts[key]
        return KvmResult(bool(works), str(seen))
    verdict = probe(program, accelerator="kvm", cpu=cpu)
    # Results of other boots of the host and other versions are useless.
    kept = {k: v for k, v in verdicts.items() if k.rsplit(" ", 1)[0] == key.rsplit(" ", 1)[0]}
    kept[key] = [verdict.works, verdict.seen]
    # Without a writable cache the probe runs again the next time.
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        # Replaced at once: other processes read the old file or the new one, never a part.
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as stream:
            json.dump(kept, stream)
        Path(stream.name).replace(cache)
    return verdict
