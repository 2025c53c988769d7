"""The examples in the docstrings of a server in a test, in this host's own shell.

Those that need more of a guest are run, with all others, in a booted one:
``tests/booted/test_documented_examples.py``.
"""

from __future__ import annotations

import doctest
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.events.log import EventLog
from hotplate.guest import driver, shell
from hotplate.machine.machine import Capability
from hotplate.plugin import server as plugin_server
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed.server import Server

NONCE = "as given"
#: An example -> its requirement that a shell of this host does not meet.
WANT_A_GUEST = {
    "wait_for_console_text": "a serial console",
    "wait_for_open_port": "systemd",
    "wait_for_unit": "systemd",
}

EXAMPLES = {
    example.name.rpartition(".")[2]: example
    for module in (driver, plugin_server)
    for example in doctest.DocTestFinder().find(module)
    if any(not each.options.get(doctest.SKIP) for each in example.examples)
}


@pytest.fixture
def links() -> list[bool]:
    """The link states, each time that one was set."""
    return []


@pytest.fixture
def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: list[bool]
) -> Iterator[ServerUnderTest]:
    """A server whose machine has only a shell's channel and a link."""
    monkeypatch.setattr(shell, "DIRECTORY", str(tmp_path))
    (tmp_path / "nonce").write_text(NONCE)
    ours, theirs = socket.socketpair()
    # As the guest's end; see guest_program.
    child = subprocess.Popen(["sh"], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
    theirs.close()
    machine = SimpleNamespace(
        kind="qemu",
        capabilities=frozenset(Capability),
        shell_channel=ours,
        pid=child.pid,
        set_link=lambda *, up, cards: links.append(up),
    )
    spec = SimpleNamespace(name="web")
    with child, ours:
        server = Server(spec, machine, nonce=NONCE, owned=ExitStack())
        yield ServerUnderTest(LocalPlatform(SimpleNamespace(events=EventLog()), server))
        child.kill()


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - WANT_A_GUEST))
def test_docstring_example_passes(played: ServerUnderTest, tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    for each in example.examples:
        # Folders of the guest must not become this host's.
        for folder in ("/tmp/", "/run/"):
            each.source = each.source.replace(f'"{folder}', f'"{tmp_path}/')
            each.source = each.source.replace(f" {folder}", f" {tmp_path}/")
    example.globs["server"] = played
    assert doctest.DocTestRunner().run(example).failed == 0


def test_block_example_reconnects_the_cable(played: ServerUnderTest, links: list[bool]) -> None:
    EXAMPLES["block"].globs["server"] = played
    doctest.DocTestRunner().run(EXAMPLES["block"])
    assert links == [False, True]


def test_common_methods_have_an_example():
    assert {"run", "copy_in", "has_hook", "block", *WANT_A_GUEST} <= EXAMPLES.keys()
