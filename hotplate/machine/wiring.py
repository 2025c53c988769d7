"""Connections of one machine: the metadata address and nothing else, or networks.

Two kinds for a machine that needs no other machine, chosen by trying (:func:`choose`):

:class:`Namespace`
    QEMU runs in a network namespace of its own, in which only ``lo`` exists.  QEMU's user-mode
    network lies on 169.254.169.0/24 with 169.254.169.254 as its "host" address, so that a
    connection of the guest to that address becomes one to 127.0.0.1, same port, inside the
    namespace.  The listeners there are made by the :mod:`~hotplate.children.reaper` and handed to
    the harness.  There is no way out, no helper process for each connection, and no port clash.

:class:`GuestForward`
    For hosts without namespaces for ordinary users: QEMU's ``guestfwd`` starts one ``socat`` for
    each connection, which relays to a unix socket; ``restrict=on`` closes everything else.

One kind for machines that reach each other:

:class:`Cables`
    Each network interface is a cable into something else that carries its frames, such as a port
    of a segment (``hotplate/network/``).

Source of the option formats: qemu(1), ``-netdev user`` and ``-netdev dgram``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from hotplate import locks
from hotplate.children.keeper import Keeper
from hotplate.children.reaper import FIRST_USER, LAST_USER
from hotplate.errors import HostError
from hotplate.host_tools import find_tool
from hotplate.machine.config import NetworkCard

METADATA_ADDRESS = "169.254.169.254"
NETWORK = "169.254.169.0/24"
DNS_ADDRESS = "169.254.169.3"
FIRST_GUEST_ADDRESS = "169.254.169.15"
#: The ports of a guest that the harness may connect to: that of ssh. Port N is port
#: FORWARDED_FROM + N in the namespace.
GUEST_PORTS, FORWARDED_FROM = (22,), 20000


class Wiring(ABC):
    """Connections of one machine; a context manager.

    :param ports: the ports at 169.254.169.254 that the guest can reach.
    :ivar name: the kind of wiring, one word.
    :ivar reason: the reason for this choice, a sentence.
    :ivar listeners: by port, a listening socket on which that machine's connections arrive.
    :ivar keeper: the process that QEMU must be started by; :class:`Alone` does not start it.
    :cvar spawns: whether QEMU starts programs for it.
    :cvar networked: whether its interfaces are ports of networks that other machines may be on.
    :ivar macs: the MAC address of each interface; empty for a machine that has a single one with
    its own.
    """

    name = ""
    spawns = False
    networked = False
    macs: tuple[str, ...] = ()

    def __init__(self, ports: Iterable[int]) -> None:
        self.ports = tuple(ports)
        self.reason = ""
        self.listeners: dict[int, socket.socket] = {}
        self.keeper = Keeper()

    def __enter__(self) -> Self:
        self.keeper.__enter__()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the helper process, close the listeners that we still own, remove the files."""
        self.keeper.close()
        for listener in self.listeners.values():
            listener.close()

    @property
    def interface_listeners(self) -> list[dict[int, socket.socket]]:
        """Return the listeners of each of the machine's interfaces."""
        return [self.listeners]

    @abstractmethod
    def _open(self) -> None:
        """Make the listeners; on failure the caller closes them."""

    def plug(self, mac: str, *, first: int) -> tuple[list[NetworkCard], list[socket.socket]]:  # noqa: ARG002
        """Return a machine's network interfaces, and the sockets for them to hand to QEMU.

        :param mac: the MAC address of a machine with one interface.
        :param first: the number of the first of these sockets in QEMU.
        """
        return [NetworkCard(self.netdev(), mac)], []

    @abstractmethod
    def netdev(self) -> str:
        """Return the value of QEMU's ``-netdev`` for this machine, without the id."""

    @abstractmethod
    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        """Connect to a port of the guest.

        User-mode networking accepts for the guest: success does not mean that anything listens
        there.

        :raises HostError: when this kind of wiring has no such connection.
        """


class Namespace(Wiring):
    """A private network namespace with QEMU in it."""

    name = "namespace"

    def _open(self) -> None:
        try:
            kind = self.keeper.request("namespace")[0]
        except OSError as error:
            raise HostError(
                f"this host does not allow a network namespace of our own: {error}",
                hint="sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000",
            ) from error
        # After the helper has entered the namespace: a socket stays where it was made.
        descriptors = self.keeper.request("listen", ports=self.ports)[1]
        for port, descriptor in zip(self.ports, descriptors, strict=True):
            self.listeners[port] = socket.socket(fileno=descriptor)
        self.reason = f"a {kind} of its own could be entered"

    def netdev(self) -> str:
        """See :meth:`Wiring.netdev`."""
        forwards = "".join(
            f",hostfwd=tcp:127.0.0.1:{FORWARDED_FROM + port}-{FIRST_GUEST_ADDRESS}:{port}"
            for port in GUEST_PORTS
        )
        return (
            # With IPv6, slirp would announce a network of its own, which leads nowhere.
            f"user,ipv6=off,net={NETWORK},host={METADATA_ADDRESS},dns={DNS_ADDRESS},"
            f"dhcpstart={FIRST_GUEST_ADDRESS}{forwards}"
        )

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        """See :meth:`Wiring.connect`."""
        if port not in GUEST_PORTS:
            raise HostError(f"the guest's port {port} is not forwarded; these are: {GUEST_PORTS}")
        try:
            descriptors = self.keeper.request(
                "connect", port=FORWARDED_FROM + port, seconds=seconds
            )[1]
        except OSError as error:
            raise ConnectionError(f"no connection to the guest's port {port}: {error}") from error
        return socket.socket(fileno=descriptors[0])


class Cable(Protocol):
    """The other end of an interface; see :class:`hotplate.network.segment.Port`.

    :ivar listeners: by port, a socket on which connections through this cable arrive.
    :ivar ipv6_listeners: those that arrive over IPv6; empty when it carries none.
    """

    listeners: dict[int, socket.socket]
    ipv6_listeners: dict[int, socket.socket]

    @property
    def mac(self) -> str:
        """Return the MAC address of the interface."""

    def plug(self) -> socket.socket:
        """Return the machine's end of a new cable, a datagram socket with one frame a datagram."""

    def plug_in(self, end: socket.socket) -> None:
        """Plug in the machine's own end, a socket with one frame a datagram; it stays open."""

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        """Connect to a port of the machine."""


class Cables(Wiring):
    """Interfaces plugged into something else, which outlives the machine's wiring.

    :param cables: one for each interface, in the guest's order.
    :param reason: a sentence that names these networks.
    :ivar cables: the present cables; see :meth:`add` and :meth:`remove`.
    """

    name = "networks"
    networked = True

    def __init__(
        self, cables: Sequence[Cable], *, reason: str = "the machine is on networks"
    ) -> None:
        super().__init__(cables[0].listeners)
        self.cables = tuple(cables)
        self.reason = reason

    @property
    def macs(self) -> tuple[str, ...]:  # type: ignore[override]
        """See :class:`Wiring`."""
        return tuple(cable.mac for cable in self.cables)

    def add(self, cable: Cable) -> None:
        """Add an interface, after the others, from the machine's next start on."""
        self.cables = (*self.cables, cable)

    def remove(self, place: int) -> None:
        """Remove an interface from the machine's next start on.

        :param place: number of the interface, from 0.
        """
        self.cables = (*self.cables[:place], *self.cables[place + 1 :])

    @property
    def interface_listeners(self) -> list[dict[int, socket.socket]]:
        """See :attr:`Wiring.interface_listeners`."""
        both = ((cable.listeners, cable.ipv6_listeners) for cable in self.cables)
        return [each for cable in both for each in cable if each]

    def _open(self) -> None:
        self.listeners = self.cables[0].listeners

    def close(self) -> None:
        """See :meth:`Wiring.close`; the listeners are the cables'."""
        self.keeper.close()

    def plug(self, mac: str, *, first: int) -> tuple[list[NetworkCard], list[socket.socket]]:  # noqa: ARG002
        """See :meth:`Wiring.plug`."""
        cards = [
            NetworkCard(f"dgram,local.type=fd,local.str={number}", each)
            for number, each in enumerate(self.macs, first)
        ]
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(cable.plug()) for cable in self.cables]
            # All are there: from here on the caller closes them.
            stack.pop_all()
        return cards, ends

    def netdev(self) -> str:
        """See :meth:`Wiring.netdev`; an interface without a cable."""
        return "user,restrict=on"

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        """See :meth:`Wiring.connect`; uses the first cable."""
        if not self.cables:
            raise ConnectionError("the machine is on no network")
        return self.cables[0].connect(port, seconds=seconds)


class Alone(Cables):
    """One interface on a network of its own: for a container on no network of Neutron's."""

    name = "alone"
    networked = False

    def __enter__(self) -> Self:
        # Without the process that QEMU is started by.
        self._open()
        return self


#: Name prefix of its socket directories; each is locked by the harness that made it.
SOCKETS = "hotplate-guestfwd-"


class GuestForward(Wiring):
    """QEMU's guest forwarding to unix sockets, with one relay process per connection."""

    name = "guestfwd"
    spawns = True

    def __init__(self, ports: Iterable[int]) -> None:
        super().__init__(ports)
        self._directory = Path()
        self._held = contextlib.ExitStack()
        self._socat = ""

    def _open(self) -> None:
        self._socat = find_tool("socat")
        # A short path: an AF_UNIX address has 108 bytes, and QEMU splits the command at spaces.
        base = tempfile.gettempdir()
        if len(base) > 80 or set(base) & set(" ,'\"\\"):
            raise HostError(
                f'the temporary directory "{base}" is too long or too odd a name for sockets',
                hint="export TMPDIR=/tmp",
            )
        _sweep(Path(base))
        made = tempfile.TemporaryDirectory(prefix=SOCKETS, dir=base, ignore_cleanup_errors=True)
        self._directory = Path(self._held.enter_context(made))
        self._held.enter_context(locks.shared(self._directory))
        for port in self.ports:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listeners[port] = listener
            listener.bind(str(self._directory / str(port)))
            listener.listen(128)
        # The relays run as QEMU's user.
        paths = [self._directory, *(self._directory / str(port) for port in self.ports)]
        self.keeper.request("own", paths=[str(path) for path in paths])
        self.reason = "each connection goes through a relay process to a unix socket"

    def netdev(self) -> str:
        """See :meth:`Wiring.netdev`."""
        # "shut-down" passes the server's end of file on at once, so that the client closes and the
        # relay ends; -t is how long a client that has sent everything waits for its answer. QEMU
        # gives the relay one socket for both directions. In QEMU's options a comma is doubled.
        forwards = "".join(
            f",guestfwd=tcp:{METADATA_ADDRESS}:{port}-cmd:"
            + f"{self._socat} -t 60 FD:0,,shut-down UNIX-CONNECT:{self._directory / str(port)}"
            for port in self.ports
        )
        return (
            # slirp refuses a guestfwd at the address of its own host, so that is another one here.
            f"user,ipv6=off,restrict=on,net={NETWORK},host=169.254.169.1,"
            f"dns={DNS_ADDRESS},dhcpstart={FIRST_GUEST_ADDRESS}{forwards}"
        )

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:  # noqa: ARG002
        """See :meth:`Wiring.connect`."""
        raise HostError(
            f'the guest\'s port {port} cannot be reached with the wiring "{self.name}"',
            hint="use hotplate shell, which needs no network, or allow user namespaces: "
            "sysctl -w kernel.unprivileged_userns_clone=1",
        )

    def close(self) -> None:
        """See :meth:`Wiring.close`."""
        super().close()
        self._held.close()


def _sweep(base: Path) -> None:
    """Remove the socket directories of harnesses that were killed."""
    for directory in base.glob(f"{SOCKETS}*"):
        # A living harness holds its directory; another process may remove the others at once.
        with contextlib.suppress(OSError, locks.InUse):
            if _is_ours(directory.stat().st_uid):
                with locks.exclusive(directory, wait=False):
                    shutil.rmtree(directory)


def _is_ours(user: int) -> bool:
    """Return True when a file belongs to us, or to a user that root runs QEMU as."""
    return user == os.geteuid() or (os.geteuid() == 0 and FIRST_USER <= user <= LAST_USER)


#: The kinds of wiring by name, in the order in which they are tried.
WIRINGS: dict[str, type[Wiring]] = {kind.name: kind for kind in (Namespace, GuestForward)}


@contextlib.contextmanager
def choose(ports: Iterable[int], *, wanted: str = "") -> Iterator[Wiring]:
    """Open the first wiring that works on this host, as a context manager.

    :param ports: the ports at the metadata address for the guest to reach.
    :param wanted: a name out of :data:`WIRINGS` to try only that one.
    :raises HostError: when none works; the text has the reason for each.

    >>> with choose([80]) as wiring:  # doctest: +SKIP
    ...     wiring.listeners[80].accept()
    """
    ports = tuple(ports)
    refused: list[str] = []
    hints: list[str] = []
    for name, kind in WIRINGS.items():
        if wanted and name != wanted:
            continue
        with contextlib.ExitStack() as stack:
            try:
                wiring = stack.enter_context(kind(ports))
            except HostError as error:
                refused.append(f"{name}: {error.message}")
                hints.append(error.hint)
                continue
            if refused:
                wiring.reason = f"{wiring.reason} ({'; '.join(refused)})"
            yield wiring
            return
    raise HostError(
        f"no way to wire a guest works on this host: {'; '.join(refused)}",
        # Either would help; the last hint demands the least of the host.
        hint=next((each for each in reversed(hints) if each), ""),
    )
