"""Dask's messages as plain data: a pickle from a cluster runs no code on this host.

Anyone who reaches a scheduler can be a worker, and a pickle is a program. Dask's client unpickles
in four places, regardless of its ``deserializers`` (distributed 2026.8): parts of each message,
types, exceptions, and warnings of workers.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import pickle
import pickletools
import types
from collections.abc import Iterator
from typing import Any

NAMES = frozenset({"bool", "bytearray", "bytes", "float", "int", "str", "tuple"})
"""The permitted names of ``builtins``: Dask sends a value's type."""

_TBLIB = "tblib.pickling_support"
"""The module by which Dask pickles exceptions, with their tracebacks."""

DESERIALIZERS = ("msgpack", "error")
"""For Dask's client: the serialisation families that it requests from workers."""


class Refused(TypeError):
    """A pickle is not plain data; Dask expects TypeErrors for some."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in NAMES:
            return getattr(builtins, name)
        raise Refused(f'a pickle of "{module}.{name}" came from the cluster')


def loads(data: bytes, *, buffers: Any = ()) -> Any:
    """Return the content of a pickle.

    :raises Refused: when it is more than plain data.
    """
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


@contextlib.contextmanager
def only_plain_data() -> Iterator[None]:
    """Make Dask unpickle plain data only, in this process, while the context lasts."""
    from distributed import client, protocol

    ours = types.ModuleType("pickle")
    vars(ours).update(vars(pickle), loads=loads)
    modules: list[Any] = [client, protocol.pickle]
    try:
        for each in modules:
            each.pickle = ours
        yield
    finally:
        for each in modules:
            each.pickle = pickle


def exception_in(data: bytes) -> str:
    """Return the name of the exception in a pickle, and its first argument, without creating it.

    >>> exception_in(pickle.dumps(ValueError("no such thing")))
    'ValueError: no such thing'
    """
    words: list[str] = []
    with contextlib.suppress(ValueError):
        words += (word for _, word, _ in pickletools.genops(data) if isinstance(word, str))
    if words[:1] == [_TBLIB]:
        # Its function comes first, then the class and the attributes.
        words = [each for each in words[2:] if each not in ("__dict__", "args")]
    return ": ".join(words[1:3])
