"""YAML of which every fault is a :class:`yaml.YAMLError`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml

#: By PyYAML 6.0: ``!!int ''``, ``!!bool x``, ``!!timestamp x``, ``2024-99-99``, ``!!float 1:::``.
_OF_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def load(text: str | bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the content of a text in YAML.

    :raises yaml.YAMLError: for all that cannot be read.
    """
    with all_errors():
        return yaml.load(text, Loader=loader)  # noqa: S506  a SafeLoader


@contextlib.contextmanager
def all_errors() -> Iterator[None]:
    """Raise other errors of PyYAML, and of its constructors, as :class:`yaml.YAMLError`."""
    try:
        yield
    except yaml.YAMLError:
        raise
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except _OF_VALUES as error:
        raise yaml.YAMLError(f"a value in it is not of its type: {error}") from error
