"""All files of an image that a machine uses: the disk, its backing files, its kernel."""

from __future__ import annotations

from pathlib import Path

from hotplate.image import qcow2
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import Image


def fingerprint(image: Image, cache: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of every file that a guest boots from, by role.

    :param cache: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    # Read it again without a check, as the names were checked when the image was opened.
    links = qcow2.chain(image.path, allow_backing=True)
    files = {"image": image.path}
    files |= {f"backing {depth}": link.path for depth, link in enumerate(links[1:], 1)}
    if image.kernel is not None:
        files["kernel"] = image.kernel
    if image.initrd is not None:
        files["initrd"] = image.initrd
    return {what: sha256_of(path, cache) for what, path in files.items()}
