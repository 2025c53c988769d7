"""The command line as a list of steps, in the given order.

Order matters: a configuration file overrides the options before it, as in oslo.config.
"""

from __future__ import annotations

from .options import ALIASES, BOOLEAN, GROUPS, LIST, OPTIONS, flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .options import Option

#: The version of os-collect-config whose behaviour this is.
VERSION = "14.1.0"

FILE = "config-file"
DIRECTORY = "config-dir"
VALUE = "value"


def steps(arguments: list[str]) -> list[tuple[Any, ...]]:
    """Return (VALUE, option, text or bool), (FILE, path), (DIRECTORY, path) in the given order.

    Exits with status 2 and the usage on an error, as argparse does.
    """
    if not arguments:
        return []
    import argparse  # slow to import on a slow guest, and the unit passes no arguments

    class Step(argparse.Action):
        """Append one step."""

        def __call__(
            self, _parser: object, namespace: Any, value: Any, _option_string: object = None
        ) -> None:
            noted = getattr(namespace, "steps", [])
            namespace.steps = [*noted, self.const(value)]

    parser = argparse.ArgumentParser(
        prog="os-collect-config", description="Collect metadata and run a command when it changes."
    )
    parser.add_argument("--version", action="version", version=VERSION)
    for word, label in ((FILE, "PATH"), (DIRECTORY, "DIR")):
        parser.add_argument(
            f"--{word}",
            action=Step,
            # A default argument: a closure would see the last word of the loop.
            const=lambda path, word=word: (word, path),
            dest="steps",
            # argparse would set "steps" to None at the beginning.
            default=argparse.SUPPRESS,
            metavar=label,
            help="also read this; later values win",
        )
    for group in GROUPS:
        place = parser if group == "DEFAULT" else parser.add_argument_group(f"[{group}]")
        for option in OPTIONS:
            if option.group == group:
                _add(place, option, Step, argparse.SUPPRESS)
    parser.add_argument(
        "sources", nargs="*", metavar="collectors", help="sources to use, in this order"
    )
    # Sources may stand between options, which parse_args() does not support.
    namespace = parser.parse_intermixed_args(arguments)
    noted = list(getattr(namespace, "steps", []))
    if namespace.sources:
        collectors = next(option for option in OPTIONS if option.name == "collectors")
        noted = [step for step in noted if step[1] is not collectors]
        # The value None empties the list: sources replace those of --collectors and of the files.
        noted += [(VALUE, collectors, None)]
        noted += [(VALUE, collectors, source) for source in namespace.sources]
    return noted


def _add(place: Any, option: Option, step: type, suppress: str) -> None:
    words = [flag(option)]
    if option.short:
        words.append("-" + option.short)
    words += ["--" + alias for alias in ALIASES.get(option.name, ())]
    shared = {"action": step, "dest": "steps", "default": suppress}
    if option.kind == BOOLEAN:
        place.add_argument(
            *words, nargs=0, const=lambda _: (VALUE, option, True), help=option.help, **shared
        )
        place.add_argument(
            flag(option, negated=True), nargs=0, const=lambda _: (VALUE, option, False), **shared
        )
        return
    label = option.name.upper().replace("-", "_")
    if option.kind == LIST and option.name != "collectors":
        label = "ONE"
    place.add_argument(
        *words,
        metavar=label,
        const=lambda text: (VALUE, option, text),
        help=option.help,
        **shared,
    )
