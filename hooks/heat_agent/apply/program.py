"""The command os-apply-config, with the options, messages and exit statuses of 14.1."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import SimpleNamespace

from heat_config import files

from . import metadata, tree, value_types
from .errors import ApplyError

#: The version of os-apply-config with this behaviour.
VERSION = "14.1.0"

TEMPLATES = "/usr/libexec/os-apply-config/templates"
OLD_TEMPLATES = (
    "/opt/stack/os-apply-config/templates",
    "/opt/stack/os-config-applier/templates",
)
CONFIG_FILES = "/var/lib/os-collect-config/os_config_files.json"
OLD_CONFIG_FILES = "/var/run/os-collect-config/os_config_files.json"
LOG_FILE = "/var/log/os-apply-config.log"

#: Upstream returns -1, of which a parent sees the low eight bits.
NOT_BOOLEAN = 255

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def main(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> int:
    """Run the command with *arguments* (default: the command line's); return the exit status.

    Raises SystemExit for invalid arguments (2), and for --help and --version.
    """
    return _main(
        _options(sys.argv[1:] if arguments is None else arguments, environment), environment
    )


def apply(environment: Mapping[str, str] = os.environ, **given: Any) -> int:
    """Run the command with the options *given*, by their names; return the exit status.

    For a caller that continues afterwards: no command line is parsed.
    """
    options = _defaults(environment)
    unknown = given.keys() - options.keys()
    if unknown:
        raise TypeError(f"there is no option {min(unknown)}")
    return _main(SimpleNamespace(**{**options, **given}), environment)


def _main(options: SimpleNamespace, environment: Mapping[str, str]) -> int:
    if options.print_templates:
        _print(options.templates)
        return 0
    log = Log(LOG_FILE if os.geteuid() == 0 else None)
    try:
        return _run(options, environment, log)
    except ApplyError as error:
        log("ERROR", str(error))
        return 1


def _run(options: SimpleNamespace, environment: Mapping[str, str], log: Log) -> int:
    sources = options.metadata or _sources(options.os_config_files, environment, log)
    if options.key and options.boolean_key:
        log("WARNING", "--key is not compatible with --boolean-key. --boolean-key ignored.")
    document = metadata.collect([*options.fallback_metadata, *sources])
    if options.key:
        value = metadata.value_of(document, options.key)
        if value is None and options.key_default is None:
            raise ApplyError(f"key {options.key} does not exist in {sources}")
        _print(options.key_default if value is None else _shown(value, options.type))
    elif options.boolean_key:
        value = metadata.value_of(document, options.boolean_key)
        return int(not value) if isinstance(value, bool) else NOT_BOOLEAN
    else:
        document = metadata.part(document, options.subhash)
        if options.validate:
            tree.render(document, options.templates, environment=environment)
        else:
            tree.install(
                document, options.templates, options.output, log=log, environment=environment
            )
        log("INFO", "success")
    return 0


def _sources(list_file: str, environment: Mapping[str, str], log: Log) -> list[str]:
    """Return the files listed by os-collect-config. Raises ApplyError."""
    if "OS_CONFIG_FILES" in environment:
        return environment["OS_CONFIG_FILES"].split(":")
    sources = metadata.read_list(list_file)
    # The fallback is only for the default list, not for one that --os-config-files names.
    if not sources and list_file == _list_file(environment):
        log("WARNING", f"DEPRECATED: falling back to {OLD_CONFIG_FILES}")
        sources = metadata.read_list(OLD_CONFIG_FILES)
    return sources


def _list_file(environment: Mapping[str, str]) -> str:
    return environment.get("OS_CONFIG_FILES_PATH", CONFIG_FILES)


def _shown(value: Any, kind: str) -> str:
    """Return a value as --key prints it. Raises ApplyError when it is not of the type *kind*."""
    import json

    # As upstream, the type is checked against Python's notation of the value ("True").
    value_types.check(str(value), kind)
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else str(value)


def _print(text: str) -> None:
    try:
        # A default or a path from the command line may hold bytes that are not UTF-8.
        line = text.encode("utf-8", "surrogateescape") + b"\n"
    except UnicodeEncodeError:
        raise ApplyError("the value holds half a character") from None
    # Before the write to the buffer below, which sys.stdout knows nothing of.
    sys.stdout.flush()
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def default_templates(environment: Mapping[str, str]) -> str:
    """Return the directory of templates: the environment's, else the first that exists."""
    named = environment.get("OS_CONFIG_APPLIER_TEMPLATES")
    if named is not None:
        return named
    old = next(filter(os.path.isdir, OLD_TEMPLATES), None)
    if old is None or os.path.isdir(TEMPLATES):
        return TEMPLATES
    Log(None)(
        "WARNING",
        f"Template directory {old} is deprecated.  The recommended location for template files is"
        f" {TEMPLATES}",
    )
    return old


class Log:
    """Lines on standard error, and in a file of root's."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def __call__(self, level: str, text: str) -> None:
        """Write *text* with the time and *level* in front of it."""
        # Upstream's DATE_FORMAT, a clock of twelve hours.
        line = f"[{time.strftime('%Y/%m/%d %I:%M:%S %p')}] [{level}] {text}\n"
        sys.stderr.write(line)
        sys.stderr.flush()
        if self._path is None:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # A message that cannot be logged there is on standard error already.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, flags, files.PRIVATE_FILE)
            try:
                files.write_all(descriptor, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)


def _defaults(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults of the options, by their names."""
    return {
        "templates": default_templates(environment),
        "output": "/",
        "metadata": [],
        "fallback_metadata": list(metadata.FALLBACK),
        "validate": False,
        "print_templates": False,
        "subhash": None,
        "key": None,
        "type": "default",
        "key_default": None,
        "boolean_key": None,
        "os_config_files": _list_file(environment),
    }


def _options(arguments: Sequence[str], environment: Mapping[str, str]) -> SimpleNamespace:
    import argparse  # slow to import; see apply()

    parser = argparse.ArgumentParser(
        prog="os-apply-config",
        description="Write configuration files from templates and JSON metadata. The metadata is"
        " that of the files --metadata, else of those in the environment variable OS_CONFIG_FILES"
        " (separated by colons), else of those that os-collect-config has listed.",
    )
    add = parser.add_argument
    add(
        "-t",
        "--templates",
        metavar="TEMPLATE_ROOT",
        help="where the templates are (default: %(default)s)",
    )
    add(
        "-o",
        "--output",
        metavar="OUT_DIR",
        help="the directory below which files are written (default: %(default)s)",
    )
    add(
        "-m",
        "--metadata",
        metavar="METADATA_FILE",
        nargs="*",
        help="files to read instead of OS_CONFIG_FILES; a later one counts more",
    )
    add(
        "--fallback-metadata",
        metavar="FALLBACK_METADATA",
        nargs="*",
        help="files that count less than all others, where they are there (default: %(default)s)",
    )
    add("-v", "--validate", action="store_true", help="render all templates and write nothing")
    add(
        "--print-templates",
        action="store_true",
        help="print where the templates are, and exit",
    )
    add("-s", "--subhash", help="use only the object that this dotted key names")
    add("--key", metavar="KEY", help="print the value of this dotted key, and exit")
    add(
        "--type",
        help=f"what the value of --key must be: {', '.join(value_types.PATTERNS)}",
    )
    add(
        "--key-default",
        help="what to print, whatever its type, when there is no value for --key; without it that"
        " is an error",
    )
    add(
        "--boolean-key",
        metavar="BOOLEAN_KEY",
        help="exit with 0 when the value of this dotted key is true, 1 when it is false, 255 when"
        " it is neither",
    )
    add("--version", action="version", version=VERSION)
    add(
        "--os-config-files",
        help="the file in which os-collect-config lists what it has collected"
        " (default: %(default)s)",
    )
    parser.set_defaults(**_defaults(environment))
    return parser.parse_args(arguments, SimpleNamespace())
