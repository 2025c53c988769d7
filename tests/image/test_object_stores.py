"""Images by ``s3://`` and ``swift://`` from OpenStack's Swift itself, over TLS.

Swift, s3fs and swiftspec are in a virtual environment of their own, kept in the cache, because
they and the project need different versions of common packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hotplate.settings import cache_dir

pytestmark = [pytest.mark.long, pytest.mark.network]

HERE = Path(__file__).parent
NEEDS = ("swift>=2.33", "s3fs>=2024", "swiftspec")
SECONDS = 600
MIB = 1 << 20
CONTENT = hashlib.shake_256(b"any").digest(20 * MIB)
#: Of the same size.
OTHER = CONTENT[::-1]
DIGEST = hashlib.sha256(CONTENT).hexdigest()
#: The number of blocks of the whole, see ``image_url.BLOCK``.
BLOCKS = 3


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with Swift and the clients; made when it is not in the cache."""
    key = hashlib.sha256(repr((NEEDS, sys.version)).encode()).hexdigest()[:12]
    folder = cache_dir() / "tools" / f"swift-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=SECONDS)
            pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", *NEEDS]
            done = subprocess.run(
                [*pip, "--disable-pip-version-check"],
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
            assert done.returncode == 0, done.stderr
            (folder / "whole").touch()
    return folder / "bin" / "python"


@dataclass
class Stores:
    """Swift, and a client that fetches from it.

    :param login: Swift's own token and the URL of its account.
    """

    folder: Path
    python: Path
    address: str
    trust: ssl.SSLContext
    login: dict[str, str]

    def url(self, way: str, name: str = "web.raw") -> str:
        """Return the URL of an image in the container ``images``."""
        return f"s3://images/{name}" if way == "s3" else f"swift://{self.address}/{ACCOUNT}/{name}"

    def put(self, content: bytes, name: str = "") -> None:
        """Store an image; without a name, make the container."""
        url = f"https://{self.address}/v1/{ACCOUNT}{name and f'/{name}'}"
        request = urllib.request.Request(
            url, content, {"X-Auth-Token": self.login["OS_AUTH_TOKEN"]}, method="PUT"
        )
        with urllib.request.urlopen(request, context=self.trust, timeout=SECONDS):
            pass

    @property
    def environment(self) -> dict[str, str]:
        """Return a user's settings for these stores."""
        cert = str(self.folder / "cert.pem")
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": str(HERE.parents[1]),
            "AWS_ENDPOINT_URL_S3": f"https://{self.address}",
            "AWS_ACCESS_KEY_ID": "test:tester",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CA_BUNDLE": cert,
            "SSL_CERT_FILE": cert,
            **self.login,
        }


ACCOUNT = "AUTH_test/images"


class Client:
    """One process that fetches, like a long-running worker, with a cache of its own."""

    def __init__(self, stores: Stores, cache: Path) -> None:
        self._process = subprocess.Popen(
            [stores.python, "-P", HERE / "object_store_client.py", cache],
            env=stores.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fetch(self, url: str, **more: object) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"url": url, **more}, default=str) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def stores(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    folder = tmp_path_factory.mktemp("swift")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=hotplate tests", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "data").mkdir()
    try:
        os.setxattr(folder / "data", "user.hotplate", b"1")
    except OSError as error:
        pytest.skip(f"Swift needs extended attributes in {folder}: {error.strerror}")
    with subprocess.Popen(
        [python, "-P", HERE / "swift_server.py", folder / "data", cert, key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("w"),
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, (folder / "log").read_text()
            address = f"127.0.0.1:{port}"
            trust = ssl.create_default_context(cafile=str(cert))
            made = Stores(folder, python, address, trust, _login(address, trust))
            made.put(b"")
            made.put(CONTENT, "web.raw")
            yield made
        finally:
            process.kill()


def _login(address: str, trust: ssl.SSLContext) -> dict[str, str]:
    """Log in as Swift's clients do (tempauth)."""
    headers = {"X-Auth-User": "test:tester", "X-Auth-Key": "testing"}
    request = urllib.request.Request(f"https://{address}/auth/v1.0", headers=headers)
    with urllib.request.urlopen(request, context=trust, timeout=SECONDS) as answer:
        return {
            "OS_AUTH_TOKEN": answer.headers["X-Auth-Token"],
            "OS_STORAGE_URL": answer.headers["X-Storage-Url"],
        }


@pytest.fixture
def client(stores: Stores, tmp_path: Path) -> Iterator[Client]:
    started = Client(stores, tmp_path / "cache")
    yield started
    started.end()


both = pytest.mark.parametrize("way", ["s3", "swift"])


@both
def test_image_is_fetched_whole_and_kept(stores, client, way):
    url = f"{stores.url(way)}#sha256={DIGEST}"
    first = client.fetch(url)
    assert (first["sha256"], first["blocks"]) == (DIGEST, BLOCKS)
    assert client.fetch(url) == {**first, "blocks": 0}


@both
@pytest.mark.parametrize(
    ("there", "blocks"),
    [
        # The existing part is not fetched again: two more blocks of 8 MiB.
        (CONTENT[: 9 * MIB], 2),
        # The rest, and then the whole, because its hash is wrong.
        (bytes(9 * MIB), 2 + BLOCKS),
        (CONTENT + b"more", BLOCKS),
    ],
    ids=["resumed", "damaged", "too long"],
)
def test_existing_part_is_resumed_or_replaced(stores, client, tmp_path, way, there, blocks):
    (tmp_path / "part").write_bytes(there)
    came = client.fetch(f"{stores.url(way)}#sha256={DIGEST}", part=tmp_path / "part")
    assert (came["sha256"], came["blocks"]) == (DIGEST, blocks)


@both
def test_image_with_another_hash_is_refused(stores, client, way):
    came = client.fetch(f"{stores.url(way)}#sha256={'0' * 64}")
    assert came["error"] == "HostError"
    assert "is not what was asked for: its SHA-256 is not 000" in came["message"]


@both
def test_missing_object_error_is_one_sentence(stores, client, way):
    url = stores.url(way, "gone.raw")
    for each in (url, f"{url}#sha256={DIGEST}"):
        came = client.fetch(each)
        assert came["error"] == "UsageError"
        assert came["message"].startswith(f'the image "{url}" does not exist: ')


@both
def test_replaced_image_is_fetched_anew(stores, client, way):
    """By a worker that has the old one, without a hash: by its ETag."""
    name = f"{way}.raw"
    stores.put(CONTENT, name)
    first = client.fetch(stores.url(way, name))
    assert (first["sha256"], first["blocks"]) == (DIGEST, BLOCKS)
    assert client.fetch(stores.url(way, name)) == {**first, "blocks": 0}
    stores.put(OTHER, name)
    second = client.fetch(stores.url(way, name))
    assert second["sha256"] == hashlib.sha256(OTHER).hexdigest()
    assert second["blocks"] == BLOCKS
    assert second["key"] != first["key"]
