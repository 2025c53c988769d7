"""``hotplate lint``: report the faults of elements, found in their files."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from hotplate.cli.arguments import add_repeated
from hotplate.errors import Outcome, UsageError
from hotplate.interrupts import Interrupts
from hotplate.lint.finding import as_document, as_github, as_text
from hotplate.lint.lint import LINTS, LintTask, lint
from hotplate.lint.shellcheck import SEVERITIES
from hotplate.output import show_doing

ABOUT = """\
Say what is wrong with diskimage-builder elements, by the file, the line, the
reason and the mend. PATH is an element, or a directory of elements; without
one, "elements" in the current directory, or that directory itself.

  element     what diskimage-builder passes over in silence: misspelt files,
              hooks that do not run, unknown keys, elements that are not there
  shellcheck  shell programs, where it is installed

Elements may depend on hotplate's, on diskimage-builder's and on those below
ELEMENTS_PATH. The programs that heat-config-hooks names are looked for in
DIB_HEAT_HOOKS_DIR, else in hooks/ beside the elements, else among hotplate's.
For one element alone, files that others bring too are not looked for.

--hooks runs the hooks of the elements on this host, as "hotplate hook check"
does. Each needs its tool, and a contract file beside it.
"""

EPILOG = """\
exit status:
  0      no finding; what was not run is named
  1      there is a finding
  2      wrong usage, or no element there
  3      the host lacks something or ran out of it
  128+N  interrupted by the signal N

examples:
  hotplate lint
  hotplate lint --hooks --severity warning elements/heat-config-mine
  hotplate lint --format github elements
"""

SHOWN = {
    "text": as_text,
    "json": lambda result, base: json.dumps(as_document(result, base), indent=2) + "\n",
    "github": as_github,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate lint``."""
    parser.description, parser.epilog = ABOUT, EPILOG
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="an element, or a directory of them"
    )
    parser.add_argument("--format", choices=tuple(SHOWN), default="text", help="(default: text)")
    parser.add_argument("--hooks", action="store_true", help="run the hooks, too")
    parser.add_argument(
        "--severity",
        choices=SEVERITIES,
        default="error",
        help="the least of shellcheck's findings that counts (default: error)",
    )
    text = f"leave out one of {', '.join(LINTS)}"
    add_repeated(parser, "--without", choices=LINTS, metavar="LINT", text=text)


def run(args: argparse.Namespace) -> int:
    """Check elements; return 1 for a finding."""
    base = Path.cwd()
    with Interrupts() as interrupts, interrupts.allowed():
        result = lint(_task(args, base), on_lint=show_doing)
    print(SHOWN[args.format](result, base), end="")
    return (Outcome.FAILED if result.findings else Outcome.PASSED).exit_status


def _task(args: argparse.Namespace, base: Path) -> LintTask:
    """Return the task of the command line.

    :raises UsageError: when a directory of the settings does not exist.
    """
    hooks = os.environ.get("DIB_HEAT_HOOKS_DIR")
    if hooks and not Path(hooks).is_dir():
        raise UsageError(f'DIB_HEAT_HOOKS_DIR names "{hooks}", which is not a directory')
    others = [Path(each) for each in os.environ.get("ELEMENTS_PATH", "").split(":") if each]
    default = base / "elements" if (base / "elements").is_dir() else base
    return LintTask(
        tuple(args.paths) or (default,),
        os.environ,
        lints=[name for name in LINTS if name not in args.without],
        severity=args.severity,
        hooks=args.hooks,
        hooks_directory=Path(hooks).resolve() if hooks else None,
        others=[each.resolve() for each in others],
    )
