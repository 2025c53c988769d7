"""Faults that need a boot of their own; the verdict names each correctly."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from threading import Thread

import pytest

from hotplate.errors import MachineLostError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.stacks.template import Template, builtin
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import Deadline, retry
from hotplate.trial.trial import Trial
from hotplate.verdict.stages import Stage
from tests.booted.run_settings import settings_of_this_run

pytestmark = [pytest.mark.boots, pytest.mark.long]


def _down(machine) -> bool:
    try:
        machine.set_link(up=False)
    except MachineLostError:
        return False
    return True


@pytest.fixture
def boot(trixie, tmp_path):
    """Return a function that boots the image with a fault and judges it as ``hotplate test``."""

    def pull(testbed: Testbed, event) -> None:
        if event.kind == "power-on":
            machine = testbed.compute.servers[event.server].machine
            # The monitor answers only a moment after the machine is started.
            deadline = Deadline(300, "the monitor")
            Thread(target=lambda: retry(lambda _: _down(machine), deadline), daemon=True).start()

    def run(
        template: Template | None = None,
        *,
        fault=None,
        cable: bool = True,
        path: Path = trixie,
        **given,
    ):
        given = {"patience": 20, "limit": 240, **given}
        with (
            contextlib.ExitStack() as planted,
            Trial(
                Image.open(path),
                template or builtin(),
                settings=settings_of_this_run(**given),
                folder=tmp_path / "run",
                events=EventLog(),
                say=print,
                on_reached=print,
            ) as trial,
        ):
            if fault is not None:
                planted.enter_context(trial.testbed.cloud.fault(**fault))
            if not cable:
                trial.events.subscribe(lambda event: pull(trial.testbed, event))
            began = time.monotonic()
            verdict = trial.judge()
            if picture := trial.take_picture():
                assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        print(f"{time.monotonic() - began:.0f} s: {verdict.last_line()}")
        assert not verdict.passed
        stage = verdict.diagnosis.stage if verdict.diagnosis else None
        assert (picture is None) == (stage is not Stage.BOOTED)
        return verdict

    def diagnosed(*words, **given):
        diagnosis = run(*words, **given).diagnosis
        assert diagnosis is not None
        return diagnosis

    diagnosed.verdict = run
    return diagnosed


REFUSED = {"endpoint": "metadata", "kind": "refuse"}
NOT_FOUND = {"endpoint": "metadata", "kind": "status", "status": 404}


@pytest.mark.qemu
def test_missing_root_is_named(boot):
    """``test_booted_faults.py`` has faults of a kernel alone, without an image's initramfs."""
    diagnosis = boot(append="root=/dev/vdz rootdelay=1")
    assert (diagnosis.fault, diagnosis.stage) == ("root-not-found", Stage.BOOTED)


@pytest.mark.parametrize(
    ("planted", "fault", "stage"),
    [
        # The cable is unplugged from the first second on.
        ({"cable": False, "patience": 60}, "no-dhcp", Stage.NETWORK_UP),
        ({"fault": REFUSED}, "metadata-refused", Stage.METADATA_SERVED),
        ({"fault": NOT_FOUND}, "metadata-404", Stage.METADATA_SERVED),
    ],
)
def test_planted_fault_is_named(boot, planted, fault, stage):
    diagnosis = boot(**planted)
    assert (diagnosis.fault, diagnosis.stage) == (fault, stage)


@pytest.mark.qemu
def test_no_bootable_kernel(boot, tmp_path):
    """Boot a disk whose boot code loads nothing."""
    disk = bytearray(4 << 20)
    # cli; hlt; jmp: a boot sector that halts the processor.
    disk[0:4], disk[510:512] = b"\xfa\xf4\xeb\xfd", b"\x55\xaa"
    disk[446:462] = bytes([0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 24, 0, 0])
    (tmp_path / "empty.raw").write_bytes(disk)
    diagnosis = boot(path=tmp_path / "empty.raw", patience=20)
    assert (diagnosis.fault, diagnosis.stage) == ("no-bootable-kernel", Stage.BOOTED)


def test_wait_condition_without_a_signal_is_named(boot):
    """A server without cfn-init-data has nothing to poll, so polling is not expected."""
    template = {
        "heat_template_version": "2018-08-31",
        "resources": {
            "server": {
                "type": "OS::Nova::Server",
                "properties": {
                    "image": "the image under test",
                    "flavor": "m1.small",
                    "user_data_format": "RAW",
                    "user_data": "#!/bin/sh\n",
                },
            },
            # A wait condition must wait for the server: Heat refuses a deployment on this one.
            "handle": {"type": "OS::Heat::WaitConditionHandle"},
            "wait": {
                "type": "OS::Heat::WaitCondition",
                "properties": {"handle": {"get_resource": "handle"}, "timeout": 900},
            },
        },
    }
    verdict = boot.verdict(Template(source="raw", template=template))
    assert verdict.diagnosis is None
    assert 'Heat waits for OS::Heat::WaitCondition "wait"' in verdict.last_line()
