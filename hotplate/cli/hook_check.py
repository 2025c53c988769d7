"""``hotplate hook check``: check a hook against the contract."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hotplate.cli.hook_check_image import check_in_image
from hotplate.errors import Interrupted, Outcome, UsageError
from hotplate.hookkit.check import check
from hotplate.hookkit.contract import LINE_NAMES, LINES, ContractLine, LineState
from hotplate.hookkit.contract_configs import ROLES
from hotplate.hookkit.contract_file import FILE_LIMIT, SUFFIX, contract_file, read
from hotplate.hookkit.show import check_document, check_text
from hotplate.hookkit.trials import CHECK_ROOTS, CheckTask
from hotplate.interrupts import Interrupts

_ROLE_TEXT = "\n".join(f"  {name:13} {what}" for name, what in ROLES.items())
_LINE_TEXT = "\n".join(f"  {line.name:13} {line.sentence}" for line in LINES)

ABOUT = f"""\
Hold a hook, in any language, to the contract that hotplate's own hooks are held
to. It runs on this host, as with "hotplate hook run", in a scratch state
directory, some fifteen times; each line passes, fails with the reason and the
mend, or was not tried, and why.

With --image it is a hook in an image: HOOK is a group, whose hook is looked for
where the image's runner looks for it, or a path in the image. It runs in a guest
that is restored (the first time, the image is booted for that), with the image's
tools, Python (3.11 or later) and files, and the environment of its agent.

{_LINE_TEXT}

What it runs is in the language of the hook's tool: a contract file, HOOK's name
with {SUFFIX} for its suffix, or --config NAME=FILE. hotplate has configs for
the groups of its own hooks. The configs, of which only ok has to be there:

{_ROLE_TEXT}

In a config, @word@ is a new word in each run, which has to come back; @dir@ is a
scratch directory; @ready@ is a FIFO. Each run has a secret input, "password".
"""

EPILOG = """\
exit status:
  0      no line failed
  1      a line failed; with --image, the image lacks the tool, or Python, or does not boot
  2      wrong usage, a file that is not there, no config to try the hook with
  3      the host lacks something, the hook's tool for instance, or ran out of it
  4      with --image, the machine was lost
  128+N  interrupted by the signal N; the hook has been ended

examples:
  hotplate hook check hooks/mine.py --config ok=tests/ok.conf --config fails=tests/bad.conf
  hotplate hook check script --image my.qcow2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate hook check``."""
    parser.add_argument(
        "hook", metavar="HOOK", help="the hook's file; with --image, a group or a path in the image"
    )
    parser.add_argument(
        "--image", type=Path, metavar="IMAGE", help="check a hook that is in this image, in a guest"
    )
    parser.add_argument(
        "--contract",
        type=Path,
        metavar="FILE",
        help=f"the contract file (default: HOOK's name with {SUFFIX} beside it, else hotplate's "
        "own for the group)",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a config to try the hook with, as a template has it; may be given several times",
    )
    parser.add_argument(
        "--group",
        default="",
        metavar="NAME",
        help="the deployments' group (default: the file's name without its suffix, - for _)",
    )
    parser.add_argument(
        "--tool",
        default="",
        metavar="PROGRAM",
        help="the program that the hook needs, which is taken away to see what it answers",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="how long one run may take (default: 120)",
    )
    parser.add_argument(
        "--changes-in",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"look for changed files below DIR, not below {' '.join(map(str, CHECK_ROOTS))}; "
        "may be given several times",
    )
    parser.add_argument(
        "--line",
        action="append",
        choices=LINE_NAMES,
        metavar="LINE",
        help="try only this line of the contract, and answer; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Check a hook; return 1 when a line failed."""
    task = _task(args)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            if args.image is not None:
                task, results = check_in_image(args, task)
            else:
                results = check(task, on_line=_show if sys.stderr.isatty() else _show_nothing)
    except Interrupted as error:
        print(f"hotplate hook: {error}; the hook was ended", file=sys.stderr)
        return 128 + error.number
    if args.json:
        print(json.dumps(check_document(task, results, image=args.image), indent=2))
    else:
        print(check_text(task, results, image=args.image), end="")
    failed = any(each.state is LineState.FAILED for each in results)
    return (Outcome.FAILED if failed else Outcome.PASSED).exit_status


def _show(line: ContractLine) -> None:
    print(f"\r\033[Ktrying {line.name}\r", end="", file=sys.stderr, flush=True)


def _show_nothing(_line: ContractLine) -> None:
    pass


def _task(args: argparse.Namespace) -> CheckTask:
    """Return the task of the command line.

    :raises UsageError: when it is invalid.
    """
    if not 0 < args.timeout <= 86400:
        raise UsageError(f"--timeout {args.timeout:g} is no time limit; expected seconds, over 0")
    roots = tuple(each.absolute() for each in args.changes_in or CHECK_ROOTS)
    for root in args.changes_in or ():
        if args.image is None and not root.is_dir():
            raise UsageError(f'the directory "{root}" does not exist')
    hook = Path(args.hook)
    group = args.group or hook.stem.replace("_", "-")
    given = read(args.contract) if args.contract else contract_file(hook, group)
    return CheckTask(
        hook.absolute(),
        group,
        given.with_configs(_configs(args.config)).with_tool(args.tool),
        os.environ,
        timeout=args.timeout,
        roots=roots if args.image else tuple(each.resolve() for each in roots),
        lines=tuple(args.line or ()),
    )


def _configs(given: Sequence[str]) -> dict[str, object]:
    """Return the configs given by ``--config``."""
    configs: dict[str, object] = {}
    for number, each in enumerate(given, 1):
        name, equals, file = each.partition("=")
        if not (equals and file and name in ROLES):
            raise UsageError(
                f"--config number {number} is not NAME=FILE; NAME is one of {', '.join(ROLES)}"
            )
        try:
            with Path(file).open("rb") as stream:
                configs[name] = stream.read(FILE_LIMIT).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise UsageError(f'the config "{file}" cannot be read: {reason}') from error
    return configs
