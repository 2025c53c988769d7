"""Images by URL, from a real file server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hotplate.errors import HostError, UsageError
from hotplate.image import image_set, image_url
from hotplate.image.image_store import ImageStore

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server without ranges, with an image in its folder."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "web.raw").write_bytes(CONTENT)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    serves = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=serves.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{serves.server_port}"
    serves.shutdown()
    thread.join()
    serves.server_close()


def test_image_is_fetched_over_http(server, tmp_path):
    image = image_set.of_url(f"{server}/web.raw#sha256={DIGEST}")
    with ImageStore(tmp_path / "cache").use(image, image_url.fetch_with(image)) as file:
        assert (file.name, file.read_bytes()) == ("web.raw", CONTENT)


@pytest.mark.parametrize("way", ["http", "file"])
def test_partial_file_is_completed(server, tmp_path, way):
    url = f"{server}/web.raw" if way == "http" else f"file://{tmp_path}/served/web.raw"
    target = tmp_path / "part"
    target.write_bytes(CONTENT[:1000])
    image_url.fetch(image_set.of_url(f"{url}#sha256={DIGEST}"), target)
    assert target.read_bytes() == CONTENT


def test_content_with_another_hash_is_refused(server, tmp_path):
    image = image_set.of_url(f"{server}/web.raw#sha256={'0' * 64}")
    store = ImageStore(tmp_path / "cache")
    wrong = pytest.raises(HostError, match="its SHA-256 is not 000")
    with wrong, store.use(image, image_url.fetch_with(image)):
        pass


def test_missing_image_error_is_one_sentence(server, tmp_path):
    target = tmp_path / "part"
    target.touch()
    gone = image_set.of_url(f"{server}/gone.raw")
    sentence = r'the image "http://.*/gone.raw" does not exist: 404\b'
    with pytest.raises(UsageError, match=sentence):
        image_url.fetch(gone, target)
    with pytest.raises(UsageError, match=sentence):
        image_url.versioned(gone)
    with pytest.raises(UsageError, match="does not exist"):
        image_url.fetch(image_set.of_url(f"file://{tmp_path}/gone.raw"), target)
    with pytest.raises(UsageError, match="cannot be opened"):
        image_url.fetch(image_set.of_url("nonsense://host/web.raw"), target)


@pytest.mark.parametrize(
    ("scheme", "words"), [("http", "Cannot connect to host"), ("https", "(?i:ssl)")]
)
def test_unreachable_server_error_says_why(server, tmp_path, scheme, words):
    """fsspec's own error is the URL for any of them."""
    url = f"https{server[4:]}" if scheme == "https" else "http://127.0.0.1:1"
    target = tmp_path / "part"
    target.touch()
    with pytest.raises(HostError, match=f"cannot be fetched: .*{words}"):
        image_url.fetch(image_set.of_url(f"{url}/web.raw"), target)


@pytest.mark.parametrize(
    "url",
    [
        "https://host/",
        "https://host/web.raw#sha256=12",
        "s3://b/w#md5=1",
        "http://[::1",
        "http://a\nb/x.raw",
    ],
)
def test_url_without_an_image_is_refused(url):
    with pytest.raises(UsageError, match="names no image"):
        image_set.of_url(url)
