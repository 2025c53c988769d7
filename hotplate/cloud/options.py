"""Settings of the embedded cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotplate.cloud.glance.images import SessionImage


# No lambda: the options of a case are sent to its process.
def no_refusal(_: str) -> str:
    """Return no reason: every image can be booted."""
    return ""


@dataclass(frozen=True)
class CloudOptions:
    """Settings of one :class:`~hotplate.cloud.cloud.Cloud`.

    :param signature_ttl: seconds after its ``Timestamp`` in which an EC2 signature is valid; 0
        disables the check.  The default of a real Keystone is 900 (``[credential] auth_ttl``).
    :param request_limit: Nova's limit on the body of the request that creates a server, in bytes;
        0 disables the check (``osapi_max_request_body_size`` was 114688).
    :param lift_limits: accept requests that Heat, Keystone, Zaqar and Swift refuse by default
        because they are too large (:mod:`hotplate.cloud.http.limits`).
    :param environment_dir: environments for every stack, as Heat's own ``environment_dir``.
    :param own_network_data: server name -> a ``network_data.json`` of the user's, which a server
        with ports gets instead of Nova's; see :func:`hotplate.cloud.nova.metadata.with_macs`.
    :param public_key: the OpenSSH public key of each key pair that a template names and no user
        created.
    :param images: the host's images that Glance has initially.
    :param images_by_name: servers boot the one of them that they name, and other names are refused.
    :param upload_refusal: returns the reason why no server can boot the uploaded image with an id,
        "" when one can.
    """

    signature_ttl: int = 0
    request_limit: int = 0
    lift_limits: bool = False
    environment_dir: Path | None = None
    own_network_data: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    public_key: str = ""
    images: tuple[SessionImage, ...] = ()
    images_by_name: bool = False
    upload_refusal: Callable[[str], str] = no_refusal
