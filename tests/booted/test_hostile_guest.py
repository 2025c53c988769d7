"""A booted hostile guest must not disturb a well-behaved one beside it.

Prints how much memory this process, the harness, gained under each attack.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.errors import MachineLostError
from hotplate.guest.shell import DIRECTORY, PORT
from hotplate.machine.console import END_BYTES, FILE_BYTES
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed import warm_state as warm
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline, retry

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.xdist_group("hostile_guest"),
]

ATTACKS = Path(__file__).parent / "attacks.py"
#: Limit of the harness's memory growth under an attack, in bytes.
GROWTH = 64 << 20
SECONDS = 20


def resident(field: str = "VmRSS") -> int:
    """Return a memory figure of this process in bytes; VmHWM is the peak since :func:`begin`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


def begin() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return resident()


@pytest.fixture(scope="module")
def testbed(testbed_of, without_cloud_init) -> Testbed:
    return testbed_of(without_cloud_init)


@pytest.fixture(scope="module")
def good(testbed) -> ServerUnderTest:
    server = ServerUnderTest(testbed, warm.boot(testbed))
    # Modules imported at the first deployment must not count as growth by an attack.
    works(server, "first")
    return server


@pytest.fixture(scope="module")
def bad(testbed, good) -> ServerUnderTest:
    server = ServerUnderTest(testbed, warm.boot(testbed))
    server.copy_in(ATTACKS, "/root/attacks.py")
    return server


def works(server: ServerUnderTest, word: str) -> None:
    config = f"#!/bin/sh\nprintf %s {word} > $heat_outputs_path.word\n"
    done = server.deploy(group="script", config=config, outputs=["word"], name=word).wait()
    assert (done.status, done.outputs["word"]) == ("COMPLETE", word), server.diagnosis()


def floods(testbed: Testbed, server: ServerUnderTest) -> list[str]:
    return [
        each.detail["fault"]
        for each in testbed.events
        if each.kind == "flood" and each.server == server.id
    ]


@contextlib.contextmanager
def attack(bad: ServerUnderTest, good: ServerUnderTest, name: str, command: str) -> Iterator[None]:
    """Start an attack in one guest and let the other finish a deployment meanwhile."""
    before = begin()
    bad.run(f"systemd-run --quiet --collect --unit=attack-{name} sh -c '{command}'").check()
    yield
    works(good, name)
    grown = resident("VmHWM") - before
    bad_ones = ", ".join(floods(bad._testbed, bad)) or "none"
    print(f"{name}: grown by {grown / 1e6:.1f} MB; verdicts so far: {bad_ones}")
    assert grown <= GROWTH
    assert floods(bad._testbed, good) == []


@pytest.mark.parametrize("name", ["paths", "tokens", "idle", "websockets"])
def test_network_attacks_do_not_disturb_the_other_guest(testbed, bad, good, name):
    with attack(bad, good, name, f"python3 /root/attacks.py {name} {SECONDS}"):
        if name in ("idle", "websockets"):
            retry(
                lambda _: "connection-flood" in floods(testbed, bad) or None,
                GuestDeadline(SECONDS * 20, "the verdict on the connections"),
            )
    assert list(testbed.cloud.heat().stacks.list())
    bad.run(f"systemctl stop attack-{name}; true")


def test_console_flood_does_not_disturb_the_other_guest(testbed, bad, good):
    command = f'timeout {SECONDS * 30} yes "" > /dev/ttyS0'
    with attack(bad, good, "console", command):
        retry(
            lambda _: "console-flood" in floods(testbed, bad) or None,
            GuestDeadline(SECONDS * 20, "the verdict on the console"),
        )
    assert bad.console.path.stat().st_size <= FILE_BYTES + END_BYTES + 200
    bad.run("systemctl stop attack-console; true")


def test_port_floods_do_not_disturb_the_other_guest(testbed, bad, good):
    """Runs last, because an endless stream replaces the guest's own shell."""
    endless = f"""
        for name in /sys/class/virtio-ports/*/name; do
            case $(cat $name) in
                {PORT}) device=${{name%/name}}
                    yes "hotplate-reply 0 0 99999999999 0 {{}}" > /dev/${{device##*/}} & ;;
            esac
        done
        wait"""
    bad.copy_in(endless.encode(), "/root/endless.sh")
    command = f"rm -r {DIRECTORY}; systemctl stop hotplate-shell; sh /root/endless.sh"
    with attack(bad, good, "ports", command):
        # The shell answers until the attack has replaced it.
        retry(lambda _: is_lost(bad) or None, GuestDeadline(SECONDS * 20, "its shell's end"))
        assert is_lost(bad)


def is_lost(server: ServerUnderTest) -> bool:
    """Return True when a command fails with the error that a plug-in user gets."""
    try:
        server.run("true", timeout=5)
    except (DeadlineExceeded, MachineLostError):
        return True
    return False
