"""What Heat's Nova plug-in is given in the place of novaclient.

Heat's own ``OS::Nova::Server`` and ``AWS::EC2::Instance`` run unchanged on it; they see objects and
exceptions of novaclient's kind.
"""

from __future__ import annotations

import dataclasses
import uuid
from types import SimpleNamespace
from typing import Any

from novaclient import exceptions as nova_exceptions  # type: ignore[import-untyped]

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.network import GUEST_IP, NETWORK, mac_address
from hotplate.cloud.nova.servers import (
    KeyPair,
    NoSuchServerError,
    ServerRecord,
    Servers,
    UserDataTooLargeError,
)

#: Just below 2.92, from where on Nova no longer makes key pairs itself.
MICROVERSION = "2.91"


class NovaServer:
    """One server as novaclient shows it."""

    def __init__(self, servers: Servers, server: ServerRecord) -> None:
        self._servers = servers
        self._fill(server)

    def _fill(self, server: ServerRecord) -> None:
        spec = server.spec
        self.id = spec.id
        self.name = spec.name
        self.status, reason = self._servers.status(spec.id)
        self.fault = {"message": reason, "code": 500}
        self.metadata = dict(spec.metadata)
        self.flavor = {"id": spec.flavor, "original_name": spec.flavor}
        self.image = {"id": spec.image}
        self.key_name = spec.key_name
        self.accessIPv4 = GUEST_IP
        self.accessIPv6 = ""
        self.tags: list[str] = []
        self.networks = {NETWORK: [GUEST_IP]}
        self.addresses = {
            NETWORK: [
                {
                    "addr": GUEST_IP,
                    "version": 4,
                    "OS-EXT-IPS:type": "fixed",
                    "OS-EXT-IPS-MAC:mac_addr": mac_address(spec.id),
                }
            ]
        }
        setattr(self, "OS-EXT-SRV-ATTR:instance_name", server.instance_name)
        setattr(self, "OS-EXT-STS:task_state", None)

    def get(self) -> None:
        """Look again."""
        self._fill(_record(self._servers, self.id))

    def to_dict(self) -> dict[str, object]:
        """Return the server as Nova's JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "metadata": self.metadata,
            "flavor": self.flavor,
            "image": self.image,
            "key_name": self.key_name,
            "addresses": self.addresses,
            "accessIPv4": self.accessIPv4,
            "accessIPv6": self.accessIPv6,
            "OS-EXT-SRV-ATTR:instance_name": getattr(self, "OS-EXT-SRV-ATTR:instance_name"),
        }

    def suspend(self) -> None:
        """Freeze it."""
        self._servers.act(self.id, "suspend")

    def resume(self) -> None:
        """Go on."""
        self._servers.act(self.id, "resume")

    def stop(self) -> None:
        """Stop it."""
        self._servers.act(self.id, "stop")

    def start(self) -> None:
        """Start it."""
        self._servers.act(self.id, "start")

    def reboot(self, *_: object) -> None:
        """Restart it."""
        self._servers.act(self.id, "reboot")

    def delete(self) -> None:
        """End it."""
        self._servers.delete(self.id)

    def resize(self, flavor: str, **_: object) -> None:
        """Take note of another flavor; the machine stays as it is."""
        self._change(flavor=flavor)
        # Heat waits for VERIFY_RESIZE, which nothing here would ever leave.
        self.status = "VERIFY_RESIZE"

    def rebuild(self, *_: object, **__: object) -> None:
        """Start again from the image, with the same user data."""
        spec = _record(self._servers, self.id).spec
        self._servers.delete(self.id)
        self._servers.boot(spec)

    def update(self, name: str | None = None, **_: object) -> None:
        """Rename it."""
        if name:
            self._change(name=name)

    def change_password(self, password: str) -> None:
        """Accept it and do nothing: there is no agent that Nova could ask."""

    def interface_list(self) -> list[object]:
        """Its one interface."""
        return [
            SimpleNamespace(
                port_id=self.id,
                net_id=NETWORK,
                mac_addr=mac_address(self.id),
                fixed_ips=[{"ip_address": GUEST_IP, "subnet_id": NETWORK}],
            )
        ]

    def interface_attach(self, port_id: str | None, *_: Any) -> Any:
        """Accept it and do nothing: a guest has one interface and keeps it."""
        return SimpleNamespace(port_id=port_id or self.id)

    def interface_detach(self, port_id: str) -> None:
        """Accept it and do nothing: a guest has one interface and keeps it."""

    def get_console_url(self, kind: str) -> dict[str, object]:
        """There is no console by URL."""
        raise nova_exceptions.UnsupportedConsoleType(kind)

    def _change(self, **changes: Any) -> None:
        spec = dataclasses.replace(_record(self._servers, self.id).spec, **changes)
        self._servers.change(self.id, spec)


class _ServerManager:
    def __init__(self, servers: Servers, user: str) -> None:
        self._servers = servers
        self._user = user

    def create(
        self,
        name: str,
        image: Any,
        flavor: Any,
        *,
        userdata: Any = None,
        meta: dict[str, str] | None = None,
        key_name: str | None = None,
        availability_zone: str | None = None,
        config_drive: Any = None,
        scheduler_hints: dict[str, Any] | None = None,
        **_: Any,
    ) -> NovaServer:
        hints = scheduler_hints or {}
        data = userdata.encode() if isinstance(userdata, str) else (userdata or b"")
        keys = {}
        if key_name:
            public_key = self._servers.keypair(key_name).public_key
            keys = {key_name: public_key} if public_key else {}
        spec = ServerSpec(
            id=str(uuid.uuid4()),
            name=name,
            user_data=data,
            image=str(image or ""),
            flavor=str(flavor or ""),
            key_name=key_name or "",
            public_keys=keys,
            metadata=dict(meta or {}),
            config_drive=str(config_drive).lower() in ("true", "1"),
            # The name a person gave: that of the root stack, not of a nested one.
            stack_name=str(_first(hints.get("heat_path_in_stack")) or ""),
            resource_name=str(_first(hints.get("heat_resource_name")) or ""),
            availability_zone=availability_zone or "nova",
        )
        try:
            server = self._servers.boot(spec)
        except UserDataTooLargeError as error:
            kind = nova_exceptions.BadRequest if error.status == 400 else nova_exceptions.OverLimit
            raise kind(error.status, str(error)) from error
        return NovaServer(self._servers, server)

    def get(self, server: Any) -> NovaServer:
        server_id = server if isinstance(server, str) else server.id
        return NovaServer(self._servers, _record(self._servers, server_id))

    def delete(self, server: object) -> None:
        self.get(server).delete()

    def set_meta(self, server: object, metadata: dict[str, str]) -> None:
        target = self.get(server)
        target._change(metadata={**target.metadata, **metadata})

    def delete_meta(self, server: object, names: list[str]) -> None:
        target = self.get(server)
        target._change(
            metadata={name: value for name, value in target.metadata.items() if name not in names}
        )

    def set_tags(self, server: object, tags: list[str]) -> None:
        """Accept them; nothing here reads them."""

    def tag_list(self, server: object) -> list[str]:  # noqa: ARG002
        return []


class _KeyPairManager:
    def __init__(self, servers: Servers, user: str) -> None:
        self._servers = servers
        self._user = user

    def create(
        self, name: str, public_key: str | None = None, key_type: str = "ssh", **_: object
    ) -> Any:
        private = ""
        if not public_key:
            private, public_key = _generate_key(name)
        self._servers.create_keypair(KeyPair(name, public_key, key_type), self._user)
        made = SimpleNamespace(id=name, name=name, public_key=public_key)
        if private:
            made.private_key = private
        return made

    def get(self, name: str) -> Any:
        pair = self._servers.keypair(name)
        return SimpleNamespace(id=name, name=name, public_key=pair.public_key)

    def delete(self, name: str) -> None:
        self._servers.delete_keypair(name)


class _FlavorManager:
    """Every flavor exists: the machine's size is the harness's to choose."""

    def get(self, flavor: Any) -> Any:
        return SimpleNamespace(id=str(flavor), name=str(flavor), ram=1 << 30, disk=1 << 30, vcpus=1)

    def find(self, name: str) -> Any:
        return self.get(name)


class _LimitManager:
    """Nova's default quota."""

    def get(self) -> Any:
        limits = {"maxServerMeta": 128, "maxPersonality": 5, "maxPersonalitySize": 10240}
        return SimpleNamespace(
            absolute=[SimpleNamespace(name=name, value=value) for name, value in limits.items()]
        )


class _ServerGroupManager:
    """Accepted: all guests run on this one host."""

    def get(self, group: str) -> Any:
        return SimpleNamespace(id=group, name=group)


class _VolumeManager:
    """Attachments are accepted; there are no volumes."""

    def create_server_volume(self, server_id: str, volume_id: str, device: str) -> Any:
        return SimpleNamespace(id=f"{server_id}-{volume_id}", device=device)

    def delete_server_volume(self, server_id: str, attachment_id: str) -> None:
        pass

    def get_server_volume(self, server_id: str, attachment_id: str) -> Any:
        raise nova_exceptions.NotFound(404, f"{attachment_id} is not attached to {server_id}")


class NovaClient:
    """The part of ``novaclient.v2.client.Client`` that Heat calls."""

    def __init__(self, servers: Servers, user: str) -> None:
        self.servers = _ServerManager(servers, user)
        self.keypairs = _KeyPairManager(servers, user)
        self.flavors = _FlavorManager()
        self.limits = _LimitManager()
        self.server_groups = _ServerGroupManager()
        self.volumes = _VolumeManager()


def _record(servers: Servers, server_id: str) -> ServerRecord:
    try:
        return servers.get(server_id)
    except NoSuchServerError:
        raise nova_exceptions.NotFound(404, f"Instance {server_id} could not be found.") from None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _generate_key(comment: str) -> tuple[str, str]:
    """Return a new ssh key as Nova makes one: (private, public)."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, f"{public.decode()} {comment}"
