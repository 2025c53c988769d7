"""Configs that are maps, or text in YAML; PyYAML is imported only for YAML that is not JSON."""

from __future__ import annotations

from . import hook, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def map_config(deployment: hook.Deployment) -> dict[str, Any]:
    """Return the config as a dict, from a map or from YAML (so also JSON) text of one.

    Raises HookError with a sentence for anything else.
    """
    config = deployment.config
    if isinstance(config, str):
        config = parse(config, f'config of group "{deployment.group}"')
    if config is None or config == "":
        return {}
    if not isinstance(config, dict):
        raise hook.HookError(
            f'The config of group "{deployment.group}" must be a map, or YAML text of one; this '
            "one is not."
        )
    return {key if isinstance(key, str) else values.text(key): config[key] for key in config}


def parse(text: str, what: str) -> Any:
    """Return the value of the YAML *text*; *what* names it in the sentence of a HookError."""
    try:
        # JSON first: it needs no PyYAML, which takes long to import.
        return values.decode(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise hook.HookError(
            f"The {what} is YAML, and Python's yaml module is not installed on this server. "
            "Install the package python3-yaml, or write the config as JSON.",
            127,
        ) from None
    try:
        # The C loader is faster, but PyYAML may be built without it.
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise hook.HookError(f"The {what} is not YAML{where}.") from None
