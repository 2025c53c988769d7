"""The program os-collect-config."""

from __future__ import annotations

import os
import signal
import sys
import time

from . import settings
from .agent import RELOAD, Agent, Seams
from .log import Log, open_log, to_stderr
from .pace import chance
from .problems import SettingsError
from .signals import Ended, Hangup, Signals, die_of
from .trust import Trust
from .web import Client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from .settings import Settings

#: Set to the process id when the agent re-executes itself: it need not wait for the boot again.
AGAIN = "OS_COLLECT_CONFIG_AGAIN"

#: Maximum reloads in a row without a pause: a command might always rewrite the configuration.
AT_ONCE = 2


def main(
    arguments: list[str], seams: Seams | None = None, environ: Mapping[str, str] = os.environ
) -> int:
    """Run the program; return the exit status."""
    seams = seams or Seams()
    try:
        chosen = settings.load(arguments, environ)
        log = open_log(chosen)
        if chosen.print_cachedir:
            print(chosen.cachedir)
            return 0
        chosen.check()
    except SettingsError as error:
        to_stderr(0, f"{error}.")
        return 1
    with Signals() as signals:
        try:
            if not chosen.command or chosen.print_only:
                return _print(chosen, log, seams, signals, environ)
            return _poll(arguments, chosen, log, seams, signals, environ)
        except Hangup:
            return _again(log)
        except Ended as end:
            number = end.number
    # The parent sees the signal itself, as with a program that handles none.
    die_of(number)
    return 128 + number


def _print(
    chosen: Settings, log: Log, seams: Seams, signals: Signals, environ: Mapping[str, str]
) -> int:
    """Print all documents as one JSON object."""
    import json

    agent = Agent(chosen, log, _client(environ), seams, signals)
    try:
        print(json.dumps(agent.document(), indent=1), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python fails to flush it at exit
        raise Ended(signal.SIGPIPE) from None
    return 0


def _poll(
    arguments: list[str],
    chosen: Settings,
    log: Log,
    seams: Seams,
    signals: Signals,
    environ: Mapping[str, str],
) -> int:
    """Poll, and reload the settings whenever they have changed."""
    is_again()  # its command must not inherit the variable
    if chosen.splay and chosen.splay > 0 and not chosen.one_time:
        # time.sleep() raises OverflowError when the nanoseconds do not fit in 64 bits.
        time.sleep(min(chosen.splay, 1e6) * chance())
    client = _client(environ)
    in_a_row = 0
    while True:
        agent = Agent(chosen, log, client, seams, signals)
        try:
            end = agent.run()
        finally:
            agent.close()
        if end is not RELOAD:
            return end
        log.info("The configuration has changed.")
        in_a_row = in_a_row + 1 if agent.rounds == 1 else 0
        if in_a_row > AT_ONCE:
            time.sleep(chosen.shortest)
        chosen, log = _anew(arguments, environ, chosen, log)


def _anew(
    arguments: list[str], environ: Mapping[str, str], chosen: Settings, log: Log
) -> tuple[Settings, Log]:
    """Return the new settings and log, or the old ones if the configuration is invalid."""
    try:
        changed = settings.load(arguments, environ)
        changed.check()
        if not changed.command:
            raise SettingsError("no command is configured")
        return changed, open_log(changed)
    except SettingsError as error:
        log.error(f"The earlier configuration stays in force: {error}.")
        return chosen, log


def _client(environ: Mapping[str, str]) -> Client:
    from heat_config.settings import Settings

    return Client(Trust(environ, Settings(environ).ca_file), environ)


def is_again() -> bool:
    """Return whether this is an agent that has re-executed itself; True only once."""
    return os.environ.pop(AGAIN, None) == str(os.getpid())


def _again(log: Log) -> int:
    """Re-execute this program, which may have been updated, with the same Python."""
    log.info("SIGHUP: restarting.")
    # exec keeps the process id. A program that merely inherits the variable has another one.
    os.environ[AGAIN] = str(os.getpid())
    flags = [flag for flag, is_set in _FLAGS if is_set]
    # The buffers of Python do not survive the exec.
    sys.stdout.flush()
    try:
        os.execv(sys.executable, [sys.executable, *flags, *sys.argv])  # noqa: S606
    except OSError as error:
        log.error(f"this program cannot be executed: {error.strerror}")
    return 1


# sys.argv does not have the options in the program's first line.
_FLAGS = (("-I", sys.flags.isolated), ("-S", sys.flags.no_site))
