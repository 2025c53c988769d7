"""Run a system command for a step."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from heat_cfn.problems import CfnError

LAST_LINES = 5


def available(program: str) -> bool:
    """Return whether the program is installed on this machine."""
    directories = os.get_exec_path()
    return any(os.access(os.path.join(path, program), os.X_OK) for path in directories)


def ask(argv: Sequence[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command whose status is an answer; its output is kept.

    :raises CfnError: when the program is missing.
    """
    # The same output whatever the locale: some of it is parsed.
    environment = dict(os.environ, LC_ALL="C.UTF-8", **(env or {}))
    try:
        return subprocess.run(
            list(argv),
            # A question gets an end of file, instead of waiting for ever.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        raise CfnError(f'the program "{argv[0]}" is not on this machine') from None
    except OSError as error:
        raise CfnError(f'the program "{argv[0]}" cannot be run: {error.strerror}') from None


def do(argv: Sequence[str], env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return its output.

    :raises CfnError: with the status and the last lines of its output when it fails.
    """
    result = ask(argv, env)
    if result.returncode != 0:
        raise CfnError(f'"{os.path.basename(argv[0])}" {ending(result)}')
    return result.stdout


def ending(result: subprocess.CompletedProcess[str]) -> str:
    """Describe a command's end: its status and the last lines of its output."""
    lines = (result.stderr.strip() or result.stdout.strip()).splitlines()
    text = "; ".join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
    status = result.returncode
    how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
    return f"{how}: {text}" if text else how
