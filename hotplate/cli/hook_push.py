"""``hotplate hook push``: put a hook into a running guest, and try it there."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hotplate.cli.arguments import add_directory_argument, load_settings
from hotplate.cli.hook_arguments import add_deployment_arguments, pairs, read_config
from hotplate.errors import HotplateError, Interrupted, Outcome, SubjectError, UsageError
from hotplate.hookkit.push import HookFile, Pushed, hook_file, push_command, pushed
from hotplate.hookkit.show import answer_lines
from hotplate.interrupts import Interrupts
from hotplate.session.channel import in_memory
from hotplate.session.directory import SessionDirectory, find
from hotplate.text import clean_line

PUSH_SECONDS = 60.0

SETTLED = 0.2
"""Seconds between two readings of a watched hook; a save is complete when they are alike."""

ABOUT = """\
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

EPILOG = """\
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
    """Fill in the command line of ``hotplate hook push``."""
    parser.add_argument("hook", type=Path, metavar="HOOK", help="the hook's file")
    parser.add_argument(
        "--to", default="", metavar="SERVER", help="the server's name, if there is more than one"
    )
    parser.add_argument(
        "--group",
        default="",
        metavar="NAME",
        help="the deployments' group (default: the file's name without its suffix, - for _)",
    )
    parser.add_argument("--watch", action="store_true", help="do it again each time it is saved")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="deploy this config then, and show the verdict; - for standard input",
    )
    add_deployment_arguments(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the deployment may take on a host that is not slow (default: 300)",
    )
    add_directory_argument(parser)


class Pusher:
    """Pushes a hook into one server of a session, and deploys a config there.

    :param config: of the deployment; None for no deployment.
    """

    def __init__(
        self, args: argparse.Namespace, directory: SessionDirectory, config: str | None
    ) -> None:
        self._args = args
        self._directory = directory
        self._config = config
        self._inputs = pairs("--input", args.input)
        self._options = pairs("--option", args.option)

    def hook(self) -> HookFile:
        """Return the present hook.

        :raises UsageError: when the file cannot be a hook.
        """
        return hook_file(self._args.hook, self._args.group)

    def push(self, hook: HookFile) -> bool:
        """Push a hook, and deploy; return False when the deployment failed.

        :raises SubjectError: when the guest refused it, or the deployment does not end.
        """
        began = time.monotonic()
        done = self._sent(hook)
        print(f"pushed  {hook.group}: {done}  [{time.monotonic() - began:.1f} s]", flush=True)
        for each in done.notes:
            print(f"note    {each}", flush=True)
        return self._config is None or self._deploy(hook, self._config)

    def _sent(self, hook: HookFile) -> Pushed:
        handed = [in_memory(hook.data)]
        try:
            with self._directory.asked(
                "shell",
                descriptors=handed,
                server=self._args.to,
                command=push_command(hook),
                timeout=PUSH_SECONDS,
            ) as (status, outputs, _):
                return pushed(hook, int(status), _contents(outputs[0]))
        finally:
            os.close(handed[0])

    def _deploy(self, hook: HookFile, config: str) -> bool:
        wanted = {
            "group": hook.group,
            "config": config,
            "inputs": self._inputs,
            "outputs": list(dict.fromkeys(self._args.output)),
            "options": self._options,
            "timeout": self._args.timeout,
        }
        handed = [in_memory(json.dumps(wanted).encode())]
        began = time.monotonic()
        try:
            with self._directory.asked("deploy", descriptors=handed, server=self._args.to) as (
                status,
                files,
                _,
            ):
                about = json.loads(_contents(files[0]))
        finally:
            os.close(handed[0])
        self._show(str(status), about, time.monotonic() - began)
        return bool(status == "COMPLETE")

    def _show(self, status: str, about: Mapping[str, object], seconds: float) -> None:
        outputs = about["outputs"]
        assert isinstance(outputs, dict)
        number = outputs.get("deploy_status_code")
        print(f"result  {status}, deploy_status_code {number}  [{seconds:.1f} s]")
        for line in answer_lines(outputs):
            print(line)
        for name in dict.fromkeys(self._args.output):
            if name not in outputs:
                print(f"output {clean_line(name)}: declared, and not written")
        if status != "COMPLETE" and number is None:
            print(f"reason  {clean_line(str(about['reason']))}")
        print(end="", flush=True)


def _contents(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        return stream.read()


def run(args: argparse.Namespace) -> int:
    """Push it, once or at each save; return 1 when the deployment failed."""
    if not 0 < args.timeout <= 86400:
        raise UsageError(f"--timeout {args.timeout:g} is no time limit; expected seconds, over 0")
    if args.config is None and (args.input or args.output or args.option):
        raise UsageError("--input, --output and --option are of a deployment: name its --config")
    directory = find(args.directory, load_settings(args))
    directory.require()
    config = None if args.config is None else read_config(args.config)
    pusher = Pusher(args, directory, config)
    if args.watch:
        return _watch(args.hook, pusher)
    return (Outcome.PASSED if pusher.push(pusher.hook()) else Outcome.FAILED).exit_status


def _watch(path: Path, pusher: Pusher) -> int:
    """Push at once and at each save, until a signal, or the end of the session."""
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            contents = pusher.hook().data
            while True:
                _try(pusher)
                print(f"waiting for {path} to be saved; Ctrl-C ends it", flush=True)
                contents = _saved(path, contents)
    except Interrupted as error:
        return 128 + error.number


def _saved(path: Path, before: bytes) -> bytes:
    """Wait until a file has other contents than before; return them."""
    seen = before
    while True:
        time.sleep(SETTLED)
        try:
            contents = path.read_bytes()
        except OSError:
            # An editor has removed it, and is about to write it.
            continue
        # Editors write in several steps, so the contents have to be there twice.
        if contents == seen and contents != before:
            return contents
        seen = contents


def _try(pusher: Pusher) -> None:
    """Push; print errors that the next save can fix."""
    problem: HotplateError
    try:
        hook = pusher.hook()
    except UsageError as error:
        problem = error
    else:
        # Without a session or its server waiting is useless: that error is raised.
        try:
            pusher.push(hook)
            return
        except SubjectError as error:
            problem = error
    print(f"failed  {problem}", flush=True)
