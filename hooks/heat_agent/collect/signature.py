"""HMAC-SHA256 (RFC 2104) without OpenSSL.

hashlib and hmac load libcrypto, which a poll over plain HTTP needs for nothing else. Python's own
SHA-256 is in nearly every build; in the others hashlib's is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BLOCK = 64
#: The modules with SHA-256: since Python 3.12, before it, and always.
MODULES = ("_sha2", "_sha256", "hashlib")


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """Return the 32 bytes with which *key* signs *text*."""
    sha256 = _sha256()
    # A long key is replaced by its hash; any key is then filled up with zeros to one block.
    key = sha256(key).digest() if len(key) > BLOCK else key
    key = key.ljust(BLOCK, b"\0")
    # 0x36 and 0x5C are ipad and opad of the RFC.
    inner = sha256(bytes(byte ^ 0x36 for byte in key) + text).digest()
    signed: bytes = sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return signed


def _sha256() -> Any:
    for name in MODULES[:-1]:
        try:
            return __import__(name).sha256
        except ImportError:
            continue
    return __import__(MODULES[-1]).sha256
