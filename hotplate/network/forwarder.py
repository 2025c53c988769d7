"""The helper process of one router: a namespace of its own that forwards between segments.

Run by :class:`~hotplate.children.keeper.Keeper`; uses the standard library only, and ends with the
harness. The kernel answers at the router's addresses and forwards; this process carries the frames
between its interfaces and the cables to the segments.
"""

from __future__ import annotations

import functools
import socket

from hotplate.children import reaper
from hotplate.network import links
from hotplate.network.frames import MAX_FRAME
from hotplate.network.privileges import enter_namespaces
from hotplate.network.switch import BURST


class Forwarder(reaper.Reaper):
    """Answers a :class:`~hotplate.network.router.Router`."""

    def __init__(self, control: socket.socket, harness: int) -> None:
        super().__init__(control, harness)
        self.ip = ""
        self.ends: dict[int, tuple[socket.socket, socket.socket]] = {}

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
        self.watch(cable.fileno(), functools.partial(_carry, cable, inside))

    def do_detach(self, *, number: int) -> None:
        """Remove an interface."""
        for end in self.ends.pop(number):
            self.unwatch(end.fileno())
            end.close()
        links.remove(self.ip, number)

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


def _carry(source: socket.socket, sink: socket.socket) -> None:
    for _ in range(BURST):
        try:
            # One byte more than allowed: the segment's switch refuses a longer frame by its size.
            frame = source.recv(MAX_FRAME + 1, socket.MSG_DONTWAIT)
        except OSError:
            return
        try:
            sink.send(frame, socket.MSG_DONTWAIT)
        except OSError:
            # A full or unplugged cable loses frames, as a real wire does.
            continue


def main(words: list[str]) -> None:
    """See :func:`hotplate.children.reaper.main`."""
    reaper.main(words, Forwarder)
