"""Containers that really boot: a tiny root, a fraction of a second each."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_container
from stations import Answerer
from tiny_container import Made, addresses, attached, make_ext4, plant, root_of

from hotplate.container.cgroups import name_of
from hotplate.container.root import Root
from hotplate.errors import HostError, HotplateError, ImageError, MachineLostError
from hotplate.guest.shell import Shell
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

pytestmark = [pytest.mark.root, pytest.mark.tool("systemd-nspawn")]

Make = Callable[..., Made]


def ask(shell: Shell, *, seconds: int = 4) -> str:
    """Return the answer that the guest gets at the metadata address; "" when it gets none."""
    return shell.run(f"echo ask | timeout {seconds} nc 169.254.169.254 80").text


def up(made: Made) -> None:
    """Wait until the guest has configured its interfaces."""
    made.machine.console.wait_for(tiny_container.READY, Deadline(60, "the container"))


def test_container_is_up_with_its_interfaces_in_order(make: Make) -> None:
    made = make(interfaces=2)
    Answerer(made.ports[0], "first")
    up(made)
    shell = attached(made.machine)
    assert addresses(shell) == {"ens4": "10.0.0.5/24", "ens5": "10.0.0.6/24"}
    for number, port in enumerate(made.ports, 4):
        assert shell.run(f"cat /sys/class/net/ens{number}/address").text == port.mac
    assert ask(shell) == "first"
    assert shell.run("cat /proc/1/comm; id -u").text.split() == ["systemd", "0"]
    assert made.machine.resident_mib() > 0
    assert made.machine.work()
    assert made.machine.facts() == {"memory": "128 MiB at most"}
    assert made.kinds() == ["power-on"]


def test_orderly_shutdown_asks_the_init(make: Make) -> None:
    made = make()
    up(made)
    end = made.machine.shutdown(Deadline(60, "the end"))
    assert (end.status, end.reason) == (0, "guest-shutdown")
    assert not made.machine.running
    assert "tiny container goes down" in made.machine.console.text()
    assert made.kinds() == ["power-on", "power-off", "exit"]
    with pytest.raises(MachineLostError, match="is off"):
        made.machine.shutdown(Deadline(1, "the end"))


def test_init_that_ignores_the_power_button_is_waited_for_and_can_be_killed(make: Make) -> None:
    made = make()
    shell = attached(made.machine)
    # Stopped, it takes no signal but SIGKILL.
    os.kill(made.machine._init(), signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        made.machine.shutdown(Deadline(1, "the end"))
    assert made.machine.running
    made.machine.kill()
    assert made.machine.wait(Deadline(60, "the end")).reason == "power-cut"
    with pytest.raises(MachineLostError, match="is off"):
        shell.run("true")


def test_guest_switches_itself_off(make: Make) -> None:
    made = make()
    shell = attached(made.machine)
    with contextlib.suppress(MachineLostError):
        shell.run("poweroff -f; sleep 30")
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (0, "guest-shutdown")
    last = [event for event in made.events if event.kind == "exit"][-1]
    assert last.detail == {"status": 0, "reason": "guest-shutdown", "message": ""}
    assert last.server == "tiny"


def test_reboot_by_the_guest_is_an_event_and_its_network_and_shell_come_again(make: Make) -> None:
    made = make(interfaces=2)
    Answerer(made.ports[0], "first")
    up(made)
    shell = attached(made.machine)
    shell.run("echo kept >/root/kept; echo gone >/run/gone; sync").check()
    before = made.machine.pid
    for _ in range(2):
        mark = len(made.events)
        position = made.machine.console.position
        with contextlib.suppress(MachineLostError):
            shell.run("reboot -f; sleep 30")
        reset = made.events.wait(lambda event: event.kind == "reset", seconds=60, since=mark)
        assert reset is not None and reset.detail["by_guest"]
        made.machine.console.wait_for(
            tiny_container.READY, Deadline(60, "the container again"), since=position
        )
        shell = attached(made.machine)
        assert made.machine.pid != before
        assert addresses(shell) == {"ens4": "10.0.0.5/24", "ens5": "10.0.0.6/24"}
        assert ask(shell) == "first"
        assert shell.run("cat /root/kept; ls /run/gone").stdout == b"kept\n"
    assert made.kinds() == ["power-on", "reset", "power-on", "reset", "power-on"]
    end = made.machine.shutdown(Deadline(60, "the end"))
    assert end.reason == "guest-shutdown"


def test_reboot_that_fails_is_an_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    shell = attached(made.machine)

    def fail() -> None:
        raise MachineLostError("the helper process was killed")

    monkeypatch.setattr(made.machine, "_boot", fail)
    with contextlib.suppress(MachineLostError):
        shell.run("reboot -f; sleep 30")
    assert made.machine.wait(Deadline(60, "the end")).reason == "lost"
    last = [event for event in made.events if event.kind == "exit"][-1]
    assert last.detail["message"] == "the helper process was killed"
    assert not made.machine.running


def test_kill_while_the_guest_reboots_leaves_it_off(make: Make) -> None:
    made = make()
    for delay in (0.0, 0.05, 0.2):
        shell = attached(made.machine)
        mark = len(made.events)
        with contextlib.suppress(MachineLostError):
            shell._channel.send(b"reboot -f\n", Deadline(60, "the shell"))
        made.events.wait(lambda event: event.kind == "reset", seconds=60, since=mark)
        time.sleep(delay)
        made.machine.kill()
        assert not made.machine.running
        time.sleep(0.3)
        assert not made.machine.running
        made.machine.start()


def test_power_cut_keeps_what_was_written(make: Make) -> None:
    made = make()
    shell = attached(made.machine)
    shell.run("echo kept >/root/kept; rm /etc/passwd; sync").check()
    made.machine.kill()
    made.machine.kill()
    assert made.machine.wait(Deadline(60, "the end")).reason == "power-cut"
    made.machine.start()
    again = attached(made.machine)
    assert again.run("cat /root/kept").text == "kept"
    assert again.run("test -e /etc/passwd").rc == 1
    assert made.kinds() == ["power-on", "exit", "power-on"]
    with pytest.raises(RuntimeError, match="already on"):
        made.machine.start()


def test_pause_stops_all_processes(make: Make) -> None:
    made = make()
    shell = attached(made.machine)
    shell.run("(while :; do date +%s%N >/run/now; usleep 10000; done) >/dev/null 2>&1 &").check()
    inside = f"/proc/{made.machine._init()}/root/run/now"
    retry(lambda _: Path(inside).exists(), Deadline(60, "the clock"))
    made.machine.pause()
    time.sleep(0.1)
    before = Path(inside).read_bytes()
    time.sleep(0.3)
    assert Path(inside).read_bytes() == before
    made.machine.resume()
    retry(lambda _: Path(inside).read_bytes() != before, Deadline(60, "the clock"))
    assert shell.run("echo on").text == "on"
    # A paused container can be killed, too.
    made.machine.pause()
    made.machine.kill()
    assert not made.machine.running
    with pytest.raises(MachineLostError, match="is off"):
        made.machine.pause()


def test_link_is_cut_and_restored(make: Make) -> None:
    made = make(interfaces=2)
    for port, name in zip(made.ports, ("first", "second"), strict=True):
        Answerer(port, name)
    up(made)
    shell = attached(made.machine)
    carriers = "cat /sys/class/net/ens4/carrier /sys/class/net/ens5/carrier"
    made.machine.set_link(up=False, cards=[0])
    assert shell.run(carriers).text.split() == ["0", "1"]
    made.machine.set_link(up=False)
    assert shell.run(carriers).text.split() == ["0", "0"]
    assert ask(shell, seconds=1) == ""
    made.machine.set_link(up=True)
    assert shell.run(carriers).text.split() == ["1", "1"]
    answer = retry(lambda _: ask(shell), Deadline(60, "an answer over the link"))
    assert answer in ("first", "second")
    changes = [event.detail["up"] for event in made.events if event.kind == "link"]
    assert changes == [False, False, True]


def test_interface_is_added_and_removed_while_it_runs(make: Make) -> None:
    made = make()
    up(made)
    shell = attached(made.machine)
    other = make(name="other", start=False)
    (cable,) = other.ports
    made.machine.attach(cable)
    assert shell.run("cat /sys/class/net/ens5/address").text == cable.mac
    shell.run("dhcp ens5").check()
    assert addresses(shell) == {"ens4": "10.0.0.5/24", "ens5": "10.0.0.6/24"}
    made.machine.detach(0, Deadline(60, "the end of an interface"))
    assert addresses(shell) == {"ens5": "10.0.0.6/24"}
    # The first of those left, as Neutron counts them.
    made.machine.set_link(up=False, cards=[0])
    assert shell.run("cat /sys/class/net/ens5/carrier").text == "0"
    made.machine.detach(0, Deadline(60, "the end of an interface"))
    assert shell.run("echo /sys/class/net/ens*").text == "/sys/class/net/ens*"


def test_console_is_recorded(make: Make) -> None:
    made = make()
    up(made)
    shell = attached(made.machine)
    shell.run("printf '\\033[31mred\\033[0m \\303\\244\\n' >/dev/console").check()
    made.machine.console.wait_for(r"^red ä$", Deadline(60, "the line"))
    seen = made.events.wait(
        lambda event: event.kind == "line" and "red" in event.detail["text"], seconds=60
    )
    assert seen is not None and seen.server == "tiny"
    assert tiny_container.READY.encode() in made.machine.console.path.read_bytes()
    made.machine.kill()
    assert tiny_container.READY in made.machine.console.text()


def test_several_shells_work_at_once(make: Make) -> None:
    made = make()
    first = attached(made.machine)
    assert first.run("echo 1").text == "1"
    # As after a lost connection: the one before is closed.
    second = attached(made.machine)
    assert second.run("echo 2; exit 3").rc == 3
    with pytest.raises(MachineLostError):
        first.run("true")
    second.copy_in(b"x" * 200_000, "/root/large")
    assert second.copy_out("/root/large") == b"x" * 200_000


def test_other_guest_is_noticed_by_its_nonce(make: Make) -> None:
    made = make(nonce="another's")
    with pytest.raises(MachineLostError, match="not the one that was started"):
        attached(made.machine)


def init_of(text: str, folder: Path) -> Root:
    tree = plant(folder / "tree", f"#!/bin/sh\nexport PATH=/bin\n{text}\n")
    return root_of(make_ext4(tree, folder / "other.ext4", "-O", "^has_journal"))


def test_root_without_an_init_is_a_panic_that_names_it(make: Make, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    (tree / tiny_container.INIT_PATH).unlink()
    made = make(root=root_of(make_ext4(tree, tmp_path / "other.ext4")))
    assert made.machine.wait(Deadline(60, "the end")).reason == "guest-panic"
    assert "/sbin/init) failed: No such file or directory" in made.machine.console.text()


@pytest.mark.parametrize("command", ["exit 3", "kill -SEGV $$; kill -9 $$; exit 4"])
def test_init_that_fails_is_a_panic(make: Make, tmp_path: Path, command: str) -> None:
    made = make(root=init_of(f"echo before; sleep 0.3; {command}", tmp_path))
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (int(command[-1]), "guest-panic")
    assert "before" in made.machine.console.text()


def test_nspawn_killed_by_another_process_is_lost(make: Make) -> None:
    made = make()
    attached(made.machine)
    init = os.pidfd_open(made.machine._init())
    assert made.machine.pid is not None
    os.kill(made.machine.pid, signal.SIGKILL)
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (-9, "lost")
    assert made.kinds() == ["power-on", "power-off", "exit"]
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(init, 0)
    os.close(init)
    made.machine.start()
    assert attached(made.machine).run("echo on").text == "on"


@pytest.mark.parametrize(
    ("spoil", "kind", "said"),
    [
        ("etc/os-release", HostError, "could not start the container.*os-release"),
        ("etc", ImageError, 'no system with "/etc" and "/usr"'),
        ("usr", ImageError, 'no system with "/etc" and "/usr"'),
    ],
)
def test_root_without_a_system_is_refused_in_one_sentence(
    make: Make, tmp_path: Path, spoil: str, kind: type[HotplateError], said: str
) -> None:
    tree = plant(tmp_path / "tree")
    subprocess.run(["rm", "-r", tree / spoil], check=True)
    made = make(root=root_of(make_ext4(tree, tmp_path / "other.ext4")), start=False)
    with pytest.raises(kind, match=said) as caught:
        made.machine.start()
    assert caught.value.hint == "--machine qemu"
    assert not made.machine.running
    # When nspawn was started, its end is noted, and not as a power cut.
    assert made.kinds() in ([], ["power-on", "power-off", "exit"])


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("UUID=0a1b /var ext4 defaults 0 2", True),
        ("/dev/mapper/vg-usr\t/usr/\txfs\tro", True),
        ("LABEL=data /srv ext4 defaults 0 2", False),
        ("#UUID=0a1b /var ext4 defaults 0 2", False),
        ("UUID=0a1b /var ext4 defaults,noauto 0 2", False),
        ("broken", False),
    ],
)
def test_root_whose_system_is_partly_elsewhere_is_refused(
    make: Make, tmp_path: Path, line: str, refused: bool
) -> None:
    """systemd mounts no devices in a container: its packages would seem not to be there."""
    tree = plant(tmp_path / "tree")
    (tree / "etc/fstab").write_text(f"UUID=ff / ext4 defaults 0 1\n{line}\n")
    made = make(root=root_of(make_ext4(tree, tmp_path / "other.ext4")), start=False)
    if refused:
        with pytest.raises(ImageError, match=r'"/(var|usr/)" is a mount of its own, and') as caught:
            made.machine.start()
        assert caught.value.hint == "--machine qemu"
    else:
        made.machine.start()


def test_root_that_is_no_file_system_is_refused(make: Make, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(bytes(1 << 20))
    made = make(root=root_of(empty), start=False)
    with pytest.raises(HostError, match="cannot mount the root of a container"):
        made.machine.start()
    # A layer that was never used does not count as one.
    assert not list((tmp_path / "tiny").glob("*.ext4"))


def test_root_with_a_damaged_superblock_is_the_images_fault(
    tree: Path, make: Make, tmp_path: Path
) -> None:
    file = make_ext4(tree, tmp_path / "other.ext4")
    with file.open("r+b") as stream:
        # A part of a name, which only the checksum protects.
        stream.seek(1024 + 0x88)
        stream.write(b"x")
    made = make(root=root_of(file), start=False)
    with pytest.raises(ImageError, match="cannot mount the root of a container"):
        made.machine.start()


def test_full_layer_is_the_guests_error_and_it_goes_on(make: Make) -> None:
    made = make(layer_bytes=8 << 20)
    shell = attached(made.machine)
    done = shell.run("cat /dev/zero >/root/all")
    assert done.rc != 0
    assert b"No space left" in done.stderr
    assert shell.run("echo on").text == "on"
    assert shell.run("rm /root/all && echo again >/root/small && cat /root/small").text == "again"
    made.machine.kill()
    layer = made.machine.directory / "changes.ext4"
    assert layer.stat().st_size == 8 << 20


def test_memory_and_processes_are_bounded(make: Make) -> None:
    made = make(memory_mib=96)
    assert made.machine.unbounded == ""
    keeper = made.machine._keeper
    assert keeper is not None
    folders = {Path(each).parent for each in made.machine._ask("entrances")}
    limits = {}
    for folder in folders:
        for name in ("memory.max", "memory.limit_in_bytes", "pids.max"):
            if (folder / name).exists():
                limits[name.partition(".")[0]] = int((folder / name).read_text())
    assert limits == {"memory": 96 << 20, "pids": 4096}
    init = made.machine._init()
    assert name_of(keeper.pid) in Path(f"/proc/{init}/cgroup").read_text()
    # It is killed for its memory, and nobody else.
    shell = attached(made.machine)
    assert shell.run("tail /dev/zero", timeout=60).rc in (1, 137)
    assert shell.run("echo on").text == "on"
    assert made.machine.resident_mib() < 96


def test_own_messages_of_two_containers_are_not_mixed(make: Make) -> None:
    first, second = make(), make(name="second")
    for made, word in ((first, "one"), (second, "two")):
        attached(made.machine).run(f"echo {word} >/root/word; hostname {word}").check()
    for made, word in ((first, "one"), (second, "two")):
        assert attached(made.machine).run("cat /root/word; hostname").text.split() == [word, word]
    first.machine.kill()
    assert attached(second.machine).run("echo on").text == "on"


def test_image_is_not_written_to(make: Make, tiny: Root) -> None:
    before = tiny.path.read_bytes()
    made = make()
    attached(made.machine).run("rm -rf /root; echo x >/etc/new; chown 5 /bin/busybox").check()
    made.machine.kill()
    assert tiny.path.read_bytes() == before


def test_device_nodes_of_an_image_are_of_no_use(make: Make, tmp_path: Path) -> None:
    tree = plant(tmp_path / "tree")
    # The memory device /dev/zero, and the first loop device; for everybody.
    for name, kind, major, minor in (("zero", "c", "1", "5"), ("loop", "b", "7", "0")):
        subprocess.run(["mknod", "-m", "666", tree / "root" / name, kind, major, minor], check=True)
    root = root_of(make_ext4(tree, tmp_path / "other.ext4", "-O", "^has_journal"))
    made = make(root=root)
    shell = attached(made.machine)
    for command in ("head -c 1 /root/zero", "exec 3</root/loop"):
        done = shell.run(f"({command}) 2>&1")
        assert done.rc != 0
        assert "Permission denied" in done.text
    remount = "mount -o remount,dev /; mount -o remount,bind,dev /; head -c 1 /root/zero"
    assert shell.run(remount).rc != 0
    # nspawn's own are.
    assert shell.run("head -c 2 /dev/zero | wc -c; echo x >/dev/null").text == "2"
