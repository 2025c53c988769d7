"""The helper process of one router: a namespace of its own that forwards between segments.

Run by :class:`~hotplate.children.keeper.Keeper`; uses the standard library only, and ends with the
harness. The kernel answers at the router's addresses and forwards; this process carries the frames
between its interfaces and the cables to the segments, and answers those that lead nowhere.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable
from ipaddress import IPv4Network, ip_interface, ip_network

from hotplate.children import reaper
from hotplate.network import links
from hotplate.network.dhcp import Network
from hotplate.network.frames import MAX_FRAME, OutsideNetwork, network_unreachable
from hotplate.network.privileges import enter_namespaces
from hotplate.network.switch import BURST


class Forwarder(reaper.Reaper):
    """Answers a :class:`~hotplate.network.router.Router`."""

    def __init__(self, control: socket.socket, harness: int) -> None:
        super().__init__(control, harness)
        self.ip = ""
        self.ends: dict[int, tuple[socket.socket, socket.socket]] = {}
        self.networks: dict[int, Network] = {}
        self.routes: list[Network] = []
        self.outside: list[OutsideNetwork] = []

    def do_open(self, *, ip: str) -> None:
        """Enter new namespaces in which packets are forwarded."""
        enter_namespaces(self.user)
        # We are that user now: children have no other to become.
        self.user = -1
        self.ip = ip
        links.prepare(ip, forwarding=True)

    def do_attach(self, *, number: int, mac: str, at: str, mtu: int) -> None:
        """Make an interface on the cable that was sent with the request.

        :param at: its address with the length of the network's prefix.
        """
        links.add_of_router(self.ip, number, mac=mac, at=at, mtu=mtu)
        try:
            inside = links.tap(f"{links.SWITCH}{number}")
        except OSError:
            links.remove(self.ip, number)
            raise
        # Taken out of the list, so that answer() does not close it.
        cable = socket.socket(fileno=self.received.pop())
        self.ends[number] = (inside, cable)
        self.watch(inside.fileno(), functools.partial(_carry, inside, cable))
        interface = ip_interface(at)
        self.networks[number] = interface.network
        self._know_ways()
        refuses = functools.partial(
            network_unreachable,
            mac=bytes.fromhex(mac.replace(":", "")),
            sender=interface.ip.packed,
            outside=self.outside,
        )
        self.watch(cable.fileno(), functools.partial(_carry, cable, inside, refuses))

    def do_detach(self, *, number: int) -> None:
        """Remove an interface."""
        for end in self.ends.pop(number):
            self.unwatch(end.fileno())
            end.close()
        links.remove(self.ip, number)
        del self.networks[number]
        self._know_ways()

    def do_routes(self, *, old: list[str], new: list[tuple[str, str]]) -> None:
        """Set the routes beyond the interfaces' own.

        :param old: destinations whose routes are removed.
        :param new: destination and next hop of each route.
        """
        for to in old:
            # Unlike "delete", "flush" is no error for a route that went with its interface.
            # Its family is that of the program's option, not that of the destination.
            links.run(self.ip, [f"route flush exact {to}"], "-6" if ":" in to else "-4")
        links.run(self.ip, [f"route replace {to} via {by}" for to, by in new])
        self.routes = [ip_network(to) for to, _ in new]
        self._know_ways()

    def _know_ways(self) -> None:
        # In place: each interface has the list.
        known = [*self.networks.values(), *self.routes]
        self.outside[:] = [OutsideNetwork(each) for each in known if isinstance(each, IPv4Network)]


def _carry(
    source: socket.socket, sink: socket.socket, refuses: Callable[[bytes], bytes] | None = None
) -> None:
    """Carry frames on, but those that are answered instead.

    :param refuses: returns the answer to a frame, b"" for one that is carried.
    """
    for _ in range(BURST):
        try:
            # One byte more than allowed: the segment's switch refuses a longer frame by its size.
            frame = source.recv(MAX_FRAME + 1, socket.MSG_DONTWAIT)
        except OSError:
            return
        answer = refuses(frame) if refuses is not None else b""
        # A full or unplugged cable loses frames, as a real wire does.
        with contextlib.suppress(OSError):
            (source if answer else sink).send(answer or frame, socket.MSG_DONTWAIT)


def main(words: list[str]) -> None:
    """See :func:`hotplate.children.reaper.main`."""
    reaper.main(words, Forwarder)
