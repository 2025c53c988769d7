"""A machine without QEMU: a network namespace on a port's cable, in which programs run.

Run as ``unshare -rn python station.py FD MAC IPV6``: each line of JSON in is a command for sh, each
line out its exit status and output.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hotplate.network import links

#: A limit of each command, which only ends what hangs.
SECONDS = 120


def receive(source: socket.socket) -> bytes:
    """Wait for a frame, and return it with the tag of its VLAN."""
    if source.family != socket.AF_PACKET:
        return source.recv(4096)
    select.select([source], [], [])
    return links.receive(source, 4096)


def carry(source: socket.socket, sink: socket.socket) -> None:
    """Carry frames one way until the cable is gone."""
    while frame := receive(source):
        try:
            sink.send(frame)
        except OSError:
            continue


def main(descriptor: int, mac: str, ipv6: str) -> None:
    for setting in ("all", "default"):
        settings = Path("/proc/sys/net/ipv6/conf") / setting
        (settings / "disable_ipv6").write_text("0" if ipv6 == "yes" else "1")
        (settings / "accept_dad").write_text("0")
    commands = [
        "link set lo up",
        f"link add name eth0 address {mac} type veth peer name wire",
        "link set wire arp off up",
        "link set eth0 up",
    ]
    links.run("ip", commands)
    links.finish_frames("eth0")
    cable, wire = socket.socket(fileno=descriptor), links.tap("wire")
    for pair in ((cable, wire), (wire, cable)):
        threading.Thread(target=carry, args=pair, daemon=True).start()
    print(json.dumps([0, "ready"]), flush=True)
    for line in sys.stdin:
        try:
            done = subprocess.run(
                ["sh", "-c", json.loads(line)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
            )
            answer = [done.returncode, done.stdout.decode(errors="replace")]
        except subprocess.TimeoutExpired:
            answer = [124, ""]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
