"""Fetch the URLs of "files" and "sources"."""

import os
import shutil
import tempfile
from typing import IO, Any

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


def fetch(url: str) -> "IO[bytes]":
    """Return an unnamed temporary file with the bytes at ``url``, positioned at its beginning.

    :raises CfnError: when they cannot all be read.
    """
    return web.patiently(lambda: _fetch(url), 1 if url.startswith("file:") else ATTEMPTS)


def _fetch(url: str) -> "IO[bytes]":
    name = web.shown(url)
    # Not /tmp, which is memory on many systems. The caller closes the file.
    file = tempfile.TemporaryFile(dir=ROOM if os.path.isdir(ROOM) else None)  # noqa: SIM115
    try:
        with web.open_url(web.request(url), redirects=True) as response:
            shutil.copyfileobj(response, file)
            expected = response.headers.get("Content-Length")
        if expected is not None and expected.isdigit() and int(expected) != file.tell():
            raise CfnError(
                '"%s" was cut short after %d of %s bytes' % (name, file.tell(), expected)
            )
        file.seek(0)
        return file
    except CfnError:
        file.close()
        raise
    except Exception as error:
        file.close()
        raise CfnError('"%s" cannot be downloaded: %s' % (name, web.reason(error))) from None
