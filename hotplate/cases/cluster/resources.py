"""Dask's resources: the abilities of a worker, and the needs of a case.

A task runs on a worker that has declared the resources it needs, and only as many at a time as fit.
``MEMORY`` (MiB) and ``CORES`` are used up; other abilities of a host (``KVM``, ``TPM``,
``ARCH-aarch64``, ``UEFI-x86_64``, ``CONTAINER-x86_64``) are declared in plenty.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from hotplate.cases.side_by_side import CASE_MIB
from hotplate.errors import HostError, HotplateError
from hotplate.image.inspect import DEFAULT_ARCH, Image
from hotplate.machine import admission
from hotplate.machine.config import ARCHITECTURES
from hotplate.settings import AcceleratorChoice, Arch, FirmwareChoice, MachineChoice, Settings

MEMORY = "MEMORY"
CORES = "CORES"
KVM = "KVM"
TPM = "TPM"

#: The firmwares that a worker may lack, and the names of their probes.
UEFIS = {FirmwareChoice.UEFI: "UEFI", FirmwareChoice.SECURE_BOOT: "Secure-Boot"}

#: The declared amount of resources that are not used up; more than a worker has threads.
PLENTY = 1000.0

Resources = Mapping[str, float]


def of_host(
    settings: Settings, *, cores: int | None = None, memory_mib: int | None = None
) -> dict[str, float]:
    """Return this host's resources, found by the probes of ``hotplate doctor``.

    :param cores: in place of the number of processors.
    :param memory_mib: in place of four fifths of the memory.
    :raises HostError: when it can run no guest.
    """
    from hotplate.machine import accelerator
    from hotplate.testbed import host_probes
    from hotplate.testbed.host_probes import State

    probes = (
        host_probes.tools,
        host_probes.firmware,
        host_probes.wiring,
        host_probes.containers,
    )
    findings = [finding for probe in probes for finding in probe()]
    names = {row.program: f"ARCH-{arch}" for arch, row in ARCHITECTURES.items()}
    for uefi in UEFIS.values():
        names |= {f"{uefi} {arch}": f"{uefi}-{arch}" for arch in ARCHITECTURES}
    names |= {"swtpm": TPM, "containers": f"CONTAINER-{platform.machine()}"}
    works = {each.name for each in findings if each.state is State.WORKS}
    resources = {
        # The processors that this process may use, which a container or taskset may limit.
        CORES: float(cores or len(os.sched_getaffinity(0))),
        MEMORY: float(memory_mib or int(admission.host_mib() * admission.SHARE)),
    }
    resources |= {resource: PLENTY for name, resource in names.items() if name in works}
    lacking = [each for each in findings if each.state is State.FAILS and each.use.value == "test"]
    if lacking:
        raise HostError(
            f"this host can run no case: {lacking[0].name} {lacking[0].sentence}",
            hint="hotplate doctor",
        )
    # Probing KVM may take a while; it is not needed for emulation.
    if settings.accelerator is not AcceleratorChoice.TCG:
        chosen = accelerator.choose(cache=settings.cache)
        if chosen.name == AcceleratorChoice.KVM.value:
            resources[KVM] = PLENTY
    return resources


def as_text(resources: Resources) -> str:
    """Return a worker's resources, for people."""
    counted = {CORES: "at a time", MEMORY: "MiB of memory"}
    words = [f"{resources[name]:g} {text}" for name, text in counted.items()]
    return ", ".join([*words, *(name for name in resources if name not in counted)])


@functools.lru_cache(maxsize=1000)
def needs_of(image: Path, settings: Settings) -> dict[str, float]:
    """Return the resources that a case needs on its worker.

    A booting guest keeps one processor busy.

    :param settings: those of the case.
    """
    needs = {CORES: 1.0, MEMORY: float(settings.memory + admission.OVERHEAD_MIB + CASE_MIB)}
    container = settings.machine is MachineChoice.CONTAINER
    if settings.accelerator is AcceleratorChoice.KVM:
        needs[KVM] = 1.0
    if settings.tpm:
        needs[TPM] = 1.0
    name = "" if settings.arch is Arch.AUTO else settings.arch.value
    uefi = UEFIS.get(settings.firmware, "")
    # An image that cannot be opened here is reported where it runs.
    with contextlib.suppress(HotplateError, OSError):
        opened = Image.open(image, allow_backing=settings.allow_backing, boots=not container)
        name = name or opened.arch
        if settings.firmware is FirmwareChoice.AUTO and not opened.bios_bootable:
            uefi = UEFIS[FirmwareChoice.UEFI]
    if container:
        # It runs on the worker's own processor, without firmware.
        needs[f"CONTAINER-{name or DEFAULT_ARCH}"] = 1.0
    elif name:
        needs[f"ARCH-{name}"] = 1.0
        if uefi:
            needs[f"{uefi}-{name}"] = 1.0
    return needs


def missing(needs: Resources, workers: Iterable[Resources]) -> str:
    """Return the needs of a case that no worker meets, in words; "" when one meets all.

    >>> missing({"CORES": 1, "KVM": 1}, [{"CORES": 2}, {"CORES": 4}])
    'none of the 2 workers has KVM'
    >>> missing({"CORES": 1}, [{"CORES": 2}])
    ''
    """
    lacks = [
        {name: need for name, need in needs.items() if has.get(name, 0.0) < need} for has in workers
    ]
    if not lacks:
        return "there is no worker"
    fewest = min(lacks, key=len)
    names = [f"{need:g} MiB of MEMORY" if name == MEMORY else name for name, need in fewest.items()]
    one = len(lacks) == 1
    who = "the only worker does not have" if one else f"none of the {len(lacks)} workers has"
    return f"{who} {' and '.join(names)}" if names else ""
