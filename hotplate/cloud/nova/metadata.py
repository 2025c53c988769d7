"""Nova's metadata: the tree a guest reads at 169.254.169.254 or finds on its config drive.

The shape follows ``nova/api/metadata/base.py`` and ``handler.py``: no listing and no leaf ends in
a newline, an EC2 directory ends in ``/``, and an unknown path is 404.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from webob import exc

from hotplate.cloud.http.gateway import SERVER, WSGIApp
from hotplate.cloud.http.rest import Answer
from hotplate.cloud.nova.compute import PortAddress, ServerPort
from hotplate.cloud.nova.interfaces import MADE_BY_GUEST, group_names, physical_links
from hotplate.cloud.nova.server_records import NoSuchServerError, ServerRecord
from hotplate.cloud.nova.servers import Servers
from hotplate.errors import HostError

EC2_VERSIONS = (
    "1.0",
    "2007-01-19",
    "2007-03-01",
    "2007-08-29",
    "2007-10-10",
    "2007-12-15",
    "2008-02-01",
    "2008-09-01",
    "2009-04-04",
    "latest",
)
#: Versions of the OpenStack tree, each greater than the one before it as a string, too.
OPENSTACK_VERSIONS = (
    "2012-08-10",
    "2013-04-04",
    "2013-10-17",
    "2015-10-15",
    "2016-06-30",
    "2016-10-06",
    "2017-02-22",
    "2018-08-27",
    "2020-10-14",
    "2025-04-04",
    "latest",
)
#: A config drive leaves out the older EC2 versions (``[DEFAULT] config_drive_skip_versions``).
DRIVE_EC2_VERSIONS = ("2009-04-04", "latest")

#: Length of the name of a port's interface on a host (``nova/network/model.py``).
TAP = 14

TEXT, HTML = "text/plain; charset=UTF-8", "text/html; charset=UTF-8"
#: Files that Nova gives a type of their own; all others are text, also ``network_data.json``.
#: ``password`` has the default of WebOb, because its handler sets none.
TYPES = {
    "meta_data.json": "application/json",
    "vendor_data.json": "application/json",
    "vendor_data2.json": "application/json",
    "password": HTML,
}


class Metadata:
    """Builds the metadata trees of all servers.

    :param project: the owner's project id.
    :param own_network_data: server name -> ``network_data.json`` to serve instead of Nova's.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        project: str,
        own_network_data: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    ) -> None:
        self._own_network_data = own_network_data
        self._servers = servers
        self._project = project
        self._vendor: dict[str, str] = {}
        self._isolated: set[str] = set()

    def set_vendor_data(self, server_id: str, cloud_config: str) -> None:
        """Give a server a vendor cloud-config, as an operator's ``vendor_data.json`` does."""
        self._vendor[server_id] = cloud_config

    def isolate(self, server_id: str) -> None:
        """Describe none of a server's ports, as its machine has one link of its own.

        cloud-init would fail on a MAC address that the machine does not have.

        :raises HostError: for a server whose ``network_data.json`` was given.
        """
        given = self._own_network_data
        if given and (name := self._servers.get(server_id).spec.name) in given:
            raise HostError(
                f'the network data of the server "{name}" need its ports, and on this host it has '
                "a link of its own only",
                hint="hotplate doctor",
            )
        self._isolated.add(server_id)

    def _has_ports(self, server: ServerRecord) -> bool:
        return server.notes.has_ports and server.spec.id not in self._isolated

    def config_drive(self, server_id: str) -> dict[str, bytes]:
        """Return the files of a server's config drive: path -> content.

        :raises NoSuchServerError: when there is no such server.
        """
        server = self._servers.get(server_id)
        files: dict[str, bytes] = {}
        for version in OPENSTACK_VERSIONS:
            for name, content in self._openstack(server, version).items():
                # A drive is read-only, so Nova's has no password.
                if name != "password":
                    files[f"openstack/{version}/{name}"] = content
        for version in DRIVE_EC2_VERSIONS:
            files[f"ec2/{version}/meta-data.json"] = _json(_nested(self._ec2(server)))
            if server.spec.user_data:
                files[f"ec2/{version}/user-data"] = server.spec.user_data
        return files

    def answer(self, server_id: str, path: str) -> tuple[str, bytes] | None:
        """Return the response to GET of ``path``: (content type, body); None means 404.

        :raises NoSuchServerError: when there is no such server.
        """
        parts = [part for part in path.split("/") if part]
        if any(part in (".", "..") for part in parts):
            return None
        server = self._servers.get(server_id)
        if parts[:1] == ["openstack"]:
            return self._answer_openstack(server, parts[1:])
        # The EC2 tree is at the root as well as below /ec2.
        if parts[:1] == ["ec2"]:
            parts = parts[1:]
        if not parts:
            return TEXT, "\n".join(EC2_VERSIONS).encode()
        return self._answer_ec2(server, parts)

    # -- OpenStack --------------------

    def _answer_openstack(self, server: ServerRecord, parts: list[str]) -> tuple[str, bytes] | None:
        if not parts:
            return TEXT, "\n".join(OPENSTACK_VERSIONS).encode()
        version, rest = parts[0], parts[1:]
        if version not in OPENSTACK_VERSIONS or len(rest) > 1:
            return None
        files = self._openstack(server, version)
        if not rest:
            return TEXT, "\n".join(files).encode()
        content = files.get(rest[0])
        if content is None:
            return None
        return TYPES.get(rest[0], TEXT), content

    def _openstack(self, server: ServerRecord, version: str) -> dict[str, bytes]:
        spec = server.spec
        vendor = self._vendor.get(spec.id)
        static = {"cloud-init": vendor} if vendor else {}
        files = {"meta_data.json": _json(self._meta_data(server, version))}
        if spec.user_data:
            files["user_data"] = spec.user_data
        if version >= "2013-04-04":
            files["password"] = self._servers.password(spec.id).encode()
        if version >= "2013-10-17":
            files["vendor_data.json"] = _json(static)
        if version >= "2015-10-15" and self._has_ports(server):
            files["network_data.json"] = _json(self._network_data_of(server))
        if version >= "2016-10-06":
            # The only provider of ``[api] vendordata_providers`` by default, ``StaticJSON``.
            files["vendor_data2.json"] = _json({"static": static})
        return files

    def _network_data_of(self, server: ServerRecord) -> dict[str, object]:
        ports = [each.port for each in self._servers.interfaces(server)]
        if own := self._own_network_data.get(server.spec.name):
            return with_macs(own, [each.mac for each in ports])
        return network_data(ports)

    def _meta_data(self, server: ServerRecord, version: str) -> dict[str, object]:
        spec = server.spec
        data: dict[str, object] = {
            "uuid": spec.id,
            "availability_zone": spec.availability_zone,
            "hostname": _with_domain(server),
            "launch_index": 0,
            "name": spec.name,
        }
        if spec.metadata:
            data["meta"] = spec.metadata
        if spec.public_keys:
            data["public_keys"] = spec.public_keys
            # In all versions, as in Nova.
            data["keys"] = [
                {"name": name, "type": "ssh", "data": key} for name, key in spec.public_keys.items()
            ]
        if version >= "2013-04-04":
            data["random_seed"] = server.random_seed
        if version >= "2015-10-15":
            data["project_id"] = self._project
        if version >= "2016-06-30":
            data["devices"] = []
        if version >= "2020-10-14":
            data["dedicated_cpus"] = []
        return data

    # -- EC2 ------------------------------------------------------------------------------------

    def _answer_ec2(self, server: ServerRecord, parts: list[str]) -> tuple[str, bytes] | None:
        version, rest = parts[0], parts[1:]
        if version not in EC2_VERSIONS:
            return None
        user_data = server.spec.user_data
        if not rest:
            names = ["meta-data/"] + (["user-data"] if user_data else [])
            return TEXT, "\n".join(names).encode()
        if rest == ["user-data"]:
            return (TEXT, user_data) if user_data else None
        if rest[0] != "meta-data":
            return None
        values = self._ec2(server)
        path = "/".join(rest[1:])
        if path in values:
            return TEXT, _printed(values[path])
        prefix = f"{path}/" if path else ""
        below = [name[len(prefix) :] for name in values if name.startswith(prefix)]
        if not below:
            return None
        # A directory's name ends in a slash.
        names = sorted({head + slash for head, slash, _ in (name.partition("/") for name in below)})
        # Keys are listed as INDEX=NAME.
        if path == "public-keys":
            names = [f"{i}={name}" for i, name in enumerate(server.spec.public_keys)]
        return TEXT, "\n".join(names).encode()

    def _ec2(self, server: ServerRecord) -> dict[str, object]:
        spec = server.spec
        interfaces = self._servers.interfaces(server)
        addresses = [each for interface in interfaces for each in interface.port.addresses]
        local = _first_ipv4(each.address for each in addresses)
        floating = _first_ipv4(each for interface in interfaces for each in interface.floating)
        hostname = _with_domain(server)
        values: dict[str, object] = {
            "ami-id": "ami-00000001",
            "ami-launch-index": 0,
            # Nova's own value.
            "ami-manifest-path": "FIXME",
            "block-device-mapping/ami": "vda",
            "block-device-mapping/root": "/dev/vda",
            "hostname": hostname,
            "instance-action": "none",
            "instance-id": server.ec2_id,
            "instance-type": spec.flavor or "m1.small",
            "local-hostname": hostname,
            "local-ipv4": local,
            "placement/availability-zone": spec.availability_zone,
            "public-hostname": hostname,
            "public-ipv4": floating if server.notes.has_ports else local,
            "reservation-id": f"r-{server.number:08x}",
            "security-groups": group_names(interfaces),
        }
        for index, key in enumerate(spec.public_keys.values()):
            values[f"public-keys/{index}/openssh-key"] = key
        return values


def app(metadata: Metadata, servers: Servers) -> WSGIApp:
    """Return the metadata service; the listener identifies the guest, never the request."""

    def metadata_app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return _answer(metadata, servers, environ).send(start_response)
        except exc.HTTPException as error:
            # Nova's are WebOb's, too: a page, text or JSON, as the request accepts it.
            return error(environ, start_response)  # type: ignore[no-any-return]

    return metadata_app


def _answer(metadata: Metadata, servers: Servers, environ: WSGIEnvironment) -> Answer:
    server_id, path = environ[SERVER], environ.get("PATH_INFO", "/")
    method = environ["REQUEST_METHOD"]
    if method == "POST" and path.rstrip("/").endswith("/password"):
        return _post_password(environ, servers, server_id)
    if method not in ("GET", "HEAD") and path.rstrip("/").endswith("/password"):
        raise exc.HTTPBadRequest
    # Nova looks at no other method: a DELETE reads, too.
    try:
        answer = metadata.answer(server_id, path)
    except NoSuchServerError:
        answer = None
    if answer is None:
        raise exc.HTTPNotFound
    kind, body = answer
    return Answer(200, body, (("Content-Type", kind),))


def _post_password(environ: WSGIEnvironment, servers: Servers, server_id: str) -> Answer:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    # Nova: 4 chunks of 255 bytes (``nova/api/metadata/password.py``).
    if len(body) > 1020:
        raise exc.HTTPBadRequest("Request is too large.")
    if not servers.set_password(server_id, body.decode("utf-8", "replace")):
        raise exc.HTTPConflict
    return Answer(200, b"", (("Content-Type", HTML),))


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _first_ipv4(addresses: Iterable[str]) -> str:
    return next((each for each in addresses if ":" not in each), "")


def _printed(value: object) -> bytes:
    """Return a value of the EC2 tree as text, a list with a line for each item."""
    return ("\n".join(value) if isinstance(value, list) else str(value)).encode()


def _nested(values: dict[str, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *heads, leaf = name.split("/")
        node = tree
        for head in heads:
            node = node.setdefault(head, {})
        node[leaf] = value
    return tree


def _with_domain(server: ServerRecord) -> str:
    """Return the host name with Nova's default domain."""
    return server.host_name + ".novalocal"


def network_data(ports: Sequence[ServerPort]) -> dict[str, object]:
    """Return ``network_data.json`` for a server's ports, as ``nova/virt/netutils.py`` does."""
    links: list[dict[str, object]] = []
    networks: list[dict[str, object]] = []
    services: list[dict[str, object]] = []
    for port in ports:
        link = f"tap{port.id}"[:TAP]
        links.append(
            {
                "id": link,
                "vif_id": port.id,
                "type": "ovs",
                "mtu": port.mtu,
                "ethernet_mac_address": port.mac,
            }
        )
        for address in port.addresses:
            network = {"id": f"network{len(networks)}", "link": link, "network_id": port.network_id}
            networks.append({**network, **_network(address)})
            services += [each for each in _services(address) if each not in services]
    return {"links": links, "networks": networks, "services": services}


def with_macs(data: Mapping[str, Any], macs: Sequence[str]) -> dict[str, object]:
    """Return a ``network_data.json`` with the MAC addresses of a server's ports.

    The links get them in the order of the ports; a bond has that of its first link, a VLAN that of
    its own link, as Ironic writes them.

    :param data: with ``links``, checked by :func:`check_network_data`.

    >>> bond = {"id": "b", "type": "bond", "bond_links": ["a"]}
    >>> with_macs({"links": [{"id": "a", "type": "phy"}, bond]}, ["fa:16:3e:00:00:05"])["links"]
    [{'id': 'a', 'type': 'phy', 'ethernet_mac_address': 'fa:16:3e:00:00:05'}, \
{'id': 'b', 'type': 'bond', 'bond_links': ['a'], 'ethernet_mac_address': 'fa:16:3e:00:00:05'}]
    """
    known = dict(zip(physical_links(data), macs, strict=False))
    shown = []
    for link in data["links"]:
        name = "vlan_mac_address" if link["type"] == "vlan" else "ethernet_mac_address"
        below = {"bond": link.get("bond_links", [""])[0], "vlan": link.get("vlan_link")}
        # A link without a port keeps what it has.
        mac = known.get(below.get(link["type"], link["id"]), link.get(name))
        known.setdefault(link["id"], mac)
        shown.append({**link, **({name: mac} if mac else {})})
    return {"networks": [], "services": [], **data, "links": shown}


def check_network_data(text: str) -> dict[str, dict[str, Any]]:
    """Return the ``network_data.json`` of each server name in a JSON text.

    :raises ValueError: when it is none; the message says what is wrong.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not data:
        raise ValueError('expected {"SERVER NAME": {"links": [...], "networks": [...]}}')
    for name, each in data.items():
        links = each.get("links") if isinstance(each, dict) else None
        if not isinstance(links, list) or not links:
            raise ValueError(f'"{name}" has no list of "links"')
        # No set: the links that are needed may be of any type, such as a list.
        known: list[str] = []
        for link in links:
            if not isinstance(link, dict) or not all(
                isinstance(link.get(key), str) for key in ("id", "type")
            ):
                raise ValueError(f'a link of "{name}" has no "id" and "type"')
            needed = link.get("bond_links") if link["type"] == "bond" else [link.get("vlan_link")]
            if link["type"] in MADE_BY_GUEST and (
                not isinstance(needed, list)
                or not needed
                or not all(below in known for below in needed)
            ):
                raise ValueError(f'the link "{link["id"]}" of "{name}" needs links named before it')
            known.append(link["id"])
    return data


def _network(address: PortAddress) -> dict[str, object]:
    own = ipaddress.ip_interface(f"{address.address}/{address.cidr.partition('/')[2]}")
    kind = f"ipv{own.version}"
    # Nova shows the address as soon as the subnet has a mode, even one of DHCP.
    if address.ipv6_address_mode:
        kind += f"_{address.ipv6_address_mode}"
    elif address.enable_dhcp:
        return {"type": f"{kind}_dhcp"}
    return {
        "type": kind,
        "ip_address": address.address,
        "netmask": str(own.netmask),
        "routes": _routes(address, own.version),
        "services": _services(address),
    }


def _routes(address: PortAddress, version: int) -> list[dict[str, str]]:
    everything = "0.0.0.0/0" if version == 4 else "::/0"
    default = [(everything, address.gateway)] if address.gateway else []
    shown = []
    for destination, gateway in (*default, *address.host_routes):
        network = ipaddress.ip_network(destination)
        shown.append(
            {
                "network": str(network.network_address),
                "netmask": str(network.netmask),
                "gateway": gateway,
            }
        )
    return shown


def _services(address: PortAddress) -> list[dict[str, object]]:
    return [{"type": "dns", "address": each} for each in address.name_servers]
