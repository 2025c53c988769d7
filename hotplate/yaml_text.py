"""YAML of which every fault is a :class:`yaml.YAMLError`, and which is as large as it looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import yaml

#: By PyYAML 6.0: ``!!int ''``, ``!!bool x``, ``!!timestamp x``, ``2024-99-99``, ``!!float 1:::``.
_OF_VALUES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

#: Maximum nesting of maps and lists. Heat's engine ends deeper ones with a RecursionError.
MAX_DEPTH = 200

#: Maximum growth by aliases, with 8 for each item and 1 for each character: a few lines can stand
#: for billions of items ("billion laughs").
MAX_GROWTH = 8 << 20
_ITEM = 8


class ExpansionError(yaml.YAMLError):
    """Content that is nested too deeply, or grows too much when its aliases are resolved."""


def load(text: str | bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the content of a text in YAML.

    :raises yaml.YAMLError: for all that cannot be read.
    """
    return construct(loader(text))


def construct(loader: yaml.SafeLoader | yaml.CSafeLoader) -> Any:
    """Return the content of a loader's text.

    :raises yaml.YAMLError: for all that cannot be read.
    """
    node = compose(loader)
    with all_errors():
        return None if node is None else loader.construct_document(node)


def compose(loader: yaml.SafeLoader | yaml.CSafeLoader) -> yaml.Node | None:
    """Return the root node of a loader's text, None for an empty text.

    :raises yaml.YAMLError: for all that cannot be read.
    """
    with all_errors():
        # Before anything is constructed: merges (<<) are resolved by copies.
        node: yaml.Node | None = loader.get_single_node()
    check(node)
    return node


def check(root: object) -> None:
    """Check the size of content that other programs will expand.

    :param root: a node, or a value of JSON types.
    :raises ExpansionError: when it contains itself, is nested too deeply, or is much larger with
        its aliases resolved.
    """
    # By the identity of a collection, its size with all aliases resolved, and its depth.
    measured: dict[int, tuple[int, int]] = {}
    # The scalars with an anchor are one node each, however often they are named.
    scalars: set[int] = set()
    above: set[int] = set()
    plain = 0
    pending = [root]
    while pending:
        each = pending[-1]
        if id(each) in measured or not _is_filled(each):
            pending.pop()
            continue
        parts = _parts(each)
        if id(each) not in above:
            above.add(id(each))
            inner = [part for part in parts if _is_filled(part)]
            if any(id(part) in above for part in inner):
                raise ExpansionError("it names itself by an alias")
            pending += [part for part in inner if id(part) not in measured]
        else:
            pending.pop()
            above.remove(id(each))
            plain += _ITEM
            size, depth = _ITEM, 0
            for part in parts:
                if (known := measured.get(id(part))) is not None:
                    size, depth = size + known[0], max(depth, known[1])
                    continue
                size += _size(part)
                if not isinstance(part, yaml.ScalarNode) or id(part) not in scalars:
                    scalars.add(id(part))
                    plain += _size(part)
            measured[id(each)] = size, depth + 1
    size, depth = measured.get(id(root), (0, 0))
    if depth > MAX_DEPTH:
        raise ExpansionError(
            f"it is nested too deeply: {depth} levels; expected at most {MAX_DEPTH}"
        )
    if size - plain > MAX_GROWTH:
        raise ExpansionError("it grows by over 8 MiB when its aliases are resolved")


def _is_filled(value: Any) -> bool:
    """Return True for a collection with items."""
    if isinstance(value, yaml.CollectionNode):
        return bool(value.value)
    return isinstance(value, (dict, list)) and bool(value)


def _parts(value: Any) -> list[Any]:
    """Return the items of a collection; of a map, keys and values."""
    if isinstance(value, yaml.MappingNode):
        return [part for pair in value.value for part in pair]
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    items: list[Any] = value.value if isinstance(value, yaml.SequenceNode) else value
    return items


def _size(value: object) -> int:
    text = value.value if isinstance(value, yaml.ScalarNode) else value
    return _ITEM + (len(text) if isinstance(text, str) else 0)


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
