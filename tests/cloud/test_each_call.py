"""The usual calls to the cloud, by the SDK and by the ``openstack`` command.

A row is a call, a column a client.  A call's effect is checked in the API's answers without a
client.  Calls by novaclient, glanceclient and neutronclient, refusals and the contents of answers
are tested in test_nova_api.py, test_glance_api.py and test_neutron_api.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from test_clients import ask

from hotplate.cloud.glance.images import SessionImage
from hotplate.cloud.nova.microversions import NEWEST
from hotplate.cloud.options import CloudOptions

NUMBERS = itertools.count(1)
DATA = b"what a disk holds"
LOGIN = "login:"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


@dataclass
class World:
    """The clients, the subject of a call, and its surroundings.

    :ivar it: the id of the subject, or its name if users type that; "" for one to be created.
    :ivar name: a new name.
    :ivar answer: the client's return value.
    :ivar around: ids of the resources that a new subject needs.
    :ivar before: the ids before the call.
    """

    cloud: Any
    compute: Any
    command: Any
    sdk: Any
    disk: Path
    it: str = ""
    name: str = ""
    answer: Any = None
    around: dict[str, str] = field(default_factory=dict)
    before: set[str] = field(default_factory=set)

    def json(self, service: str, path: str, method: str = "GET", **body: Any) -> Any:
        """Send a request without a client, and return its JSON."""
        answer = self.try_(service, path, method, **body)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def try_(self, service: str, path: str, method: str = "GET", **body: Any) -> Any:
        newest = {"OpenStack-API-Version": f"compute 2.{NEWEST}"}
        return ask(self.cloud, service, method, path, headers=newest, json=body or None)

    def is_there(self, service: str, path: str) -> bool:
        """Return True when a path exists."""
        answer = self.try_(service, path)
        assert answer.status_code in (200, 404), answer.text
        return bool(answer.ok)

    def listed(self) -> set[str]:
        """Return the ids and names in an answer of any client."""
        entries = self.answer
        if isinstance(entries, dict):
            (entries,) = entries.values()
        return {
            str(value)
            for each in entries
            for key in ("id", "name", "ID", "Name")
            if (value := each.get(key) if isinstance(each, dict) else getattr(each, key, None))
        }

    def shown(self) -> set[str]:
        """Return the id and the name in an answer with one resource."""
        entry = self.answer
        if isinstance(entry, dict) and len(entry) == 1:
            (entry,) = entry.values()
        self.answer = [entry]
        return self.listed()


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "session.qcow2"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def cloud_options(disk: Path) -> CloudOptions:
    return CloudOptions(images=(SessionImage("session", disk, "qcow2", 1 << 30),))


@pytest.fixture(scope="module")
def clients(cloud: Any, compute: Any, openstack: Any, connection: Any, disk: Path) -> World:
    return World(cloud, compute, openstack, connection, disk)


@dataclass(frozen=True)
class Call:
    """A call by each client; the command may contain ``{it}`` and ``{name}``.

    :param check: asserts the effect.
    :param before: prepares the subject.
    """

    sdk: Callable[[World], Any]
    command: str
    check: Callable[[World], object]
    before: Callable[[World], object] = lambda world: None


def usual(
    single: str,
    in_sdk: Callable[[World], Any],
    gone: Callable[[World], object] | None = None,
    command: str = "",
) -> dict[str, Call]:
    """Return the calls that list, show and, if it can be deleted, delete a kind of resource.

    :param in_sdk: the service in the SDK.
    :param gone: checks that the subject is deleted.
    :param command: its words in the command.
    """
    command = command or single
    calls = {
        "list": Call(
            lambda world: list(getattr(in_sdk(world), f"{single}s")()),
            f"{command} list",
            lambda world: world.it in world.listed(),
        ),
        "show": Call(
            lambda world: getattr(in_sdk(world), f"get_{single}")(world.it),
            f"{command} show {{it}}",
            lambda world: {world.it, world.name} <= world.shown(),
        ),
    }
    if gone is not None:
        calls["delete"] = Call(
            lambda world: getattr(in_sdk(world), f"delete_{single}")(world.it),
            f"{command} delete {{it}}",
            gone,
        )
    return calls


# -- Nova --------------------


def compute_sdk(world: World) -> Any:
    return world.sdk.compute


def server(world: World) -> Iterator[None]:
    body = {"name": world.name, "imageRef": "debian", "flavorRef": "m1.small", "networks": "auto"}
    world.it = world.json("nova", "/v2.1/servers", "POST", server=body)["server"]["id"]
    world.compute.consoles[world.it] = f"{LOGIN}\n"
    yield
    for each in world.json("nova", "/v2.1/servers")["servers"]:
        world.try_("nova", f"/v2.1/servers/{each['id']}", "DELETE")


def did(action: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        assert world.compute.calls[-1] == (action, world.it)

    return check


def power(action: str, before: str = "ACTIVE") -> Call:
    """Return an action on a server that is in the state ``before``."""

    def prepare(world: World) -> None:
        world.compute.states[world.it] = (before, "")

    return Call(
        lambda world: getattr(world.sdk.compute, f"{action}_server")(world.it),
        f"server {action} {{it}}",
        did(action),
        prepare,
    )


def reboot(kind: str, call: str) -> Call:
    return Call(
        lambda world: world.sdk.compute.reboot_server(world.it, kind),
        f"server reboot --{kind.lower()} --wait {{it}}",
        did(call),
    )


def is_made(world: World) -> None:
    assert world.name in {
        each["name"] for each in world.json("nova", "/v2.1/servers")["servers"]
    } - {world.it}


def is_deleted(world: World) -> None:
    assert not world.is_there("nova", f"/v2.1/servers/{world.it}")


def sdk_deletes(world: World) -> None:
    server = world.sdk.compute.get_server(world.it)
    world.sdk.compute.delete_server(server)
    world.sdk.compute.wait_for_delete(server, interval=0.1, wait=20)


def server_has(path: str, value: Any) -> Callable[[World], None]:
    def check(world: World) -> None:
        assert value in world.json("nova", f"/v2.1/servers/{world.it}")["server"][path]

    return check


def another(world: World) -> None:
    world.name = f"made-{next(NUMBERS)}"


SERVERS = {
    **usual("server", compute_sdk),
    "start": power("start", "SHUTOFF"),
    "stop": power("stop"),
    "pause": power("pause"),
    "unpause": power("unpause", "PAUSED"),
    "suspend": power("suspend"),
    "resume": power("resume", "SUSPENDED"),
    "reboot soft": reboot("SOFT", "reboot"),
    "reboot hard": reboot("HARD", "hard_reboot"),
    "create": Call(
        lambda world: world.sdk.compute.wait_for_server(
            world.sdk.compute.create_server(
                name=world.name, image_id="debian", flavor_id="m1.small", networks="auto"
            ),
            interval=0.1,
            wait=20,
        ),
        "server create --image session --flavor m1.small --nic auto {name}",
        is_made,
        another,
    ),
    "delete": Call(
        sdk_deletes,
        "server delete --wait {it}",
        is_deleted,
    ),
    "rebuild": Call(
        lambda world: world.sdk.compute.rebuild_server(world.it, image="other"),
        "server rebuild --image session {it}",
        lambda world: (
            ("delete", world.it) in world.compute.calls
            and world.compute.specs[world.it].image != "debian"
        ),
    ),
    "console output": Call(
        lambda world: world.sdk.compute.get_server_console_output(world.it)["output"],
        "console log show --lines 5 {it}",
        lambda world: LOGIN in world.answer,
    ),
    "addresses": Call(
        lambda world: [each.address for each in world.sdk.compute.server_ips(world.it)],
        "server show -c addresses {it}",
        lambda world: "10.0.0." in str(world.answer),
    ),
    "metadata": Call(
        lambda world: world.sdk.compute.set_server_metadata(world.it, x="y"),
        "server set --property x=y {it}",
        server_has("metadata", "x"),
    ),
    "tags": Call(
        lambda world: world.sdk.compute.add_tag_to_server(world.it, "blue"),
        "server set --tag blue {it}",
        server_has("tags", "blue"),
    ),
}


def nothing(world: World) -> Iterator[None]:
    yield


def flavor(world: World) -> Iterator[None]:
    world.it = world.name = "m1.small"
    yield


FLAVORS = usual("flavor", compute_sdk)


def keypair(world: World) -> Iterator[None]:
    body = {"name": world.name, "type": "ssh", "public_key": KEY}
    world.json("nova", "/v2.1/os-keypairs", "POST", keypair=body)
    world.it = world.name
    yield


def keys(world: World) -> set[str]:
    entries = world.json("nova", "/v2.1/os-keypairs")["keypairs"]
    return {each["keypair"]["name"] for each in entries}


def generated(world: World) -> None:
    assert world.name in keys(world)
    assert "PRIVATE KEY" in str(getattr(world.answer, "private_key", world.answer))


KEYPAIRS = {
    **usual(
        "keypair",
        compute_sdk,
        lambda world: world.it not in keys(world),
    ),
    "import": Call(
        lambda world: world.sdk.compute.create_keypair(name=world.name, public_key=KEY),
        "keypair create --public-key key.pub {name}",
        lambda world: world.name in keys(world),
        another,
    ),
    "generate": Call(
        lambda world: world.sdk.compute.create_keypair(name=world.name),
        "keypair create {name}",
        generated,
        another,
    ),
}


def group(world: World) -> Iterator[None]:
    body = {"name": world.name, "policy": "affinity"}
    made = world.json("nova", "/v2.1/os-server-groups", "POST", server_group=body)
    world.it = made["server_group"]["id"]
    yield
    for each in groups(world):
        world.try_("nova", f"/v2.1/os-server-groups/{each['id']}", "DELETE")


def groups(world: World) -> list[Any]:
    entries: list[Any] = world.json("nova", "/v2.1/os-server-groups")["server_groups"]
    return entries


GROUPS = {
    **usual(
        "server_group",
        compute_sdk,
        lambda world: world.it not in {each["id"] for each in groups(world)},
        "server group",
    ),
    "create": Call(
        lambda world: world.sdk.compute.create_server_group(
            name=world.name, policy="anti-affinity"
        ),
        "server group create --policy anti-affinity {name}",
        lambda world: world.name in {each["name"] for each in groups(world)},
        another,
    ),
}

MICROVERSIONS = {
    "negotiate": Call(
        lambda world: world.sdk.compute.get_endpoint_data().max_microversion,
        "versions show --service compute",
        lambda world: any(sign in str(world.answer) for sign in (f"2.{NEWEST}", f"(2, {NEWEST})")),
    )
}

# -- Glance --------------------


def image(world: World) -> Iterator[None]:
    body = {"name": world.name, "disk_format": "raw", "container_format": "bare"}
    world.it = world.json("glance", "/v2/images", "POST", **body)["id"]
    yield
    for each in world.json("glance", "/v2/images")["images"]:
        world.try_("glance", f"/v2/images/{each['id']}", "DELETE")


def is_uploaded(world: World) -> None:
    images = world.json("glance", "/v2/images")["images"]
    (image,) = [each for each in images if each["name"] == world.name]
    assert (image["status"], image["size"]) == ("active", len(DATA))


IMAGES = {
    **usual(
        "image",
        lambda world: world.sdk.image,
        lambda world: not world.is_there("glance", f"/v2/images/{world.it}"),
    ),
    "session's": Call(
        lambda world: list(world.sdk.image.images()),
        "image list",
        lambda world: "session" in world.listed(),
    ),
    "create and upload": Call(
        lambda world: world.sdk.image.create_image(
            world.name, filename=str(world.disk), disk_format="raw", container_format="bare"
        ),
        "image create --disk-format raw --file {disk} {name}",
        is_uploaded,
        another,
    ),
}

# -- Neutron --------------------


@dataclass(frozen=True)
class Kind:
    """A kind of resource of Neutron.

    :param body: the body that creates one; "NET" and "GROUP" stand for the ids of those.
    :param typed: the arguments of ``create``.
    :param in_sdk: its name in the SDK.
    """

    single: str
    typed: str
    body: dict[str, Any]
    in_sdk: str = ""

    @property
    def path(self) -> str:
        return f"/v2.0/{self.single.replace('_', '-')}s"

    @property
    def command(self) -> str:
        return {"floatingip": "floating ip"}.get(self.single, self.single.replace("_", " "))


KINDS = {
    "networks": Kind("network", "{name}", {}),
    "subnets": Kind(
        "subnet",
        "--network {net} --subnet-range 10.8.1.0/24 {name}",
        {"network_id": "NET", "ip_version": 4, "cidr": "10.8.2.0/24"},
    ),
    "ports": Kind("port", "--network {net} {name}", {"network_id": "NET"}),
    "routers": Kind("router", "{name}", {}),
    "security groups": Kind("security_group", "{name}", {}),
    "security group rules": Kind(
        "security_group_rule",
        "--protocol tcp --dst-port 22 {group}",
        {"security_group_id": "GROUP", "direction": "ingress", "protocol": "udp"},
    ),
    "floating addresses": Kind(
        "floatingip", "public", {"floating_network_id": "PUBLIC"}, in_sdk="ip"
    ),
}
NAMELESS = ("floatingip", "security_group_rule")


def neutron_kind(kind: Kind) -> tuple[Callable[[World], Iterator[None]], dict[str, Call]]:
    """Return the function that creates one of a kind, and the calls."""
    word = kind.in_sdk or kind.single

    def body(world: World) -> dict[str, Any]:
        ids = world.around
        given = {key: ids.get(value, value) for key, value in kind.body.items()}
        if "cidr" in given and not world.it:
            return {**given, "name": world.name}
        if "cidr" in given:
            given["cidr"] = "10.8.3.0/24"
        if "protocol" in given and world.it:
            given["protocol"] = "icmp"
        return given if kind.single in NAMELESS else {**given, "name": world.name}

    def subject(world: World) -> Iterator[None]:
        surround(world)
        before = ids(world)
        made = world.json("neutron", kind.path, "POST", **{kind.single: body(world)})
        world.it = made[kind.single]["id"]
        yield
        for each in ids(world) - before:
            world.try_("neutron", f"{kind.path}/{each}", "DELETE")
        clear(world)

    def ids(world: World) -> set[str]:
        (entries,) = world.json("neutron", kind.path).values()
        return {each["id"] for each in entries}

    def count(world: World) -> None:
        world.before = ids(world)
        if kind.single not in NAMELESS:
            another(world)

    def is_new(world: World) -> bool:
        return len(ids(world) - world.before) == 1

    calls = {
        "create": Call(
            lambda world: getattr(world.sdk.network, f"create_{word}")(**body(world)),
            f"{kind.command} create {kind.typed}",
            is_new,
            count,
        ),
        "list": Call(
            lambda world: list(getattr(world.sdk.network, f"{word}s")()),
            f"{kind.command} list",
            lambda world: world.it in world.listed(),
        ),
        "show": Call(
            lambda world: getattr(world.sdk.network, f"get_{word}")(world.it),
            f"{kind.command} show {{it}}",
            lambda world: world.it in world.shown(),
        ),
        "delete": Call(
            lambda world: getattr(world.sdk.network, f"delete_{word}")(world.it),
            f"{kind.command} delete {{it}}",
            lambda world: world.it not in ids(world),
        ),
    }
    if kind.single != "security_group_rule":
        calls["update"] = Call(
            lambda world: getattr(world.sdk.network, f"update_{word}")(
                world.it, description="changed"
            ),
            f"{kind.command} set --description changed {{it}}",
            lambda world: (
                world.json("neutron", f"{kind.path}/{world.it}")[kind.single]["description"]
                == "changed"
            ),
        )
    return subject, calls


def surround(world: World) -> None:
    """Create a network with a subnet, and a group, for the subjects."""
    net = world.json("neutron", "/v2.0/networks", "POST", network={"name": world.name})["network"]
    subnet = {"network_id": net["id"], "ip_version": 4, "cidr": "10.8.0.0/24"}
    world.json("neutron", "/v2.0/subnets", "POST", subnet=subnet)
    made = {"name": f"{world.name}-group"}
    its = world.json("neutron", "/v2.0/security-groups", "POST", security_group=made)
    public = world.json("neutron", "/v2.0/networks?name=public")["networks"][0]["id"]
    world.around = {"NET": net["id"], "GROUP": its["security_group"]["id"], "PUBLIC": public}


def clear(world: World) -> None:
    world.try_("neutron", f"/v2.0/networks/{world.around['NET']}", "DELETE")
    world.try_("neutron", f"/v2.0/security-groups/{world.around['GROUP']}", "DELETE")


def project(world: World) -> Iterator[None]:
    world.it = world.cloud.credentials.project_id
    yield


QUOTAS = {
    "show": Call(
        lambda world: world.sdk.network.get_quota(world.it).networks,
        "quota show --network {it}",
        lambda world: "100" in str(world.answer),
    ),
}

TABLE: dict[str, tuple[Callable[[World], Iterator[None]], dict[str, Call]]] = {
    "servers": (server, SERVERS),
    "flavors": (flavor, FLAVORS),
    "keypairs": (keypair, KEYPAIRS),
    "server groups": (group, GROUPS),
    "microversions": (nothing, MICROVERSIONS),
    "images": (image, IMAGES),
    **{name: neutron_kind(kind) for name, kind in KINDS.items()},
    "quotas": (project, QUOTAS),
}


def calls() -> list[Any]:
    slow = {"openstack": [pytest.mark.slow]}
    return [
        pytest.param(name, verb, client, id=f"{name}-{verb}-{client}", marks=slow.get(client, []))
        for name, (_, verbs) in TABLE.items()
        for verb in verbs
        for client in ("sdk", "openstack")
    ]


TABLES = (" list", " show", " create")
AS_TEXT = ("keypair create", "console log show")


def typed(world: World, line: str) -> Any:
    words = line.format(
        it=world.it,
        name=world.name,
        disk=world.disk,
        net=world.around.get("NET"),
        group=world.around.get("GROUP"),
    ).split()
    as_table = any(part in f" {line}" for part in TABLES) and not line.startswith(AS_TEXT)
    return world.command(*words, *(("-f", "json") if as_table else ()))


@pytest.mark.parametrize(("name", "verb", "client"), calls())
def test_call_has_its_effect(clients: World, name: str, verb: str, client: str) -> None:
    make, verbs = TABLE[name]
    call, world = verbs[verb], clients
    world.it, world.name, world.around = "", f"subject-{next(NUMBERS)}", {}
    (world.command.directory / "key.pub").write_text(KEY)
    life = make(world)
    next(life)
    try:
        call.before(world)
        if client == "sdk":
            world.answer = call.sdk(world)
        else:
            world.answer = typed(world, call.command)
        assert call.check(world) in (None, True)
    finally:
        next(life, None)
