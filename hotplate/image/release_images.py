"""Images built for tests, one of each release, cached by a hash of their inputs."""

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

#: Folder in the cache.
FOLDER = "releases"

#: Subfolder of an image: a build locks its output directory, and we lock the one above.
BUILT = "image"

#: Variables of a build that set locations and not contents.
PLACES = frozenset({"ELEMENTS_PATH", "DIB_IMAGE_CACHE", "DIB_LOCKFILES"})

#: Prefixes of the caller's variables that determine the contents of an image.
OF_THE_IMAGE = ("DIB_", "PIP_")

TRIES = 3

#: Builds a request, and raises the errors of :meth:`hotplate.image.build.Build.run`.
BuildOne = Callable[[BuildRequest], object]


class ReleaseImages:
    """The folder ``releases`` of the cache, with a folder for each image, shared by its users.

    ::

        images = ReleaseImages(os.environ, build=lambda request: Build(request, os.environ).run())
        wanted = images.placed([BuildRequest(Path(), cache, release="trixie")])
        with images.use(wanted[0]) as image:
            print(image)

    :param environ: the caller's environment.
    :param build: builds one image.
    :param say: called with a sentence when there is a wait.
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
        """Return the requests with the paths of their images in the cache.

        :raises HotplateError: with all problems of those that have to be built.
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
        # A problem of the host is common to all of them.
        refuse([*{str(each): each for each in problems}.values()], what="the builds")
        return result

    @contextlib.contextmanager
    def use(self, request: BuildRequest) -> Iterator[Path]:
        """Hold an image for as long as the context lasts; build it if it is not cached.

        Of several callers with the same request, one builds it and the others wait.

        :param request: a request from :meth:`placed`.
        :raises HostError: when it does not stay in the cache; and the errors of a build.
        """
        folder = request.image.parent.parent
        with contextlib.ExitStack() as held:
            # Between its build and our lock, another process may have cleaned the cache.
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
                # Time of the last use; see hotplate cache.
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
                    # Another process may have built it meanwhile, which is then complete.
                    if not request.image.is_file():
                        self._build(request)
                return
            except locks.InUse:
                self._say(f'another command builds the image of "{request.release}"; waiting')
                # When the lock is free again, the image exists, or we are the next to build it.
                with contextlib.suppress(FileNotFoundError), locks.shared(folder):
                    pass


def fingerprint(request: BuildRequest, environ: Mapping[str, str]) -> str:
    """Return a SHA-256 over all inputs of an image, except the present state of the archive.

    The inputs are the request, its line of ``disk-image-create``, the elements and hooks, the
    caller's variables for the build, the files that these name, and the versions of the build
    tools.

    :raises UsageError: for an invalid request; see :func:`hotplate.image.plan.make`.
    """
    release = plan.ALIASES.get(request.release, request.release)
    made = plan.make(
        # The source of the packages is not an input.
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


def _content(text: str) -> str:
    """Return a hash of the file or directory named by a variable, "" when it names none."""
    path = Path(text)
    try:
        if path.is_absolute() and path.is_file():
            return hash_file(path)
        return hash_directory(path) if path.is_absolute() and path.is_dir() else ""
    except (OSError, ValueError):
        return ""
