"""Images that are built for tests, one of each release, and kept by what goes into them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hotplate import __version__, locks, paths
from hotplate.errors import HostError, HotplateError
from hotplate.image import plan
from hotplate.image.checksum import hash_directory, hash_file
from hotplate.image.mirrors import for_build
from hotplate.image.plan import BuildRequest
from hotplate.image.preflight import Preflight, refuse

FOLDER = "releases"
"""In the cache."""

BUILT = "image"
"""In the folder of an image: a build locks the directory that it writes to, and we the one above
it."""

PLACES = frozenset({"ELEMENTS_PATH", "DIB_IMAGE_CACHE"})
"""Variables of a build that say where something is and not what."""

OF_THE_IMAGE = ("DIB_", "PIP_")
"""What the names of those variables of the caller begin with that say what is in an image."""

TRIES = 3

BuildOne = Callable[[BuildRequest], object]
"""Builds what is asked for, and raises what :meth:`hotplate.image.build.Build.run` does."""


class ReleaseImages:
    """The folder ``releases`` of the cache: a folder for each image, used by its owners together.

    ::

        images = ReleaseImages(os.environ, build=lambda request: Build(request, os.environ).run())
        wanted = images.placed([BuildRequest(Path(), cache, release="trixie")])
        with images.use(wanted[0]) as image:
            print(image)

    :param environ: the caller's environment.
    :param build: builds one.
    :param say: is given a sentence when there is something to wait for.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        build: BuildOne,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._environ = environ
        self._build = build
        self._say = say

    def placed(self, requests: Sequence[BuildRequest]) -> list[BuildRequest]:
        """Return the requests with the files, in the cache, that their images are kept in.

        :raises HotplateError: with all that is in the way of any that has to be built.
        """
        problems: list[HotplateError] = []
        result = []
        for request in requests:
            looked = Preflight(request, self._environ)
            if [*looked.request_problems()]:
                problems += looked.problems()
                continue
            result.append(self._place(request))
            if not result[-1].image.is_file():
                problems += Preflight(result[-1], self._environ).problems()
        # What the host lacks is in the way of each of them.
        refuse([*{str(each): each for each in problems}.values()], what="the builds")
        return result

    @contextlib.contextmanager
    def use(self, request: BuildRequest) -> Iterator[Path]:
        """Have an image for as long as the context lasts, built if it is not kept.

        Only one of those who want the same builds it; the others wait.

        :param request: one that was :meth:`placed`.
        :raises HostError: when it does not stay in the cache; and what a build raises.
        """
        folder = _folder(request)
        with contextlib.ExitStack() as held:
            # Between its build and our lock somebody may have cleaned up.
            for _ in range(TRIES):
                self._have(request, folder)
                with contextlib.suppress(FileNotFoundError):
                    held.enter_context(locks.shared(folder))
                    if request.image.is_file():
                        break
                held.pop_all().close()
            else:
                raise HostError(
                    f'the image of "{request.release}" was removed from the cache again and again'
                )
            with contextlib.suppress(OSError):
                # When it was used last; see hotplate cache.
                os.utime(folder)
            yield request.image

    # -- inside ----------------------------------------------------------------------------------

    def _place(self, request: BuildRequest) -> BuildRequest:
        name = f"{request.release}-{fingerprint(request, self._environ)[:16]}"
        folder = request.cache.absolute() / FOLDER / name / BUILT
        return replace(request, output=folder / f"{request.release}.{request.image_type}")

    def _have(self, request: BuildRequest, folder: Path) -> None:
        while not request.image.is_file():
            try:
                with locks.exclusive(folder, wait=False, make=True):
                    # Somebody who has built it meanwhile has left it whole.
                    if not request.image.is_file():
                        self._build(request)
                return
            except locks.InUse:
                self._say(f'another command builds the image of "{request.release}"; waiting')
                # Held by nobody alone any more, it is there or we are the next to try.
                with contextlib.suppress(FileNotFoundError), locks.shared(folder):
                    pass


def fingerprint(request: BuildRequest, environ: Mapping[str, str]) -> str:
    """Return a SHA-256 over all that goes into an image, but for what the archive has today.

    That is what is asked for, the line that it makes of ``disk-image-create``, the elements and
    hooks, the variables of the caller that are the build's, the files that these name, and the
    versions of what builds.

    :raises UsageError: for what cannot be built; see :func:`hotplate.image.plan.make`.
    """
    release = plan.ALIASES.get(request.release, request.release)
    made = plan.make(
        # Where it is fetched from is no part of it.
        replace(request, offline=False),
        elements_dir=paths.elements_dir(),
        dib_elements=plan.dib_elements_dir(),
        mirrors=for_build(release, request.snapshot),
    )
    given = {name: text for name, text in environ.items() if name.startswith(OF_THE_IMAGE)}
    parts = {
        "line": made.argv(""),
        "environment": {
            name: text for name, text in made.environment.items() if name not in PLACES
        },
        "given": given,
        "files": {name: _content(text) for name, text in given.items() if name not in PLACES},
        "elements": [hash_directory(each) for each in request.element_path],
        "ours": [hash_directory(each) for each in (paths.elements_dir(), paths.hooks_dir())],
        "versions": [__version__, importlib.metadata.version("diskimage-builder")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _folder(request: BuildRequest) -> Path:
    return request.image.parent.parent


def _content(text: str) -> str:
    """Return a hash of the file or directory that a variable names, "" where it names none."""
    path = Path(text)
    try:
        if path.is_absolute() and path.is_file():
            return hash_file(path)
        return hash_directory(path) if path.is_absolute() and path.is_dir() else ""
    except (OSError, ValueError):
        return ""
