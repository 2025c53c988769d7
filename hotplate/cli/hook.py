"""``hotplate hook``: tools for the author of a hook."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotplate.cli.arguments import add_directory_argument, add_repeated, add_settings, load_settings
from hotplate.errors import Interrupted, Outcome, UsageError
from hotplate.hookkit.check import check
from hotplate.hookkit.contract import LINE_NAMES, LINES, LineState
from hotplate.hookkit.contract_configs import ROLES
from hotplate.hookkit.contract_file import SUFFIX, contract_file, read
from hotplate.hookkit.findings import findings
from hotplate.hookkit.new import SHELL, HookLanguage, NewHook, write_new
from hotplate.hookkit.run import HookTask, run_hook
from hotplate.hookkit.show import as_document, as_text, check_document, check_text
from hotplate.hookkit.traces import ROOTS
from hotplate.hookkit.trials import CHECK_ROOTS, CheckTask
from hotplate.interrupts import Interrupts
from hotplate.output import show_doing
from hotplate.session import hook_push
from hotplate.session.directory import find

ACTIONS = ("CREATE", "UPDATE", "DELETE", "SUSPEND", "RESUME")
LANGUAGES = {"python": HookLanguage.PYTHON, "sh": HookLanguage.SHELL}

#: The size limit of a config in bytes.
CONFIG_LIMIT = 16 << 20

RUN_ABOUT = f"""\
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

RUN_EPILOG = """\
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

_ROLE_TEXT = "\n".join(f"  {name:13} {what}" for name, what in ROLES.items())
_LINE_TEXT = "\n".join(f"  {line.name:13} {line.sentence}" for line in LINES)

CHECK_ABOUT = f"""\
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

CHECK_EPILOG = """\
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

NEW_ABOUT = """\
Write a new hook into the current directory: the hook and what "hotplate hook
check" tries it with below hooks/, its element below elements/, and below tests/
a contract test and one that boots an image. All of it passes as it is (unless the
program knows no --version); the lines to edit are marked. Nothing that is there
is overwritten.

As written, the hook runs a shell on the config, or with --tool that program with
--version; the inputs are environment variables, and an output is a file
$heat_outputs_path.NAME. A hook in shell has a program that reads the deployment
and answers, heat-hook, which is in each image that hotplate makes.
"""

NEW_EPILOG = """\
exit status:
  0      all is written
  1      never
  2      a name that cannot be, or a file that is there already
  3      the host lacks something or ran out of it
  128+N  interrupted by the signal N

example:
  hotplate hook new terraform --tool tofu --package opentofu
"""

PUSH_ABOUT = """\
Put a hook from this host into a server of "hotplate up", where the server's
runner takes it from: /usr/libexec/heat-config/hooks, or with heat-agents' runner
/var/lib/heat-config/hooks, and before both what HEAT_CONFIG_HOOKS of the agent's
unit names. It is replaced as a whole, and runs from the next deployment on; that
the guest has what was sent is checked. The image is not changed. A hook of the
same group in another of these places does not run any more, and is named.

With --config the config is then deployed by Heat, as a stack of its own that is
removed again, and the verdict is shown: what the hook has answered.

With --watch both is done again each time that the hook is saved, in whatever way
and on whatever file system: its contents are compared several times a second.
"""

PUSH_EPILOG = """\
exit status:
  0      the hook is in the guest; with --config, the deployment is COMPLETE
  1      the guest did not take it; with --config, the deployment is FAILED
  2      wrong usage, or no session, server or file of that name
  3      the host lacks something or ran out of it
  4      the guest does not answer
  128+N  interrupted by the signal N, as --watch is ended

example:
  hotplate up my-tool.qcow2 --restored &
  echo 'echo hello' > hello.conf
  hotplate hook push hooks/my_tool.py --config hello.conf --watch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate hook``."""
    verbs = parser.add_subparsers(dest="hook_verb", metavar="VERB", required=True)
    for name, summary, fill in (
        ("run", "run a hook on a config, and show what Heat would get", _add_run),
        ("check", "hold a hook to the contract, line by line", _add_check),
        ("new", "write a new hook, its element and its tests", _add_new),
        ("push", "put a hook into a running guest, and try it there", _add_push),
    ):
        shape = argparse.RawDescriptionHelpFormatter
        fill(verbs.add_parser(name, help=summary, formatter_class=shape))


def run(args: argparse.Namespace) -> int:
    """Run the verb; return the exit status."""
    verbs = {"run": _run, "check": _check, "new": _new, "push": _push}
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            return verbs[args.hook_verb](args)
    except Interrupted as error:
        # The context managers have ended the hook that ran.
        if args.hook_verb in ("run", "check"):
            print(f"hotplate hook: {error}; the hook was ended", file=sys.stderr)
        # --watch has no other end than a signal.
        elif not getattr(args, "watch", False):
            raise
        return 128 + error.number


# -- hook run ------------------------------------------------------------------------------------


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = RUN_ABOUT, RUN_EPILOG
    parser.add_argument("hook", type=Path, metavar="HOOK", help="the hook's file")
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="the config, as a template has it; - for standard input",
    )
    _add_group(parser, "deployment's")
    _add_deployment(parser)
    parser.add_argument(
        "--action", choices=ACTIONS, default="CREATE", help="what Heat does (default: CREATE)"
    )
    _add_timeout(
        parser, 300, "how long the hook may take (default: 300); its option timeout is heeded too"
    )
    _add_changes_in(parser, "those above")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _run(args: argparse.Namespace) -> int:
    """Run a hook; return 1 when the deployment would fail, or for a finding."""
    _check_limits(args)
    task = HookTask(
        args.hook,
        _read_config(args.config),
        group=args.group,
        inputs=_pairs("--input", args.input),
        outputs=tuple(dict.fromkeys(args.output)),
        options=_pairs("--option", args.option),
        action=args.action,
        timeout=args.timeout,
        environ=os.environ,
        roots=tuple(each.resolve() for each in args.changes_in) or ROOTS,
    )
    report = run_hook(task)
    listed = findings(task, report)
    if args.json:
        print(json.dumps(as_document(task, report, listed), indent=2))
    else:
        print(as_text(task, report, listed), end="")
    good = report.status == 0 and not listed
    return (Outcome.PASSED if good else Outcome.FAILED).exit_status


# -- hook check ----------------------------------------------------------------------------------


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = CHECK_ABOUT, CHECK_EPILOG
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
    add_repeated(
        parser,
        "--config",
        metavar="NAME=FILE",
        text="a config to try the hook with, as a template has it",
    )
    _add_group(parser)
    parser.add_argument(
        "--tool",
        default="",
        metavar="PROGRAM",
        help="the program that the hook needs, which is taken away to see what it answers",
    )
    _add_timeout(parser, 120, "how long one run may take (default: 120)")
    _add_changes_in(parser, " ".join(map(str, CHECK_ROOTS)))
    add_repeated(
        parser,
        "--line",
        choices=LINE_NAMES,
        metavar="LINE",
        text="try only this line of the contract, and answer",
    )
    add_settings(parser, "machine")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def _check(args: argparse.Namespace) -> int:
    """Check a hook; return 1 when a line failed."""
    task = _check_task(args)
    if args.image is not None:
        # Before the image is booted for it.
        task.require_config()
        settings = load_settings(args)
        # Imported here: the cloud is slow to load for a hook on this host.
        from hotplate.testbed.hook_check import check_in_image

        task, results = check_in_image(args.image, args.hook, task, settings)
    else:
        results = check(task, on_line=lambda line: show_doing(f"trying {line.name}"))
    if args.json:
        print(json.dumps(check_document(task, results, image=args.image), indent=2))
    else:
        print(check_text(task, results, image=args.image), end="")
    failed = any(each.state is LineState.FAILED for each in results)
    return (Outcome.FAILED if failed else Outcome.PASSED).exit_status


def _check_task(args: argparse.Namespace) -> CheckTask:
    """Return the task of the command line.

    :raises UsageError: when it is invalid.
    """
    _check_limits(args)
    roots = tuple(each.absolute() for each in args.changes_in or CHECK_ROOTS)
    hook = Path(args.hook)
    group = args.group or hook.stem.replace("_", "-")
    given = read(args.contract) if args.contract else contract_file(hook, group)
    configs, tool = {**given.configs, **_configs(args.config)}, args.tool or given.tool
    return CheckTask(
        hook.absolute(),
        group,
        replace(given, configs=configs, tool=tool),
        os.environ,
        timeout=args.timeout,
        # Links in an image are not those of this host.
        roots=roots if args.image else tuple(each.resolve() for each in roots),
        lines=tuple(args.line),
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
        configs[name] = _read_config(file)
    return configs


# -- hook new ------------------------------------------------------------------------------------


def _add_new(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = NEW_ABOUT, NEW_EPILOG
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


def _new(args: argparse.Namespace) -> int:
    """Write a hook, and print the next steps."""
    hook = NewHook(args.name, args.tool, args.package, LANGUAGES[args.lang])
    paths = write_new(hook, Path.cwd())
    print(f"edit   {paths[0]} (the line after EDIT), then the configs in {paths[1]}")
    print(f"check  hotplate hook check {paths[0]}")
    image = f"{hook.name}.qcow2"
    print(f"build  hotplate build --element-path elements --group {hook.name} -o {image}")
    print(f"boot   pytest --image {image} {paths[-1]}")
    return Outcome.PASSED.exit_status


# -- hook push -----------------------------------------------------------------------------------


def _add_push(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = PUSH_ABOUT, PUSH_EPILOG
    parser.add_argument("hook", type=Path, metavar="HOOK", help="the hook's file")
    parser.add_argument(
        "--to", default="", metavar="SERVER", help="the server's name, if there is more than one"
    )
    _add_group(parser)
    parser.add_argument("--watch", action="store_true", help="do it again each time it is saved")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="deploy this config then, and show the verdict; - for standard input",
    )
    _add_deployment(parser)
    _add_timeout(
        parser, 300, "how long the deployment may take on a host that is not slow (default: 300)"
    )
    add_directory_argument(parser)


def _push(args: argparse.Namespace) -> int:
    """Push it, once or at each save; return 1 when the deployment failed."""
    _check_limits(args)
    if args.config is None and (args.input or args.output or args.option):
        raise UsageError("--input, --output and --option are of a deployment: name its --config")
    directory = find(args.directory, load_settings())
    directory.require()
    deployment = None
    if args.config is not None:
        deployment = hook_push.HookDeployment(
            _read_config(args.config),
            _pairs("--input", args.input),
            _pairs("--option", args.option),
            tuple(dict.fromkeys(args.output)),
            args.timeout,
        )
    pusher = hook_push.Pusher(
        directory, args.hook, group=args.group, server=args.to, deployment=deployment
    )
    # watch() never returns: a signal ends it.
    if args.watch:
        hook_push.watch(pusher)
    return (Outcome.PASSED if pusher.push(pusher.hook()) else Outcome.FAILED).exit_status


# -- arguments of several ------------------------------------------------------------------------


def _add_group(parser: argparse.ArgumentParser, whose: str = "deployments'") -> None:
    parser.add_argument(
        "--group",
        default="",
        metavar="NAME",
        help=f"the {whose} group (default: the file's name without its suffix, - for _)",
    )


def _add_timeout(parser: argparse.ArgumentParser, seconds: float, text: str) -> None:
    parser.add_argument(
        "--timeout", type=float, default=float(seconds), metavar="SECONDS", help=text
    )


def _add_changes_in(parser: argparse.ArgumentParser, roots: str) -> None:
    text = f"look for changed files below DIR, not below {roots}"
    add_repeated(parser, "--changes-in", type=Path, metavar="DIR", text=text)


def _check_limits(args: argparse.Namespace) -> None:
    """Check the time limit, and that directories on this host exist.

    :raises UsageError: names one.
    """
    if not 0 < args.timeout <= 86400:
        raise UsageError(f"--timeout {args.timeout:g} is no time limit; expected seconds, over 0")
    # With --image the directories are the image's.
    if getattr(args, "image", None) is None:
        for root in getattr(args, "changes_in", ()):
            if not root.is_dir():
                raise UsageError(f'the directory "{root}" does not exist')


def _add_deployment(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, options and outputs of a deployment."""
    add_repeated(parser, "--input", metavar="NAME=VALUE", text="an input, of type String")
    add_repeated(parser, "--option", metavar="NAME=VALUE", text="an option of the config")
    add_repeated(parser, "--output", metavar="NAME", text="a declared output")


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return names and values; text without a name may be a secret, and is not quoted."""
    pairs = {}
    for number, each in enumerate(given, 1):
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} number {number} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def _read_config(name: str) -> str:
    """Return a config as text.

    :raises UsageError: when it cannot be read.
    """
    try:
        if name == "-":
            if sys.stdin is None:
                raise UsageError('the config "-" cannot be read: standard input is closed')
            # One byte beyond the limit tells a file that is too large.
            data = sys.stdin.buffer.read(CONFIG_LIMIT + 1)
        else:
            with Path(name).open("rb") as stream:
                data = stream.read(CONFIG_LIMIT + 1)
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f'the config "{name}" is not text in UTF-8') from None
    except OSError as error:
        raise UsageError(f'the config "{name}" cannot be read: {error.strerror}') from error
    if len(data) > CONFIG_LIMIT:
        raise UsageError(f'the config "{name}" is larger than {CONFIG_LIMIT >> 20} MiB')
    return text
