"""A server as Nova's API shows it (``nova/api/openstack/compute/views/servers.py``)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.nova.flavors import embedded
from hotplate.cloud.nova.interfaces import Interface, by_network
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.network import GUEST_IP
from hotplate.cloud.nova.server_records import ServerRecord

HOST = "hotplate"
"""The one compute host."""

STATES: dict[str, tuple[str, int, str | None]] = {
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
"""Status -> state of the virtual machine, of its power, and the task that changes it."""


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


def brief(server: ServerRecord, caller: Caller) -> dict[str, object]:
    """Return a server as a list without details shows it."""
    spec = server.spec
    return {"id": spec.id, "name": spec.name, "links": caller.link(f"/servers/{spec.id}")}


def addresses(interfaces: Sequence[Interface]) -> dict[str, list[dict[str, object]]]:
    """Return a server's addresses without the fields that only the server's own view has."""
    return {
        network: [{"version": each["version"], "addr": each["addr"]} for each in those]
        for network, those in by_network(interfaces).items()
    }


def groups(interfaces: Sequence[Interface]) -> list[dict[str, str]]:
    """Return the names of the security groups of a server's interfaces."""
    return [{"name": name} for name in dict.fromkeys(g for each in interfaces for g in each.groups)]


def full(
    server: ServerRecord,
    status: tuple[str, str],
    caller: Caller,
    *,
    interfaces: Sequence[Interface],
) -> dict[str, Any]:
    """Return a server with its details.

    :param status: Nova's word for its state, and the reason.
    """
    word, reason = status
    spec, notes = server.spec, server.notes
    shown: dict[str, Any] = {
        **brief(server, caller),
        "status": word,
        "tenant_id": caller.grant.project,
        "user_id": notes.user or caller.grant.user.id,
        "metadata": dict(spec.metadata),
        "hostId": hashlib.sha224(f"{caller.grant.project}{HOST}".encode()).hexdigest(),
        "image": _image(spec.image, caller),
        "flavor": _flavor(spec.flavor, caller),
        "created": server.created,
        "updated": notes.updated or server.created,
        "addresses": by_network(interfaces),
        "accessIPv4": notes.access_ipv4 or ("" if server.has_ports else GUEST_IP),
        "accessIPv6": notes.access_ipv6,
        "key_name": spec.key_name or None,
        "config_drive": "True" if spec.config_drive else "",
        "security_groups": groups(interfaces),
        "os-extended-volumes:volumes_attached": [],
        "OS-DCF:diskConfig": notes.disk_config,
        "OS-EXT-AZ:availability_zone": spec.availability_zone,
        "OS-EXT-SRV-ATTR:host": HOST,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": HOST,
        "OS-EXT-SRV-ATTR:instance_name": server.instance_name,
        "OS-SRV-USG:launched_at": None if word == "BUILD" else server.created.removesuffix("Z"),
        "OS-SRV-USG:terminated_at": None,
        **_state(word),
        **_newer(server, caller),
    }
    if word == "ERROR":
        shown["fault"] = {"code": 500, "created": server.created, "message": reason}
    elif word != "SHUTOFF":
        shown["progress"] = 0
    return shown


def _state(word: str) -> dict[str, object]:
    machine, power, task = STATES.get(word, STATES["ERROR"])
    return {
        "OS-EXT-STS:vm_state": machine,
        "OS-EXT-STS:power_state": power,
        "OS-EXT-STS:task_state": task,
    }


def _newer(server: ServerRecord, caller: Caller) -> dict[str, object]:
    """Return the fields that microversions added, by the number of the version."""
    spec, notes = server.spec, server.notes
    by_version: dict[int, dict[str, object]] = {
        3: {
            "OS-EXT-SRV-ATTR:hostname": server.host_name,
            "OS-EXT-SRV-ATTR:reservation_id": f"r-{server.number:08x}",
            "OS-EXT-SRV-ATTR:launch_index": 0,
            "OS-EXT-SRV-ATTR:kernel_id": "",
            "OS-EXT-SRV-ATTR:ramdisk_id": "",
            "OS-EXT-SRV-ATTR:root_device_name": "/dev/vda",
            "OS-EXT-SRV-ATTR:user_data": base64.b64encode(spec.user_data).decode() or None,
        },
        9: {"locked": notes.locked},
        16: {"host_status": "UP"},
        19: {"description": notes.description or None},
        26: {"tags": list(notes.tags)},
        63: {"trusted_image_certificates": None},
        71: {"server_groups": [notes.group] if notes.group else []},
        73: {"locked_reason": notes.locked_reason or None},
        96: {"pinned_availability_zone": None},
    }
    fields: dict[str, object] = {}
    for minor, brought in by_version.items():
        if caller.since(minor):
            fields.update(brought)
    return fields


def _image(image: str, caller: Caller) -> object:
    if not image:
        return ""
    return {"id": image, "links": caller.link(f"/images/{image}", bookmark=True)}


def _flavor(flavor: str, caller: Caller) -> dict[str, Any]:
    if caller.since(47):
        return embedded(flavor)
    return {"id": flavor, "links": caller.link(f"/flavors/{flavor}", bookmark=True)}
