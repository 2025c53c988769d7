"""Arguments that several verbs share, and the values read from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate import settings
from hotplate.errors import UsageError
from hotplate.settings import Settings

if TYPE_CHECKING:
    from hotplate.cloud.options import CloudOptions
    from hotplate.stacks.template import Template


def add_repeated(parser: argparse._ActionsContainer, *names: str, text: str, **more: Any) -> None:
    """Add an option that may be given several times; its values are a list.

    :param text: its help, which gets these words.
    :param more: for :meth:`~argparse.ArgumentParser.add_argument`.
    """
    text = f"{text}; may be given several times"
    parser.add_argument(*names, action="append", default=[], help=text, **more)


def add_directory_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for the session's directory."""
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="the session's directory (default: up in the artifacts directory)",
    )


def add_command_arguments(parser: argparse.ArgumentParser, *, command: str) -> None:
    """Add the arguments for a server of a session, and a command for it.

    :param command: describes the command.
    """
    parser.add_argument(
        "server", metavar="SERVER", help="the server's name; '' if there is only one"
    )
    parser.add_argument(
        "command",
        # Options behind the server are the command's, not hotplate's.
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help=f"{command}; without one, lines of standard input",
    )


def add_template_arguments(
    parser: argparse.ArgumentParser, *, without: str, several: bool = False
) -> None:
    """Add the options for a stack.

    :param without: the behaviour without a template.
    :param several: accept several, and files that also have expectations for the stack.
    """
    kind = "a HOT or CFN template"
    if several:
        parser.add_argument(
            *("-t", "--template"),
            dest="templates",
            type=Path,
            action="append",
            default=[],
            help=f"{kind}, or a YAML file with a template and what is expected of it (expect:); "
            f"may be given several times; without it, {without}",
        )
    else:
        parser.add_argument("-t", "--template", type=Path, help=f"{kind}; without it, {without}")
    add_repeated(parser, "-e", "--environment", type=Path, text="an environment for the template")
    add_repeated(
        parser, "-P", "--parameter", metavar="NAME=VALUE", text="a parameter of the template"
    )


def add_image_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for additional images in the cloud."""
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        dest="named_images",
        metavar="NAME=PATH",
        help="one more image, which a template's image: picks by this name; may be given several "
        "times; with it, the name of IMAGE is that of its file, and no other name is good",
    )


#: Begins the names of settings in parsed arguments: a verb may have another option ``--keep``.
SETTING = "setting_"

#: The settings of machines that have one value for all cases.
MACHINE = ("memory", "cpus", "arch", "accelerator", "wiring")


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add the option of each setting, from the table of settings."""
    for name in names:
        more: dict[str, Any]
        if settings.kind_of(name) is bool:
            # None without the option: then the environment and the file decide.
            more = {"action": "store_true", "default": None}
        elif settings.kind_of(name) is tuple:
            more = {"action": "append", "metavar": settings.TABLE[name].metadata["metavar"]}
        elif choices := settings.choices_of(name):
            more = {"choices": choices}
        else:
            metavar = settings.TABLE[name].metadata["metavar"]
            more = {"type": settings.kind_of(name), "metavar": metavar}
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, dest=f"{SETTING}{name}", help=_help_of(name), **more)


def _help_of(name: str) -> str:
    """Return the help of a setting's option, with its default if that means anything by itself."""
    default = settings.default_of(name)
    if default in ("", "0", "auto", "false"):
        return settings.help_of(name)
    return f"{settings.help_of(name)} (default: {default})"


def add_machine_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options for machines.

    :param several: accept several kinds of machine, firmwares, data sources and CPU models, as
        ``machines``, ``firmwares``, ``datasources`` and ``cpu_models``.
    """
    add_settings(parser, *MACHINE)
    if several:
        # No list with commas, which QEMU has between a model and its features.
        parser.add_argument(
            "--cpu",
            dest="cpu_models",
            action="append",
            metavar=settings.TABLE["cpu"].metadata["metavar"],
            help=f"{_help_of('cpu')}; may be given several times",
        )
    else:
        add_settings(parser, "cpu")
    for name in ("machine", "firmware", "datasource"):
        if several:
            _add_list_argument(parser, name)
        else:
            add_settings(parser, name)
    add_settings(parser, "tpm", "display", "append", "allow_backing")


def _add_list_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option of a setting with choices that takes several, with commas between them."""
    words = settings.choices_of(name)

    def words_of(value: str) -> list[str]:
        chosen = list(dict.fromkeys(value.split(",")))
        if wrong := [each for each in chosen if each not in words]:
            raise argparse.ArgumentTypeError(
                f'invalid choice: "{wrong[0]}" (choose from {", ".join(words)})'
            )
        return chosen

    parser.add_argument(
        f"--{name}",
        dest=f"{name}s",
        type=words_of,
        metavar="{" + ",".join(words) + "}",
        help=f"{_help_of(name)}; several with commas between them",
    )


def add_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the cloud around the servers."""
    parser.add_argument(
        "--environment-dir",
        type=Path,
        metavar="DIR",
        help="global environments (*.yaml), as in Heat's /etc/heat/environment.d",
    )
    parser.add_argument(
        "--request-limit",
        type=int,
        metavar="BYTES",
        help="refuse to create a server by a larger request, as Nova's "
        "osapi_max_request_body_size does (114688); user data is always limited to 65535 base64 "
        "characters",
    )
    parser.add_argument(
        "--network-data",
        type=Path,
        metavar="FILE",
        help="JSON with a network_data.json for each server name, which that server gets instead "
        "of Nova's, with the MAC addresses of its ports: bonds and VLANs, as bare metal has them",
    )
    add_settings(parser, "lift_limits")


def load_cloud_options(args: argparse.Namespace) -> CloudOptions:
    """Return the options added by :func:`add_cloud_arguments`.

    :raises UsageError: for an impossible value.
    """
    # Imported here: the cloud is slow to load for --help.
    from hotplate.cloud.options import CloudOptions

    directory: Path | None = args.environment_dir
    if directory is not None and not directory.is_dir():
        raise UsageError(f'the environment directory "{directory}" does not exist')
    limit = args.request_limit
    if limit is not None and limit < 1:
        raise UsageError(f"--request-limit {limit} is too small; expected bytes, at least 1")
    return CloudOptions(
        environment_dir=directory.absolute() if directory is not None else None,
        request_limit=limit or 0,
        own_network_data=_load_network_data(args.network_data),
    )


def _load_network_data(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None:
        return {}
    from hotplate.cloud.nova.metadata import check_network_data

    try:
        return check_network_data(file.read_text())
    except OSError as error:
        raise UsageError(f'the file "{file}" cannot be read: {error.strerror}') from error
    except ValueError as error:
        raise UsageError(f'"{file}" is no network data: {error}') from error


def words_of(values: Iterable[str]) -> tuple[str, ...]:
    """Return the words of an option that may be given several times, with commas between them.

    >>> words_of(["script,puppet", "salt"])
    ('script', 'puppet', 'salt')
    """
    return tuple(word for value in values for word in value.split(",") if word)


def load_settings(args: argparse.Namespace | None = None) -> Settings:
    """Return the settings of a run, from the command line and lower sources.

    :param args: None for a verb without an option for any.
    :raises UsageError: for a wrong value; names its source. For an unknown check to skip.
    """
    given = {name: getattr(args, f"{SETTING}{name}", None) for name in settings.TABLE}
    # In the order of sources: command line, environment, file; see Settings.load().
    loaded = Settings.load(given, environ=os.environ, directory=Path.cwd())
    if loaded.skip:
        # Imported here: most verbs have no checks to skip.
        from hotplate.verdict.guest_standard import check_ids

        check_ids(loaded.skip)
    return loaded


def check_files(files: Iterable[Path]) -> None:
    """Check for misspelt file names before large modules are loaded.

    :raises UsageError: when a template or an environment does not exist.
    """
    for file in files:
        if not file.is_file():
            raise UsageError(f'the file "{file}" does not exist or is not a file')


def load_template(
    path: Path | None, *, parameters: Sequence[str], environments: Sequence[Path]
) -> Template | None:
    """Return the template that the command line names, with its expectations.

    :param path: None when none is named.
    :param parameters: words NAME=VALUE.
    :raises UsageError: when it does not exist, or its expectations are invalid.
    :raises TemplateError: when it is no template.
    """
    from hotplate.stacks import template as templates

    values = templates.parse_parameters(parameters)
    if path is None:
        if values or environments:
            raise UsageError("-P and -e need a template", hint="-t TEMPLATE")
        return None

    from hotplate.stacks import expect

    return expect.load(path, parameters=values, environments=environments)
