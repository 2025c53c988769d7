"""The program heat-config, for a person on the machine."""

from __future__ import annotations

import os
import sys

from . import values
from .settings import Settings
from .state import DAMAGED, FINISHED, RECEIVED, SIGNALLED, STARTED, UNDELIVERABLE, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .state import Record

# No docstring: the library is compiled without them.
HELP = """\
heat-config: what has become of the deployments on this machine.

usage: heat-config status          one line for each deployment, oldest first
       heat-config status ID       everything known about one, without its values
       heat-config log ID          its steps and the output of its tool, also while it runs
       heat-config rerun ID        run it again now; Heat ignores its signal if the deployment
                                   has already ended for Heat
       heat-config resend          send all waiting signals now
       heat-config resend ID       send one, even if it was given up
       heat-config resend --due    send those that are due; the agent does this between polls

ID may be the start of an id. Exit status: 0 done, 1 it failed (or a signal still waits), 2 usage,
3 no such deployment, 75 another run is in progress.
"""
USAGE = 2
UNKNOWN = 3
ORDER = (RECEIVED, STARTED, FINISHED, SIGNALLED, UNDELIVERABLE, DAMAGED)


def main(arguments: list[str]) -> int:
    """Run the subcommand of *arguments* and return the exit status."""
    verb, identity = (*arguments, None, None)[:2]
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(HELP)
        return 0
    if verb not in ("status", "log", "rerun", "resend") or len(arguments) > 2:
        return _usage()
    if verb in ("log", "rerun") and identity is None:
        return _usage()
    # The directory is 0700. Without this the message would only name a path that cannot be read.
    if os.geteuid() != 0 and not os.access(Settings().state, os.R_OK):
        return _say("this needs root: only root may read the state.", 1)
    try:
        return _do(verb, identity)
    except BrokenPipeError:
        # "heat-config log ID | head" closes the pipe early. Python flushes stdout once more at its
        # end and would report the same error there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _do(verb: str, identity: str | None) -> int:
    settings = Settings()
    if verb == "resend" and identity in (None, "--due"):
        from . import runner

        return runner.resend(due=identity is not None)
    for problem in settings.problems:
        _say(problem, 0)
    try:
        # Without the lock: a running runner's files must stay, so nothing is cleared.
        records = Store(settings.state).load(clear=False)
    except FileNotFoundError:
        records = {}
    except OSError as error:
        return _say(f'"{settings.state}" cannot be read: {error.strerror}.', 1)
    if identity is None:
        return _status(records)
    # A whole id wins over ids that merely begin with it.
    matches = [key for key in records if key == identity] or [
        key for key in records if key.startswith(identity)
    ]
    if len(matches) > 1:
        candidates = ", ".join(sorted(matches))
        return _say(f'"{identity}" is ambiguous; it may be any of: {candidates}.', UNKNOWN)
    if not matches:
        return _say(
            f'there is no deployment "{identity}" on this machine; "heat-config status" lists '
            "them.",
            UNKNOWN,
        )
    if verb == "status":
        return _details(records[matches[0]])
    if verb == "log":
        return _log(settings, matches[0])
    from . import runner

    if verb == "resend":
        return runner.resend(matches[0])
    return runner.main(only=matches[0])


def _status(records: dict[str, Record]) -> int:
    if not records:
        _out("No deployment has reached this machine yet.")
        return 0
    rows: list[tuple[str, ...]] = [("ID", "GROUP", "NAME", "STATE", "STATUS", "SINCE")]
    for record in sorted(records.values(), key=_since):
        rows.append(_row(record))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _out("  ".join(row[at].ljust(width) for at, width in enumerate(widths)).rstrip())
    return 0


def _row(record: Record) -> tuple[str, ...]:
    state = record.state if record.state in ORDER else "?"
    tried = record.mark.get("signal")
    if state == DAMAGED:
        state = "its record is damaged"
    elif state == FINISHED and isinstance(tried, dict):
        state = f"{state}, {tried.get('tries')} signals not accepted"
    if record.mark.get("foreign"):
        state = "run by heat-agents"
    if record.mark.get("gone"):
        state += ", gone from the metadata"
    status = record.mark.get("status")
    return (
        record.key,
        _plain(record.group),
        _plain(record.name),
        state,
        "-" if status is None else str(status),
        _since(record) or "-",
    )


def _since(record: Record) -> str:
    return str(record.mark.get(f"time_{record.state}", ""))


def _details(record: Record) -> int:
    row = _row(record)
    for at, label in enumerate(("id", "group", "name", "state", "status")):
        _out(f"{label:12} {row[at]}")
    _out(f"{'runs':12} {record.mark.get('runs', '-')}")
    for state in ORDER:
        stamp = record.mark.get("time_" + state)
        if stamp:
            _out(f"{state:12} {stamp}")
    if isinstance(record.mark.get("reason"), str):
        _out(f"{'reason':12} {_plain(record.mark['reason'], 500)}")
    for name, value in record.inputs.items():
        if name in ("deploy_action", "deploy_stack_id", "deploy_resource_name"):
            _out(f"{name[len('deploy_') :][:12]:12} {_plain(values.text(value))}")
    return 0


def _log(settings: Settings, key: str) -> int:
    # The journal writes to the state directory when that of the logs cannot be used.
    for directory in (settings.logs, settings.state):
        base = os.path.join(directory, key)
        if not os.path.exists(base + ".log"):
            continue
        for stream in ("log", "stdout", "stderr"):
            try:
                # In pieces, as bytes: a log has up to 14 MiB, in no certain encoding.
                with open(f"{base}.{stream}", "rb") as source:
                    first = source.read(1 << 16)
                    if stream != "log" and first:
                        _out(f"--- {stream} ---")
                    sys.stdout.flush()
                    last = first
                    while first:
                        sys.stdout.buffer.write(first)
                        last, first = first, source.read(1 << 16)
                    if last and not last.endswith(b"\n"):
                        _out("")
            except OSError:
                continue
        sys.stdout.flush()
        return 0
    return _say(f'there is no log of "{key}"; old ones are removed.', UNKNOWN)


def _plain(text: str, longest: int = 100) -> str:
    """Return *text* on one line, with every character that could control a terminal replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)[:longest] or "-"


def _out(line: str) -> None:
    # Not print(): the locale may be C, and a name may hold any character.
    sys.stdout.buffer.write((line + "\n").encode("utf-8", "replace"))
    sys.stdout.flush()


def _say(sentence: str, status: int) -> int:
    sys.stderr.write(f"heat-config: {sentence}\n")
    return status


def _usage() -> int:
    sys.stderr.write(HELP)
    return USAGE
