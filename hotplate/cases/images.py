"""Images as named on a command line and in a run file: paths, URLs to fetch, releases."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hotplate.cases.table import Case
from hotplate.errors import UsageError
from hotplate.image import image_set, image_url
from hotplate.image.image_store import ImageStore
from hotplate.image.inspect import find
from hotplate.image.plan import BuildRequest
from hotplate.image.release_images import ReleaseImages
from hotplate.interrupts import Interrupts

#: A path; text is a URL.
ImageWord = Path | str


def image_word(text: str) -> ImageWord:
    """Return the path or the URL of an image.

    >>> image_word("web.qcow2")
    PosixPath('web.qcow2')
    >>> image_word("https://example.org/web.qcow2")
    'https://example.org/web.qcow2'
    """
    return text if "://" in text else Path(text)


class NamedFiles:
    """The files of the images that a command names.

    :param cache: for fetched images.
    :param interrupts: end a fetch and a build.
    :param remote: leave the fetching of URLs to the workers.
    """

    def __init__(self, cache: Path, interrupts: Interrupts, *, remote: bool = False) -> None:
        self._cache = cache
        self._interrupts = interrupts
        self._remote = remote
        self._urls: dict[Path, str] = {}
        # Holds the locks of the images, so that "hotplate cache clean" leaves them where they are.
        self._held = contextlib.ExitStack()

    def __enter__(self) -> NamedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def files(self, words: Iterable[ImageWord]) -> list[Path]:
        """Return the file of each; those of URLs are fetched, and in use while the context lasts.

        :raises UsageError: for a missing file, and a URL that names no image.
        :raises HostError: for one that cannot be fetched.
        """
        return [self._of_url(each) if isinstance(each, str) else find(each) for each in words]

    def built(self, requests: Iterable[BuildRequest], images: ReleaseImages) -> list[Path]:
        """Return the image of each request, in use while the context lasts.

        :param images: builds those that are not cached.
        :raises HotplateError: as :meth:`~hotplate.image.release_images.ReleaseImages.use` does.
        """
        result = []
        for each in requests:
            with self._interrupts.allowed():
                result.append(self._held.enter_context(images.use(each)))
        return result

    def with_urls(self, cases: Iterable[Case]) -> list[Case]:
        """Return the cases with the URLs of those images that workers fetch."""
        return [replace(each, url=self._urls.get(each.image, "")) for each in cases]

    def check_known(self, images: Iterable[Path]) -> None:
        """Refuse images that cannot be inspected here, when their groups have to be known.

        :raises UsageError: for one that the workers fetch.
        """
        for each in images:
            if each in self._urls:
                raise UsageError(
                    f'the image "{self._urls[each]}" is fetched by the workers, so its groups are '
                    "not known here",
                    hint="-t TEMPLATE",
                )

    def _of_url(self, url: str) -> Path:
        image = image_set.of_url(url)
        if self._remote:
            # No such file exists here: the key keeps images of the same name apart.
            path = Path(image.key) / image.name
            self._urls[path] = url
            return path
        image = image_url.versioned(image)
        fetch = image_url.fetch_with(image, check=self._interrupts.check)
        return self._held.enter_context(ImageStore(self._cache).use(image, fetch))
