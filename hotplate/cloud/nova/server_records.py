"""Nova's records of servers and key pairs, the states of servers, and how many there may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.interfaces import host_name

#: The one compute host.
HOST = "hotplate"

#: Status -> state of the virtual machine, of its power, and the task that changes it.
STATES: dict[str, tuple[str, int, str | None]] = {
    # Power: 0 NOSTATE, 1 RUNNING, 3 PAUSED, 4 SHUTDOWN (``nova/compute/power_state.py``).
    "BUILD": ("building", 0, "spawning"),
    "ACTIVE": ("active", 1, None),
    "REBOOT": ("active", 1, "rebooting"),
    "HARD_REBOOT": ("active", 1, "rebooting_hard"),
    "VERIFY_RESIZE": ("resized", 1, None),
    "PAUSED": ("paused", 3, None),
    "SUSPENDED": ("suspended", 4, None),
    "SHUTOFF": ("stopped", 4, None),
    "ERROR": ("error", 0, None),
}


class NoSuchServerError(HttpError):
    """There is no server with that id."""

    def __init__(self, server_id: str) -> None:
        super().__init__(404, f"Instance {server_id} could not be found.")


@dataclass(frozen=True)
class Notes:
    """Nova's record of a server beside its spec.

    :param user: the id of the user that created it.
    :param updated: the time of the last change, in Nova's format.
    :param old_flavor: the flavor before a resize that is neither confirmed nor reverted yet.
    :param group: the id of its server group.
    :param host_name: its host name, which a rename does not change; "" derives it from the name.
    :param access_ipv4: the address that a user gave for access; Nova does not use it.
    :param has_ports: True when its interfaces are ports of Neutron; it may have none.
    :param requested_networks: the networks that were requested for a server without ports, each as
        the fields of :class:`~hotplate.cloud.nova.interfaces.RequestedNetwork`.
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
    """A server in Nova's records.

    :param number: counts up from 1; the EC2 instance id is derived from it.
    :param random_seed: base64, the same at every boot, unlike Nova's, so that a test can compare.
    """

    spec: ServerSpec
    number: int
    random_seed: str
    created: str
    notes: Notes = field(default_factory=Notes)

    @property
    def host_name(self) -> str:
        """The host name, without the domain."""
        return self.notes.host_name or host_name(self.spec.name)

    @property
    def ec2_id(self) -> str:
        """The instance id in the EC2 metadata."""
        return f"i-{self.number:08x}"


@dataclass(frozen=True)
class KeyPair:
    """An ssh key pair for servers.

    :param created: the time of creation, in Nova's format; "" when it is not asked for.
    """

    name: str
    public_key: str
    type: str = "ssh"
    created: str = ""


@dataclass(frozen=True)
class ServerQuotas:
    """The limits of a project; the defaults are those of ``[quota]`` (``nova/conf/quota.py``).

    :param ram: MiB.
    :param injected_file_content_bytes: of a request that hotplate refuses for its files already.
    """

    instances: int = 10
    cores: int = 20
    ram: int = 51200
    metadata_items: int = 128
    injected_files: int = 5
    injected_file_content_bytes: int = 10240
    injected_file_path_bytes: int = 255
    key_pairs: int = 100
    server_groups: int = 10
    server_group_members: int = 10


#: The usual quotas.
DEFAULTS = ServerQuotas()
UNLIMITED = -1
#: The quotas when limits are lifted, which keep a mistake from filling the memory of this process.
LIFTED = ServerQuotas(
    instances=1000,
    cores=UNLIMITED,
    ram=UNLIMITED,
    key_pairs=1000,
    server_groups=1000,
    server_group_members=1000,
)


def naive(time: str) -> str:
    """Return a time as Nova shows that of a database: with microseconds, without a zone."""
    return time.removesuffix("Z") + ".000000"


def check_state(server_id: str, word: str, action: str, allowed: Sequence[str]) -> None:
    """Refuse an action that the state does not allow.

    :param word: the server's status.
    :param action: as in Nova's message.
    :param allowed: the statuses that allow it.
    :raises HttpError: 409, in Nova's words (``check_instance_state`` of ``nova/compute/api.py``).
    """
    if word in allowed:
        return
    machine, _, task = STATES.get(word, STATES["ERROR"])
    # When the machine is in the right state, its task blocks the action.
    busy = task and machine in {STATES[each][0] for each in allowed}
    state = f"task_state {task}" if busy else f"vm_state {machine}"
    raise HttpError(409, f"Cannot '{action}' instance {server_id} while it is in {state}")
