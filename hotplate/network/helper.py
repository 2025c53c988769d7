"""The helper process of one segment: its namespaces, its switch, and the parent of its dnsmasq.

Run by :class:`~hotplate.children.keeper.Keeper`; uses the standard library only, and ends with the
harness. Nobody else is in its namespaces, so everything in them ends with it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import signal
import socket
import tempfile
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_interface
from pathlib import Path

from hotplate.children import reaper
from hotplate.network import dhcp, frames, links
from hotplate.network.dhcp import Address, Network
from hotplate.network.privileges import enter_namespaces
from hotplate.network.switch import Outlet, Switch

#: The files that dnsmasq reads.
HOSTS, NAMES = "hosts", "names"


def packed(mac: str) -> bytes:
    """Return the six bytes of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))


class NetworkHelper(reaper.Reaper):
    """Answers a :class:`~hotplate.network.segment.Segment`, and carries its frames."""

    def __init__(self, control: socket.socket, harness: int) -> None:
        super().__init__(control, harness)
        # Ignored for dnsmasq, which inherits this and would die of a signal before its handler is
        # set.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.switch = Switch(b"")
        self.directory = Path()
        self.ip = ""
        self.services = ""
        self.subnets: dict[Network, str] = {}
        self.gateways: set[bytes] = set()
        self.own: socket.socket

    def run(self) -> None:
        """Serve until the harness is gone, then end dnsmasq and remove its directory."""
        try:
            super().run()
        finally:
            if self.directory.name:
                shutil.rmtree(self.directory, ignore_errors=True)

    def milliseconds(self) -> float | None:
        """See :meth:`~hotplate.children.reaper.Reaper.milliseconds`."""
        seconds = self.switch.seconds()
        # Rounded up: poll() would otherwise return just before the frame is due, again and again.
        return None if seconds is None else math.ceil(seconds * 1000)

    def tick(self) -> None:
        """Deliver the frames whose delay on a slow link is over."""
        self.switch.deliver_due()

    def do_open(
        self, *, ip: str, mac: str, at: str, gateway: str, mtu: int, metadata: str, base: str
    ) -> str:
        """Enter new namespaces; return the directory of dnsmasq's files.

        :param at: the services' address with the length of its prefix.
        :param gateway: see :meth:`do_subnet`.
        :param mtu: bytes of the largest packet.
        :param base: parent of that directory, unless the new user may not write there.
        """
        enter_namespaces(self.user)
        # We are that user now: children have no other to become.
        self.user = -1
        self.ip, self.services = ip, mac
        self.switch.mac, self.switch.mtu = packed(mac), mtu
        links.prepare(ip, links.REFUSE_BEYOND, f"address add {metadata}/32 dev lo")
        self.switch.outside.append(frames.OutsideNetwork(IPv4Network(metadata)))
        # The services' own link, without a machine.
        links.add(ip, 0, services=mac, guest=mac, owns=[])
        self.do_subnet(at=at, gateway=gateway)
        self.own = links.tap(f"{links.SWITCH}0")
        self.directory = _directory(base)
        self.do_tables(hosts="", names="", server=0)
        return str(self.directory)

    def do_subnet(self, *, at: str, gateway: str) -> None:
        """Give the services an address on one more subnet; ``at`` is as for :meth:`do_open`.

        :param gateway: an address of IPv4 that is answered for until a router has it, so that a
            machine is told at once that it reaches nothing there; "" for none.
        """
        interface = ip_interface(at)
        network = interface.network
        if network.version == 4:
            self.switch.router = self.switch.router or interface.ip.packed
            self.switch.outside.append(frames.OutsideNetwork(network))
        else:
            links.use_ipv6(f"{links.HOST}0")
        commands = [links.serve(0, at)]
        if gateway:
            self.gateways.add(ip_address(gateway).packed)
            commands.append(_stand_in(gateway, "add"))
        links.run(self.ip, commands)
        self.subnets[network] = at

    def _at(self, address: Address) -> str:
        """Return the services' address on the subnet of an address."""
        return next(at for network, at in self.subnets.items() if address in network)

    def do_tables(self, *, hosts: str, names: str, server: int) -> None:
        """Write dnsmasq's files and let it read them.

        :param server: its process id; 0 when it does not run yet.
        """
        for name, text in ((HOSTS, hosts), (NAMES, names)):
            part = self.directory / f"{name}.new"
            part.write_text(text)
            # dnsmasq may read at any time, and must not see a part.
            part.replace(self.directory / name)
        if server in self.exit_pipes:
            # Only while it is our child, so that the number is not another process's.
            os.kill(server, signal.SIGHUP)

    def do_port(
        self,
        *,
        number: int,
        mac: str,
        addresses: list[str],
        listen: list[tuple[str, int]],
        secured: bool,
    ) -> None:
        """Make a port; hand out listeners for its connections to these addresses and ports."""
        owns = [(each, self._at(ip_address(each))) for each in addresses]
        links.add(self.ip, number, services=self.services, guest=mac, owns=owns)
        try:
            host = links.tap(f"{links.SWITCH}{number}")
            for address, port in listen:
                with links.listen(number, address, port) as listener:
                    self.handed_out.append(os.dup(listener.fileno()))
        except OSError:
            links.remove(self.ip, number)
            raise
        outlet = self.switch.outlets[number] = Outlet(
            number, packed(mac), _senders(mac, addresses), host, secured=secured
        )
        self.watch(host.fileno(), functools.partial(self.switch.from_host, outlet))

    def do_router_port(self, *, number: int, mac: str, address: str) -> None:
        """Make a router's port, without services behind it."""
        beyond = frames.OutsideNetwork(ip_interface(self._at(ip_address(address))).network)
        self.switch.outlets[number] = Outlet(
            number, packed(mac), _senders(mac, [address]), None, routed=beyond
        )
        if ip_address(address).packed in self.gateways:
            links.run(self.ip, [_stand_in(address, "delete")])
            # Machines know the services' MAC address for it, for up to a minute.
            self.switch.announce(packed(mac), ip_address(address).packed)

    def do_remove(self, *, number: int) -> None:
        """Remove a port, and the cable plugged into it."""
        outlet = self.switch.outlets.pop(number)
        self._unplug(outlet)
        if outlet.host is None:
            for gateway in self.gateways & outlet.addresses:
                links.run(self.ip, [_stand_in(str(ip_address(gateway)), "add")])
                self.switch.announce(self.switch.mac, gateway)
            return
        self.unwatch(outlet.host.fileno())
        outlet.host.close()
        links.remove(self.ip, number)
        self._release(outlet)

    def _release(self, outlet: Outlet) -> None:
        """Release the leases of a port's machine for IPv4.

        A release of DHCPv6 needs the identity that the machine chose; see
        :meth:`~hotplate.network.segment.Segment.forget_leases`.
        """
        for packed_address in outlet.addresses:
            address = ip_address(packed_address)
            if not isinstance(address, IPv4Address):
                continue
            server = IPv4Address(self._at(address).partition("/")[0])
            # The machine cannot send it any more: it enters by the link of the services instead.
            frame = frames.datagram(
                dhcp.release(outlet.mac, address, server),
                macs=(outlet.mac, self.switch.mac),
                addresses=(address, server),
                ports=(dhcp.CLIENT_PORT, dhcp.SERVER_PORT),
            )
            self.own.send(frame)

    def do_plug(self, *, number: int) -> None:
        """Hand out a socket for a machine, one frame a datagram; unplug the one before."""
        outlet = self.switch.outlets[number]
        self._unplug(outlet)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.handed_out.append(theirs.detach())
        outlet.guest = ours
        self.watch(ours.fileno(), functools.partial(self.switch.from_guest, outlet))

    def do_plug_in(self, *, number: int) -> None:
        """Take a machine's socket, one frame a datagram; unplug the one before."""
        outlet = self.switch.outlets[number]
        self._unplug(outlet)
        outlet.guest = socket.socket(fileno=os.dup(self.received[0]))
        self.watch(outlet.guest.fileno(), functools.partial(self.switch.from_guest, outlet))

    def _unplug(self, outlet: Outlet) -> None:
        if outlet.guest is not None:
            self.unwatch(outlet.guest.fileno())
            outlet.guest.close()
            outlet.guest = None

    def do_link(
        self,
        *,
        number: int,
        delay: float,
        loss: float,
        parted: list[int],
    ) -> None:
        """Set the quality of a port's link, and the ports it does not reach."""
        outlet = self.switch.outlets[number]
        outlet.delay, outlet.loss = delay, loss
        outlet.parted = set(parted)

    def do_ask(self, *, number: int) -> list[str]:
        """Return the addresses answered for since the last request, and ask again."""
        if (outlet := self.switch.outlets.get(number)) is None:
            # The port was removed meanwhile.
            return []
        answered = [str(ip_address(each)) for each in outlet.answered]
        outlet.answered.clear()
        for packed_address in outlet.addresses:
            address = ip_address(packed_address)
            if not address.is_link_local:
                sender = ip_interface(self._at(address)).ip
                self.switch.ask(outlet, packed_address, sender=sender.packed)
        return answered

    def do_counts(self, *, number: int) -> dict[str, int]:
        """Return the counts of a port's frames by fate."""
        return dict(self.switch.outlets[number].counts)

    def do_socket(self, *, ipv6: bool) -> None:
        """Hand out a TCP socket of the namespace, which the harness connects."""
        family = socket.AF_INET6 if ipv6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            self.handed_out.append(os.dup(connection.fileno()))


def _stand_in(gateway: str, do: str) -> str:
    return f"address {do} {gateway}/32 dev lo"


def _senders(mac: str, addresses: list[str]) -> frozenset[bytes]:
    """Return the addresses that a port may send from: its own, and that of its link for IPv6."""
    own = {ip_address(each).packed for each in addresses}
    if any(len(each) == 16 for each in own):
        own.add(frames.link_local(packed(mac)))
    return frozenset(own)


def _directory(base: str) -> Path:
    """Make a directory for dnsmasq's files where this user may write."""
    for place in (base, "/tmp"):  # noqa: S108
        with contextlib.suppress(PermissionError, FileNotFoundError):
            return Path(tempfile.mkdtemp(prefix="hotplate-dhcp-", dir=place))
    raise OSError(13, f'no directory can be made in "{base}" or in "/tmp"')


def main(words: list[str]) -> None:
    """See :func:`hotplate.children.reaper.main`."""
    reaper.main(words, NetworkHelper)
