"""Read checks from files: executables, directories of them, and a goss file with its program."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hotplate.checks.check import DataFile, UserCheck
from hotplate.checks.metadata import NO_METADATA, CheckMetadata, of_script, parse
from hotplate.errors import UsageError
from hotplate.text import quoted

#: kola's names for the files beside executables.
DATA = "data"
COMMON = "kola.json"
CONFIGS = ("config.ign", "config.bu")

#: The bytes of an executable with its data: they are copied into each guest.
MAX_BYTES = 64 << 20
MAX_FILES = 1000

GOSS = "goss"
_RUN_GOSS = b"""\
#!/bin/sh
exec "$KOLA_EXT_DATA/goss" --gossfile "$KOLA_EXT_DATA/goss.yaml" validate --format json
"""


def read_checks(paths: Sequence[Path]) -> tuple[UserCheck, ...]:
    """Return the checks of files and directories, in the order of the paths, then of the names.

    A directory is searched as kola does: each executable below it is a check, except in ``data``,
    which belongs to the executables beside it, and hidden files.

    :raises UsageError: when a path has no check, or a check cannot be used.
    """
    found = [pair for path in paths for pair in _found(path)]
    often = Counter(name for name, _ in found)
    # Two directories may have the same names.
    checks = [_read(file, str(file) if often[name] > 1 else name) for name, file in found]
    if twice := [
        name for name, count in Counter(each.name for each in checks).items() if count > 1
    ]:
        raise UsageError(f'the check "{twice[0]}" is named twice')
    return tuple(checks)


def _found(path: Path) -> list[tuple[str, Path]]:
    """Return the names and the files of a path's checks."""
    if path.is_file():
        if not os.access(path, os.X_OK):
            raise UsageError(
                f'the check "{path}" is not executable', hint=f"chmod +x {quoted(path)}"
            )
        return [(path.name, path)]
    if not path.is_dir():
        raise UsageError(f'the check "{path}" does not exist')
    try:
        found = [(str(each.relative_to(path)), each) for each in _executables(path)]
    except OSError as error:
        raise UsageError(f'"{error.filename}" cannot be read: {error.strerror}') from error
    if not found:
        raise UsageError(f'the directory "{path}" has no executable, so there is no check in it')
    return found


def _executables(directory: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the executables below a directory.

    :param above: the directories that it is in, resolved.
    """
    above = (*above, directory.resolve())
    for each in sorted(directory.iterdir()):
        if each.name.startswith(".") or each.name == DATA:
            continue
        if each.name in CONFIGS:
            raise UsageError(
                f'"{each}" is a configuration for the first boot of a machine of its own, and '
                "checks run in the machine that is tested"
            )
        if each.is_dir():
            # A link back has the same files again, as deep as the kernel follows links.
            if each.resolve() not in above:
                yield from _executables(each, above)
        elif each.is_file() and os.access(each, os.X_OK):
            yield each
        elif _is_script(each):
            # Left out in silence, it would look like a check that passes.
            raise UsageError(
                f'"{each}" begins as a script and is not executable',
                hint=f'chmod +x {quoted(each)}, or move it into the directory "{DATA}" beside it',
            )


def _is_script(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(2) == b"#!"


def _read(path: Path, name: str) -> UserCheck:
    program = _content(path)
    metadata = of_script(program, where=str(path))
    common = path.with_name(COMMON)
    if metadata is None and common.is_file():
        metadata = parse(_content(common).decode(errors="replace"), place=f'"{common}"')
    check = UserCheck(
        name, path.name, program, metadata or NO_METADATA, _data(path.with_name(DATA))
    )
    return _bounded(check)


def _data(directory: Path) -> tuple[DataFile, ...]:
    """Return the files of a directory; none when it does not exist."""
    if not directory.is_dir():
        return ()
    files: list[DataFile] = []
    size = 0
    # followlinks: kola's data may be a link, and so may directories in it; MAX_FILES ends a ring.
    for folder, _, names in os.walk(directory, followlinks=True):
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_file():
                raise UsageError(f'"{path}" is no file, and cannot be copied into a guest')
            size += path.stat().st_size
            if len(files) >= MAX_FILES or size > MAX_BYTES:
                raise UsageError(
                    f'the directory "{directory}" has more than {MAX_FILES} files or '
                    f"{MAX_BYTES >> 20} MiB, which is too much to copy into a guest"
                )
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            files.append(DataFile(str(path.relative_to(directory)), _content(path), mode))
    return tuple(files)


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(
                f'"{path}" has more than {MAX_BYTES >> 20} MiB, which is too much to copy into a '
                "guest"
            )
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror}') from error


def _bounded(check: UserCheck) -> UserCheck:
    size = len(check.program) + sum(len(each.content) for each in check.data)
    if size > MAX_BYTES:
        raise UsageError(
            f'the check "{check.name}" has {size >> 20} MiB with its data; at most '
            f"{MAX_BYTES >> 20} are copied into a guest"
        )
    return check


def read_goss(file: Path, program: Path | None) -> UserCheck:
    """Return the check that runs a goss file.

    :param program: goss itself, for the guest's processor.
    :raises UsageError: when one of them cannot be used.
    """
    if not file.is_file():
        raise UsageError(f'the goss file "{file}" does not exist or is not a file')
    if program is None:
        raise UsageError(
            f'no goss program is named to run the goss file "{file}" in the guest',
            hint="--goss-program PATH, or GOSS_PATH=PATH",
        )
    if not program.is_file():
        raise UsageError(f'the goss program "{program}" does not exist or is not a file')
    check = UserCheck(
        GOSS,
        GOSS,
        _RUN_GOSS,
        data=(
            DataFile("goss", _content(program), 0o755),
            DataFile("goss.yaml", _content(file)),
        ),
    )
    return replace(_bounded(check), metadata=CheckMetadata(description=str(file)))
