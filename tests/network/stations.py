"""Helpers for tests of segments: addresses, stations, and servers that answer."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from ipaddress import IPv4Network
from pathlib import Path

from hotplate.network.dhcp import Subnet
from hotplate.network.segment import Port
from hotplate.timing.deadline import Deadline, retry


def subnet(number: int = 0, **options: object) -> Subnet:
    network = IPv4Network(f"10.0.{number}.0/24")
    return Subnet(network, network[2], **options)  # type: ignore[arg-type]


def mac(port: int, segment: int = 0) -> str:
    return f"fa:16:3e:00:{segment:02x}:{port:02x}"


class Station:
    """A namespace on a port's cable, which runs commands."""

    def __init__(self, port: Port, mac: str = "") -> None:
        with port.plug() as cable:
            self.process = subprocess.Popen(
                [
                    *("unshare", "-rn", "--kill-child", "--fork"),
                    *(sys.executable, Path(__file__).with_name("station.py")),
                    *(str(cable.fileno()), mac or port.mac),
                    "yes" if any(each.version == 6 for each in port.addresses) else "no",
                ],
                pass_fds=[cable.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._answer() == (0, "ready")

    def _answer(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        status, text = json.loads(self.process.stdout.readline())
        return status, text

    def run(self, command: str) -> tuple[int, str]:
        """Run a shell command there; return its exit status and output."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def configure(self, address: str, *commands: str) -> None:
        """Set an address without DHCP, and the route to the metadata address."""
        services = address.rpartition(".")[0] + ".2"
        lines = [
            "ip address flush dev eth0",
            f"ip address add {address}/24 dev eth0",
            f"ip route replace 169.254.169.254 via {services}",
            *commands,
        ]
        status, text = self.run(" && ".join(lines))
        assert status == 0, text

    def ask(self, address: str, port: int = 80, *, seconds: float = 15.0) -> str:
        """Return the answer of a server there; "" when there is none in that time."""
        return self.run(f"python3 -c '{ASK}' {address} {port} {seconds}")[1].strip()

    def serve(self, port: int, command: str) -> None:
        """Run a command in the background that listens on a TCP port, and wait until it does."""
        listens = f"grep -q ':{port:04X} 0*:0000 0A ' /proc/self/net/tcp*"
        wait = f"for try in $(seq 1000); do {listens} && exit; sleep 0.02; done; exit 1"
        status, _ = self.run(f"({command}) >/dev/null 2>&1 & {wait}")
        assert status == 0, f"nothing listens on {port}: {command}"

    def pings(self, address: str, *, tries: int = 5, options: str = "") -> bool:
        """Return whether an address answers one of so many pings; the first answer ends it."""
        ping = f"busybox ping -c 1 -W {2 if tries > 1 else 1} {options} {address}"
        return self.run(f"for try in $(seq {tries}); do {ping} && exit; done; exit 1")[0] == 0

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def refused(port: Port, reason: str) -> int:
    """Return how many frames of a port were refused for a reason."""
    return port.counts().get(f"refused: {reason}", 0)


def until_refused(port: Port, reason: str, *, more_than: int = 0) -> int:
    """Return their number once there are more; the switch handles frames a moment later."""
    deadline = Deadline(60, "the refusal")
    return retry(
        lambda _: (number := refused(port, reason)) > more_than and number, deadline, every=0.02
    )


ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as server:
        server.sendall(b"ask")
        print(server.recv(100).decode())
except OSError:
    print()
"""


class Answerer:
    """Answers every connection on a port's listeners with a name, and records the senders."""

    def __init__(self, port: Port, name: str) -> None:
        self.senders: list[str] = []
        for listener in (*port.listeners.values(), *port.ipv6_listeners.values()):
            threading.Thread(target=self._serve, args=(listener, name), daemon=True).start()

    def _serve(self, listener: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, sender = listener.accept()
                with connection:
                    self.senders.append(sender[0])
                    connection.recv(100)
                    connection.sendall(f"{name}\n".encode())
