"""``--ssh-jump`` with OpenSSH's own client and servers: with one jump host, two, and none."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import GOOD, ends, expecting
from played_cases import wait_until
from ssh_hosts import Host, lab, log_in, make_key, write
from ssh_server import ssh_server

from hotplate.elsewhere.ways import COMPLAINT_BYTES, WayProgram

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


@dataclass
class Place:
    """A client, two jump hosts and a server in a row; each sees only its neighbours."""

    client: Host
    first: Host
    second: Host
    server: Host
    folder: Path
    #: The first jump host's address for the client, and so on.
    beside_first: str
    beside_second: str
    beside_server: str

    def log_in(self, **words: object) -> dict[str, Any]:
        return log_in(
            self.client, {"key": self.folder / "key", "address": self.beside_server, **words}
        )

    @property
    def known_hosts(self) -> Path:
        return self.client.folder / "home" / ".ssh" / "known_hosts"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("jump")
    with lab(folder) as rooms:
        client = rooms.host("client", server=False)
        first, second, server = (rooms.host(name) for name in ("first", "second", "server"))
        _, beside_first = rooms.connect(client, first)
        _, beside_second = rooms.connect(first, second)
        _, beside_server = rooms.connect(second, server)
        home = client.folder / "home" / ".ssh"
        mine = make_key(home / "id_ed25519")
        first.let_in(mine)
        second.let_in(mine)
        server.let_in(make_key(folder / "key"))
        made = Place(
            *(client, first, second, server, folder), beside_first, beside_second, beside_server
        )
        jumps = {beside_first: first, beside_second: second}
        write(
            made.known_hosts,
            *(f"{name} {host.public_key}" for name, host in jumps.items()),
            f"[{beside_first}]:2222 {first.public_key}",
        )
        yield made


@pytest.fixture(scope="module")
def near(place: Place) -> Place:
    """The same, with the second jump host as the server behind one."""
    place.second.let_in(
        *(place.second.folder / "authorized_keys").read_text().splitlines(),
        (place.folder / "key.pub").read_text().strip(),
    )
    return place


def test_server_is_reached_by_one_jump_host(near):
    came = near.log_in(address=near.beside_second, jump=f"jump@{near.beside_first}:2222")
    assert (came["user"], came["by_key_pair"], came["lines"][0]) == ("root", True, "hello")
    # The server was reached from the jump host.
    assert came["lines"][1].split()[2] == near.beside_second
    assert came["lines"][1].split()[0].rpartition(".")[0] == near.beside_second.rpartition(".")[0]
    assert "Accepted publickey for jump" in near.first.log


@pytest.mark.parametrize("way", ["option", "config"])
def test_server_is_reached_by_two_jump_hosts(place, way):
    jumps = f"jump@{place.beside_first},jump@{place.beside_second}"
    if way == "option":
        came = place.log_in(jump=jumps)
    else:
        lines = (f"Host {place.beside_server}", f"ProxyJump {jumps}")
        came = place.log_in(config=write(place.folder / "config", *lines))
    assert (came["user"], came["lines"][0]) == ("root", "hello")
    assert came["lines"][1].split()[2] == place.beside_server


def test_server_is_unreachable_without_jump_hosts(place):
    """Otherwise the other tests would prove nothing."""
    came = place.log_in(until="gave up")
    assert came["error"] == "DeadlineExceeded"


REFUSALS = {
    "a key that is not taken": ("stranger@{first}", "Permission denied (publickey)"),
    "no forwarding": ("shut@{first}", "administratively prohibited"),
    "nobody listens": ("jump@{first}:23", "Connection refused"),
    "no such network": ("jump@203.0.113.7", "Network is unreachable"),
    "no such name": ("jump@nowhere.invalid", "Could not resolve hostname nowhere.invalid"),
    "the second is not there": ("jump@{first},jump@{second}:23", "UNKNOWN port 65535"),
    "the second takes no key": ("jump@{first},stranger@{second}", "Permission denied (publickey)"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_of_a_jump_host_is_quoted_as_a_host_error(place, case):
    jump, words = REFUSALS[case]
    jump = jump.format(first=place.beside_first, second=place.beside_second)
    came = place.log_in(jump=jump, until=words)
    assert came["error"] == "HostError", came
    start = f'the jump host "{jump}" gives no way to {place.beside_server}: '
    assert came["message"].startswith(start)
    assert words in came["message"]
    assert came["hint"] == f"ssh -J {jump} {place.beside_server}"


def test_unknown_jump_host_key_is_a_host_error(place):
    before = place.known_hosts.read_text()
    write(place.known_hosts)
    try:
        came = place.log_in(jump=f"jump@{place.beside_first}")
    finally:
        write(place.known_hosts, *before.splitlines())
    assert came["error"] == "HostError"
    assert "Host key verification failed" in came["message"]


def test_server_refusing_the_jump_host_is_no_host_error(near):
    """A guest without an ssh server; the jump host's message about it is quoted."""
    config = write(near.folder / "other-port", "Host *", "Port 24")
    words = {"config": config, "address": near.beside_second, "jump": f"jump@{near.beside_first}"}
    came = near.log_in(**words, until="open failed: connect failed: Connection refused")
    assert came["error"] == "DeadlineExceeded", came
    assert came["message"].startswith("gave up waiting for ssh")
    assert "open failed: connect failed: Connection refused" in came["message"]


@pytest.mark.slow
def test_run_refused_by_a_jump_host_is_a_host_error(cloud, tmp_path):
    """Its stack exists, but its server cannot be checked."""
    cloud.roles["web"] = GOOD
    expect = expecting(cloud.folder, files={"/etc/passwd": "present"})
    # It refuses all users, and its host key is unknown: both are final.
    with ssh_server(set, root=True) as port:
        jump = f"jump@127.0.0.1:{port}"
        ends(cloud.try_it("-t", expect, "--ssh-jump", jump), 3)
    assert cloud.verdict()["outcome"] == "host error"
    assert f'the jump host "{jump}" gives no way to ' in cloud.verdict()["reasons"][-1]


# -- the program alone ---------------------------------------------------------------------------


def ended(command: str, *, jump: str = "jump") -> WayProgram:
    """Return a program that has ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        program = WayProgram(command, theirs, environment=ENVIRONMENT, jump=jump)
        while not program.has_ended:
            time.sleep(0.01)
        program.complaint  # noqa: B018 - all of it is read.
    program.end()
    return program


def test_end_of_long_messages_is_kept():
    program = ended("sh -c 'head -c 3000000 /dev/zero >&2; printf \"\\nthe end\\n\" >&2; exit 7'")
    assert program.complaint.endswith("; the end")
    assert len(program.complaint) <= COMPLAINT_BYTES
    assert program.is_refused and not program.is_refused_for_good


def test_refusal_needs_a_message_of_the_jump_host():
    says = "sh -c 'echo \"{}\" >&2; exit 255'"
    assert ended(says.format("me@host: Permission denied (publickey).")).is_refused_for_good
    refused = says.format("channel 0: open failed: connect failed: Connection refused")
    assert not ended(refused).is_refused
    # A program of the user's own may write any message.
    assert not ended(says.format("Permission denied"), jump="").is_refused
    assert not ended("true").is_refused


def test_children_of_a_program_end_with_it(tmp_path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = f"sh -c 'sleep 1000 & echo $! > {tmp_path}/pid; echo begun; wait'"
        program = WayProgram(command, theirs, environment=ENVIRONMENT, jump="jump")
        assert ours.recv(100) == b"begun\n"
        program.end()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: is_gone(pid))


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    # Its present parent may not have collected it yet.
    return stat.rpartition(")")[2].split()[0] in ("Z", "X")
