"""Thousands of malformed answers: no crash, no change, and a pause after every round."""

from __future__ import annotations

import gzip
import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from heat_agent.collect import agent
from raw_server import Listener, request
from stub_server import Asked

from .conftest import (
    HOOKS,
    PASSWORD,
    SECRET,
    Cloud,
    Guest,
    agent_of,
    cfn_answer,
)

ANSWERS = 3_000
SEED = 12
SHORTEST = 0.2
#: Enough for a good answer of the listener, whose threads share a busy host.
TIMEOUT = 1.5
GOOD = {"deployments": [{"name": "web", "config": {"port": 80}}], "text": "ünïcode", "n": [1, 2]}
JSON = "application/json"


def http(body: bytes, status: int = 200, kind: str = JSON, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Some", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Content_Length" not in headers and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def bodies(source: str, chance: random.Random) -> Iterator[bytes]:
    """Generate bodies that *source* must reject."""
    wrapped = {"heat": {"metadata": GOOD}, "zaqar": {"messages": [{"body": GOOD}]}}
    good = json.dumps(wrapped.get(source, GOOD)).encode()
    good = cfn_answer(GOOD) if source == "cfn" else good
    types: list[Any] = [None, True, 0, 1.5, "x", [], [1], [[]], ["deployments"], -0.0, 10**400]
    while True:
        yield good[: chance.randrange(len(good) - 1)]
        yield bytes(chance.randrange(256) for _ in range(chance.randrange(1, 60)))
        value: Any = chance.choice(types)
        if source == "cfn":
            yield cfn_answer(json.dumps(value))
            yield cfn_answer(good.decode()[: chance.randrange(40)])
            yield b"<a>" * chance.randrange(1, 3000)
            yield good.replace(b"Metadata>", b"Metadatum>")
            yield good.replace(b"StackResourceDetail", b"Detail", chance.randrange(1, 3))
            yield (
                b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "bbbbbbbb">'
                b'<!ENTITY c "&b;&b;&b;&b;&b;&b;">]><a>&c;</a>'
            )
            declared = chance.choice([b"utf-7", b"punycode", b"utf-32", b"hex", b"nothing", b"-"])
            yield b'<?xml version="1.0" encoding="' + declared + b'"?>' + good
            yield good.replace(b"&quot;", b"&nothing;").replace(b'"', b"&nothing;")
        elif source == "heat":
            yield json.dumps({"metadata": value}).encode()
        elif source == "zaqar":
            entry = {"body": value}
            strange = chance.choice([value, [value], [entry], {"0": entry}, [[entry]]])
            if strange != []:  # an empty queue is valid
                yield json.dumps({"messages": strange}).encode()
        yield json.dumps(value).encode()
        depth = chance.choice([10, 900, 5000, 100_000])
        yield b'{"a":' * depth + b"1" + b"}" * chance.choice([depth - 1, 0])
        yield b"[" * depth
        yield good.decode().encode("utf-16") + b"\xd8"
        yield good.replace(b"u00fc", b"\xfc", 1).replace(b"&#252;", b"\xfc", 1) + b"\xff"
        yield b"<!DOCTYPE html><html><body>Log in</body></html>"
        yield b""


def malformed(source: str, chance: random.Random) -> Iterator[bytes | list[bytes]]:
    """Generate whole answers that *source* must reject."""
    plain = bodies(source, chance)
    url = f"/loop/{source}"
    while True:
        for _ in range(12):
            yield http(next(plain), kind=chance.choice([JSON, "text/html", "a", "", "x/y;charset"]))
        yield http(next(plain), kind=f"text/plain; charset={chance.choice(['utf-7', 'hex', '💥'])}")
        yield http(b"{}", status=chance.choice([400, 401, 403, 404, 409, 429, 500, 502, 503, 599]))
        yield http(b"", 503, Retry_After=chance.choice(["-1", "1e9", "soon", "²", "9" * 400]))
        yield http(b"{}", 302, Location=url)
        yield http(b"", 301, Location=chance.choice(["file:///etc/passwd", "//", "http://[", ":"]))
        yield http(b"", 304)
        yield http(b"{}", Content_Length=chance.choice(["-1", "9" * 18, "9" * 90, "x", "1_0", "5"]))
        yield http(b"fffffffff\r\n{}", Transfer_Encoding="chunked")
        yield http(
            chance.choice([b"-1\r\n{}", b"zz\r\n", b"2\r\n{}{}\r\n0\r\n\r\n", b"2\r\n{"]),
            Transfer_Encoding="chunked",
        )
        yield http(b"garbage", Content_Encoding=chance.choice(["gzip", "deflate"]))
        yield http(gzip.compress(b"[" * 100_000)[:-9], Content_Encoding="gzip")
        yield b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * chance.choice([3, 5000])
        yield (
            b"HTTP/1.1 " + chance.choice([b"", b"2 OK", b"abc x", b"99999", b"099 x"]) + b"\r\n\r\n"
        )
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * chance.choice([1, 50])
        yield b"HTTP/1.1 200 OK\r\nX: " + b"y" * chance.choice([10, 100_000])
        yield chance.choice(
            [b"", b"\r\n\r\n", b"\0" * 100, b"SSH-2.0-OpenSSH_9\r\n", b"\x16\x03\x01"]
        )


def slow(body: bytes) -> list[bytes]:
    """A slow answer, which would take a minute."""
    return [b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n", *(bytes((b,)) for b in body * 60)]


class Mangled:
    """The agent of all remote sources in this process, and the listener that it polls."""

    def __init__(self, guest: Guest, cloud: Cloud) -> None:
        self.cloud = cloud
        self.answers: dict[str, Iterator[bytes | list[bytes]]] = {}
        self.count = 0
        self.wire = Listener(self._serve)
        self.sentences: list[str] = []
        self.runs = 0
        cloud.url = self.wire.url
        cloud.documents.update({"cfn:server": GOOD, "heat": GOOD, "request": GOOD})
        cloud.queue[:] = [GOOD]
        user = f"auth_url = {cloud.url}/keystone/v3\nuser_id = u1\npassword = {PASSWORD}\n"
        guest.conf(
            f"[cfn]\nmetadata_url = {cloud.url}/cfn/v1/\nstack_name = demo\naccess_key_id = ak\n"
            f"secret_access_key = {SECRET}\npath = server.Metadata\ntimeout = {TIMEOUT}\n"
            f"[request]\nmetadata_url = {cloud.url}/swift/o?temp_url_sig={SECRET}\n"
            f"timeout = {TIMEOUT}\n"
            f"[heat]\n{user}project_id = p1\nstack_id = demo/sid-1\nresource_name = server\n"
            f"[zaqar]\n{user}project_id = p1\nqueue_id = q1\n",
            "true",
            collectors="cfn\ncollectors = heat\ncollectors = request\ncollectors = zaqar",
            min_polling_interval=SHORTEST,
            polling_interval=1,
        )
        self.agent = agent_of(
            guest, self._run, lambda _level, sentence: self.sentences.append(sentence)
        )

    def _run(self, command: str, paths: list[str]) -> int:
        self.runs += 1
        return 0

    def _serve(self, connection: socket.socket) -> None:
        """Answer one request with arbitrary bytes; a list of them is sent slowly."""
        answer = self._answer(request(connection))
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return
        for part in answer:
            connection.sendall(part)
            time.sleep(TIMEOUT / 3)

    def _answer(self, asked: Asked) -> bytes | list[bytes]:
        place = asked.path.split("?")[0].split("/")
        source = place[2] if place[1] == "loop" else place[1]
        source = "request" if source == "swift" else source
        if source in self.answers:
            self.count += 1
            if place[1] == "loop":
                return http(b"", 302, Location=asked.path)
            return next(self.answers[source])
        reply = self.cloud.answer(asked)
        more = {name.replace("-", "_"): value for name, value in reply.headers.items()}
        return http(reply.body, reply.status, **{"kind": more.pop("Content_Type", JSON), **more})


@pytest.fixture
def mangled(guest: Guest, cloud: Cloud) -> Iterator[Mangled]:
    url = cloud.url
    made = Mangled(guest, cloud)
    with made.wire:
        assert made.agent.round()[0] == 0  # the command runs for good documents
        yield made
    cloud.url = url


def cache_of(guest: Guest) -> dict[str, Any]:
    return {name: content for name, content in guest.files().items() if name.startswith("cache/")}


def test_malformed_answers_change_nothing(mangled, guest):
    before = cache_of(guest)
    assert len(before) > 12
    chance = random.Random(SEED)
    sources = ("cfn", "heat", "request", "zaqar")
    mangled.answers = {name: malformed(name, chance) for name in sources}
    while mangled.count < ANSWERS:
        at = mangled.count
        status, pause = mangled.agent.round()
        assert status is None, mangled.sentences[-8:]
        assert pause >= SHORTEST / 2
        assert mangled.count > at
    assert cache_of(guest) == before
    assert mangled.runs == 1
    talk = "\n".join(mangled.sentences)
    assert "unexpectedly" not in talk
    assert SECRET not in talk and PASSWORD not in talk and "temp_url_sig" not in talk
    mangled.answers = {}
    mangled.cloud.documents["heat"] = {"new": 1}
    assert mangled.agent.round()[0] == 0  # the agent still works


def test_malformed_tokens_are_refused(mangled, guest):
    before = cache_of(guest)
    chance = random.Random(SEED)
    mangled.answers = {"keystone": malformed("keystone", chance)}
    mangled.cloud.refused = {f"gAAAA-token-of-the-user-{n}" for n in range(9)}
    for _ in range(100):
        status, pause = mangled.agent.round()
        assert status is None and pause >= SHORTEST / 2
    assert cache_of(guest) == before
    assert "unexpectedly" not in "\n".join(mangled.sentences)


def test_slow_answer_times_out(mangled, guest):
    before = cache_of(guest)
    mangled.answers = {name: iter([slow(b"{ }      ")] * 9) for name in ("cfn", "request")}
    status, pause = mangled.agent.round()
    assert status is None and pause >= SHORTEST / 2
    assert cache_of(guest) == before
    talk = "\n".join(mangled.sentences)
    assert talk.count(f"did not answer within {TIMEOUT:g} seconds") == 2


def test_answers_that_are_too_long_are_refused(mangled, guest):
    before = cache_of(guest)
    huge = b'{"a": "' + b"x" * (17 << 20) + b'"}'
    chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
    mangled.answers = {
        "cfn": iter([http(gzip.compress(huge), Content_Encoding="gzip")]),
        "request": iter([http(chunk * 17, Transfer_Encoding="chunked")]),
        "heat": iter([http(huge)]),
    }
    assert mangled.agent.round()[0] is None
    assert cache_of(guest) == before
    assert "\n".join(mangled.sentences).count("is longer than") == 3


def test_tested_agent_is_that_of_this_checkout(mangled):
    """The rounds above are those of the program in this checkout."""
    assert agent.__file__.startswith(str(HOOKS))
