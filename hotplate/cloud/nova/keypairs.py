"""Key pairs over HTTP: imported, or generated as Nova did before 2.92.

Every name stands for a key pair, with the harness's own public key by default, so that a template
may name a key pair of the cloud that it was written for; only those that a user made are listed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from hotplate.cloud.http.rest import Answer, HttpError, Request, now
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.microversions import MAX_PAGE, Caller
from hotplate.cloud.nova.server_records import KeyPair, naive

_BAD = "Keypair data is invalid: failed to generate fingerprint"


def _list(request: Request, caller: Caller) -> Answer:
    rows = caller.servers.keypairs()
    links: dict[str, object] = {}
    # Pages came with 2.35.
    if caller.since(35):
        rows, links = caller.page(request, rows, lambda each: each.name, "keypairs_links")
    else:
        rows = rows[: request.number("limit", default=MAX_PAGE, most=MAX_PAGE)]
    shown = [{"keypair": _view(row, caller)} for row in rows]
    return Answer(body={"keypairs": shown, **links})


def _create(request: Request, caller: Caller) -> Answer:
    schema = schemas.KEY_PAIR_SINCE_92 if caller.since(92) else schemas.KEY_PAIR
    asked = schemas.read(request, schema)["keypair"]
    name, kind = asked["name"], asked.get("type", "ssh")
    if caller.servers.has_keypair(name):
        raise HttpError(409, f"Key pair '{name}' already exists.")
    if len(caller.servers.keypairs()) >= caller.servers.quotas.key_pairs:
        raise HttpError(403, "Quota exceeded, too many key pairs.")
    private, public = "", asked.get("public_key") or ""
    if not public:
        private, public = generate(name, kind)
    pair = KeyPair(name, public, kind, naive(now()))
    shown = _view(pair, caller) | {"user_id": caller.grant.user.id}
    caller.servers.create_keypair(pair, caller.grant.user.id)
    if private:
        shown["private_key"] = private
    # 2.2 changed these statuses.
    return Answer(201 if caller.since(2) else 200, {"keypair": shown})


def _show(request: Request, caller: Caller) -> Answer:
    pair = caller.servers.keypair(request.parts["name"][:255])
    more = {
        "user_id": caller.grant.user.id,
        "id": 1,
        "created_at": pair.created or None,
        "updated_at": None,
        "deleted": False,
        "deleted_at": None,
    }
    return Answer(body={"keypair": {**_view(pair, caller), **more}})


def _delete(request: Request, caller: Caller) -> Answer:
    name = request.parts["name"]
    if not caller.servers.delete_keypair(name):
        user = caller.grant.user.id
        raise HttpError(404, f"Keypair {name} not found for user {user}")
    return Answer(204 if caller.since(2) else 202)


def _view(pair: KeyPair, caller: Caller) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": pair.name,
        "public_key": pair.public_key,
        "fingerprint": fingerprint(pair) if pair.public_key else "",
    }
    if caller.since(2):
        shown["type"] = pair.type
    return shown


def fingerprint(pair: KeyPair) -> str:
    """Return a key's fingerprint as Nova shows it: MD5 of an ssh key, SHA-1 of a certificate.

    :raises HttpError: 400, when it is neither.
    """
    try:
        if pair.type == "x509":
            digest = hashlib.sha1(_certificate(pair.public_key), usedforsecurity=False)
        else:
            digest = hashlib.md5(_ssh_key(pair.public_key), usedforsecurity=False)
    except (ValueError, IndexError, binascii.Error):
        raise HttpError(400, _BAD) from None
    return digest.digest().hex(":")


def _ssh_key(line: str) -> bytes:
    from cryptography.hazmat.primitives import serialization

    # This checks the line; the fingerprint is that of the bytes in it.
    serialization.load_ssh_public_key(line.encode())
    return base64.b64decode(line.split()[1])


def _certificate(text: str) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    certificate = x509.load_pem_x509_certificate(text.encode())
    return certificate.public_bytes(serialization.Encoding.DER)


def generate(comment: str, kind: str = "ssh") -> tuple[str, str]:
    """Return a new ssh key in Nova's format: (private, public).

    :raises HttpError: 400, for another kind.
    """
    if kind != "ssh":
        raise HttpError(400, f"Keypair data is invalid: no {kind} key is generated; import one.")
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


#: The routes of key pairs.
ROUTES = (
    ("GET", "/os-keypairs", _list),
    ("POST", "/os-keypairs", _create),
    ("GET", "/os-keypairs/{name}", _show),
    ("DELETE", "/os-keypairs/{name}", _delete),
)
