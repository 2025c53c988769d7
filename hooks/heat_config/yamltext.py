"""Configs that are maps, or text in YAML; PyYAML is imported only for YAML that is not JSON."""

from . import hook, values


def map_config(deployment):
    """Return the config as a dict, from a map or from YAML (so also JSON) text of one.

    Raises HookError with a sentence for anything else.
    """
    config = deployment.config
    if isinstance(config, str):
        config = parse(config, 'config of group "%s"' % deployment.group)
    if config is None or config == "":
        return {}
    if not isinstance(config, dict):
        raise hook.HookError(
            'The config of group "%s" must be a map, or YAML text of one; this one is not.'
            % deployment.group
        )
    return {key if isinstance(key, str) else values.text(key): config[key] for key in config}


def parse(text, what):
    """Return the value of the YAML *text*; *what* names it in the sentence of a HookError."""
    try:
        return values.decode(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError:
        raise hook.HookError(
            "The %s is YAML, and Python's yaml module is not installed on this server. Install "
            "the package python3-yaml, or write the config as JSON." % what,
            127,
        ) from None
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = " (line %d)" % (mark.line + 1) if mark else ""
        raise hook.HookError("The %s is not YAML%s." % (what, where)) from None
