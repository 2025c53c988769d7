"""Modules that a poll loads, and those that it must not."""

from __future__ import annotations

import hmac
import os

import pytest
from heat_agent.collect import signature
from programs import completed

from .conftest import HOOKS
from .test_beside_upstream import cfn_conf, heat_conf

POLL = f"""
import sys
sys.path.insert(0, {str(HOOKS)!r})
from heat_agent import resident
resident._load()
print(resident.program.main([]), *sys.modules)
"""
UNWANTED = ("_hashlib", "ssl", "shutil", "bz2", "encodings.idna", "http.client", "email", "xml")


def test_poll_over_plain_http_does_not_load_slow_modules(guest, cloud):
    """On a slow guest each takes longer to load than the poll; OpenSSL has 4 MiB."""
    cloud.documents.update({"cfn:server": {"a": 1}, "heat": {"b": 1}, "request": {"c": 1}})
    cloud.ec2.update({"/ec2/": "instance-id", "/ec2/instance-id": "i-1"})
    conf = cfn_conf(cloud) + heat_conf(cloud) + f"[ec2]\nmetadata_url = {cloud.url}/ec2\n"
    conf += f"[request]\nmetadata_url = {cloud.url}/swift/o\n"
    guest.conf(conf, "true", one_time="true")
    done = completed(["/usr/bin/python3", "-IS", "-c", POLL], env=guest.environment())
    status, *loaded = done.stdout.split()
    assert status == "0", done.stderr
    assert "available" not in done.stderr
    assert (guest.root / "cache" / "request.json.last").exists()
    assert len([request for request in cloud.requests if request.method == "GET"]) == 5
    assert not set(loaded) & set(UNWANTED)


VECTORS = [
    (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    (
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
    ),
    (
        b"\xaa" * 131,
        b"Test Using Larger Than Block-Size Key - Hash Key First",
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
    ),
]


@pytest.mark.parametrize("modules", [None, ("none", "hashlib")], ids=["own", "openssl"])
def test_signatures_are_those_of_the_rfc(monkeypatch, modules):
    """The vectors are those of RFC 4231, 4.2, 4.3 and 4.7."""
    if modules:
        monkeypatch.setattr(signature, "MODULES", modules)
    for key, text, digest in VECTORS:
        assert signature.hmac_sha256(key, text).hex() == digest
    for size in range(200):
        key, text = os.urandom(size), os.urandom(size * 3)
        assert signature.hmac_sha256(key, text) == hmac.digest(key, text, "sha256")
