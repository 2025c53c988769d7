"""An image to send to a worker: its files, each by its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hotplate.errors import HotplateError, UsageError
from hotplate.image import manifest
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import Image, ImageFile
from hotplate.text import quoted


@dataclass(frozen=True)
class SetFile:
    """One file.

    :param name: relative to the folder of the image.
    :param size: bytes; -1 when not known yet.
    :param sha256: in hexadecimal; "" when unknown.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class ImageSet:
    """The files of an image, the image itself first.

    :param url: the source of the image; "" for a file of the submitting host.
    :param version: the server's description of a file behind a URL without SHA-256.
    """

    files: tuple[SetFile, ...]
    url: str = ""
    version: str = ""

    @property
    def name(self) -> str:
        """Return the name of the image's file."""
        return self.files[0].name

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the image itself; "" when unknown."""
        return self.files[0].sha256

    @property
    def key(self) -> str:
        """Return its unique key, made of names and contents, or of its URL."""
        text = "".join(f"{each.name}\0{each.sha256}\n" for each in self.files)
        if not self.sha256:
            text += f"{self.url}\n{self.version}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


def of_url(url: str) -> ImageSet:
    """Return the image behind a URL that fsspec can open.

    :param url: with the file's SHA-256 as ``#sha256=``, as in pip, when it is known; the image is
        then the same wherever it is.
    :raises UsageError: when it names no file.
    """
    address, _, fragment = url.partition("#")
    try:
        name = Path(urlsplit(address).path).name
    # Of an address with a bracket.
    except ValueError:
        name = ""
    word, _, digest = fragment.partition("=")
    # A web server would get another address: urlsplit() leaves out line ends.
    if (
        not name
        or not address.isprintable()
        or (fragment and (word != "sha256" or len(digest) != 64))
    ):
        raise UsageError(
            f'"{url}" names no image', hint="https://HOST/web.qcow2#sha256=HEXADECIMAL"
        )
    return ImageSet((SetFile(name, -1, digest.lower()),), address)


def of_file(path: Path, *, allow_backing: bool, checksums: Path | None = None) -> ImageSet:
    """Return the files of an image: its backing files, kernel, initrd and manifest.

    Those of an unbootable image are found as far as possible: the host that runs it reports the
    fault.

    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    :raises UsageError: when one of its files is in another folder, and so cannot be sent along.
    """
    folder = path.parent
    files = [path]
    try:
        opened = ImageFile.open(path, allow_backing=allow_backing)
        files += [link.path for link in opened.chain[1:]]
        image = Image.open(path, allow_backing=allow_backing, checksums=checksums, boots=False)
        files += [each for each in (image.kernel, image.initrd) if each is not None]
    except HotplateError:
        pass
    if (about := manifest.path_for(path)).is_file():
        files.append(about)
    for each in files:
        if not each.absolute().is_relative_to(folder.absolute()):
            raise UsageError(
                f'"{each}", which belongs to the image "{path}", lies in another folder, so it '
                "does not go to a worker with it",
                hint=f"qemu-img convert -O qcow2 {quoted(path)} whole.qcow2",
            )
    return ImageSet(
        tuple(
            SetFile(
                str(each.absolute().relative_to(folder.absolute())),
                each.stat().st_size,
                sha256_of(each, checksums),
            )
            for each in dict.fromkeys(files)
        )
    )
