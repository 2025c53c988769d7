"""The switch of a segment, which sends each frame to its receivers only.

Each port's MAC address is fixed, so that frames for unknown addresses are dropped and a restored
guest is reached before it has sent anything; other addresses are learned only from a port that is
not secured. Each port reaches the segment's services over a link of its own (``host``), which
identifies it. A router's port has none, so that the services cannot be reached from other networks.
"""

from __future__ import annotations

import heapq
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from hotplate.network import frames, links

#: Limit of the frames taken from a port before the others' turn.
BURST = 64
#: Limit of the frames on slow links at once; further ones are lost.
MAX_DELAYED = 4096
#: Limit of the MAC addresses that are learned; frames for further ones are lost.
MAX_LEARNED = 4096


@dataclass
class Outlet:
    """A port, as seen by the switch.

    :param mac: six bytes.
    :param addresses: its addresses, of four or 16 bytes each; the link-local one among them if it
        may use IPv6.
    :param host: socket for frames to and from the segment's services; None for a router's.
    :param routed: the addresses from which a router forwards packets.
    :param secured: whether its frames are checked, as by Neutron's port security.
    :param guest: socket for frames to and from the machine; None while none is plugged in.
    :param delay: additional seconds for each frame, each way.
    :param loss: the share of frames that are lost, each way.
    :param parted: the numbers of the ports that it does not reach.
    :param counts: number of frames by their fate.
    :param answered: its addresses for which it has answered by ARP or neighbour discovery.
    """

    number: int
    mac: bytes
    addresses: frozenset[bytes]
    host: socket.socket | None
    guest: socket.socket | None = None
    routed: Container[bytes] = ()
    secured: bool = True
    delay: float = 0.0
    loss: float = 0.0
    parted: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    answered: set[bytes] = field(default_factory=set)


class Switch:
    """Carries frames between ports, and between each port and the services.

    :param mac: MAC address of the services, the same on every port.
    :param clock: seconds, for the slow links.
    :ivar mtu: bytes of the largest packet.
    :ivar router: the services' address of IPv4 that answers packets to nowhere; b"" for none.
    :ivar outside: the addresses outside of each network of IPv4 that is somewhere.
    """

    def __init__(self, mac: bytes, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.mac = mac
        self.mtu = frames.ETHERNET_MTU
        self.router = b""
        self.outside: list[frames.OutsideNetwork] = []
        self.outlets: dict[int, Outlet] = {}
        #: The port at which a MAC address was last a sender's, of ports that are not secured.
        self._learned: dict[bytes, Outlet] = {}
        self._clock = clock
        self._delayed: list[tuple[float, int, Outlet, bool, bytes]] = []
        self._sequence = 0

    def from_guest(self, outlet: Outlet) -> None:
        """Forward the frames that a port's machine has sent."""
        for _ in range(BURST):
            frame = _receive(outlet.guest)
            if not frame:
                return
            reason = self._refusal(outlet, frame)
            outlet.counts[f"refused: {reason}" if reason else "sent"] += 1
            if not reason:
                outlet.answered.update({frames.answered_address(frame)} & outlet.addresses)
                self._forward(outlet, frame)

    def _refusal(self, outlet: Outlet, frame: bytes) -> str:
        if outlet.secured:
            return frames.refusal(
                frame, outlet.mac, outlet.addresses, routed=outlet.routed, mtu=self.mtu
            )
        # Anything, with VLAN tags and others' addresses, that fits.
        if reason := frames.refusal_of_size(frame, mtu=self.mtu):
            return reason
        if len(self._learned) < MAX_LEARNED or frame[6:12] in self._learned:
            self._learned[frame[6:12]] = outlet
        return ""

    def from_host(self, outlet: Outlet) -> None:
        """Forward the frames that the services have sent to a port; a router's has none."""
        for _ in range(BURST):
            frame = _receive(outlet.host)
            if not frame:
                return
            self._send(frame, outlet, [outlet])

    def ask(self, outlet: Outlet, address: bytes, *, sender: bytes) -> None:
        """Ask a port's machine for an address on behalf of the services.

        :param sender: the address that asks by ARP; IPv6 asks from the link-local one.
        """
        if len(address) == 16:
            frame = frames.neighbour_solicitation(self.mac, address)
        else:
            frame = frames.arp_request(self.mac, sender, address)
        self._send(frame, outlet, [outlet])

    def announce(self, mac: bytes, address: bytes) -> None:
        """Tell all machines who has an address of IPv4 from now on (RFC 5227, 2.3)."""
        frame = frames.arp_request(mac, address, address)
        for outlet in self.outlets.values():
            if outlet.mac != mac:
                self._send(frame, outlet, [outlet])

    def seconds(self) -> float | None:
        """Return the seconds until a frame on a slow link is due; None when none is there."""
        return max(0.0, self._delayed[0][0] - self._clock()) if self._delayed else None

    def deliver_due(self) -> None:
        """Deliver the frames whose delay is over."""
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            _, _, outlet, to_host, frame = heapq.heappop(self._delayed)
            self._deliver(frame, outlet, to_host=to_host)

    def _forward(self, source: Outlet, frame: bytes) -> None:
        target = frame[:6]
        # The lowest bit of the first byte marks broadcast and multicast (IEEE 802).
        everyone = bool(target[0] & 1)
        if source.host is not None and (everyone or target == self.mac):
            if answer := self._unreachable(frame):
                self._send(answer, source, [source])
            else:
                self._send(frame, source, [source], to_host=True)
        # Where a bond has gone over to its other port, its MAC address is at that one.
        learned = self._learned.get(target)
        for other in self.outlets.values():
            if other is not source and (everyone or target == other.mac or other is learned):
                self._send(frame, other, [source, other])

    def _unreachable(self, frame: bytes) -> bytes:
        if not self.router:
            return b""
        return frames.network_unreachable(
            frame, mac=self.mac, sender=self.router, outside=self.outside
        )

    def _send(
        self, frame: bytes, outlet: Outlet, links: list[Outlet], *, to_host: bool = False
    ) -> None:
        """Send to a port's machine or its services, over the links of these ports."""
        # links[0] is the sending port's; for frames of the services it is the port's own, and no
        # port is parted from itself.
        if outlet.number in links[0].parted:
            outlet.counts["parted"] += 1
        # A simulated loss needs no secure random numbers.
        elif any(link.loss and random.random() < link.loss for link in links):  # noqa: S311
            outlet.counts["lost"] += 1
        elif delay := sum(link.delay for link in links):
            self._put_off(frame, outlet, delay, to_host=to_host)
        else:
            self._deliver(frame, outlet, to_host=to_host)

    def _put_off(self, frame: bytes, outlet: Outlet, delay: float, *, to_host: bool) -> None:
        if len(self._delayed) >= MAX_DELAYED:
            outlet.counts["dropped"] += 1
            return
        # Breaks ties in the heap: frames that are due at once keep their order, and outlets are
        # never compared.
        self._sequence += 1
        entry = (self._clock() + delay, self._sequence, outlet, to_host, frame)
        heapq.heappush(self._delayed, entry)

    def _deliver(self, frame: bytes, outlet: Outlet, *, to_host: bool) -> None:
        sink = outlet.host if to_host else outlet.guest
        try:
            if sink is not None:
                sink.send(frame, socket.MSG_DONTWAIT)
        except OSError:
            # A full or unplugged cable loses frames, as a real wire does.
            outlet.counts["dropped"] += 1


def _receive(source: socket.socket | None) -> bytes:
    """Return a frame, truncated when it is too long; b"" when there is none."""
    if source is None:
        return b""
    # One byte more than allowed, so that refusal() sees it.
    size = frames.MAX_FRAME + 1
    try:
        # A container's interface; QEMU's end of a cable is a socket of the other kind.
        if source.family == socket.AF_PACKET:
            return links.receive(source, size)
        return source.recv(size, socket.MSG_DONTWAIT)
    except OSError:
        return b""
