"""A booted hostile guest must not disturb a well-behaved one beside it.

Prints how much memory this process, the harness, gained under each attack.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.container.guest_files import FOLDER
from hotplate.guest.shell import DIRECTORY, UNIT
from hotplate.machine.console import END_BYTES, FILE_BYTES
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed import warm_state as warm
from hotplate.timing.deadline import GuestDeadline, retry
from tests.booted.hostile import SECONDS, attack, floods, is_lost

pytestmark = [pytest.mark.long, pytest.mark.boots, pytest.mark.xdist_group("hostile_guest")]

ATTACKS = Path(__file__).parent / "attacks.py"
#: An answer that never ends.
STREAM = 'yes "hotplate-reply 0 0 99999999999 0 {}"'


@pytest.fixture(scope="module")
def bad(testbed, good) -> ServerUnderTest:
    server = ServerUnderTest(LocalPlatform(testbed, warm.boot(testbed)))
    server.copy_in(ATTACKS, "/root/attacks.py")
    return server


@pytest.mark.parametrize("name", ["paths", "tokens", "idle", "websockets"])
def test_network_attacks_do_not_disturb_the_other_guest(testbed, bad, good, name):
    with attack(bad, good, name, f"python3 /root/attacks.py {name} {SECONDS}"):
        if name in ("idle", "websockets"):
            retry(
                lambda _: "connection-flood" in floods(testbed, bad),
                GuestDeadline(SECONDS * 20, "the verdict on the connections"),
            )
    assert list(testbed.cloud.heat().stacks.list())
    bad.run(f"systemctl stop attack-{name}; true")


def test_console_flood_does_not_disturb_the_other_guest(testbed, bad, good):
    command = f'timeout {SECONDS * 30} yes "" > /dev/console'
    with attack(bad, good, "console", command):
        retry(
            lambda _: "console-flood" in floods(testbed, bad),
            GuestDeadline(SECONDS * 20, "the verdict on the console"),
        )
    assert bad.console.path.stat().st_size <= FILE_BYTES + END_BYTES + 200
    bad.run("systemctl stop attack-console; true")


def test_port_floods_do_not_disturb_the_other_guest(bad, good):
    """Runs last, because an endless stream replaces the guest's own shell."""
    # Started for each connection from now on.
    bad.copy_in(f"{STREAM}\n".encode(), "/root/stream.sh")
    stop = f"rm -r {DIRECTORY}; systemctl stop {UNIT} {UNIT}@*"
    command = f"mount --bind /root/stream.sh {FOLDER}/shell; {stop}"
    with attack(bad, good, "ports", command):
        # The shell answers until the attack has replaced it; one answer may just be late.
        retry(
            lambda _: is_lost(bad) and is_lost(bad),
            GuestDeadline(SECONDS * 20, "its shell's end"),
        )
