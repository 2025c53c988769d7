"""Send files of images to the workers that want them, each once at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distributed import Client

from hotplate.cases.cluster.parcels import Parcels


class ImageSender:
    """Sends files in threads of its caller.

    :param parcels: has their paths.
    """

    def __init__(self, parcels: Parcels) -> None:
        self._parcels = parcels
        self._sending: set[tuple[str, str, str]] = set()

    def send(self, client: Client, helpers: ThreadPoolExecutor, message: Mapping[str, Any]) -> None:
        """Send a file to the worker that wants it, unless that is being done.

        :param message: the worker's request: its address, the image, the file, and its size there.
        """
        what = (str(message["worker"]), str(message["image"]), str(message["file"]))
        if what in self._sending:
            return
        self._sending.add(what)

        def send() -> None:
            try:
                with contextlib.suppress(Exception):
                    self._parcels.send(client, *what, offset=int(message["offset"]))
            finally:
                self._sending.discard(what)

        helpers.submit(send)

    def clear(self) -> None:
        """Drop all records of files being sent."""
        self._sending.clear()
