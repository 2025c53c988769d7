"""What Nova keeps of a server and of a key pair, and what it says of those that are not there."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.network import host_name


class NoSuchServerError(Exception):
    """There is no server of that id."""


class UserDataTooLargeError(Exception):
    """Nova would refuse the request; ``status`` and ``str()`` are what it would say."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Notes:
    """What Nova keeps of a server beside what it runs.

    :param user: the id of the user that made it.
    :param updated: when it was last changed, as Nova writes times.
    :param old_flavor: before a resize that nobody has confirmed or reverted yet.
    :param group: the id of its server group.
    :param host_name: its host name, which a rename leaves; "" is that of its name.
    :param access_ipv4: how somebody said that it is reached; Nova makes no use of it.
    :param has_ports: its interfaces are ports of Neutron, if there is any.
    :param requested_networks: the networks that it was to be on where it has no ports, each as the
        fields of :class:`~hotplate.cloud.nova.interfaces.RequestedNetwork`.
    """

    description: str = ""
    tags: list[str] = field(default_factory=list)
    user: str = ""
    updated: str = ""
    old_flavor: str = ""
    locked: bool = False
    locked_reason: str = ""
    group: str = ""
    has_ports: bool = False
    host_name: str = ""
    access_ipv4: str = ""
    access_ipv6: str = ""
    disk_config: str = "MANUAL"
    requested_networks: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ServerRecord:
    """A server that Nova knows.

    :param number: counts up from 1; the EC2 instance id is made of it.
    :param random_seed: base64, the same at every boot, as Nova's is not: a test can compare.
    """

    spec: ServerSpec
    number: int
    random_seed: str
    created: str
    notes: Notes = field(default_factory=Notes)

    @property
    def has_ports(self) -> bool:
        """Whether its interfaces are ports of Neutron; it may have none."""
        return self.notes.has_ports

    @property
    def host_name(self) -> str:
        """Its host name, without the domain."""
        return self.notes.host_name or host_name(self.spec.name)

    @property
    def ec2_id(self) -> str:
        """The id in the EC2 metadata."""
        return f"i-{self.number:08x}"

    @property
    def instance_name(self) -> str:
        """What a hypervisor would call it."""
        return f"instance-{self.number:08x}"


@dataclass(frozen=True)
class KeyPair:
    """An ssh key that servers can be given.

    :param created: when somebody made it, as Nova writes times; "" for one that nobody made.
    """

    name: str
    public_key: str
    type: str = "ssh"
    created: str = ""


KEY_PAIRS = 1000
"""How many key pairs there may be."""


def now() -> str:
    """Return the time as Nova writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
