"""The resources of workers, and the needs of cases."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

import pytest
import tiny_disk

from hotplate.cases.cluster import resources
from hotplate.cases.cluster.resources import missing
from hotplate.errors import HostError
from hotplate.machine import admission
from hotplate.settings import AcceleratorChoice, Arch, FirmwareChoice, MachineChoice, Settings
from hotplate.testbed import host_probes
from hotplate.testbed.host_probes import Finding, State, Use

NEEDS = {"CORES": 1.0, "MEMORY": 1624.0, "ARCH-aarch64": 1.0, "UEFI-aarch64": 1.0}
TCG = Settings(accelerator=AcceleratorChoice.TCG)


def test_missing_names_the_lacks_of_the_best_worker():
    poor = {"CORES": 1.0}
    near = {"CORES": 1.0, "MEMORY": 9000.0, "ARCH-aarch64": 1000.0}
    assert missing(NEEDS, [poor, near]) == "none of the 2 workers has UEFI-aarch64"
    assert missing(NEEDS, [poor, near, {**NEEDS}]) == ""
    small = {**NEEDS, "MEMORY": 1000.0}
    assert missing(NEEDS, [small]) == "the only worker does not have 1624 MiB of MEMORY"
    assert missing(NEEDS, []) == "there is no worker"


def probed(monkeypatch: pytest.MonkeyPatch, **states: State) -> None:
    """Make the probes return these states, by the names of tools with ``_`` for ``-``."""
    names = {"qemu_system_x86_64": "qemu-system-x86_64", "uefi_x86_64": "UEFI x86_64"}
    findings = [
        Finding(names.get(name, name), Use.TEST, state, "is not installed")
        for name, state in states.items()
    ]
    monkeypatch.setattr(host_probes, "tools", lambda: iter(findings))
    monkeypatch.setattr(host_probes, "firmware", lambda: iter(()))
    monkeypatch.setattr(host_probes, "wiring", lambda: iter(()))
    monkeypatch.setattr(host_probes, "containers", lambda: iter(()))


def test_worker_declares_the_findings_of_the_doctor(monkeypatch):
    probed(
        monkeypatch,
        qemu_system_x86_64=State.WORKS,
        uefi_x86_64=State.WORKS,
        containers=State.WORKS,
    )
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(admission, "host_mib", lambda: 10_000)
    declared = resources.of_host(TCG)
    assert declared == {
        "CORES": 3.0,
        "MEMORY": 8000.0,
        "ARCH-x86_64": 1000.0,
        "UEFI-x86_64": 1000.0,
        "CONTAINER-x86_64": 1000.0,
    }
    text = "3 at a time, 8000 MiB of memory, ARCH-x86_64, UEFI-x86_64, CONTAINER-x86_64"
    assert resources.as_text(declared) == text
    assert resources.of_host(TCG, cores=1, memory_mib=2000)["MEMORY"] == 2000.0


def test_case_in_a_container_needs_a_worker_that_runs_containers(tmp_path):
    image = tiny_disk.make(tmp_path / "tiny.raw")
    in_container = replace(TCG, machine=MachineChoice.CONTAINER)
    assert "CONTAINER-x86_64" in resources.needs_of(image, in_container)
    assert "ARCH-x86_64" not in resources.needs_of(image, in_container)
    assert "CONTAINER-x86_64" not in resources.needs_of(image, TCG)


@pytest.mark.parametrize("arch", [Arch.X86_64, Arch.AARCH64])
def test_case_with_secure_boot_needs_a_worker_that_has_it(tmp_path, arch):
    image = tiny_disk.make(tmp_path / "tiny.raw")
    settings = replace(TCG, arch=arch, firmware=FirmwareChoice.SECURE_BOOT)
    needs = resources.needs_of(image, settings)
    assert f"Secure-Boot-{arch.value}" in needs
    # The probe has the same name.
    probes = {each.name.replace(" ", "-") for each in host_probes.firmware()}
    assert probes & {*needs} == {f"Secure-Boot-{arch.value}"}


def test_case_with_a_tpm_needs_a_worker_with_swtpm(tmp_path, monkeypatch):
    image = tiny_disk.make(tmp_path / "tiny.raw")
    assert "TPM" in resources.needs_of(image, replace(TCG, tpm=True))
    assert "TPM" not in resources.needs_of(image, TCG)
    probed(monkeypatch, swtpm=State.WORKS)
    assert "TPM" in resources.of_host(TCG)
    probed(monkeypatch, swtpm=State.OTHERWISE)
    assert "TPM" not in resources.of_host(TCG)


def test_host_that_can_run_no_guest_is_no_worker(monkeypatch):
    probed(monkeypatch, qemu_system_x86_64=State.FAILS)
    with pytest.raises(HostError) as caught:
        resources.of_host(TCG)
    assert caught.value.message == (
        "this host can run no case: qemu-system-x86_64 is not installed"
    )
    assert caught.value.hint == "hotplate doctor"
