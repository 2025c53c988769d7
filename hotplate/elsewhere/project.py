"""The resources of one run in a project: a key pair, an image and a stack, removed at its end."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

import paramiko

from hotplate.elsewhere import images, leftovers
from hotplate.elsewhere.leftovers import Run
from hotplate.elsewhere.os_cloud import OsCloud, one_line
from hotplate.errors import HotplateError
from hotplate.guest.base import new_key
from hotplate.image.inspect import Image


class Project:
    """The resources of one run; a context manager, which removes them.

    However the block ends, the run's resources are found by their tags and names, also those of a
    request whose answer never came.

    :param runs: the folder with this host's present runs.
    :param uninterrupted: a context manager in which signals wait.
    :param keep: leave everything in the cloud.
    :param say: called with progress, in sentences.
    :ivar left: a sentence for each resource that could not be removed.
    """

    def __init__(
        self,
        cloud: OsCloud,
        *,
        runs: Path,
        uninterrupted: Callable[[], AbstractContextManager[None]],
        keep: bool,
        say: Callable[[str], None],
    ) -> None:
        self.cloud = cloud
        self.run = Run.begin()
        self.left: list[str] = []
        self.private_key = new_key()
        self.key = paramiko.Ed25519Key.from_private_key(io.StringIO(self.private_key))
        self._runs = runs
        self._uninterrupted = uninterrupted
        self._keep = keep
        self._say = say
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        self._owned.enter_context(self.run.going_on(self._runs))
        if not self._keep:
            self._owned.callback(self._take_away)
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def make_key_pair(self) -> str:
        """Make the key pair; return its name."""
        line = f"{self.key.get_name()} {self.key.get_base64()} {self.run.name}"
        with self.cloud.translated("a key pair"):
            self.cloud.sdk.compute.create_keypair(name=self.run.name, public_key=line)
        return self.run.name

    def make_image(self, image: Image) -> str:
        """Upload the image; return its id. See :func:`hotplate.elsewhere.images.upload`."""
        return images.upload(self.cloud, image, self.run)

    def _take_away(self) -> None:
        with self._uninterrupted():
            try:
                mine = leftovers.of(self.cloud, self.run)
                if mine:
                    self._say(f"taking away: {', '.join(each.kind for each in mine)}")
                self.left = leftovers.remove(self.cloud, mine)
            except HotplateError as error:
                self.left = [one_line(error.message)]
            if self.left:
                for each in self.left:
                    self._say(each)
                self._say(f"later: hotplate test --os-cloud {self.cloud.name} --clean")
