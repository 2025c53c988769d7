"""hotplate.testbed.links without a network; with networks and guests: test_networked_servers.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ports import port, spec

from hotplate.errors import HostError
from hotplate.machine.wiring import GuestForward
from hotplate.testbed.links import Links


def test_isolated_server_has_a_cable_but_no_links() -> None:
    wiring = GuestForward([80])
    wiring.reason = "it was asked for"
    asked: list[object] = []
    machine: Any = SimpleNamespace(
        wiring=wiring, set_link=lambda *, up, cards: asked.append((up, cards))
    )
    links = Links(spec("web", port(5)), machine)
    links.set_up(up=False)
    assert asked == [(False, None)]
    for ask in (
        links.address,
        lambda: links.set_up("private", up=False),
        lambda: links.shape(delay=1, loss=0),
        lambda: links.part(links),
    ):
        with pytest.raises(HostError, match=r'"web" is by itself, .*: it was asked for'):
            ask()
