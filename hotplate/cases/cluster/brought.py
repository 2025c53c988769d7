"""The result of a case on a worker, as JSON and an archive: data only, whoever sends it."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from hotplate.errors import HostError
from hotplate.verdict.verdict import Verdict


@dataclass(frozen=True)
class Brought:
    """The result of a case.

    :param worker: its address.
    :param folder: the path of the run's folder there.
    :param archive: the files in it, see :mod:`hotplate.cases.cluster.folder_archive`.
    :param complaint: the other output of the process.
    """

    verdict: Verdict
    worker: str
    folder: str = ""
    archive: bytes = b""
    complaint: str = ""

    def to_bytes(self) -> bytes:
        """Return it as a line of JSON followed by the archive."""
        from hotplate.report.artifacts import json_line

        about = {
            "verdict": asdict(self.verdict),
            "worker": self.worker,
            "folder": self.folder,
            "complaint": self.complaint,
        }
        return json_line(about).encode() + self.archive

    @classmethod
    def from_bytes(cls, data: object) -> Self:
        """Read the output of :meth:`to_bytes`.

        :raises HostError: when it is malformed.
        """
        try:
            if not isinstance(data, bytes):
                raise TypeError(f"it is of the type {type(data).__name__}")
            line, _, archive = data.partition(b"\n")
            about = json.loads(line)
            return cls(
                read(Verdict, about["verdict"]),
                read(str, about["worker"]),
                read(str, about["folder"]),
                archive,
                read(str, about["complaint"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HostError(
                f"a worker sent back something else than the result of a case: {error}"
            ) from error


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
        (inner,) = (each for each in arguments if each is not type(None))
        return None if value is None else read(inner, value)
    if origin in (tuple, Sequence):
        return tuple(read(arguments[0], each) for each in _of(list, value))
    if origin is Mapping:
        return {name: read(arguments[1], each) for name, each in _of(dict, value).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        types_of = {each.name: hints[each.name] for each in fields(kind)}
        given = _of(dict, value)
        return kind(**{name: read(types_of[name], each) for name, each in given.items()})
    if issubclass(kind, Enum):
        return kind(_of(str, value))
    if kind is float and isinstance(value, int):
        return float(value)
    return _of(kind, value)


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
