"""A router between segments, without a way to any other network.

It is a network namespace with an interface on each segment and forwarding switched on; the kernel
there does the work of a router (RFC 1812). It has no other interface, so there is no way out. Each
segment lets its own machines send with their own addresses only, and its router's port with no
machine's address of that segment, so that a sender beyond the router cannot spoof one either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

from hotplate.children.keeper import Child, Keeper
from hotplate.errors import HostError, MachineLostError
from hotplate.host_tools import find_tool
from hotplate.network import dhcp, links
from hotplate.network.dhcp import Address, Network, Subnet
from hotplate.network.segment import SYSTEM_PROGRAMS, TOOLS, Port, Segment

#: A destination and the next hop to it.
Route = tuple[Network, Address]


class Router:
    """A router between segments; a context manager that removes all it made.

    It advertises itself on those of its IPv6 subnets that have a mode for that.

    :param name: for messages.
    :param directory: for ``advertisements.log``, the messages of the program that advertises it.
    :param on_loss: called with the error if the router ends by itself.

    >>> with Router("gateway", directory=folder) as router:  # doctest: +SKIP
    ...     router.attach(private, mac="fa:16:3e:00:00:01", address=IPv4Address("10.0.0.1"))
    """

    def __init__(
        self,
        name: str,
        *,
        directory: Path,
        on_loss: Callable[[MachineLostError], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.routes: tuple[Route, ...] = ()
        self._on_loss = on_loss
        self._keeper = Keeper("hotplate.network.forwarder", on_exit=self._ended)
        self._ports: dict[int, Port] = {}
        self._program = ""
        self._announcer: Child | None = None
        self._announced: dict[int, Subnet] = {}
        self._last = 0

    def __enter__(self) -> Self:
        ip, self._program = (find_tool(name, besides=SYSTEM_PROGRAMS) for name in TOOLS)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._keeper)
            self._ask("open", ip=ip)
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the router and its ports."""
        ports, self._ports = self._ports, {}
        # From here on the end of the announcer is expected.
        self._announcer = None
        self._keeper.close()
        for port in ports.values():
            port.close()

    def attach(self, segment: Segment, *, mac: str, address: Address) -> int:
        """Give the router an interface on a segment; return its number.

        :raises UsageError: for an address that is taken or impossible on that segment.
        :raises HostError: when the host cannot make it.
        """
        port = segment.router_port(mac=mac, address=address)
        subnet = segment.subnet_with(address) or segment.subnets[0]
        self._last += 1
        try:
            # The helper gets a copy of this end; ours closes.
            with port.plug() as cable:
                self._ask(
                    "attach",
                    cable.fileno(),
                    number=self._last,
                    mac=port.mac,
                    at=f"{address}/{subnet.network.prefixlen}",
                    mtu=subnet.mtu,
                )
        except BaseException:
            port.close()
            raise
        self._ports[self._last] = port
        if subnet.ipv6_mode:
            self._announced[self._last] = subnet
            self._announce()
        return self._last

    def detach(self, number: int) -> None:
        """Remove an interface; do nothing when it is gone."""
        port = self._ports.pop(number, None)
        if port is None:
            return
        port.close()
        # A helper that was killed has taken its interfaces with it.
        with contextlib.suppress(MachineLostError):
            if self._announced.pop(number, None):
                self._announce()
            self._ask("detach", number=number)

    def set_routes(self, routes: Iterable[Route]) -> None:
        """Set the routes to networks beyond its segments.

        :raises HostError: for a next hop on none of its segments.
        """
        wanted = tuple(routes)
        if wanted == self.routes:
            return
        old = [str(to) for to, _ in self.routes if to not in {each for each, _ in wanted}]
        self._ask("routes", old=old, new=[(str(to), str(by)) for to, by in wanted])
        self.routes = wanted

    def _announce(self) -> None:
        """Send the advertisements for the present interfaces, and no others any more."""
        before, self._announcer = self._announcer, None
        if before is not None:
            before.kill()
        if not self._announced:
            return
        subnets = [(f"{links.HOST}{number}", each) for number, each in self._announced.items()]
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._announcer = self._keeper.spawn(
            dhcp.announcing(self._program, subnets),
            # The helper, as another user, may not enter our private directories.
            directory=Path("/"),
            stderr=self.directory / "advertisements.log",
            on_exit=self._announcer_ended,
            confine=True,
        )

    def _announcer_ended(self, status: int) -> None:
        if (announcer := self._announcer) is not None:
            self._on_loss(
                MachineLostError(
                    f'the router "{self.name}" advertises itself no longer: dnsmasq ended with '
                    f"{status}: {announcer.complaint()}"
                )
            )

    def _ended(self) -> None:
        self._on_loss(
            MachineLostError(
                f'the helper process of the router "{self.name}" was killed: its networks are no '
                "longer joined"
            )
        )

    def _ask(self, do: str, *fds: int, **arguments: object) -> None:
        try:
            self._keeper.request(do, fds, **arguments)
        except OSError as error:
            raise HostError(f'the router "{self.name}" cannot do "{do}": {error}') from error
