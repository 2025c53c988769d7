"""The section "commands": run in the order of their labels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Union

from heat_config import process

from heat_cfn.problems import CfnError
from heat_cfn.step import Changes, Step, as_flag, as_map, as_text, kind, number_text

Command = Union[str, list[str]]


def steps(value: Any, where: str) -> list[Step]:
    """Return a step for each command.

    :param value: ``{label: {"command", "test", "cwd", "env", "ignoreErrors"}}``; a command is a
        text for the shell, or a list that is executed as it stands. ``env`` replaces the
        environment, as CloudFormation has it.
    """
    result = []
    for label, properties in sorted(as_map(value, where).items()):
        entry = as_map(properties, f"{where}/{label}")
        result.append(_step(label, entry, f"{where}/{label}"))
    return result


def _step(label: str, entry: dict[str, Any], where: str) -> Step:
    if entry.get("command") in (None, "", []):
        raise CfnError(f'"{where}" has no "command"')
    command = _command(entry["command"], where + "/command")
    test = _command(entry["test"], where + "/test") if entry.get("test") is not None else None
    cwd = entry.get("cwd")
    if cwd is not None:
        cwd = os.path.expanduser(as_text(cwd, where + "/cwd"))
    env = _environment(entry["env"], where + "/env") if entry.get("env") is not None else None
    ignore = as_flag(entry.get("ignoreErrors", False), where + "/ignoreErrors")

    def run(changes: Changes) -> None:
        if cwd is not None and not os.path.isdir(cwd):
            raise CfnError(f'the directory "{cwd}" (its "cwd") does not exist')
        if test is not None and _run(test, cwd, env) != 0:
            print(f'commands: "{label}" was skipped: its "test" failed', flush=True)
            return
        status = _run(command, cwd, env)
        changes.commands.add(label)
        if status == 0:
            return
        how = f"failed with status {status}" if status > 0 else f"was ended by signal {-status}"
        if not ignore:
            raise CfnError("it " + how)
        print(f'commands: "{label}" {how}, which is ignored', flush=True)

    return Step(f'commands: "{label}"', run)


def _command(value: Any, where: str) -> Command:
    if isinstance(value, list) and value:
        items = [_word(item, where) for item in value]
        if items[0]:
            return items
    elif isinstance(value, str):
        return as_text(value, where)
    raise CfnError(f'"{where}" must be a string or a list of strings, not {kind(value)}')


def _word(value: Any, where: str) -> str:
    value = number_text(value)
    if not isinstance(value, str) or "\0" in value:
        raise CfnError(f'"{where}" must be a list of strings without NUL characters')
    return value


def _environment(value: Any, where: str) -> dict[str, str]:
    environment = {}
    for name, item in as_map(value, where).items():
        text = item if isinstance(item, str) else "" if item is None else json.dumps(item)
        if not name or "=" in name or "\0" in name or "\0" in text:
            raise CfnError(f'"{where}" holds a name or value that an environment cannot have')
        environment[name] = text
    return environment


def _run(command: Command, cwd: str | None, env: dict[str, str] | None) -> int:
    """Run one command on this program's own output, so that no output is lost if it is killed."""
    # Our own lines come before those of the command.
    sys.stdout.flush()
    try:
        # By CloudFormation's definition a template's command is a shell's text.
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
        return subprocess.run(argv, stdin=subprocess.DEVNULL, cwd=cwd, env=env).returncode
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.exists(argv[0]):
            print(f'the program "{argv[0]}" is not on this machine', file=sys.stderr, flush=True)
            return 127
        reason = process.why_not(argv[0], error)
        print(f'"{argv[0]}" cannot be run: {reason}', file=sys.stderr, flush=True)
        # As a shell: 127 for a program that is missing, 126 for one that cannot be started.
        return 127 if isinstance(error, FileNotFoundError) else 126
