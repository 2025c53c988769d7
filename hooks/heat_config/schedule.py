"""The schedule of a signal's retries, and the administrator's own program that may send it."""

import os
import time

from . import files, process, transport, values

OUTPUT_LIMIT = 16 << 10
"""Bytes of that program's output that are kept."""

PATIENT = 3
"""Tries that follow the agent's own spacing; later pauses grow."""

LONGEST_PAUSE = 60.0
"""Seconds between two tries, at most."""

LONGEST_REFUSED_PAUSE = 300.0
"""The same while the answer is a refusal."""

REFUSALS = 20
REFUSED_FOR = 86400.0
"""This many refusals in a row, over this many seconds of uptime, are final: a day is longer than
it takes to correct a clock or to repair Keystone."""


def is_due(note):
    """Return False while a signal that failed several times has to wait."""
    if not isinstance(note, dict) or note.get("boot") != process.boot_id():
        return True
    after = note.get("after")
    return not isinstance(after, (int, float)) or uptime() >= after


def failed_try(note, error):
    """Return the note of a try that failed with *error*, NotAccepted; *note* is the last one's.

    The tries follow the agent's own spacing first, then wait for up to a few minutes. Time is
    counted while the machine is up: a wrong clock may be the cause of the failure.
    """
    note = note if isinstance(note, dict) else {}
    tries = _number(note, "tries") + 1
    made = {"tries": tries, "boot": process.boot_id(), "at": uptime(), "refusals": 0, "refused": 0}
    longest = LONGEST_PAUSE
    if error.refused:
        longest = LONGEST_REFUSED_PAUSE
        made["refusals"] = _number(note, "refusals") + 1
        made["refused"] = _number(note, "refused")
        if made["refusals"] > 1 and note.get("boot") == made["boot"]:
            made["refused"] += max(0, made["at"] - _number(note, "at"))
    wait = 0.0
    if tries > PATIENT:
        spread = int.from_bytes(os.urandom(2), "big") / 65536
        wait = min(longest, 5.0 * 2 ** min(tries - PATIENT - 1, 10)) * (0.5 + spread / 2)
    made["after"] = made["at"] + wait
    return made


def is_final(note, error):
    """Return whether further tries are pointless."""
    return error.final or (note["refusals"] >= REFUSALS and note["refused"] >= REFUSED_FOR)


def address(inputs):
    """Return a digest of the signal's address and user in *inputs*."""
    from hashlib import sha256

    text = values.encode([values.text(inputs.get(name)) for name in ADDRESS])
    return sha256(text.encode("ascii")).hexdigest()


ADDRESS = (
    "deploy_signal_id",
    "deploy_signal_verb",
    "deploy_queue_id",
    "deploy_auth_url",
    "deploy_user_id",
    "deploy_password",
    "deploy_project_id",
    "deploy_stack_id",
    "deploy_resource_name",
)


def _number(note, key):
    value = note.get(key)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def uptime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def through_program(record, body, store, journal, settings):
    """Pass the signal to the program in HEAT_CONFIG_NOTIFY, as heat-agents do.

    Its output goes to the deployment's own log, the only place that shows why it failed.
    """
    stdin = os.memfd_create("signal")
    output = os.memfd_create("output")
    try:
        files.write_all(stdin, body)
        os.lseek(stdin, 0, os.SEEK_SET)
        store.save(record)
        pid = process.spawn(
            [settings.notify, store.path(record.key, ".json")],
            env=dict(os.environ),
            stdin=stdin,
            stdout=output,
            stderr=output,
            session=True,
            umask=settings.umask,
        )
        status = process.wait(pid, settings.signal_time)
        if status is None:
            process.end_group(pid, settings.kill_after)
        text = files.read_part(output, 0, OUTPUT_LIMIT).decode("utf-8", "replace")
        if text:
            journal.note(record.key, '"%s" printed:\n%s' % (settings.notify, text.rstrip("\n")))
    except OSError as error:
        raise transport.NotAccepted(
            '"%s" (HEAT_CONFIG_NOTIFY) cannot be run: %s'
            % (settings.notify, process.why_not(settings.notify, error))
        ) from None
    finally:
        os.close(stdin)
        os.close(output)
    if status != 0:
        raise transport.NotAccepted(
            '"%s" (HEAT_CONFIG_NOTIFY) %s; its output is shown by "heat-config log %s"'
            % (
                settings.notify,
                "took too long" if status is None else "ended with status %d" % status,
                record.key,
            )
        )
