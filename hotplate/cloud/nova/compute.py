"""What the cloud asks of whoever runs its servers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class ServerSpec:
    """One server as a template wants it.

    :param id: the Nova id, a UUID; the SMBIOS system UUID must be the same.
    :param user_data: the bytes the metadata service will serve, assembled by Heat.
    :param public_keys: key name -> OpenSSH public key line.
    :param metadata: Nova's key-value metadata of the server.
    :param config_drive: the template asked for a config drive.
    :param stack_name: the stack the server belongs to, "" when made outside of Heat.
    :param resource_name: the logical name in the template, for people.
    """

    id: str
    name: str
    user_data: bytes = b""
    image: str = ""
    flavor: str = ""
    key_name: str = ""
    public_keys: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    config_drive: bool = False
    stack_name: str = ""
    resource_name: str = ""
    availability_zone: str = "nova"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerSpec:
        """Return the inverse of :meth:`to_json`."""
        return cls(**{**value, "user_data": value["user_data"].encode("latin-1")})

    def to_json(self) -> dict[str, object]:
        """Plain JSON types, to be kept over a restart."""
        return {**self.__dict__, "user_data": self.user_data.decode("latin-1")}


class GuestServices(Protocol):
    """What whoever runs a server needs of the cloud for its guest; the cloud is one."""

    def serve(
        self, server_id: str, listeners: Mapping[int, socket.socket], *, vendor_data: str = ""
    ) -> AbstractContextManager[object]:
        """Answer the guest on listeners of its own, by port, until the result is closed."""

    def metadata_tree(self, server_id: str) -> Mapping[str, bytes]:
        """Path -> content of what the server's config drive holds."""

    def notify(self) -> None:
        """Let Heat look again: the server's status is another now."""


class Compute(Protocol):
    """Runs servers.  Each call returns at once; :meth:`status` tells how it went.

    Implementations must be thread-safe.
    """

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        """Start the server, whose guest gets the cloud's services; raises to refuse it."""

    def delete(self, server_id: str) -> None:
        """End the server and forget it."""

    def stop(self, server_id: str) -> None:
        """Stop the server, so that :meth:`start` can go on with its disk."""

    def start(self, server_id: str) -> None:
        """Start a stopped server."""

    def suspend(self, server_id: str) -> None:
        """Freeze the server."""

    def resume(self, server_id: str) -> None:
        """Go on with a suspended server."""

    def pause(self, server_id: str) -> None:
        """Stop the server's processors; its memory stays where it is."""

    def unpause(self, server_id: str) -> None:
        """Let the server's processors run on."""

    def reboot(self, server_id: str) -> None:
        """Let the server's system shut down, and start the server again."""

    def hard_reboot(self, server_id: str) -> None:
        """Cut the server's power, whatever its state, and start it again."""

    def console(self, server_id: str) -> str:
        """Return what the server has written to its console, as far as it is kept."""

    def status(self, server_id: str) -> tuple[str, str]:
        """Nova's word for the state and the reason for people.

        The words are ``BUILD``, ``ACTIVE``, ``REBOOT``, ``HARD_REBOOT``, ``PAUSED``,
        ``SUSPENDED``, ``SHUTOFF`` and ``ERROR``.
        """
