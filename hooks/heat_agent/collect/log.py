"""The agent's log: one sentence per line, on standard error or the configured destination.

Callers keep signatures, tokens and inputs out of their messages.
"""

from __future__ import annotations

import os
import sys
import time

from .problems import SettingsError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from .settings import Settings

    Write = Callable[[int, str], object]

NAME = "os-collect-config"
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # as in Python's logging
LEVELS = {DEBUG: "DEBUG", INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}
PRIORITIES = {DEBUG: 7, INFO: 6, WARNING: 4, ERROR: 3}  # as in syslog(3)
JOURNAL = "/run/systemd/journal/socket"


class Log:
    """Pass messages of at least *level* to ``write(level, sentence)``."""

    def __init__(self, write: Write, level: int = INFO) -> None:
        self._write = write
        self._level = level

    def debug(self, sentence: str) -> None:
        self._say(DEBUG, sentence)

    def info(self, sentence: str) -> None:
        self._say(INFO, sentence)

    def warning(self, sentence: str) -> None:
        self._say(WARNING, sentence)

    def error(self, sentence: str) -> None:
        self._say(ERROR, sentence)

    def _say(self, level: int, sentence: str) -> None:
        if level < self._level:
            return
        # A server's text must not forge a line of the log, or send escape sequences to a terminal.
        plain = "".join(c if c.isprintable() else "\ufffd" for c in sentence)
        try:
            self._write(level, plain)
        except (OSError, ValueError):
            return  # a full disk or a closed pipe does not stop collecting


def open_log(settings: Settings) -> Log:
    """Return the Log that the settings ask for. Raises SettingsError."""
    level = DEBUG if settings.debug else INFO
    if settings.log_config_append:
        # At DEBUG, since the file sets the levels.
        return Log(_by_file(settings.log_config_append), DEBUG)
    if settings.log_file:
        path = os.path.join(settings.log_dir or "", settings.log_file)
        return Log(_to_file(path, settings), level)
    if settings.use_journal:
        return Log(_to_journal, level)
    if settings.use_syslog:
        return Log(_to_syslog(settings.syslog_log_facility), level)
    return Log(_json(to_stderr) if settings.use_json else to_stderr, level)


def to_stderr(_level: int, sentence: str) -> None:
    _line(sys.stderr, f"{NAME}: {sentence}")


def _line(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()


def _to_file(path: str, settings: Settings) -> Write:
    try:
        # Appending works when a program that rotates logs truncates the file.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f'the log file "{path}" cannot be opened: {error.strerror}') from None
    stream = open(descriptor, "a", encoding="utf-8", errors="replace")  # noqa: SIM115

    def write(level: int, sentence: str) -> None:
        when = time.strftime(settings.log_date_format)
        _line(stream, f"{when} {os.getpid()} {LEVELS[level]} {NAME} {sentence}")

    return _json(lambda _level, text: _line(stream, text)) if settings.use_json else write


def _json(write: Write) -> Write:
    import json

    def write_object(level: int, sentence: str) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        named = {"created": when, "levelname": LEVELS[level], "name": NAME, "message": sentence}
        write(level, json.dumps(named))

    return write_object


def _to_journal(level: int, sentence: str) -> None:
    """Send one entry; see systemd's "Native Journal Protocol"."""
    import socket

    # _say() leaves no line feed in a sentence, so no field needs the protocol's binary form.
    fields = (f"PRIORITY={PRIORITIES[level]}", f"SYSLOG_IDENTIFIER={NAME}", f"MESSAGE={sentence}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.sendto("\n".join([*fields, ""]).encode("utf-8", "replace"), JOURNAL)


def _to_syslog(facility: str | None) -> Write:
    import syslog

    name = (facility or "").upper()
    number = getattr(syslog, name if name.startswith("LOG_") else "LOG_" + name, None)
    if not isinstance(number, int):
        raise SettingsError(f'there is no syslog facility "{facility}"')
    syslog.openlog(NAME, syslog.LOG_PID, number)
    return lambda level, sentence: syslog.syslog(PRIORITIES[level], sentence)


def _by_file(path: str) -> Write:
    import logging.config

    try:
        logging.config.fileConfig(path, disable_existing_loggers=False)
    except Exception as error:  # the file can make logging import any module
        raise SettingsError(f'"{path}" cannot be used for logging: {error}') from None
    return logging.getLogger(NAME).log
