"""When a signal is tried again, and the program of one's own that may send it."""

import os
import time

from . import files, process, transport

PATIENT = 3
"""Tries that follow the agent's own spacing; after these they wait longer each time."""

LONGEST_PAUSE = 60.0
"""Seconds between two tries, at most."""


def is_due(note):
    """False while a signal that failed several times has to wait."""
    if not isinstance(note, dict) or note.get("boot") != process.boot_id():
        return True
    after = note.get("after")
    return not isinstance(after, (int, float)) or uptime() >= after


def failed_try(tries):
    """Return the note of a failed try: the agent's own spacing first, then up to a minute more."""
    wait = 0.0
    if tries > PATIENT:
        spread = int.from_bytes(os.urandom(2), "big") / 65536
        wait = min(LONGEST_PAUSE, 5.0 * 2 ** min(tries - PATIENT - 1, 10)) * (0.5 + spread / 2)
    return {"tries": tries, "boot": process.boot_id(), "after": uptime() + wait}


def uptime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def through_program(record, body, store, settings):
    """Hand the signal to the program in HEAT_CONFIG_NOTIFY, as heat-agents do."""
    stdin = os.memfd_create("signal")
    log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        files.write_all(stdin, body)
        os.lseek(stdin, 0, os.SEEK_SET)
        store.save(record)
        pid = process.spawn(
            [settings.notify, store.path(record.key, ".json")],
            env=dict(os.environ),
            stdin=stdin,
            stdout=log,
            stderr=log,
            session=True,
            umask=settings.umask,
        )
    except OSError as error:
        raise transport.NotAccepted(
            '"%s" (HEAT_CONFIG_NOTIFY) cannot be run: %s' % (settings.notify, error.strerror)
        ) from None
    finally:
        os.close(stdin)
        os.close(log)
    status = process.wait(pid, settings.signal_time)
    if status is None:
        process.end_group(pid, settings.kill_after)
    if status != 0:
        raise transport.NotAccepted(
            '"%s" (HEAT_CONFIG_NOTIFY) %s'
            % (
                settings.notify,
                "took too long" if status is None else "ended with status %d" % status,
            )
        )
