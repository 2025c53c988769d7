"""Fetch the URLs of "files" and "sources"."""

from __future__ import annotations

import os
import shutil
import tempfile
import urllib.parse
from typing import IO, Any

from heat_config.address import redacted

from heat_cfn import web
from heat_cfn.problems import CfnError

SCHEMES = ("http", "https", "file")
ATTEMPTS = 4
ROOM = "/var/tmp"  # noqa: S108 - the file has no name there


def check(url: Any, where: str) -> str:
    """Return ``url`` if it can be downloaded: ``http://``, ``https://`` or ``file://``."""
    return web.check(url, where, SCHEMES)


def read(url: str) -> bytes:
    """Return the bytes at ``url``."""
    with fetch(url) as file:
        return file.read()


def fetch(url: str) -> IO[bytes]:
    """Return an unnamed temporary file with the bytes at ``url``, positioned at its beginning.

    :raises CfnError: when they cannot all be read.
    """
    # Not /tmp, which is memory on many systems. The caller closes the file.
    file = tempfile.TemporaryFile(dir=ROOM if os.path.isdir(ROOM) else None)  # noqa: SIM115
    try:
        if url.startswith("file:"):
            _copy(url, file)
        else:
            web.patiently(lambda: _fetch(url, file), ATTEMPTS)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _fetch(url: str, file: IO[bytes]) -> None:
    def write(piece: bytes) -> None:
        try:
            file.write(piece)
        except OSError as error:  # not the server's: the disk is full
            raise CfnError(f'"{redacted(url)}" cannot be kept: {error.strerror}') from None

    # An attempt that failed may have left a part of the file.
    file.seek(0)
    file.truncate()
    web.ask(url, sink=write)


def _copy(url: str, file: IO[bytes]) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.hostname not in (None, "localhost"):
        raise CfnError(f'"{redacted(url)}" is on another machine')
    try:
        with open(urllib.parse.unquote(parts.path), "rb") as source:
            shutil.copyfileobj(source, file)
    except OSError as error:
        raise CfnError(f'"{redacted(url)}" cannot be read: {error.strerror}') from None
