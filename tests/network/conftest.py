"""Segments and stations on them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest

# Make the helpers beside the tests importable.
sys.path.insert(0, str(Path(__file__).parent))

from stations import Station, mac, subnet

from hotplate.network.segment import Port, Segment

SERVICES = (80, 8000)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    """A segment with 10.0.0.0/24."""
    with Segment("private", subnet(), directory=tmp_path, services=SERVICES) as made:
        yield made


@pytest.fixture
def attach(segment: Segment) -> Callable[..., Port]:
    """Make a port with the address 10.0.0.N."""

    def factory(number: int, *names: str) -> Port:
        address = IPv4Address(f"10.0.0.{number}")
        return segment.port(mac=mac(number), addresses=[address], names=names)

    return factory


@pytest.fixture
def station() -> Iterator[Callable[..., Station]]:
    """Put a station on a port."""
    with contextlib.ExitStack() as stack:

        def factory(port: Port, *, mac: str = "") -> Station:
            made = Station(port, mac)
            stack.callback(made.close)
            return made

        yield factory
