"""The ``hotplate`` command in the process of a test, which costs no start of Python."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess

from hotplate import cli


def hotplate(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a verb that ends by itself; return its status and its output."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            status = cli.main([*map(str, words)])
        except SystemExit as ended:
            # argparse ends the help and wrong usage so.
            assert isinstance(ended.code, int)
            status = ended.code
    for each in streams:
        each.flush()
    out, err = (each.buffer.getvalue().decode() for each in streams)
    return subprocess.CompletedProcess(words, status, out, err)


def default_signals() -> None:
    """Give a child the default signals, for its ``preexec_fn``."""
    # Tests started with & or nohup inherit SIGINT and SIGHUP as ignored.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
