"""All files that a machine is given of an image: the disk, what lies behind it, its kernel."""

from __future__ import annotations

from pathlib import Path

from hotplate.image import qcow2
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import Image


def fingerprint(image: Image, cache: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of everything that a guest boots from, by what it is.

    :param cache: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    # Read again: whether the names are good was asked when the image was opened.
    links = qcow2.chain(image.path, allow_backing=True)
    files = {"image": image.path}
    files |= {f"backing {depth}": link.path for depth, link in enumerate(links[1:], 1)}
    if image.kernel is not None:
        files["kernel"] = image.kernel
    if image.initrd is not None:
        files["initrd"] = image.initrd
    return {what: sha256_of(path, cache) for what, path in files.items()}
