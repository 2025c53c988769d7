"""``hotplate worker``: its resources, failed starts, and its end."""

from __future__ import annotations

import os

import pytest

from hotplate import cli
from hotplate.cli import worker
from hotplate.errors import HostError
from hotplate.machine import admission
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed import host_probes
from hotplate.testbed.host_probes import Finding, State, Use

TCG = Settings(accelerator=AcceleratorChoice.TCG)


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


def test_worker_declares_the_findings_of_the_doctor(monkeypatch):
    probed(monkeypatch, qemu_system_x86_64=State.WORKS, uefi_x86_64=State.WORKS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(admission, "host_mib", lambda: 10_000)
    declared = worker.resources_of(TCG)
    assert declared == {
        "CORES": 3.0,
        "MEMORY": 8000.0,
        "ARCH-x86_64": 1000.0,
        "UEFI-x86_64": 1000.0,
    }
    assert worker.as_text(declared) == "3 at a time, 8000 MiB of memory, ARCH-x86_64, UEFI-x86_64"
    assert worker.resources_of(TCG, cores=1, memory_mib=2000)["MEMORY"] == 2000.0


def test_host_that_can_run_no_guest_is_no_worker(monkeypatch):
    probed(monkeypatch, qemu_system_x86_64=State.FAILS)
    with pytest.raises(HostError) as caught:
        worker.resources_of(TCG)
    assert caught.value.message == (
        "this host can run no case: qemu-system-x86_64 is not installed"
    )
    assert caught.value.hint == "hotplate doctor"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("nonsense",), '"nonsense" is no address of a Dask scheduler'),
        (("tcp://127.0.0.1:9", "--cores", "0"), "--cores 0 is too small; expected at least 1"),
    ],
)
def test_invalid_worker_options_are_refused(capsys, words, problem):
    assert cli.main(["worker", *words]) == 2
    assert problem in capsys.readouterr().err


def test_worker_ends_when_no_scheduler_answers(monkeypatch, capsys, tmp_path):
    probed(monkeypatch, qemu_system_x86_64=State.WORKS)
    monkeypatch.setenv("HOTPLATE_ACCELERATOR", "tcg")
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path))
    words = ["--death-timeout", "1", "--local-directory", str(tmp_path)]
    assert cli.main(["worker", "tcp://127.0.0.1:9", *words]) == 3
    err = capsys.readouterr().err
    assert 'no scheduler answered at "tcp://127.0.0.1:9" for 1 s' in err
    assert "is not encrypted" in err
