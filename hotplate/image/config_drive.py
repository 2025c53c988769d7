"""Config drive: a small disk with the metadata, for a guest without a metadata service.

The formats are those of OpenStack Nova (``config_drive_format``): an ISO 9660 image with Joliet
and Rock Ridge names, or a VFAT disk; cloud-init finds either by its label.  Nothing is mounted.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hotplate.errors import HostError
from hotplate.image.overlay import last_words

#: The size of Nova's VFAT config drives.
VFAT_BYTES = 64 * 1024 * 1024


def make(
    tree: Mapping[str, bytes], path: Path, *, fs: str = "iso9660", label: str = "config-2"
) -> Path:
    """Write a config drive.

    :param tree: contents by path, such as ``openstack/latest/meta_data.json``.
    :param path: the file to write; it is there whole or not at all.
    :param fs: ``iso9660`` or ``vfat``.
    :param label: of the file system; ``config-2`` for OpenStack, ``cidata`` for NoCloud.
    :return: ``path``.
    :raises HostError: the tool is missing, or there is no space.
    :raises ValueError: a path that leaves the drive, or an unknown ``fs``.

    Example::

        make({"openstack/latest/meta_data.json": b"{}"}, directory / "config.iso")
    """
    for name in tree:
        parts = PurePosixPath(name).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(f'"{name}" is not a path on a config drive')
    makers = {"iso9660": _iso9660, "vfat": _vfat}
    if fs not in makers:
        raise ValueError(f'"{fs}" is not a format of a config drive: {", ".join(makers)}')
    try:
        with tempfile.TemporaryDirectory(prefix="config-drive-") as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            for name, content in tree.items():
                file = root / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                makers[fs](root, temporary, label)
                # User data may hold secrets.
                temporary.chmod(0o600)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f'the config drive "{path}" could not be written: {error.strerror}',
            hint=f"df -h {shlex.quote(str(path.parent))}",
        ) from error
    return path


def _run(command: list[str], path: Path) -> None:
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        name = Path(command[0]).name
        raise HostError(f'{name} could not make "{path.name}": {last_words(done)}')


def _iso9660(root: Path, path: Path, label: str) -> None:
    options = ["-quiet", "-J", "-r", "-V", label, "-o", str(path), str(root)]
    for program, prefix in (("genisoimage", []), ("xorriso", ["-as", "mkisofs"])):
        if tool := shutil.which(program):
            _run([tool, *prefix, *options], path)
            return
    raise HostError(
        "a config drive needs genisoimage or xorriso; neither was found",
        hint="apt-get install xorriso",
    )


def _vfat(root: Path, path: Path, label: str) -> None:
    if shutil.which("mformat") is None or shutil.which("mcopy") is None:
        raise HostError(
            "a VFAT config drive needs mformat and mcopy; they were not found",
            hint="apt-get install mtools",
        )
    with path.open("wb") as disk:
        disk.truncate(VFAT_BYTES)
    # A whole disk without a partition table, as in Nova.
    sectors = VFAT_BYTES // 512
    _run(["mformat", "-i", str(path), "-T", str(sectors), "-v", label, "::"], path)
    entries = [str(entry) for entry in sorted(root.iterdir())]
    if entries:
        _run(["mcopy", "-i", str(path), "-s", "-Q", *entries, "::/"], path)
