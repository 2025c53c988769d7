"""The config drive: a disk labelled ``config-2`` on which Nova stores metadata."""

from __future__ import annotations

import os

from .. import documents
from ..command import output_of
from ..problems import Unavailable
from . import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..log import Log

LABEL = "config-2"
TYPES = ("vfat", "iso9660")
METADATA = os.path.join("ec2", "latest", "meta-data.json")
MOUNTS = "/proc/mounts"
SECONDS = 30.0


def metadata(log: Log) -> dict[str, Any]:
    """Return the EC2 metadata on the first config drive, {} if there is none."""
    device = _device()
    if device is None:
        return {}
    log.debug(f'"{device}" is a config drive')
    mounted = _mounted(device)
    if mounted is not None:
        return _read(mounted, log)
    import tempfile  # needed once per instance at most

    directory = tempfile.mkdtemp(prefix="config-2-")
    try:
        if output_of(["mount", device, directory, "-o", "ro"], SECONDS) is None:
            log.error(f'the config drive "{device}" cannot be mounted')
            return {}
        try:
            return _read(directory, log)
        finally:
            # Lazily, as upstream: the directory can be removed even while a process reads there.
            output_of(["umount", "-l", directory], SECONDS)
    finally:
        _remove(directory, log)


def _read(directory: str, log: Log) -> dict[str, Any]:
    path = os.path.join(directory, METADATA)
    data = reading.whole(path)
    if data is None:
        log.warning(f'the config drive has no "{METADATA}"')
        return {}
    try:
        return documents.decode_object(data, f'"{path}"')
    except Unavailable as error:
        log.error(str(error))
        return {}


def _device() -> str | None:
    """Return the first config drive that blkid(8) lists, or None."""
    listed = output_of(["blkid", "-o", "export"], SECONDS)
    for block in (listed or b"").decode("utf-8", "replace").split("\n\n"):
        pairs = (line.partition("=") for line in block.splitlines())
        # blkid writes a blank in a value as "\ ".
        values = {name: value.replace("\\ ", " ") for name, _, value in pairs}
        if values.get("LABEL") == LABEL and values.get("TYPE") in TYPES and "DEVNAME" in values:
            return values["DEVNAME"]
    return None


def _mounted(device: str) -> str | None:
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as stream:
            for line in stream:
                source, place = line.split()[:2]
                if source == device:
                    # The kernel writes a blank in a path as "\040".
                    return place.replace("\\040", " ")
    except (OSError, ValueError):
        return None
    return None


def _remove(directory: str, log: Log) -> None:
    try:
        os.rmdir(directory)
    except OSError as error:
        log.warning(f'"{directory}" cannot be removed: {error.strerror}')
