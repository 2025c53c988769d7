"""A hostile container: what it cannot reach of the host, and what it cannot take from others.

It is root inside. The harness is this process, and beside the container another one works.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from hotplate.container.guest_files import FOLDER
from hotplate.container.machine import PROCESSES, ContainerMachine
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed import warm_state as warm
from hotplate.timing.deadline import GuestDeadline, retry
from tests.booted.hostile import attack

pytestmark = pytest.mark.xdist_group("hostile_container")

#: Each process starts two more, for good.
FORK_BOMB = """\
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
"""
#: Ends with 1 when the kernel refuses modules of it. The number is that of x86_64.
LOAD_MODULE = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(175, None, 0, None)
exit(ctypes.get_errno() == errno.EPERM)
"""
#: Takes memory until it is killed.
ALL_MEMORY = """\
import time
held = []
while True:
    held.append(b"x" * (8 << 20))
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def bad(testbed, good) -> ServerUnderTest:
    return ServerUnderTest(LocalPlatform(testbed, warm.boot(testbed)))


def machine_of(server: ServerUnderTest) -> ContainerMachine:
    machine = server._server.machine
    assert isinstance(machine, ContainerMachine)
    return machine


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


# -- of the host, nothing is reached ---------------------------------------------------------------


def test_root_inside_is_an_unprivileged_user_outside(bad):
    machine = machine_of(bad)
    bad.run("(sleep 300 >/dev/null 2>&1 &)").check()
    found = machine._ask("processes")
    init = machine._init()
    assert init in found
    for pid in {*found}:
        try:
            users = [int(each) for each in status_of(pid)["Uid"].split()]
            (row,) = Path(f"/proc/{pid}/uid_map").read_text().splitlines()
            namespace = Path(f"/proc/{pid}/ns/user").readlink()
        except OSError:
            # It has ended meanwhile; init has not, see below.
            continue
        if namespace != Path("/proc/self/ns/user").readlink():
            assert min(users) >= 524288
            assert int(row.split()[1]) == min(users) - min(users) % 65536
    assert status_of(init)["Uid"].split()[0] != "0"
    # Another one for each container.
    assert bad.run("cat /proc/self/uid_map").text != ""


def test_host_processes_are_not_seen(bad):
    pids = [int(each) for each in bad.run("cd /proc; echo [0-9]*").text.split()]
    # A process namespace of its own, in which init is 1.
    assert 1 in pids
    assert bad.run("cat /proc/1/comm").text == "systemd"
    assert len(pids) < 100
    assert bad.run(f"kill -0 {os.getpid()} 2>&1").rc != 0
    names = bad.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").text
    assert "pytest" not in names
    assert "systemd-nspawn" not in names


def test_host_mounts_and_files_are_not_seen(bad, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    mounts = bad.run("cat /proc/self/mountinfo").text
    assert str(tmp_path) not in mounts
    host_folders = [each for each in ("/work", "/srv/host", str(tmp_path)) if Path(each).exists()]
    for each in host_folders:
        assert bad.run(["test", "-e", each]).rc != 0
    # Neither by the process file system, nor by a way out of a chroot.
    assert bad.run("ls /proc/1/root/tmp").text == bad.run("ls /tmp").text
    escape = (
        "import os; os.mkdir('/tmp/x'); os.chroot('/tmp/x'); [os.chdir('..') for _ in range(99)];"
        "os.chroot('.'); print(os.path.exists('/run/hotplate-shell'))"
    )
    assert bad.run(["python3", "-c", escape]).text == "True"


def test_files_of_the_harness_in_the_guest_cannot_be_changed(bad):
    for command in (
        "echo x >/run/host/hotplate/shell",
        "touch /run/host/hotplate/new",
        "mount -o remount,rw,bind /run/host/hotplate",
        "rm /run/host/hotplate/hotplate-shell.socket",
    ):
        assert bad.run(command).rc != 0, command


def test_nonce_of_the_shell_is_read_by_root_only(bad):
    read = f"cat {FOLDER}/shell"
    assert bad.run(read).rc == 0
    assert bad.run(f"setpriv --reuid=65534 --clear-groups {read}").rc != 0


def test_ipv6_addresses_are_used_at_once(bad):
    files = "/proc/sys/net/ipv6/conf/all/accept_dad /proc/sys/net/ipv6/conf/e*/accept_dad"
    assert set(bad.run(f"cat {files}").text.split()) == {"0"}


def test_host_network_is_not_reached(bad):
    with socket.create_server(("0.0.0.0", 0)) as listener:
        taken: list[object] = []

        def take() -> None:
            try:
                while True:
                    taken.append(listener.accept())
            except OSError:
                pass

        threading.Thread(target=take, daemon=True).start()
        port = listener.getsockname()[1]
        addresses = subprocess.run(
            ["hostname", "-I"], check=True, capture_output=True, text=True
        ).stdout.split()
        connect = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
        for address in ("127.0.0.1", "169.254.169.254", "10.0.2.2", *addresses):
            assert bad.run(["python3", "-c", connect, address, str(port)]).rc != 0, address
        assert taken == []
    interfaces = {
        line.split(":")[0].strip()
        for line in bad.run("cat /proc/net/dev").stdout.decode().splitlines()[2:]
    }
    assert interfaces == {"lo", "ens4"}
    # Nor a socket in the abstract namespace, which has no file.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0hotplate-{os.getpid()}")
        listener.listen()
        ask = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0hotplate-{os.getpid()}')"
        assert bad.run(["python3", "-c", ask]).rc != 0


def test_kernel_and_clock_of_the_host_are_not_changed(bad):
    before = time.time()
    host_name = socket.gethostname()
    core = Path("/proc/sys/kernel/core_pattern").read_text()
    for command in (
        "python3 -c 'import time; time.clock_settime(time.CLOCK_REALTIME, 1)'",
        "echo x >/proc/sys/kernel/core_pattern",
        "echo 1 >/proc/sys/vm/drop_caches",
        "echo 1 >/proc/sys/kernel/sysrq",
        "echo b >/proc/sysrq-trigger",
        "echo x >/sys/kernel/uevent_helper",
        "echo 1 >/sys/block/loop0/queue/nr_requests",
        "mount -o remount,rw /sys && echo x >/sys/kernel/mm/ksm/run",
        "mount -o remount,rw /proc/sys && echo x >/proc/sys/kernel/core_pattern",
        "mount -t proc proc /mnt && echo x >/mnt/sys/kernel/core_pattern",
        "mount -t sysfs sysfs /mnt && echo 1 >/mnt/kernel/mm/ksm/run",
        "mount -t debugfs none /mnt",
        "mount -t tracefs none /mnt",
        "mount -t securityfs none /mnt",
        "mount -t bpf none /mnt && ls /mnt/.",
        # init_module(2): only this error, and not one for missing arguments.
        f"python3 -c '{LOAD_MODULE}'",
        "dmesg -C",
        "swapon /dev/vda",
        "kexec -e",
    ):
        assert bad.run(f"({command}) 2>&1").rc != 0, command
        bad.run("umount /mnt 2>/dev/null; true")
    assert b"not permitted" in bad.run("date -s 2001-01-01").stderr
    bad.run("hostname other").check()
    assert socket.gethostname() == host_name
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core
    assert abs(time.time() - before) < 600


def test_devices_of_the_host_are_not_opened(bad):
    for major, minor in ((7, 0), (254, 0), (8, 0), (1, 1), (10, 237), (10, 229), (5, 1)):
        kind = "b" if major in (7, 254, 8) else "c"
        command = f"mknod /root/node {kind} {major} {minor} && exec 3</root/node"
        assert bad.run(f"({command}) 2>&1").rc != 0, command
        bad.run("rm -f /root/node").check()
    present = bad.run("find /dev -type b").text
    assert present == ""
    for command in (
        "losetup -f --show /etc/os-release",
        "truncate -s 16M /root/disk && mkfs.ext4 -q /root/disk && mount -o loop /root/disk /mnt",
    ):
        assert bad.run(f"({command}) 2>&1").rc != 0, command
    # The nodes of the image's own /dev are of no use either: it is mounted without devices.
    assert bad.run("rm -f /root/disk; cat /dev/null; echo on").text == "on"


def test_bus_and_sockets_of_the_host_are_not_reached(bad):
    for path in ("/run/dbus/system_bus_socket", "/run/systemd/private", "/run/docker.sock"):
        outside = Path(path)
        inode = outside.stat().st_ino if outside.exists() else None
        seen = bad.run(["stat", "-c", "%i", path])
        assert seen.rc != 0 or int(seen.text) != inode
    folders = "/run/systemd/nspawn /run/systemd/machines"
    assert bad.run(f"find {folders} -mindepth 1 2>/dev/null").text == ""


def test_control_groups_cannot_be_left_or_widened(bad):
    machine = machine_of(bad)
    before = limits_of(machine)
    bad.run(
        "for file in $(find /sys/fs/cgroup -name memory.max -o -name pids.max "
        "-o -name memory.limit_in_bytes); do echo max >$file; echo -1 >$file; done 2>/dev/null; "
        "mkdir /mnt/group; for kind in cgroup2 cgroup; do "
        "mount -t $kind none /mnt/group 2>/dev/null && echo 0 >/mnt/group/cgroup.procs; "
        "umount /mnt/group; done; true"
    )
    assert limits_of(machine) == before
    assert machine._init() in machine._ask("processes")


def limits_of(machine: ContainerMachine) -> dict[str, str]:
    names = ("memory.max", "memory.limit_in_bytes", "pids.max")
    folders = [Path(each).parent for each in machine._ask("entrances")]
    files = [folder / name for folder in folders for name in names if (folder / name).exists()]
    found = {str(file): file.read_text().strip() for file in files}
    assert str(PROCESSES) in found.values()
    return found


# -- of the others, nothing is taken --------------------------------------------------------------


def left_kib(server: ServerUnderTest) -> int:
    return int(server.run("df -k --output=avail /").text.split()[1])


def test_full_layer_does_not_disturb_the_other_container(bad, good):
    command = "cat /dev/zero >/root/all; sync; sleep 60"
    with attack(bad, good, "disk", command):
        retry(lambda _: left_kib(bad) < 1024, GuestDeadline(300, "a full layer"))
    bad.run("systemctl stop attack-disk; rm -f /root/all; true")


def test_fork_bomb_does_not_disturb_the_other_container(bad, good):
    machine = machine_of(bad)
    bad.copy_in(FORK_BOMB.encode(), "/root/bomb.py")
    with attack(bad, good, "bomb", "exec python3 /root/bomb.py"):
        count = retry(
            lambda _: (number := len(machine._ask("processes"))) >= 500 and number,
            GuestDeadline(300, "500 processes"),
            every=0.2,
        )
        print(f"processes: {count}")
        assert count <= PROCESSES
    again(bad)


@pytest.mark.parametrize(
    "command",
    ["exec python3 /root/memory.py", "cat /dev/zero >/dev/shm/all; cat /dev/zero >/run/all"],
    ids=["allocated", "file in memory"],
)
def test_all_memory_does_not_disturb_the_other_container(bad, good, command):
    machine = machine_of(bad)
    bad.copy_in(ALL_MEMORY.encode(), "/root/memory.py")
    with attack(bad, good, "memory", command):
        until = time.monotonic() + 3
        while time.monotonic() < until and machine.running:
            assert machine.resident_mib() <= machine.config.memory_mib + 8
            time.sleep(0.1)
    again(bad)


def again(server: ServerUnderTest) -> None:
    """Cut a container off, and start it anew; it is as good as the other one then."""
    began = time.monotonic()
    server._server.machine.kill()
    print(f"ended in {time.monotonic() - began:.1f} s")
    server.start()
    assert server.run("echo on").text == "on"
