"""What can be chosen about the embedded cloud."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotplate.cloud.glance.images import SessionImage


@dataclass(frozen=True)
class CloudOptions:
    """Settings of one :class:`~hotplate.cloud.cloud.Cloud`.

    :param signature_ttl: seconds after its ``Timestamp`` in which an EC2 signature is good; 0 does
        not check.  A real Keystone says 900 (``[credential] auth_ttl``).
    :param token_ttl: seconds a Keystone token is good for.
    :param user_data_limit: Nova's limit on the user data, in base64 characters.
    :param request_limit: Nova's limit on the body of the request that creates a server, in bytes;
        0 does not check (``osapi_max_request_body_size`` was 114688).
    :param lift_limits: take requests that Heat, Keystone, Zaqar and Swift refuse by their defaults
        because they are too large (:mod:`hotplate.cloud.http.limits`).
    :param environment_dir: environments every stack gets, as Heat's own ``environment_dir``.
    :param network_data: serve ``network_data.json``; off, because what it says replaces DHCP.
    :param threads: how many requests of the host's Heat answers at once.
    :param public_key: the OpenSSH public key of each key pair that a template names and nobody
        made.
    :param images: the images of the host's that Glance has from the start.
    :param images_by_name: a server boots the one of them that it names, and no other name is good.
    """

    signature_ttl: int = 0
    token_ttl: int = 3600
    user_data_limit: int = 65535
    request_limit: int = 0
    lift_limits: bool = False
    environment_dir: Path | None = None
    network_data: bool = False
    threads: int = 16
    public_key: str = ""
    images: tuple[SessionImage, ...] = ()
    images_by_name: bool = False
