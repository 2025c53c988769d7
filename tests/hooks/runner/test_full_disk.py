"""The disk is full: a hook starts only if its start can be recorded, and no result is lost."""

import os
import subprocess

import pytest
from programs import completed

pytestmark = pytest.mark.root


@pytest.fixture
def small(guest):
    """A tmpfs of 1 MiB for the state and the logs; ``fill(keep=0)`` fills the rest of it."""
    mount = guest.root / "small"
    mount.mkdir()
    done = completed(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(mount)])
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    guest.state = mount / "deployed"
    guest.logs = mount / "log"

    class Small:
        filler = mount / "filler"

        def fill(self, keep=0):
            room = os.statvfs(mount).f_bavail * os.statvfs(mount).f_frsize - keep
            with self.filler.open("wb") as stream:
                os.posix_fallocate(stream.fileno(), 0, max(room, 1))

        def empty(self):
            self.filler.unlink()

    yield Small()
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_hook_does_not_start_when_its_start_cannot_be_recorded(guest, heat, cfn, small):
    assert guest.run(cfn(id="d-0")).status == 0
    small.fill()
    done = guest.run(cfn(id="d-0"), cfn())
    assert done.status == 1
    assert "No space left on device" in done.log
    assert guest.runs("d-1") == 0
    small.empty()
    assert guest.run().status == 0
    assert guest.runs("d-1") == 1
    assert guest.state_of("d-1") == "signalled"


@pytest.mark.parametrize("keep", [4096 * n for n in (1, 2, 3, 4, 8, 16, 17, 18, 19, 20, 21, 22)])
def test_nearly_full_disk_loses_no_result(guest, heat, cfn, small, keep):
    assert guest.run(cfn(id="d-0")).status == 0
    small.fill(keep)
    guest.run(cfn())
    ran = guest.runs("d-1")
    small.empty()
    for _ in range(3):
        if guest.run().status == 0:
            break
    assert ran <= guest.runs("d-1") == 1
    assert guest.state_of("d-1") == "signalled"
    body = heat.signals[-1]
    assert body["deploy_status_code"] == 0 or "is full" in body["deploy_stderr"]


def test_hook_that_fills_the_disk_keeps_its_result(guest, heat, cfn, small):
    filler = guest.root / "small" / "by-hook"
    config = f"echo before; dd if=/dev/zero of={filler} bs=4k 2>/dev/null; echo after\nexit 3\n"
    guest.metadata(cfn(config, group="script"))
    first = guest.run()
    filler.unlink()
    if first.status != 0:
        assert guest.run().status == 0
    assert guest.state_of("d-1") == "signalled"
    (body,) = heat.signals
    assert body["deploy_status_code"] != 0


def test_output_too_large_for_the_disk_is_cut_and_signalled(guest, heat, cfn, small):
    guest.run(cfn("head -c 3000000 /dev/zero | tr '\\0' a\n", group="script"))
    guest.run()
    assert guest.state_of("d-1") == "signalled"
    assert heat.signals[-1]["deploy_status_code"] != 0 or heat.signals[-1]["deploy_stdout"]


def test_unusable_log_directory_does_not_stop_a_deployment(guest, heat, cfn):
    guest.logs = guest.root / "file" / "log"
    (guest.root / "file").write_text("")
    done = guest.run(cfn())
    assert done.status == 0
    assert "cannot be used" in done.log
    assert (guest.state / "d-1.log").exists()


def test_unusable_state_directory_is_reported_in_a_sentence(guest, cfn):
    guest.state = guest.root / "file" / "state"
    (guest.root / "file").write_text("")
    done = guest.run(cfn())
    assert done.status == 1
    assert done.log.startswith('heat-config: the state directory "')
    assert guest.runs("d-1") == 0


def test_noisy_deployment_leaves_room_for_the_next(guest, heat, cfn, small):
    guest.metadata(
        cfn("echo first; yes", group="script", options={"timeout": 2}),
        cfn("echo second", group="script", id="d-2"),
    )
    assert guest.run().status == 0
    noisy, second = heat.signals
    assert noisy["deploy_status_code"] == 124
    assert noisy["deploy_stdout"].startswith("first\ny\n")
    assert "are left out here" in noisy["deploy_stdout"]
    assert (second["deploy_status_code"], second["deploy_stdout"]) == (0, "second\n")


def test_full_disk_does_not_shorten_the_signal(guest, heat, cfn, small):
    """The tool's output went through memory as well, and so did the hook's answer."""
    guest.run(cfn(id="d-0"))
    filler = guest.root / "small" / "by-hook"
    config = f"echo before; cat /dev/zero >{filler} 2>/dev/null; echo after; exit 3"
    assert guest.run(cfn(id="d-0"), cfn(config, group="script")).status == 0
    body = heat.signals[-1]
    assert body["deploy_status_code"] == 3
    assert body["deploy_stdout"] == "before\nafter\n"


def test_deployment_fails_after_repeated_passes_with_a_full_disk(guest, heat, cfn, small):
    assert guest.run(cfn(id="d-0")).status == 0
    small.fill()
    guest.metadata(cfn(id="d-0"), cfn(), cfn(id="d-2"))
    for _ in range(4):
        assert guest.run().status == 1
        assert len(heat.signals) == 1
    guest.run()
    assert heat.signals[1]["deploy_status_code"] == 1
    assert "was full" in heat.signals[1]["deploy_stderr"]
    # The other one used the room that was freed for the answer, or failed as well.
    assert len(heat.signals) == 3
    assert guest.run().status == 0
    ran = guest.runs("d-2")
    small.empty()
    assert guest.run(*(cfn(id=f"d-{n}") for n in range(4))).status == 0
    assert [guest.runs(f"d-{n}") for n in range(4)] == [1, 0, ran, 1]
    assert guest.state_of("d-1") == "signalled"


def test_failed_passes_are_reset_once_the_disk_has_room(guest, heat, cfn, small):
    guest.run(cfn(id="d-0"))
    for number in range(1, 4):
        small.fill()
        guest.metadata(*(cfn(id=f"d-{n}") for n in range(number + 1)))
        for _ in range(3):
            assert guest.run().status == 1
        small.empty()
        assert guest.run().status == 0
    assert [guest.runs(f"d-{n}") for n in range(4)] == [1, 1, 1, 1]
