"""``hotplate hook``: tools for the author of a hook on this host."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from hotplate.cli import hook_check, hook_new, hook_push
from hotplate.cli.hook_arguments import add_deployment_arguments, pairs, read_config
from hotplate.errors import Interrupted, Outcome, UsageError
from hotplate.hookkit.findings import findings
from hotplate.hookkit.run import HookTask, run_hook
from hotplate.hookkit.show import as_document, as_text
from hotplate.hookkit.traces import ROOTS
from hotplate.interrupts import Interrupts

ACTIONS = ("CREATE", "UPDATE", "DELETE", "SUSPEND", "RESUME")

ABOUT = f"""\
Run a hook on this host, by the runner that is in images, and show what Heat
would get: the three values of each answer and the declared outputs.

HOOK is any executable.  It is called as in a guest: no arguments, the
deployment as JSON on stdin (id, name, group, config, options, inputs with
Heat's deploy_..., outputs), umask 022, working directory /, a process group of
its own.  It runs as you, and does to this host what it is asked for.  The
environment is your PATH, your HEAT_... and SALT_... (HEAT_CONFIG_... aside),
HEAT_CONFIG_LIB, and a HOME that is empty.  Settings of directories that its text
names (HEAT_..._WORKING, HEAT_..._OUTPUTS, HEAT_...DIR) point into the
scratch directory, which is removed at the end; so is what the hook left running
in its process group.

Findings: it cannot be run, took too long, crashed; no answer, no JSON, text
beside the JSON, no status, an exit status other than 0; an output that is
declared and not sent, or sent and not declared.  A quoted line has no input's
value; what the hook itself answers and logs is shown as it is.

Changed files: before and after, the inode and the time of change of what lies
below {", ".join(map(str, ROOTS))}
is compared.  What other programs change meanwhile is listed too; mounts below, and
what a large tree has no time for (a few seconds, from the top down), are not
looked at.  They are no findings: a hook is there to change something.
"""

EPILOG = """\
exit status:
  0      the deployment would be COMPLETE, and there is no finding
  1      the deployment would be FAILED, or there is a finding
  2      wrong usage, or a file that is not there
  3      the host lacks something or ran out of it
  128+N  interrupted by the signal N; the hook has been ended

example:
  echo 'echo hello > $heat_outputs_path.said' |
      hotplate hook run hooks/script.py --config - --output said
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate hook``."""
    actions = parser.add_subparsers(dest="hook_verb", metavar="VERB", required=True)
    for name, summary, about, epilog, fill in (
        ("run", "run a hook on a config, and show what Heat would get", ABOUT, EPILOG, _add_run),
        (
            "check",
            "hold a hook to the contract, line by line",
            hook_check.ABOUT,
            hook_check.EPILOG,
            hook_check.add_arguments,
        ),
        (
            "new",
            "write a new hook, its element and its tests",
            hook_new.ABOUT,
            hook_new.EPILOG,
            hook_new.add_arguments,
        ),
        (
            "push",
            "put a hook into a running guest, and try it there",
            hook_push.ABOUT,
            hook_push.EPILOG,
            hook_push.add_arguments,
        ),
    ):
        fill(
            actions.add_parser(
                name,
                help=summary,
                description=about,
                epilog=epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )


def _add_run(run_parser: argparse.ArgumentParser) -> None:
    run_parser.add_argument("hook", type=Path, metavar="HOOK", help="the hook's file")
    run_parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="the config, as a template has it; - for standard input",
    )
    run_parser.add_argument(
        "--group",
        default="",
        metavar="NAME",
        help="the deployment's group (default: the file's name without its suffix, - for _)",
    )
    add_deployment_arguments(run_parser)
    run_parser.add_argument(
        "--action", choices=ACTIONS, default="CREATE", help="what Heat does (default: CREATE)"
    )
    run_parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the hook may take (default: 300); its option timeout is heeded too",
    )
    run_parser.add_argument(
        "--changes-in",
        type=Path,
        action="append",
        metavar="DIR",
        help="look for changed files below DIR, not below those above; may be given several times",
    )
    run_parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the verb; return the exit status."""
    verbs = {"run": _run, "check": hook_check.run, "new": hook_new.run, "push": hook_push.run}
    return verbs[args.hook_verb](args)


def _run(args: argparse.Namespace) -> int:
    """Run a hook; return 1 when the deployment would fail, or for a finding."""
    task = _task(args)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            report = run_hook(task)
    except Interrupted as error:
        print(f"hotplate hook: {error}; the hook was ended", file=sys.stderr)
        return 128 + error.number
    listed = findings(task, report)
    if args.json:
        print(json.dumps(as_document(task, report, listed), indent=2))
    else:
        print(as_text(task, report, listed), end="")
    good = report.status == 0 and not listed
    return (Outcome.PASSED if good else Outcome.FAILED).exit_status


def _task(args: argparse.Namespace) -> HookTask:
    """Return the task of the command line.

    :raises UsageError: when it is invalid; quotes no value.
    """
    if not 0 < args.timeout <= 86400:
        raise UsageError(f"--timeout {args.timeout:g} is no time limit; expected seconds, over 0")
    for root in args.changes_in or ():
        if not root.is_dir():
            raise UsageError(f'the directory "{root}" does not exist')
    return HookTask(
        args.hook,
        read_config(args.config),
        group=args.group,
        inputs=pairs("--input", args.input),
        outputs=tuple(dict.fromkeys(args.output)),
        options=pairs("--option", args.option),
        action=args.action,
        timeout=args.timeout,
        environ=os.environ,
        roots=tuple(each.resolve() for each in args.changes_in) if args.changes_in else ROOTS,
    )
