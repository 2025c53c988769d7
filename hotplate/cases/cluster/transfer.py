"""The result of a case on its way from a worker: bytes from anyone, read as plain data.

Anyone who reaches a scheduler can be a worker, and a pickle is a program. So a result is JSON and
an archive with limits, and of Dask's own messages only plain data is unpickled.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gzip
import io
import json
import pickle
import pickletools
import tarfile
import types
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from hotplate.errors import HostError
from hotplate.report.artifacts import json_line
from hotplate.verdict.verdict import Verdict

#: The size of a run's folder that is returned, in bytes before compression.
MAX_BYTES = 512 * 1024 * 1024

#: The number of files that are returned, and folders in the path of each.
MAX_NAMES = 20_000

#: Room for the headers of one file in an archive, with a long name.
HEADER_BYTES = 4096

#: The file with the names of the files left out, one a line.
LEFT_OUT = "left-out.txt"

#: The names of ``builtins`` that a pickle may have: Dask sends a value's type.
PLAIN = frozenset({"bool", "bytearray", "bytes", "float", "int", "str", "tuple"})


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    :param worker: its address.
    :param folder: the path of the run's folder there.
    :param archive: the files in it, see :func:`pack`.
    :param complaint: the other output of the process.
    """

    verdict: Verdict
    worker: str
    folder: str = ""
    archive: bytes = b""
    complaint: str = ""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON followed by the archive."""
        about = asdict(replace(self, archive=b""))
        del about["archive"]
        # json_line() escapes the newlines of texts, so that the first one ends the JSON.
        return json_line(about).encode() + self.archive

    @classmethod
    def from_bytes(cls, data: object) -> Self:
        """Read the output of :meth:`to_bytes`.

        :raises HostError: when it is malformed.
        """
        try:
            line, _, archive = _of(bytes, data).partition(b"\n")
            # Deeply nested JSON ends in a RecursionError.
            result: Self = read(cls, json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HostError(
                f"a worker sent back something else than the result of a case: {error}"
            ) from error
        return replace(result, archive=archive)


_hints = functools.cache(get_type_hints)


def read(kind: Any, value: Any) -> Any:
    """Return a value of a type, from the JSON of :func:`dataclasses.asdict`.

    :param kind: a dataclass, an enum, a JSON type, or one of these in a tuple, a mapping, a
        sequence or beside None.
    :raises TypeError: when the value is of another type.
    :raises ValueError: when an enum has no such member.

    >>> read(tuple[int, ...], [1, 2])
    (1, 2)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return value
    if origin in (Union, types.UnionType):
        # One type beside None; a union of more types fails here with a ValueError.
        (inner,) = (each for each in arguments if each is not type(None))
        return None if value is None else read(inner, value)
    if origin in (tuple, Sequence):
        return tuple(read(arguments[0], each) for each in _of(list, value))
    if origin is Mapping:
        return {name: read(arguments[1], each) for name, each in _of(dict, value).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: read(hints[name], each) for name, each in _of(dict, value).items()})
    if issubclass(kind, Enum):
        return kind(_of(str, value))
    # JSON keeps no difference between a field of type float that holds an int and an int.
    return float(value) if kind is float and isinstance(value, int) else _of(kind, value)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


# -- folders ---------------------------------------------------------------------------------------


def pack(folder: Path, *, max_bytes: int = MAX_BYTES, max_names: int = MAX_NAMES) -> bytes:
    """Return the files of a folder as an archive, the smallest first.

    :param max_bytes: of all files; beyond that they are only named, in :data:`LEFT_OUT`.
    :param max_names: in the same way, of all files and the folders in the path of each.
    """
    sizes = {
        each: each.stat().st_size
        for each in folder.rglob("*")
        if each.is_file() and not each.is_symlink()
    }
    left_out: list[str] = []
    target = io.BytesIO()
    # A second hard link of a file is written as a file too.
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1, dereference=True) as archive:
        # The smallest first, so that one large file, such as a disk, displaces no others.
        for file, size in sorted(sizes.items(), key=lambda item: item[1]):
            path = file.relative_to(folder)
            if size > max_bytes or len(path.parts) >= max_names:
                left_out.append(f"{path}: {size} bytes\n")
                continue
            # unpack() counts the parts of each path in the same way.
            max_bytes -= size
            max_names -= len(path.parts)
            archive.add(file, str(path), recursive=False)
        if left_out:
            text = "".join(left_out).encode("utf-8", "backslashreplace")
            member = tarfile.TarInfo(LEFT_OUT)
            member.size, member.mode = len(text), 0o600
            archive.addfile(member, io.BytesIO(text))
    return target.getvalue()


def unpack(
    data: bytes, folder: Path, *, max_bytes: int = MAX_BYTES, max_names: int = MAX_NAMES
) -> None:
    """Write the files of :func:`pack` into an existing folder.

    Paths outside the folder are refused (PEP 706), and everything that is not a plain file.

    :param max_bytes: refuse larger archives; the limits of :func:`pack`.
    :param max_names: refuse archives with more.
    :raises OSError: when they cannot be written.
    :raises tarfile.TarError: when it is no archive of :func:`pack`, or too large.
    """
    stream = _Archive(fileobj=io.BytesIO(data))
    stream.limit = max_bytes + max_names * HEADER_BYTES
    try:
        # "r|" reads from front to back without seeking, so that each byte passes the limit once.
        with stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                max_names -= member.name.count("/") + 1
                if max_names < 0:
                    raise tarfile.ReadError("the archive has too many files")
                # A sparse file may be larger than the archive.
                if not member.isreg() or member.issparse():
                    raise tarfile.ReadError(f'"{member.name}" in the archive is no plain file')
                # Only the user reads a run.
                member.mode &= 0o700
                archive.extract(member, folder, filter="data")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise tarfile.ReadError(f"the archive is damaged: {error}") from error


class _Archive(gzip.GzipFile):
    limit = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        # The position in the decompressed content: a small archive may expand to any size.
        if self.tell() > self.limit:
            raise tarfile.ReadError("the archive is too large")
        return data


# -- pickles ---------------------------------------------------------------------------------------


class Refused(TypeError):
    """A pickle is not plain data; Dask expects TypeErrors for some."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in PLAIN:
            return getattr(builtins, name)
        raise Refused(f'a pickle of "{module}.{name}" came from the cluster')


def loads(data: bytes, *, buffers: Any = ()) -> Any:
    """Return the content of a pickle.

    :raises Refused: when it is more than plain data.
    """
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


@contextlib.contextmanager
def only_plain_data() -> Iterator[None]:
    """Make Dask unpickle plain data only, in this process, while the context lasts.

    Its client unpickles in four places, regardless of its ``deserializers`` (distributed 2026.8):
    parts of each message, types, exceptions, and warnings of workers.
    """
    from distributed import client, protocol

    ours = types.ModuleType("pickle")
    # Both modules call "pickle.loads" by the name of the module.
    vars(ours).update(vars(pickle), loads=loads)
    modules: list[Any] = [client, protocol.pickle]
    try:
        for each in modules:
            each.pickle = ours
        yield
    finally:
        for each in modules:
            each.pickle = pickle


def exception_text(error: Exception) -> str:
    """Return the name and the first argument of a task's exception, without creating it.

    Dask puts a pickle that may not be loaded into an exception of its own.

    >>> exception_text(Exception(pickle.dumps(ValueError("no such thing"))))
    'ValueError: no such thing'
    """
    if type(error) is not Exception or not isinstance(error.args[0], bytes):
        return f"{type(error).__name__}: {error}"
    words: list[str] = []
    with contextlib.suppress(ValueError):
        words += (word for _, word, _ in pickletools.genops(error.args[0]) if type(word) is str)
    if words[:1] == ["tblib.pickling_support"]:
        # Dask pickles with tblib: its function comes first, then the class and the attributes.
        words = [each for each in words[2:] if each not in ("__dict__", "args")]
    return ": ".join(words[1:3])
