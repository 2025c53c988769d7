"""``hotplate hook new``: a hook, its element and its tests, in any repository."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotplate.errors import Outcome
from hotplate.hookkit.new import SHELL, HookLanguage, NewHook, write_new

LANGUAGES = {"python": HookLanguage.PYTHON, "sh": HookLanguage.SHELL}

ABOUT = """\
Write a new hook into the current directory: the hook and what "hotplate hook
check" tries it with below hooks/, its element below elements/, and below tests/
a contract test and one that boots an image. All of it passes as it is; the lines
to edit are marked. Nothing that is there is overwritten.

As written, the hook runs a shell on the config, or with --tool that program with
--version; the inputs are environment variables, and an output is a file
$heat_outputs_path.NAME. A hook in shell has a program that reads the deployment
and answers, heat-hook, which is in each image that hotplate makes.
"""

EPILOG = """\
exit status:
  0      all is written
  1      never
  2      a name that cannot be, or a file that is there already
  3      the host lacks something or ran out of it
  128+N  interrupted by the signal N

example:
  hotplate hook new terraform --tool tofu --package opentofu
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate hook new``."""
    parser.add_argument(
        "name", metavar="NAME", help="the group of the hook's configs, as templates name it"
    )
    parser.add_argument(
        "--tool", default="", metavar="PROGRAM", help=f"the program it runs (default: {SHELL})"
    )
    parser.add_argument(
        "--package", default="", metavar="PACKAGE", help="the package of an image that it needs"
    )
    parser.add_argument("--lang", choices=LANGUAGES, default="python", help="what it is written in")


def run(args: argparse.Namespace) -> int:
    """Write a hook, and print the next steps."""
    hook = NewHook(args.name, args.tool, args.package, LANGUAGES[args.lang])
    paths = write_new(hook, Path.cwd())
    print(f"edit   {paths[0]} (the line after EDIT), then the configs in {paths[1]}")
    print(f"check  hotplate hook check {paths[0]}")
    image = f"{hook.name}.qcow2"
    print(f"build  hotplate build --element-path elements --group {hook.name} -o {image}")
    print(f"boot   pytest --image {image} {paths[-1]}")
    return Outcome.PASSED.exit_status
