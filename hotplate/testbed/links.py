"""A server's links: its addresses, and the means to cut, slow down and partition them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hotplate.cloud.nova.compute import ServerPort, ServerSpec
from hotplate.errors import HostError, UsageError
from hotplate.events.kinds import LinkPart, LinkShape
from hotplate.machine.machine import Machine
from hotplate.machine.wiring import Cables
from hotplate.network.dhcp import Address
from hotplate.network.segment import Port


@dataclass(frozen=True)
class _Link:
    """One interface.

    :param card: its number in the machine.
    :param end: its port on the network.
    """

    card: int
    port: ServerPort
    end: Port


class Links:
    """The links of one server.

    A network is named by its name, or by its id where two share a name; "" means all networks of
    the server.
    """

    def __init__(self, spec: ServerSpec, machine: Machine) -> None:
        self._spec = spec
        self._machine = machine

    def address(self, network: str = "") -> str:
        """Return the server's address on a network; without one, on its first.

        :raises UsageError: when the server is not on that network.
        :raises HostError: when it is isolated.
        """
        return str(self._on(network)[0].end.addresses[0])

    def address_for(self, other: Links, network: str = "") -> str:
        """Return the address by which another server reaches this one.

        Without a network that is the address on the first network that both share, or else the
        first address.

        :raises UsageError: and HostError, see :meth:`address`.
        """
        shared = [] if network else [theirs for _, theirs in other._shared(self, "")]
        return str(shared[0].end.addresses[0]) if shared else self.address(network)

    def set_up(self, network: str = "", *, up: bool) -> None:
        """Connect or disconnect the cable to a network, or all cables.

        :raises UsageError: and HostError, see :meth:`address`; not for all of them.
        """
        cards = [each.card for each in self._on(network)] if network else None
        self._machine.set_link(up=up, cards=cards)

    def shape(self, network: str = "", *, delay: float, loss: float) -> None:
        """Make the link to a network, or all links, slow or lossy.

        :param delay: seconds, each way.
        :param loss: a share, 0 to 1, each way.
        :raises UsageError: and HostError, see :meth:`address`.
        """
        for each in self._on(network):
            each.end.shape(delay=delay, loss=loss)
            self._note(LinkShape(each.port.network_name, delay, loss))

    def part(self, other: Links, network: str = "") -> None:
        """Block all frames between two servers, on one network or on all that they share.

        :raises UsageError: when they share none; and HostError, see :meth:`address`.
        """
        for mine, theirs in self._needed(other, network):
            mine.end.part(theirs.end)
            self._note_part(other, mine, parted=True)

    def join(self, other: Links, network: str = "") -> None:
        """Undo :meth:`part`."""
        for mine, theirs in self._needed(other, network):
            mine.end.join(theirs.end)
            self._note_part(other, mine, parted=False)

    def ask(self) -> dict[str, bool]:
        """Return which interfaces answered since the last call, and ask them again.

        They are asked by ARP and IPv6's neighbour discovery.

        :return: by network and address, whether it answered; one address of each IP version is
            enough on an interface, as DHCP hands out no more.
        :raises HostError: when the server is isolated.
        """
        answers = {}
        for link in self._all():
            answered = {each.version for each in link.end.ask()}
            for version, address in _first_of_each_version(link).items():
                name = f'{address} on "{link.port.network_name}"'
                answers[name] = version in answered
        return answers

    # -- inside ----------------------------------------------------------------------------------

    def _note_part(self, other: Links, link: _Link, *, parted: bool) -> None:
        for one, two in ((self, other), (other, self)):
            one._note(LinkPart(link.port.network_name, two._spec.name, parted))

    def _note(self, facts: LinkShape | LinkPart) -> None:
        self._machine.events.add(facts, server=self._spec.id)

    def _all(self) -> Iterator[_Link]:
        wiring = self._machine.wiring
        if not (isinstance(wiring, Cables) and wiring.networked):
            raise HostError(
                f'the server "{self._spec.name}" is by itself, on no network with others: '
                f"{wiring.reason}",
                hint="a server of a stack is on its networks, unless --wiring is given; "
                "hotplate doctor tries a network",
            )
        for card, (port, end) in enumerate(zip(self._spec.ports, wiring.cables, strict=True)):
            if isinstance(end, Port):
                yield _Link(card, port, end)

    def _on(self, network: str) -> list[_Link]:
        links = [*self._all()]
        chosen = [
            each for each in links if network in ("", each.port.network_name, each.port.network_id)
        ]
        if not chosen:
            names = ", ".join(f'"{each.port.network_name}"' for each in links)
            raise UsageError(
                f'the server "{self._spec.name}" is not on a network "{network}", but on {names}'
            )
        return chosen

    def _shared(self, other: Links, network: str) -> list[tuple[_Link, _Link]]:
        return [
            (mine, theirs)
            for mine in self._on(network)
            for theirs in other._all()
            if mine.end.segment is theirs.end.segment and mine.end is not theirs.end
        ]

    def _needed(self, other: Links, network: str) -> list[tuple[_Link, _Link]]:
        if shared := self._shared(other, network):
            return shared
        which = f'do not share the network "{network}"' if network else "share no network"
        raise UsageError(f'the servers "{self._spec.name}" and "{other._spec.name}" {which}')


def _first_of_each_version(link: _Link) -> dict[int, Address]:
    """Return the addresses that a guest must have, by IP version.

    An IPv6 subnet with DHCP, but without a mode, is announced by no router: most guests then ask
    for no address.
    """
    chosen: dict[int, Address] = {}
    for address in link.end.addresses:
        subnet = link.end.segment.subnet_with(address)
        unannounced = address.version == 6 and subnet and subnet.dhcp and not subnet.ipv6_mode
        if not unannounced:
            chosen.setdefault(address.version, address)
    return chosen
