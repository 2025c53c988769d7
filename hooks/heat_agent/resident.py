"""The agent as a service: one process that polls, with all modules for a change loaded.

Starting Python and importing takes a second on a slow machine. os-refresh-config, the scripts of
its phases, os-apply-config and the runner of deployments run in forks of this process instead.
"""

from __future__ import annotations

import contextlib
import os
import shlex

from heat_config import forks, process

from .collect import boot, command, program
from .collect.agent import Seams

REFRESH = "/usr/libexec/heat-agent/os-refresh-config"


def main(arguments: list[str]) -> int:
    """Run os-collect-config with *arguments*; return its exit status.

    The modules for a change are loaded during the wait for the boot metadata. The configuration is
    read after that: before, it may be missing, or damaged by a power cut.
    """
    # While cloud-init still works, for which prepare() waits: the imports cost no time then.
    _load()
    if not program.is_again():
        status = boot.prepare()
        if status:
            return status
    return program.main(arguments, Seams(command=run))


def run(text: str, paths: list[str]) -> int:
    """Run the command *text* with *paths* in OS_CONFIG_FILES; return its exit status.

    A plain ``os-refresh-config`` that is ours runs in a fork; if signal n ends it, the status is
    128 + n, as with dash. Any other command, and also this one when the process cannot be forked,
    runs as with :func:`heat_agent.collect.command.run`.
    """
    path = _own(text)
    if path is None:
        return command.run(text, paths)
    environment = {**os.environ, "OS_CONFIG_FILES": ":".join(paths)}
    try:
        pid = forks.start(path, environment)
    except OSError:
        return command.run(text, paths)
    return process.wait(pid) or 0


def _own(text: str) -> str | None:
    """Return the path of our os-refresh-config if *text* runs it, else None."""
    try:
        words = shlex.split(text)
        # Only without arguments: a fork gets none.
        program_path: str | None = process.path_of(words[0]) if len(words) == 1 else None
        if program_path is None or os.path.realpath(program_path) != os.path.realpath(REFRESH):
            return None
        return program_path if forks.fits(program_path, os.environ) else None
    except (OSError, ValueError):
        return None


def _load() -> None:
    """Import the modules of the forks; an import that fails there would fail here, too."""
    from heat_config import hook, runner  # noqa: F401

    from .apply import program as apply  # noqa: F401
    from .refresh import program as refresh  # noqa: F401

    # It only saves time later; the agent works without it.
    with contextlib.suppress(Exception):
        forks.compile_ahead(_scripts())


def _scripts() -> list[str]:
    """Return the paths of all programs for a change: scripts of phases, templates and hooks."""
    from heat_config.settings import Settings

    from .apply import program, tree
    from .refresh import refresh

    folders = [os.path.join(refresh.BASE, f"{phase}.d") for phase in refresh.PHASES]
    folders += Settings().hooks
    paths = [os.path.join(each, name) for each in folders for name in _names(each)]
    templates = program.default_templates(os.environ)
    return paths + [os.path.join(templates, name) for name in tree.names(templates)]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
