"""All files that a machine is given of an image: the disk, what lies behind it, its kernel."""

from __future__ import annotations

import json
from pathlib import Path

from hotplate.errors import ImageError
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import Image, qemu_img


def backing_chain(image: Image) -> list[Path]:
    """The image file and the backing files behind it, the image first.

    :raises ImageError: when ``qemu-img`` cannot follow the chain to its end.
    """
    # -U: another machine may be running on it; it is only looked at.
    done = qemu_img("info", "-U", "--backing-chain", "--output=json", str(image.path))
    if done.returncode != 0:
        raise ImageError(
            f'the backing files of "{image.path}" cannot be read: '
            f"{done.stderr.decode(errors='replace').strip()}",
            hint=f"qemu-img info --backing-chain {image.path}",
        )
    return [Path(link["filename"]) for link in json.loads(done.stdout)]


def fingerprint(image: Image, cache: Path | None = None) -> dict[str, str]:
    """The SHA-256 of everything that a guest boots from, by what it is.

    :param cache: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    files = {"image": image.path}
    files |= {f"backing {depth}": path for depth, path in enumerate(backing_chain(image)[1:], 1)}
    if image.kernel is not None:
        files["kernel"] = image.kernel
    if image.initrd is not None:
        files["initrd"] = image.initrd
    return {what: sha256_of(path, cache) for what, path in files.items()}
