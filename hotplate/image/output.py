"""The files of a build: made by one build at a time, and published together."""

from __future__ import annotations

import contextlib
import glob
import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from hotplate import locks
from hotplate.errors import HostError, UsageError
from hotplate.image import manifest as manifests
from hotplate.image.checksum import hash_file
from hotplate.image.plan import BuildRequest, Layout
from hotplate.image.supervise import STAGING

#: Files of diskimage-builder's element baremetal beside the image, by suffix.
BESIDE = ("vmlinuz", "initrd")


@contextlib.contextmanager
def staging(request: BuildRequest) -> Iterator[Path]:
    """Make a directory beside the output, for one build of that name, and remove it afterwards.

    :raises UsageError: when another build of that name runs.
    :raises HostError: when the directory is not writable.
    """
    target = request.image.absolute()
    if target.is_dir():
        raise UsageError(f'"{target}" is a directory; name the image file to write')
    prefix = f".{request.name.name}{STAGING}"
    directory = target.with_name(f"{prefix}{secrets.token_hex(4)}")
    with contextlib.ExitStack() as held:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with locks.exclusive(target.parent):
                _refuse_second(target, prefix)
                directory.mkdir()
                held.enter_context(locks.exclusive(directory))
        except OSError as error:
            raise HostError(f'"{target.parent}" cannot be written to: {error.strerror}') from error
        held.callback(shutil.rmtree, directory, ignore_errors=True)
        yield directory


def _refuse_second(target: Path, prefix: str) -> None:
    for other in target.parent.glob(f"{glob.escape(prefix)}????????"):
        try:
            # An unlocked one is of a killed build; the next one removes it.
            with contextlib.suppress(FileNotFoundError), locks.exclusive(other, wait=False):
                pass
        except locks.InUse as error:
            raise UsageError(
                f'another build is making "{target}"', hint="wait for it, or name another: -o FILE"
            ) from error


def publish(request: BuildRequest, directory: Path, manifest: dict[str, object]) -> None:
    """Move the finished files to their names, the image last.

    A kill in between leaves files of two builds; the manifest goes first and names them all, so
    that :func:`~hotplate.image.manifest.check_set` detects it.

    :param directory: has the files as ``image.SUFFIX``.
    :param manifest: gets ``sha256``, ``bytes`` and ``beside``.
    """
    image = directory / f"image.{request.image_type}"
    manifest["sha256"] = hash_file(image)
    manifest["bytes"] = image.stat().st_size
    moves = []
    if request.layout is Layout.PARTITION:
        there = [name for name in BESIDE if (directory / f"image.{name}").exists()]
        manifest["beside"] = {name: hash_file(directory / f"image.{name}") for name in there}
        moves += [(directory / f"image.{name}", request.beside(f".{name}")) for name in there]
    written = directory / "manifest"
    written.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    # By the caller's umask, which the build does not have (supervise.py).
    image.chmod(written.stat().st_mode & 0o777)
    for source, place in ((written, request.beside(manifests.SUFFIX)), *moves):
        source.replace(place)
    image.replace(request.image)
