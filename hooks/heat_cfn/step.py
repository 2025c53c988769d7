"""A step of an AWS::CloudFormation::Init configuration, and the changes of earlier steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from heat_cfn.problems import CfnError


@dataclass
class Changes:
    """The changes so far; a service restarts when it names one of them."""

    packages: set[str] = field(default_factory=set)  # "apt/nginx"
    sources: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)


@dataclass
class Step:
    """One step: ``run(changes)`` does it, or raises :class:`CfnError`.

    ``name`` is its name in progress and failures, such as ``files: "/etc/motd"``.
    """

    name: str
    run: Callable[[Changes], None]


def as_map(value: Any, where: str) -> dict[str, Any]:
    """Return ``value`` if it is a map (null and "" count as empty), else raise CfnError."""
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise CfnError(f'"{where}" must be a map, not {kind(value)}')
    return value


def as_text(value: Any, where: str) -> str:
    """Return ``value`` if it is non-empty text without a NUL, else raise CfnError."""
    if not isinstance(value, str) or not value:
        raise CfnError(f'"{where}" must be a non-empty string, not {kind(value)}')
    if "\0" in value:
        raise CfnError(f'"{where}" holds a NUL character')
    return value


def as_name(value: Any, where: str) -> str:
    """Return ``value`` if it is one word that no command takes for an option."""
    text = as_text(value, where)
    if text.startswith("-") or text.split() != [text]:
        raise CfnError(f'"{where}" must be one word that does not begin with "-"')
    return text


def as_list(value: Any, where: str) -> list[str]:
    """Return a list of words from a list or from text with commas."""
    if value is None or value == "":
        return []
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        raise CfnError(f'"{where}" must be a list, not {kind(value)}')
    return [as_name(number_text(item), where) for item in value]


def as_flag(value: Any, where: str) -> bool:
    """Return a truth value; true and false may be text, or one of the forms of heat-cfntools."""
    given = value.strip().lower() if isinstance(value, str) else value
    if given in (True, "true", "yes", "1"):  # 1 too, which equals True
        return True
    if given in (False, "false", "no", "0"):
        return False
    raise CfnError(f'"{where}" must be true or false, not {kind(value)}')


def number_text(value: Any) -> Any:
    """Return a number as text: templates write uids and versions in both ways."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def kind(value: Any) -> str:
    """Return a name for this kind of JSON value, never the value itself."""
    names = {
        dict: "a map",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    if value == "":
        return "an empty string"
    return names.get(type(value), type(value).__name__)
