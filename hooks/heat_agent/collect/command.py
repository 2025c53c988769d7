"""Run the command for a change, and small programs whose output is read."""

from __future__ import annotations

import os

from heat_config import files, process

OUTPUT_LIMIT = 1 << 20
#: A shell's status for a command that it cannot find.
NO_SHELL = 127


def run(command: str, paths: list[str]) -> int:
    """Run *command* in a shell with *paths* in OS_CONFIG_FILES; return its exit status.

    If a signal ended it, the status is 256 minus the signal's number, upstream's exit status.
    """
    env = {**os.environ, "OS_CONFIG_FILES": ":".join(paths)}
    try:
        pid = process.spawn(["/bin/sh", "-c", command], env=env, stdin=0, stdout=1, stderr=2)
    except (OSError, ValueError):
        return NO_SHELL
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF


def output_of(argv: list[str], seconds: float) -> bytes | None:
    """Return a program's standard output, or None if it fails or takes more than *seconds*."""
    # A file in memory and no pipe: a process that the program leaves behind cannot block the agent.
    output = os.memfd_create("output")
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        # In a session of its own, so that everything it starts can be ended with it.
        pid = process.spawn(
            argv, env=dict(os.environ), stdin=nothing, stdout=output, stderr=2, session=True
        )
        status = process.wait(pid, seconds)
        if status is None:
            process.end_group(pid, 1.0)
        return files.read_range(output, 0, OUTPUT_LIMIT) if status == 0 else None
    except OSError:
        return None
    finally:
        os.close(output)
        os.close(nothing)
