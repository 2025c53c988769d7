"""The signature of a built image and the files beside it, ``NAME.intoto.jsonl``.

It is one statement of in-toto with the SHA-256 of each file, in an envelope of DSSE. Sources:

* the signed bytes and the envelope: DSSE 1.0.0, protocol.md and envelope.md
  (https://github.com/secure-systems-lab/dsse)
* the statement: https://in-toto.io/Statement/v1; the name of its file:
  https://github.com/in-toto/attestation, spec/v1/bundle.md
* its predicate: https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate import __version__
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.image import manifest as manifests
from hotplate.image.checksum import hash_file, read_regular
from hotplate.inspection import sbom
from hotplate.text import quoted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    PrivateKey = Ed25519PrivateKey | EllipticCurvePrivateKey
    PublicKey = Ed25519PublicKey | EllipticCurvePublicKey

SUFFIX = ".intoto.jsonl"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"

#: The meaning of the parameters in a provenance of ours: those of a manifest.
BUILD_TYPE = "pkg:pypi/hotplate#hotplate/image/manifest.schema.json"

#: Limit of the bytes of a key or an envelope.
MAX_SIZE = 1 << 20

#: The keys of a manifest that the user of ``hotplate build`` chose.
PARAMETERS = ("release", "arch", "layout", "groups", "install_type")

GENERATE = "openssl genpkey -algorithm ed25519 -out KEY.pem"


def path_for(image: Path) -> Path:
    """Return the path of the signature of an image."""
    stem = manifests.stem_of(image)
    return stem.with_name(stem.name + SUFFIX)


def private_key(file: Path, passphrase: str) -> PrivateKey:
    """Return the key to sign with, an Ed25519 or ECDSA P-256 key in PEM; nobody is asked.

    :param passphrase: for an encrypted key; unused for others.
    :raises UsageError: there is no such key, or it cannot be used.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    data = _read_key(file)
    if b"PUBLIC KEY-----" in data:
        raise UsageError(
            f'"{file}" is a public key; --sign takes the private one', hint=f"make one: {GENERATE}"
        )
    encrypted = b"ENCRYPTED" in data
    if encrypted and not passphrase:
        raise UsageError(
            f'the private key "{file}" is encrypted',
            hint="set HOTPLATE_SIGN_PASSPHRASE to its passphrase",
        )
    try:
        # As the environment has it: a passphrase need not be UTF-8.
        secret = os.fsencode(passphrase) if encrypted else None
        key = serialization.load_pem_private_key(data, secret)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        # Without the cause, which may quote a part of a key.
        if encrypted:
            command = shlex.join(["openssl", "pkey", "-noout", "-in", str(file)])
            raise UsageError(
                f'HOTPLATE_SIGN_PASSPHRASE does not open the private key "{file}"',
                hint=f"try the passphrase: {command} -passin env:HOTPLATE_SIGN_PASSPHRASE",
            ) from None
        raise UsageError(
            f'"{file}" is no private key in PEM', hint=f"make one: {GENERATE}"
        ) from None
    if not _is_usable(key.public_key()):
        raise UsageError(
            f'the private key "{file}" is neither Ed25519 nor ECDSA P-256',
            hint=f"make one: {GENERATE}",
        )
    return key  # type: ignore[return-value]  # _is_usable() has looked


def others_can_read(file: Path) -> str:
    """Return a sentence when other users can read a private key, else ""."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & 0o077:
        return ""
    return (
        f'other users can read the private key "{file}" (mode {mode:04o}): chmod 600 {quoted(file)}'
    )


def public_key(file: Path) -> PublicKey:
    """Return the key to verify with, an Ed25519 or ECDSA P-256 key in PEM.

    :raises UsageError: there is no such key, or it cannot be used.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    data = _read_key(file)
    if b"PRIVATE KEY-----" in data:
        command = shlex.join(["openssl", "pkey", "-pubout", "-in", str(file)])
        raise UsageError(
            f'"{file}" is a private key; --verify takes the public one', hint=f"{command} > KEY.pub"
        )
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        what, command = "no public key in PEM", "openssl pkey -pubout -in KEY.pem"
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):
            serialization.load_der_public_key(data)
            what = "a public key in DER; expected PEM"
            command = shlex.join(["openssl", "pkey", "-pubin", "-inform", "DER", "-in", str(file)])
        raise UsageError(f'"{file}" is {what}', hint=f"{command} > KEY.pub") from None
    if not _is_usable(key):
        raise UsageError(f'the public key "{file}" is neither Ed25519 nor ECDSA P-256')
    return key  # type: ignore[return-value]  # _is_usable() has looked


def _read_key(file: Path) -> bytes:
    try:
        return read_regular(file, MAX_SIZE)
    except OSError as error:
        raise UsageError(
            f'the key "{file}" cannot be read: {error.strerror or error}',
            hint=f"ls -l {quoted(file)}",
        ) from error


def _is_usable(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    if isinstance(key, ec.EllipticCurvePublicKey):
        return isinstance(key.curve, ec.SECP256R1)
    return isinstance(key, ed25519.Ed25519PublicKey)


def sign(image: Path, key: PrivateKey) -> Path:
    """Sign a built image, its manifest, its bills of materials, its kernel and its initrd.

    :param image: the image file, with its manifest beside it.
    :return: the path of the signature.
    :raises HostError: a file cannot be read or written.
    """
    file = path_for(image)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        payload = json.dumps(_statement(image)).encode()
        envelope = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {
                    "keyid": key_id(key.public_key()),
                    "sig": base64.b64encode(_sign(key, payload)).decode(),
                }
            ],
        }
        temporary.write_text(json.dumps(envelope) + "\n", encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        raise HostError(f'"{file}" cannot be written: {error.strerror}') from error
    finally:
        temporary.unlink(missing_ok=True)
    return file


def key_id(key: PublicKey) -> str:
    """Return the SHA-256 of a public key in DER, by which a person can tell keys apart."""
    from cryptography.hazmat.primitives import serialization

    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def encode(payload: bytes) -> bytes:
    """Return the bytes that are signed for a payload: PAE of DSSE's protocol.md.

    >>> encode(b"{}")
    b'DSSEv1 28 application/vnd.in-toto+json 2 {}'
    """
    return b"DSSEv1 %d %b %d %b" % (
        len(PAYLOAD_TYPE),
        PAYLOAD_TYPE.encode(),
        len(payload),
        payload,
    )


def _sign(key: PrivateKey, payload: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(encode(payload), ec.ECDSA(hashes.SHA256()))
    return key.sign(encode(payload))


def _fits(key: PublicKey, payload: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, encode(payload), ec.ECDSA(hashes.SHA256()))
        else:
            key.verify(signature, encode(payload))
    except InvalidSignature:
        return False
    return True


def _statement(image: Path) -> dict[str, Any]:
    built = manifests.read(image)
    stem = manifests.stem_of(image)
    # As the build hashed them, before anybody else could change them.
    digests = {image.name: built["sha256"]}
    digests |= {f"{stem.name}.{suffix}": each for suffix, each in built.get("beside", {}).items()}
    for file in _documents(image):
        if file.is_file():
            digests[file.name] = hash_file(file)
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()
        ],
        "predicateType": PROVENANCE,
        "predicate": _provenance(built),
    }


def _documents(image: Path) -> list[Path]:
    """Return the paths of an image's manifest and bills of materials, missing ones too."""
    stem = manifests.stem_of(image)
    return [stem.with_name(stem.name + suffix) for suffix in (manifests.SUFFIX, *sbom.SUFFIXES)]


def _provenance(built: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a build; each package is in the bills of materials."""
    began = datetime.fromisoformat(built["built"]).astimezone(UTC)
    ended = began + timedelta(seconds=round(built["seconds"]))
    elements = []
    for name, digest in built["elements"].items():
        element = {"name": name, "annotations": {"hotplate:sha256": digest}}
        commit = built["commits"].get(name, "")
        # The digest of a commit, which that of a changed checkout is not.
        if commit and commit.isalnum():
            element["digest"] = {"gitCommit": commit}
        elements.append(element)
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {name: built[name] for name in PARAMETERS},
            "resolvedDependencies": elements,
        },
        "runDetails": {
            "builder": {
                "id": "pkg:pypi/hotplate",
                "version": {
                    "hotplate": __version__,
                    "diskimage-builder": built["diskimage-builder"],
                },
            },
            "metadata": {
                "startedOn": f"{began:%Y-%m-%dT%H:%M:%SZ}",
                "finishedOn": f"{ended:%Y-%m-%dT%H:%M:%SZ}",
            },
        },
    }


@dataclass(frozen=True)
class Verified:
    """The files of an image that were as they had been signed.

    :param names: of the signed files.
    :param states: the state that each file beside the image had then, None for a missing one.
    """

    names: tuple[str, ...]
    states: Mapping[Path, object]

    def check_unchanged(self) -> None:
        """Check that the files that were verified are those that were read since.

        :raises ImageError: names one that was changed or replaced meanwhile.
        """
        for file, before in self.states.items():
            if _state(file) != before:
                raise ImageError(
                    f'"{file}" was changed or replaced while the image was read',
                    hint="inspect a copy in a folder that only you can write",
                )


def _state(file: Path) -> object:
    """Return what differs when a file or a link to it is changed, replaced, moved or put back.

    The time of change (ctime) is that of the kernel, which nobody can set.
    """
    try:
        return tuple(
            (each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
            for each in (file.lstat(), file.stat())
        )
    except FileNotFoundError:
        return None


def verify(image: Path, key: PublicKey, *, named: str) -> Verified:
    """Check that an image and the files beside it are those that the owner of a key signed.

    :param image: the image file.
    :param named: the key, in a sentence.
    :raises ImageError: there is no such signature, or a file is not as it was signed.
    """
    file = path_for(image)
    digests = _signed_digests(file, key, named)
    if image.name not in digests:
        others = " and ".join(f'"{name}"' for name in digests)
        raise ImageError(
            f'"{file.name}" is the signature of {others}, and not of "{image.name}"',
            hint="keep the names of the files that a build made",
        )
    files = [*map(image.with_name, digests), *_documents(image)]
    # Before they are read.
    states = {each: _state(each) for each in files}
    for name, digest in digests.items():
        signed = image.with_name(name)
        if not signed.is_file():
            raise ImageError(f'"{signed}" is missing, which is signed together with the image')
        try:
            found = hash_file(signed)
        except OSError as error:
            raise HostError(f'"{signed}" cannot be read: {error.strerror}') from error
        if found != digest:
            raise ImageError(
                f'"{signed}" is not the file that was signed: it was changed or replaced since'
            )
    for document in _documents(image):
        if document.name not in digests and document.exists():
            raise ImageError(
                f'"{document}" was not signed together with the image',
                hint=f"rm {shlex.quote(str(document))}",
            )
    return Verified(tuple(digests), states)


def _signed_digests(file: Path, key: PublicKey, named: str) -> dict[str, str]:
    """Return the SHA-256 of each file in a signature, by the file's name."""
    if not file.exists():
        raise ImageError(
            f'the image is not signed: there is no "{file}"',
            hint="hotplate build --sign KEY leaves one",
        )
    try:
        envelope = json.loads(read_regular(file, MAX_SIZE))
        payload = _decoded(envelope["payload"])
        signatures = [_decoded(each["sig"]) for each in envelope["signatures"]]
        kind = envelope["payloadType"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ImageError(f'"{file}" is damaged: it is no envelope of DSSE') from error
    if kind != PAYLOAD_TYPE or not any(_fits(key, payload, each) for each in signatures):
        raise ImageError(
            f'"{file}" was not signed with the key "{named}", or was changed since',
            hint=f"the SHA-256 of that key in DER is {key_id(key)}",
        )
    # Only now: it is of somebody who has the key.
    try:
        statement = json.loads(payload)
        kinds = statement["_type"], statement["predicateType"]
        digests = {str(each["name"]): each["digest"]["sha256"] for each in statement["subject"]}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ImageError(f'"{file}" has no statement of in-toto') from error
    if kinds != (STATEMENT, PROVENANCE):
        raise ImageError(f'"{file}" does not say how the image was built: it is of another kind')
    for name in digests:
        if name in ("", ".", "..") or "/" in name:
            raise ImageError(f'"{file}" is of "{name}", which is no file beside the image')
    return digests


def _decoded(text: str) -> bytes:
    """Return the bytes of base64, which may be URL-safe (DSSE, protocol.md)."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (AttributeError, binascii.Error) as error:
        raise ValueError("not base64") from error
