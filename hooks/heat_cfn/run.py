"""Run a system command for a step."""

import os
import subprocess
from typing import Dict, Optional, Sequence

from heat_cfn.problems import CfnError

LAST_LINES = 5


def available(program: str) -> bool:
    """Return whether the program is installed on this machine."""
    directories = os.get_exec_path()
    return any(os.access(os.path.join(path, program), os.X_OK) for path in directories)


def ask(
    argv: Sequence[str], env: Optional[Dict[str, str]] = None
) -> "subprocess.CompletedProcess[str]":
    """Run a command whose status is an answer; its output is kept.

    :raises CfnError: when the program is missing.
    """
    environment = dict(os.environ, LC_ALL="C.UTF-8", **(env or {}))
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        raise CfnError('the program "%s" is not on this machine' % argv[0]) from None
    except OSError as error:
        raise CfnError('the program "%s" cannot be run: %s' % (argv[0], error.strerror)) from None


def do(argv: Sequence[str], env: Optional[Dict[str, str]] = None) -> str:
    """Run a command that must succeed, and return its output.

    :raises CfnError: with the status and the last lines of its output when it fails.
    """
    result = ask(argv, env)
    if result.returncode != 0:
        raise CfnError('"%s" %s' % (os.path.basename(argv[0]), ending(result)))
    return result.stdout


def ending(result: "subprocess.CompletedProcess[str]") -> str:
    """Describe a command's end: its status and the last lines of its output."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    text = "; ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
    how = (
        "was ended by signal %d" % -result.returncode
        if result.returncode < 0
        else "failed with status %d" % result.returncode
    )
    return "%s: %s" % (how, text) if text else how
