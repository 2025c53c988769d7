"""A router between segments, without a way to any other network.

It is a network namespace with an interface on each segment and forwarding switched on; the kernel
there does the work of a router (RFC 1812). It has no other interface, so there is no way out. Each
segment lets its own machines send with their own addresses only, and its router's port with no
machine's address of that segment, so that a sender beyond the router cannot spoof one either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Self

from hotplate.children.keeper import Keeper
from hotplate.errors import HostError, MachineLostError
from hotplate.host_tools import find_tool
from hotplate.network.segment import SYSTEM_PROGRAMS, Port, Segment

#: A destination and the next hop to it.
Route = tuple[IPv4Network, IPv4Address]


class Router:
    """A router between segments; a context manager that removes all it made.

    :param name: for messages.
    :param on_loss: called with the error if the router ends by itself.

    >>> with Router("gateway") as router:  # doctest: +SKIP
    ...     router.attach(private, mac="fa:16:3e:00:00:01", address=IPv4Address("10.0.0.1"))
    """

    def __init__(
        self, name: str, *, on_loss: Callable[[MachineLostError], None] = lambda _: None
    ) -> None:
        self.name = name
        self.routes: tuple[Route, ...] = ()
        self._on_loss = on_loss
        self._keeper = Keeper("hotplate.network.forwarder", on_exit=self._ended)
        self._ports: dict[int, Port] = {}
        self._last = 0

    def __enter__(self) -> Self:
        ip = find_tool("ip", besides=SYSTEM_PROGRAMS)
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
        self._keeper.close()
        for port in ports.values():
            port.close()

    def attach(self, segment: Segment, *, mac: str, address: IPv4Address) -> int:
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
        return self._last

    def detach(self, number: int) -> None:
        """Remove an interface; do nothing when it is gone."""
        port = self._ports.pop(number, None)
        if port is None:
            return
        port.close()
        # A helper that was killed has taken its interfaces with it.
        with contextlib.suppress(MachineLostError):
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
