"""Signed images: the signature fits others' tools, and each change is refused by name."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from hotplate.cli import main
from hotplate.errors import ImageError, UsageError
from hotplate.image.checksum import hash_file
from hotplate.inspection import signature

KINDS = {"ed25519": ed25519.Ed25519PrivateKey.generate}
KINDS["p-256"] = lambda: ec.generate_private_key(ec.SECP256R1())
FILES = ("web.qcow2", "web.vmlinuz", "web.manifest.json", "web.cdx.json", "web.spdx.json")
PASSPHRASE = "correct horse"


def write_keys(directory: Path, key, *, passphrase: str = "") -> tuple[Path, Path]:
    """Write a private key and its public key; return their paths."""
    secret, public = directory / "key.pem", directory / "key.pub"
    encryption = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    secret.touch(mode=0o600)
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return secret, public


@pytest.fixture(params=KINDS)
def keys(request, tmp_path) -> tuple[Path, Path]:
    return write_keys(tmp_path, KINDS[request.param]())


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files that a build of a partition image leaves, with little in them."""
    path = tmp_path / "web.qcow2"
    for name in FILES:
        (tmp_path / name).write_text(f"the bytes of {name}")
    document = {
        "sha256": hash_file(path),
        "beside": {"vmlinuz": hash_file(tmp_path / "web.vmlinuz")},
        "release": "trixie",
        "arch": "amd64",
        "layout": "partition",
        "groups": ["script"],
        "install_type": "slim",
        "built": "2026-11-20T10:00:00+01:00",
        "seconds": 61.4,
        "diskimage-builder": "3.43.0",
        "elements": {"clean": "ab" * 32, "changed": "cd" * 32, "strange": "ef" * 32},
        "commits": {"clean": "12" * 20, "changed": f"{'34' * 20}-dirty"},
    }
    (tmp_path / "web.manifest.json").write_text(json.dumps(document))
    return path


@pytest.fixture
def signed(image: Path, keys: tuple[Path, Path]) -> Path:
    return signature.sign(image, signature.private_key(keys[0], ""))


def verify(image: Path, public: Path) -> list[str]:
    return [*verified(image, public).names]


def verified(image: Path, public: Path) -> signature.Verified:
    return signature.verify(image, signature.public_key(public), named=public.name)


def payload_of(envelope: Path) -> bytes:
    return base64.b64decode(json.loads(envelope.read_text())["payload"])


def test_signature_is_a_statement_with_the_provenance(image, signed):
    # The keys are those of the specifications in signature.py.
    assert signed == image.with_name("web.intoto.jsonl")
    envelope = json.loads(signed.read_text())
    assert envelope.keys() == {"payload", "payloadType", "signatures"}
    assert signed.read_text().count("\n") == 1
    statement = json.loads(payload_of(signed))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [
        {"name": name, "digest": {"sha256": hash_file(image.with_name(name))}} for name in FILES
    ]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition, run = (statement["predicate"][name] for name in ("buildDefinition", "runDetails"))
    assert definition["externalParameters"]["release"] == "trixie"
    # A commit is the digest only of what was not changed since.
    assert [each.get("digest") for each in definition["resolvedDependencies"]] == [
        {"gitCommit": "12" * 20},
        None,
        None,
    ]
    assert run["metadata"] == {
        "startedOn": "2026-11-20T09:00:00Z",
        "finishedOn": "2026-11-20T09:01:01Z",
    }


@pytest.mark.tool("openssl")
@pytest.mark.parametrize(
    ("generate", "check"),
    [
        (
            ["ed25519"],
            ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "key.pub", "-in", "pae"],
        ),
        (
            ["EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            ["dgst", "-sha256", "-verify", "key.pub"],
        ),
    ],
    ids=["ed25519", "p-256"],
)
def test_openssl_makes_the_keys_and_verifies_the_signature(image, tmp_path, generate, check):
    def openssl(*words: str) -> str:
        return subprocess.run(
            ["openssl", *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    openssl("genpkey", "-out", "key.pem", "-algorithm", *generate)
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "key.pub")
    key = signature.private_key(tmp_path / "key.pem", "")
    envelope = signature.sign(image, key)
    (tmp_path / "sig").write_bytes(
        base64.b64decode(json.loads(envelope.read_text())["signatures"][0]["sig"])
    )
    payload = payload_of(envelope)
    # PAE by DSSE's protocol.md, written again.
    kind = b"application/vnd.in-toto+json"
    (tmp_path / "pae").write_bytes(
        b"DSSEv1 28 " + kind + b" " + str(len(payload)).encode() + b" " + payload
    )
    words = ["-sigfile", "sig"] if check[0] == "pkeyutl" else ["-signature", "sig", "pae"]
    assert "Verif" in openssl(*check, *words)
    assert verify(image, tmp_path / "key.pub") == list(FILES)


@pytest.mark.parametrize("name", FILES)
def test_changed_byte_is_refused_with_the_name_of_its_file(image, signed, keys, name):
    file = image.with_name(name)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ImageError, match=f'"{file}" is not the file that was signed'):
        verify(image, keys[1])


@pytest.mark.parametrize("name", FILES[1:])
def test_missing_file_is_refused_by_name(image, signed, keys, name):
    image.with_name(name).unlink()
    with pytest.raises(ImageError, match=f'"{image.with_name(name)}" is missing'):
        verify(image, keys[1])


def _write(image: Path) -> None:
    status = image.stat()
    image.write_bytes(image.read_bytes())
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))


def _put_another_there_for_a_moment(image: Path) -> None:
    image.rename(image.with_name("aside"))
    image.write_bytes(b"other")
    image.with_name("aside").replace(image)


def _add_a_document(image: Path) -> None:
    image.with_name("web.spdx.json").write_text("{}")


@pytest.mark.parametrize("change", [_write, _put_another_there_for_a_moment, _add_a_document])
def test_change_after_the_verification_is_refused(image, signed, keys, change):
    seen = verified(image, keys[1])
    seen.check_unchanged()
    change(image)
    with pytest.raises(ImageError, match="was changed or replaced while"):
        seen.check_unchanged()


def test_link_that_moves_after_the_verification_is_not_followed(
    image, signed, keys, monkeypatch, capsys
):
    other, link = image.with_name("other.raw"), image.with_name("latest.qcow2")
    other.write_bytes(b"another image")
    link.symlink_to(image)
    read = []

    def replace_and_open(path, **_):
        link.unlink()
        link.symlink_to(other)
        read.append(Path(path).resolve())
        raise ImageError("not read")

    monkeypatch.setattr("hotplate.cli.inspect.inspected", replace_and_open)
    assert main(["inspect", "--verify", str(keys[1]), str(link)]) == 1
    assert read == [image]


def test_pipe_in_the_place_of_a_file_is_not_waited_for(image, signed, keys):
    manifest = image.with_name("web.manifest.json")
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(ImageError, match="is missing"):
        verify(image, keys[1])


def test_bill_of_somebody_else_is_refused(image, keys):
    bill = image.with_name("web.spdx.json")
    text = bill.read_text()
    bill.unlink()
    signature.sign(image, signature.private_key(keys[0], ""))
    assert verify(image, keys[1]) == [name for name in FILES if name != "web.spdx.json"]
    bill.write_text(text)
    with pytest.raises(ImageError, match=f'"{bill}" was not signed together with the image'):
        verify(image, keys[1])


def test_signature_of_another_image_is_refused(image, signed, keys):
    image.rename(image.with_name("app.qcow2"))
    signed.rename(signed.with_name("app.intoto.jsonl"))
    with pytest.raises(ImageError, match=r'is the signature of "web\.qcow2" and .* not of "app'):
        verify(image.with_name("app.qcow2"), keys[1])


def test_wrong_key_is_refused(image, signed, tmp_path):
    (tmp_path / "other").mkdir()
    for make in KINDS.values():
        _, other = write_keys(tmp_path / "other", make())
        with pytest.raises(ImageError, match=r'was not signed with the key "key\.pub", or was'):
            verify(image, other)


def resign(envelope: Path, keys: tuple[Path, Path], change) -> None:
    """Sign a changed statement with the right key."""
    statement = json.loads(payload_of(envelope))
    change(statement)
    payload = json.dumps(statement).encode()
    key = signature.private_key(keys[0], "")
    document = json.loads(envelope.read_text())
    document["payload"] = base64.urlsafe_b64encode(payload).decode()
    document["signatures"][0]["sig"] = base64.urlsafe_b64encode(
        signature._sign(key, payload)
    ).decode()
    envelope.write_text(json.dumps(document))


def test_base64_may_be_safe_for_urls(image, signed, keys):
    # DSSE's protocol.md: verifiers must accept either. These letters need the two that differ.
    resign(signed, keys, lambda statement: statement.update(predicate={"?>?": "~~~ÿÿ"}))
    assert verify(image, keys[1]) == list(FILES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(predicateType="https://x.example/scan"), "it is of another kind"),
        (lambda s: s.pop("subject"), "has no statement of in-toto"),
        (lambda s: s["subject"][1].update(name="../web.vmlinuz"), "is no file beside the image"),
        (lambda s: s["subject"][1].update(digest={"md5": "0"}), "has no statement of in-toto"),
    ],
    ids=["scan", "nothing", "path", "digest"],
)
def test_statement_that_says_something_else_is_refused(image, signed, keys, change, words):
    resign(signed, keys, change)
    with pytest.raises(ImageError, match=words):
        verify(image, keys[1])


def test_tampered_statement_is_refused(image, signed, keys):
    document = json.loads(signed.read_text())
    changed = payload_of(signed).replace(b"trixie", b"forky!")
    document["payload"] = base64.b64encode(changed).decode()
    signed.write_text(json.dumps(document))
    with pytest.raises(ImageError, match="or was changed since"):
        verify(image, keys[1])


DAMAGED = ["", "[]", "null", "{", '{"payload": 1}', "[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_envelope_is_refused(image, signed, keys, text):
    signed.write_text(text)
    with pytest.raises(ImageError, match="is damaged: it is no envelope of DSSE"):
        verify(image, keys[1])


KEY = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))


@given(data=st.data())
def test_cut_or_changed_envelope_ends_in_a_sentence(data, tmp_path_factory):
    directory, key = tmp_path_factory.getbasetemp(), KEY
    payload = b'{"_type": "x", "predicateType": "y", "subject": []}'
    text = json.dumps(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": signature.PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature._sign(key, payload)).decode()}],
        }
    )
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.text(max_size=3)) + text[data.draw(st.integers(at, at + 3)) :]
    file = directory / "web.intoto.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ImageError):
        signature.verify(directory / "web.qcow2", key.public_key(), named="key.pub")


def test_encrypted_key_needs_its_passphrase_and_asks_nobody(image, tmp_path):
    secret, public = write_keys(tmp_path, KINDS["ed25519"](), passphrase=PASSPHRASE)
    with pytest.raises(UsageError, match="is encrypted"):
        signature.private_key(secret, "")
    with pytest.raises(UsageError, match="PASSPHRASE does not open the private key") as raised:
        signature.private_key(secret, "wrong")
    assert f"openssl pkey -noout -in {secret} -passin" in raised.value.hint
    signature.sign(image, signature.private_key(secret, PASSPHRASE))
    assert verify(image, public) == list(FILES)


def test_passphrase_need_not_be_utf_8(tmp_path):
    secret, _ = write_keys(tmp_path, KINDS["ed25519"]())
    key = serialization.load_pem_private_key(secret.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"gr\xfcn")
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    signature.private_key(secret, os.fsdecode(b"gr\xfcn"))


def test_build_refuses_an_encrypted_key_before_it_begins(tmp_path, capsys, monkeypatch):
    secret, _ = write_keys(tmp_path, KINDS["ed25519"](), passphrase=PASSPHRASE)
    secret.chmod(0o644)
    words = ["build", "--dry-run", "--sign", str(secret)]
    assert main(words) == 2
    assert f'the private key "{secret}" is encrypted' in capsys.readouterr().err
    monkeypatch.setenv("HOTPLATE_SIGN_PASSPHRASE", PASSPHRASE)
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert f"chmod 600 {secret}" in err
    assert PASSPHRASE not in out + err


def test_unusable_keys_are_refused_by_name(tmp_path):
    secret, public = write_keys(tmp_path, rsa.generate_private_key(65537, 2048))
    with pytest.raises(UsageError, match=r'"[^"]*key\.pem" is neither Ed25519 nor ECDSA P-256'):
        signature.private_key(secret, "")
    with pytest.raises(UsageError, match=r'"[^"]*key\.pub" is neither Ed25519 nor ECDSA P-256'):
        signature.public_key(public)
    with pytest.raises(UsageError, match="is a public key; --sign takes the private one"):
        signature.private_key(public, "")
    with pytest.raises(UsageError, match="is a private key; --verify takes the public one"):
        signature.public_key(secret)
    secret.write_text("no key")
    with pytest.raises(UsageError, match="is no private key in PEM"):
        signature.private_key(secret, "")
    with pytest.raises(UsageError, match="is no public key in PEM"):
        signature.public_key(secret)
    secret.unlink()
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        signature.private_key(secret, "")
    os.mkfifo(secret)
    with pytest.raises(UsageError, match="is not a regular file"):
        signature.private_key(secret, "")


def test_public_key_in_der_is_converted_by_the_hint(keys):
    pem = keys[1].read_bytes()
    der = keys[1].with_name("key.der")
    command = ["openssl", "pkey", "-pubin", "-in", keys[1], "-pubout", "-outform", "DER"]
    der.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    with pytest.raises(UsageError, match="is a public key in DER; expected PEM") as caught:
        signature.public_key(der)
    line = caught.value.hint.removesuffix(" > KEY.pub")
    assert subprocess.run(line, shell=True, check=True, capture_output=True).stdout == pem


def test_open_modes_of_a_private_key_are_reported(keys):
    assert signature.others_can_read(keys[0]) == ""
    keys[0].chmod(0o640)
    assert f"(mode 0640): chmod 600 {keys[0]}" in signature.others_can_read(keys[0])


@pytest.mark.parametrize(
    ("public", "changed", "status"), [("key.pub", "", 1), ("none.pub", "", 2), ("key.pub", "x", 1)]
)
def test_exit_status_says_whether_image_or_key_is_at_fault(
    image, signed, keys, capsys, public, changed, status
):
    # An image without a system is refused as well, but only once it is verified.
    image.write_text(image.read_text() + changed)
    assert main(["inspect", "--verify", str(image.with_name(public)), str(image)]) == status
    out, err = capsys.readouterr()
    assert len([line for line in err.splitlines() if line.startswith("hotplate")]) == 1
    verified = public == "key.pub" and not changed
    assert out.startswith(f'signed with "{keys[1]}": web.qcow2, web.vmlinuz') is verified
    assert ("is not the file that was signed" in err) is bool(changed)


def test_unsigned_image_is_refused(image, keys, capsys):
    assert main(["inspect", "--verify", str(keys[1]), str(image)]) == 1
    assert f'there is no "{image.with_name("web.intoto.jsonl")}"' in capsys.readouterr().err
