"""The agent's settings: the environment, then the command line and configuration files.

Defaults are in options.py. The files are
``~/os-collect-config.conf``, else ``/etc/os-collect-config.conf``, and the ``*.conf`` of
``os-collect-config.conf.d`` in the same places; ``--config-file`` and ``--config-dir`` name others
instead. Unknown names are ignored, as upstream does.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

from . import command_line, ini
from .options import ADDRESS, BOOLEAN, COLLECTORS, GROUPS, LIST, NUMBER, OPTIONS, flag, variable
from .problems import SettingsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Mapping
    from typing import Any

    from .options import Option

NAME = "os-collect-config"
SYSTEM = "/etc"
FILE_LIMIT = 1 << 20
TRUE = ("true", "1", "on", "yes")
FALSE = ("false", "0", "off", "no")
#: Minimum seconds between two rounds, even if less is configured: there is always a pause.
SHORTEST_PAUSE = 0.1


class Settings:
    """The values by group, as attributes with ``_`` for ``-``: ``settings.cfn.metadata_url``.

    Those of [DEFAULT] are attributes of the object itself. watched: returns the paths whose change
    reloads the configuration, including missing files; before: their contents when read.
    """

    command: str | None
    cachedir: str
    backup_cachedir: str
    collectors: list[str]
    deployment_key: list[str]
    one_time: bool
    force: bool
    print_only: bool
    print_cachedir: bool
    min_polling_interval: float
    polling_interval: float
    splay: float
    debug: bool
    log_config_append: str | None
    log_date_format: str
    log_file: str | None
    log_dir: str | None
    use_syslog: bool
    use_journal: bool
    use_json: bool
    syslog_log_facility: str | None

    def __init__(
        self,
        values: dict[Option, Any],
        watched: Callable[[], list[str]],
        before: list[tuple[str, bytes | None]],
    ) -> None:
        self._watched = watched
        self._before = before
        groups = {group: SimpleNamespace() for group in GROUPS}
        for option in OPTIONS:
            place = self if option.group == "DEFAULT" else groups[option.group]
            setattr(place, option.destination, values[option])
        self.cfn = groups["cfn"]
        self.ec2 = groups["ec2"]
        self.heat = groups["heat"]
        self.heat_local = groups["heat_local"]
        self.local = groups["local"]
        self.request = groups["request"]
        self.zaqar = groups["zaqar"]
        if self.force:
            self.one_time = True
        self.shortest = max(_seconds(self.min_polling_interval, 1.0), SHORTEST_PAUSE)
        self.longest = max(_seconds(self.polling_interval, 30.0), SHORTEST_PAUSE)

    def check(self) -> None:
        """Raise SettingsError if a named source does not exist."""
        unknown = sorted(set(self.collectors) - set(COLLECTORS))
        if unknown:
            names = " ".join(f'"{name}"' for name in unknown)
            raise SettingsError(
                f"there is no source {names}; the sources are {' '.join(COLLECTORS)}"
            )

    def are_outdated(self) -> bool:
        """Return whether the files have changed since they were read."""
        return _fingerprint(self._watched()) != self._before


def load(arguments: list[str], environ: Mapping[str, str], system: str = SYSTEM) -> Settings:
    """Return the Settings. Raises SettingsError; exits if the command line is invalid.

    environ: a mapping. system: the directory of the system's own configuration.
    """
    steps = command_line.steps(arguments)
    places = [environ.get("HOME") or os.path.expanduser("~"), system]
    # Before the files are read: a change during that makes them outdated.
    before = _fingerprint(_watched(steps, places))
    defaults = []
    if not any(step[0] == command_line.FILE for step in steps):
        defaults += [(command_line.FILE, path) for path in _first(places, ".conf", os.path.isfile)]
    if not any(step[0] == command_line.DIRECTORY for step in steps):
        directories = _first(places, ".conf.d", os.path.isdir)
        defaults += [(command_line.DIRECTORY, path) for path in directories]
    gathered = _gather([*defaults, *steps])
    for option in OPTIONS:
        if variable(option) in environ:
            gathered[option] = [_converted(option, environ[variable(option)], variable(option))]
    return Settings(_settled(gathered), lambda: _watched(steps, places), before)


def _gather(steps: list[tuple[Any, ...]]) -> dict[Option, list[Any]]:
    """Return {option: values in their order}."""
    gathered: dict[Option, list[Any]] = {}
    for kind, *rest in steps:
        if kind == command_line.VALUE:
            option, value = rest
            if value is None:
                gathered[option] = []
                continue
            gathered.setdefault(option, []).append(_converted(option, value, flag(option)))
            continue
        paths = rest if kind == command_line.FILE else _directory(rest[0])
        for path in paths:
            _add_file(path, gathered)
    return gathered


def _add_file(path: str, gathered: dict[Option, list[Any]]) -> None:
    options = {(option.group.lower(), option.destination): option for option in OPTIONS}
    try:
        entries = ini.parse(_read(path))
    except ini.IniError as error:
        raise SettingsError(f'"{path}" cannot be read: {error}') from None
    for section, key, text in entries:
        # oslo.config accepts [DEFAULT] in this spelling only.
        if section.lower() == "default" and section != "DEFAULT":
            continue
        option = options.get((section.lower(), key))
        if option is not None:
            where = f'"{key}" in [{section}] of "{path}"'
            gathered.setdefault(option, []).append(_converted(option, text, where))


def _read(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(FILE_LIMIT).decode("utf-8")
    except OSError as error:
        raise SettingsError(f'"{path}" cannot be read: {error.strerror}') from None
    except UnicodeDecodeError:
        raise SettingsError(f'"{path}" cannot be read: it is not UTF-8') from None


def _directory(path: str) -> list[str]:
    try:
        return [os.path.join(path, name) for name in sorted(os.listdir(path)) if _is_conf(name)]
    except OSError as error:
        raise SettingsError(f'"{path}" cannot be read: {error.strerror}') from None


def _is_conf(name: str) -> bool:
    return name.endswith(".conf") and not name.startswith(".")


def _first(places: list[str], suffix: str, is_there: Callable[[str], bool]) -> list[str]:
    paths = [os.path.join(place, NAME + suffix) for place in places]
    return [path for path in paths if is_there(path)][:1]


def _watched(steps: list[tuple[Any, ...]], places: list[str]) -> list[str]:
    """Return the files that are read, and missing ones that would be."""
    files = [os.path.join(place, NAME + ".conf") for place in places]
    directories = [os.path.join(place, NAME + ".conf.d") for place in places]
    files = [step[1] for step in steps if step[0] == command_line.FILE] or files
    directories = [step[1] for step in steps if step[0] == command_line.DIRECTORY] or directories
    for directory in directories:
        # A directory that is missing now may appear later.
        with contextlib.suppress(SettingsError):
            files += _directory(directory)
    return files


def _fingerprint(paths: list[str]) -> list[tuple[str, bytes | None]]:
    """Return the paths with their current contents."""
    # Contents and not times: the command renders the same text again and again.
    contents: list[tuple[str, bytes | None]] = []
    for path in paths:
        try:
            with open(path, "rb") as stream:
                contents.append((path, stream.read(FILE_LIMIT)))
        except OSError:
            contents.append((path, None))
    return contents


def _converted(option: Option, value: Any, where: str) -> Any:
    """Return a value as its option's kind; an empty number is None."""
    if isinstance(value, bool):
        return value
    if option.kind == BOOLEAN:
        if value.lower() in TRUE + FALSE:
            return value.lower() in TRUE
        raise SettingsError(f"{where} must be true or false")
    if option.kind == NUMBER:
        try:
            return float(value) if value else None
        except ValueError:
            raise SettingsError(f"{where} must be a number") from None
    # With a "$" it is an address only after the substitution.
    if option.kind == ADDRESS and value and "$" not in value:
        _check_address(value, where)
    return value


def _check_address(value: Any, where: str) -> None:
    from heat_config.address import Target

    try:
        Target(value)
    except ValueError:
        raise SettingsError(f"{where} must be a URL that begins with http:// or https://") from None


def _settled(gathered: dict[Option, list[Any]]) -> dict[Option, Any]:
    """Return {option: value or list}, with ``$name`` substituted."""
    chosen = {}
    for option in OPTIONS:
        values = [value for value in gathered.get(option, ()) if value is not None]
        if option.kind == LIST:
            chosen[option] = values or list(option.default)
        else:
            chosen[option] = values[-1] if values else option.default
    return {option: _substituted(option, chosen) for option in OPTIONS}


def _substituted(option: Option, chosen: dict[Option, Any], depth: int = 0) -> Any:
    value = chosen[option]
    if isinstance(value, list):
        return [_filled(item, option.group, chosen, depth) for item in value]
    return _filled(value, option.group, chosen, depth)


def _filled(text: Any, group: str, chosen: Any, depth: int) -> Any:
    """Substitute other options for ``$name``, ``${name}`` and ``$group.name``.

    ``$$`` and ``\\$`` stand for a dollar sign. Unknown names are kept as written.
    """
    # The depth ends a circle of options that name each other.
    if not isinstance(text, str) or "$" not in text or depth > 10:
        return text
    import re

    by_name = {(option.group, option.destination): option for option in chosen}

    def replace(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if name is None:
            return "$"
        named, _, rest = name.partition(".")
        option = by_name.get((named, rest)) or by_name.get((group, name))
        option = option or by_name.get(("DEFAULT", name))
        if option is None:
            return match[0]
        value = _substituted(option, chosen, depth + 1)
        return "" if value is None else str(value)

    pattern = r"\$(?:\$|(?P<plain>[_a-z][._a-z0-9]*)|\{(?P<braced>[_a-z][._a-z0-9]*)\})"
    return re.sub(pattern, replace, text.replace(r"\$", "$$"), flags=re.IGNORECASE | re.ASCII)


def _seconds(value: float | None, default: float) -> float:
    # NaN and negative numbers get the default as well.
    return value if value is not None and 0 <= value < 1e9 else default
