"""Plug interfaces into a running server, and take them out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from hotplate.cloud.nova.compute import GuestServices, ServerPort, ServerSpec
from hotplate.errors import UsageError
from hotplate.machine.wiring import Cables
from hotplate.network.segment import Port
from hotplate.testbed.segments import Segments
from hotplate.testbed.server import Server
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline

LET_GO_SECONDS = 20.0
LET_GO_ATTEMPTS = 8
"""How long a guest has to release an interface per request, and how many requests are made (Nova:
``[libvirt] device_detach_timeout`` and ``device_detach_attempts``). A guest that still boots does
not hear the first; QEMU passes on further ones from 8.0 and 7.2.2 on."""


def replug(
    server: Server, spec: ServerSpec, segments: Segments | None, services: GuestServices
) -> None:
    """Replace the ports of a running server by those of ``spec``.

    New ports come last.

    :raises UsageError: when the machine takes none while it runs.
    :raises DeadlineExceeded: when the guest keeps an interface; earlier ones are already removed.
    """
    wiring = server.machine.wiring
    if segments is None or not isinstance(wiring, Cables):
        raise UsageError(
            f'the server "{spec.name}" is by itself, on no network with others, and keeps its '
            "interface while it runs",
            hint="stop it first: openstack server stop",
        )
    wanted = {each.id for each in spec.ports}
    for port in server.spec.ports:
        if port.id not in wanted:
            _take_out(server, port, wiring, segments)
    present = {each.id for each in server.spec.ports}
    for port in spec.ports:
        if port.id not in present:
            _plug_in(server, port, wiring, segments, services)


def _take_out(server: Server, port: ServerPort, wiring: Cables, segments: Segments) -> None:
    place = server.spec.ports.index(port)
    what = f'the guest of "{server.spec.name}" to let go of its interface {port.mac}'
    for left in reversed(range(LET_GO_ATTEMPTS)):
        try:
            server.machine.detach(place, GuestDeadline(LET_GO_SECONDS, what))
            break
        except DeadlineExceeded:
            if not left:
                raise
    cable = wiring.cables[place]
    wiring.remove(place)
    ports = server.spec.ports
    server.spec = replace(server.spec, ports=(*ports[:place], *ports[place + 1 :]))
    if isinstance(cable, Port):
        segments.detach(port, cable)


def _plug_in(
    server: Server,
    port: ServerPort,
    wiring: Cables,
    segments: Segments,
    services: GuestServices,
) -> None:
    spec = replace(server.spec, ports=(*server.spec.ports, port))
    with ExitStack() as owned:
        cable = owned.enter_context(segments.attached(spec, port))
        owned.enter_context(services.serve(spec.id, cable.listeners))
        server.machine.attach(cable)
        server.owned.enter_context(owned.pop_all())
    wiring.add(cable)
    server.spec = spec
