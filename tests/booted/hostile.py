"""Attacks of one guest while another works, and this process's growth meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from growth import bounded

from hotplate.errors import MachineLostError
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded

SECONDS = 10


def works(server: ServerUnderTest, word: str) -> None:
    """Assert that a deployment on a server succeeds."""
    config = f"#!/bin/sh\nprintf %s {word} > $heat_outputs_path.word\n"
    done = server.deploy(group="script", config=config, outputs=["word"], name=word).wait()
    assert (done.status, done.outputs["word"]) == ("COMPLETE", word), server.diagnosis()


def floods(testbed: Testbed, server: ServerUnderTest) -> list[str]:
    """Return the faults of a server's floods so far."""
    return [
        each.detail["fault"]
        for each in testbed.events
        if each.kind == "flood" and each.server == server.id
    ]


@contextlib.contextmanager
def attack(bad: ServerUnderTest, good: ServerUnderTest, name: str, command: str) -> Iterator[None]:
    """Start an attack in one guest and let the other finish a deployment meanwhile."""
    with bounded(name):
        # Bounded by the machine, and not by the guest's own limit for a service.
        unit = f"--quiet --collect --property=TasksMax=infinity --unit=attack-{name}"
        bad.run(f"systemd-run {unit} sh -c '{command}'").check()
        yield
        works(good, name)
        bad_ones = ", ".join(floods(bad._platform.testbed, bad)) or "none"
        print(f"{name}: verdicts so far: {bad_ones}")
    assert floods(bad._platform.testbed, good) == []


def is_lost(server: ServerUnderTest) -> bool:
    """Return True when a command fails with the error that a plug-in user gets."""
    try:
        # Without the two minutes that server.run() gives a shell that has just been started.
        server._server.shell(seconds=5).run("true", timeout=5)
    except (DeadlineExceeded, MachineLostError):
        return True
    return False
