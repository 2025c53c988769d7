"""The images that a testbed's servers boot: one for all, or one by name for each; and uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from hotplate.cloud.glance.images import UNDER_TEST, SessionImage, no_such_image
from hotplate.errors import ImageError, UsageError, sentence_of
from hotplate.image.inspect import Image
from hotplate.settings import Settings
from hotplate.text import clean_line

_Stamp: TypeAlias = tuple[int, ...]


class BootImages:
    """The images of a testbed.

    :param image: the image under test; its name is that of its file, without the suffix.
    :param others: more images by name.  Without them ``image`` stands for every name.
    :param boots: check of an uploaded image what :meth:`Image.open` checks with it.
    :ivar uploaded: returns the name and the file of an image that was uploaded to Glance, by its
        id; None for other references.
    :raises UsageError: when a name is given twice, or the images are for several processors.
    """

    def __init__(
        self, image: Image, others: Mapping[str, Image] | None = None, *, boots: bool = True
    ) -> None:
        self._boots = boots
        self._several = bool(others)
        self._uploads: dict[str, str] = {}
        self.uploaded: Callable[[str], tuple[str, Path] | None] = lambda _: None
        name = clean_line(image.path.stem)
        if name in (others or {}):
            raise UsageError(
                f'the image name "{name}" is given twice: it is that of "{image.path}" too'
            )
        self._images = {name: image, **(others or {})}
        self._default = name
        self._stamps: dict[Path, _Stamp] = {}
        for other, each in self._images.items():
            self._check_arch(other, each)
            self._stamps |= {path: _stamp(path) for path in _of(each)}

    @property
    def by_name(self) -> bool:
        """True when servers boot different images: those given by name, or uploaded ones."""
        return self._several or bool(self._uploads)

    def shown(self) -> tuple[SessionImage, ...]:
        """Return them as Glance lists them from the start, the image under test first."""
        return tuple(
            SessionImage(name, each.path, each.format, each.virtual_size)
            for name, each in self._images.items()
        )

    def name_of(self, reference: str) -> str:
        """Return the name of the image that a server names.

        :param reference: a name or an id.
        :raises UsageError: when there is none.
        """
        if reference in self._uploads:
            return self._uploads[reference]
        if not self._several or reference in ("", UNDER_TEST):
            return self._default
        shown = self.shown()
        for each in shown:
            if reference in (each.id, each.name):
                return each.name
        raise UsageError(no_such_image(reference, shown))

    def of(self, reference: str) -> Image:
        """Return the image that a server names; see :meth:`name_of`.

        :raises UsageError: when there is none, or it has changed since it was opened.
        :raises ImageError: when an uploaded file is not an image that can be booted.
        """
        self._open_upload(reference)
        image = self._images[reference if reference in self._uploads else self.name_of(reference)]
        for path in _of(image):
            if _stamp(path) != self._stamps[path]:
                raise _changed(path)
        return image

    def refusal(self, reference: str) -> str:
        """Return the reason why no server can boot an image, as a sentence; "" when one can."""
        try:
            self.of(reference)
        except (ImageError, UsageError) as error:
            return sentence_of(error)
        return ""

    def _open_upload(self, reference: str) -> None:
        """Open an uploaded image once, with the checks of the images of the command line."""
        if reference in self._uploads or (upload := self.uploaded(reference)) is None:
            return
        name, path = clean_line(upload[0]), upload[1]
        image = Image.open(path, boots=self._boots)
        self._check_arch(name, image)
        self._images[reference] = image
        self._uploads[reference] = name
        self._stamps |= {each: _stamp(each) for each in _of(image)}

    def _check_arch(self, name: str, image: Image) -> None:
        default = self._images[self._default]
        if image.arch != default.arch:
            raise UsageError(
                f'the images "{self._default}" ({default.arch}) and "{name}" ({image.arch}) are '
                "for two processors, and one cloud has one"
            )

    def check(self) -> None:
        """Refuse to judge servers whose image file was written to while they ran.

        An image that was replaced by another file still exists for processes that have it open.

        :raises UsageError: names the file.
        """
        for path, before in self._stamps.items():
            now = _stamp(path)
            # The same device and inode: the file was written to, and not replaced.
            if now != before and now[:2] == before[:2]:
                raise _changed(path)


def open_image(path: Path | str, settings: Settings) -> Image:
    """Open an image for the machines of the settings; see :meth:`Image.open`."""
    return Image.open(path, **settings.reading, boots=settings.machine.has_firmware)


def open_images(files: Mapping[str, Path], settings: Settings) -> dict[str, Image]:
    """Open images by name; see :meth:`Image.open`."""
    return {name: open_image(path, settings) for name, path in files.items()}


def _of(image: Image) -> list[Path]:
    """Return the files of an image."""
    behind = [link.path for link in image.chain]
    return [each for each in (image.path, image.kernel, image.initrd, *behind) if each is not None]


def _stamp(path: Path) -> _Stamp:
    """Return values that change when a file is written to or replaced; nothing when it is gone."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _changed(path: Path) -> UsageError:
    return UsageError(
        f'the image file "{path}" was changed while it is in use',
        hint="start again, and build to another file meanwhile",
    )
