"""Images by URL, opened by fsspec: https, s3, swift, file and other installed protocols."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from hotplate.errors import HostError, HotplateError, UsageError
from hotplate.image.image_set import ImageSet, SetFile

#: The block size of reads, in bytes.
BLOCK = 8 * 1024 * 1024

#: The command that installs fsspec, and Dask.
EXTRA = "pip install 'hotplate[dask]'"


@contextlib.contextmanager
def _sentences(url: str) -> Iterator[None]:
    """Turn an error into a sentence; each kind of URL has errors of its own."""
    try:
        yield
    except HotplateError:
        raise
    except Exception as error:
        if _is_missing(url, error):
            raise UsageError(f'the image "{url}" does not exist: {_reason(error)}') from error
        raise HostError(f'the image "{url}" cannot be fetched: {_reason(error)}') from error


def _is_missing(url: str, error: Exception) -> bool:
    """Return True when the server said that there is no such file.

    fsspec raises FileNotFoundError for all errors of a web server, caused by aiohttp's.
    """
    if not isinstance(error, FileNotFoundError):
        return False
    web = url.startswith(("http://", "https://"))
    return not web or getattr(error.__cause__, "status", 0) in (404, 410)


def _reason(error: BaseException) -> str:
    """Return the reason of an error; fsspec's says only the URL for any failure of a web server."""
    why = " ".join(str(error).split()) or type(error).__name__
    if not re.fullmatch(r"https?://\S+", why):
        return why
    return _reason(error.__cause__) if error.__cause__ else "its server did not say why"


def _open(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path on it.

    :raises UsageError: when fsspec, or its package for such URLs, is not installed.
    """
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f'the image "{url}" needs the package "fsspec"', hint=EXTRA)
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f'the image "{url}" cannot be opened: {error}') from error
    return files, str(path)


def versioned(image: ImageSet) -> ImageSet:
    """Return an image with its server's present description, when its SHA-256 is not known.

    A changed file is thereby fetched anew: by its ETag or time, when there is one, and its size.

    :raises UsageError: and HostError, as for :func:`fetch`.
    """
    if image.sha256:
        return image
    with _sentences(image.url):
        files, path = _open(image.url)
        about = {name: str(value) for name, value in files.info(path).items()}
    return replace(image, version=json.dumps(about, sort_keys=True))


def fetch(wanted: ImageSet, target: Path, *, check: Callable[[], None] = lambda: None) -> None:
    """Append the missing part to a file; a file longer than the source is fetched anew.

    :param check: called before each block; its exception ends the fetch.
    :raises UsageError: when there is no such file, or fsspec, or its package for such URLs, is not
        installed.
    :raises HostError: when the URL cannot be read, or the data is too short.
    """
    with _sentences(wanted.url):
        files, path = _open(wanted.url)
        size = files.info(path).get("size")
        begun = target.stat().st_size
        if not wanted.sha256 or (size is not None and begun > size):
            # Nothing proves that the existing part belongs to the URL's present content.
            begun = 0
        with target.open("r+b") as sink:
            for data in _blocks(files, path, begun, sink):
                check()
                sink.write(data)
            begun = sink.tell()
        if size is not None and begun != size:
            raise HostError(f'the image "{wanted.url}" broke off after {begun} of {size} bytes')


def _blocks(files: Any, path: str, offset: int, sink: BinaryIO) -> Iterator[bytes]:
    """Yield the data from the offset on, or, for a server without ranges, from the start.

    :param sink: is truncated there first.
    """
    first = _block_at(files, path, offset) if offset else None
    if first is not None:
        sink.truncate(offset)
        sink.seek(offset)
        yield first
        with files.open(path, "rb") as source:
            source.seek(offset + len(first))
            yield from iter(partial(source.read, BLOCK), b"")
        return
    sink.truncate(0)
    sink.seek(0)
    # Without blocks a file of a web server is a stream, which needs no ranges.
    options = {"block_size": 0} if "http" in str(files.protocol) else {}
    with files.open(path, "rb", **options) as source:
        yield from iter(partial(source.read, BLOCK), b"")


def _block_at(files: Any, path: str, offset: int) -> bytes | None:
    """Return the data at an offset; None for a server without ranges."""
    try:
        with files.open(path, "rb") as source:
            source.seek(offset)
            return bytes(source.read(BLOCK))
    except (OSError, ValueError, NotImplementedError):
        return None


def fetch_with(
    wanted: ImageSet, *, check: Callable[[], None] = lambda: None
) -> Callable[[SetFile, Path], None]:
    """Return a URL's ``fetch`` for :meth:`~hotplate.image.image_store.ImageStore.use`."""
    return lambda _file, target: fetch(wanted, target, check=check)
