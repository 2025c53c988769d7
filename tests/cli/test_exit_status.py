"""The exit statuses of the command, as in its help and docs/testing.rst."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hotplate_command import hotplate

from hotplate import cli, errors
from hotplate.errors import (
    EXIT_STATUSES,
    HostError,
    HotplateError,
    ImageError,
    MachineLostError,
    Outcome,
    TemplateError,
    UsageError,
    outcome_of,
    sentence_of,
    usable_names,
)
from hotplate.timing.deadline import DeadlineExceeded

ROOT = Path(__file__).resolve().parents[2]


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")
FILES = OSError(errno.EMFILE, "Too many open files")

ERRORS = [
    (ImageError("x"), Outcome.FAILED, 1),
    (TemplateError("x"), Outcome.FAILED, 1),
    (UsageError("x"), Outcome.USAGE, 2),
    (HostError("x"), Outcome.HOST, 3),
    (FULL, Outcome.HOST, 3),
    (FILES, Outcome.HOST, 3),
    (MemoryError(), Outcome.HOST, 3),
    (caused(TemplateError("Heat refused it"), FILES), Outcome.HOST, 3),
    (caused(RuntimeError("x"), HostError("x")), Outcome.HOST, 3),
    (MachineLostError("x"), Outcome.LOST, 4),
    (HotplateError("x"), Outcome.ERROR, 4),
    (KeyError("x"), Outcome.ERROR, 4),
    (DeadlineExceeded("gave up waiting for the moon after 3 s"), Outcome.HOST, 3),
    (caused(MachineLostError("x"), DeadlineExceeded("y")), Outcome.LOST, 4),
    (ConnectionResetError(errno.ECONNRESET, "reset"), Outcome.ERROR, 4),
    (KeyboardInterrupt(), Outcome.INTERRUPTED, 130),
]


@pytest.mark.parametrize(("error", "outcome", "status"), ERRORS, ids=lambda each: repr(each)[:50])
def test_verb_ends_with_the_status_of_its_error(monkeypatch, capsys, error, outcome, status):
    class Verb:
        @staticmethod
        def add_arguments(parser):
            pass

        @staticmethod
        def run(_args):
            raise error

    monkeypatch.setattr(cli, "_verb", lambda _name: Verb)
    assert outcome_of(error) is outcome
    assert sentence_of(error)
    assert cli.main(["doctor"]) == outcome.exit_status == status
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1].startswith(("hotplate doctor: ", "  hint: "))
    # Only unforeseen errors print a traceback.
    assert ("Traceback" in shown) == (
        outcome is Outcome.ERROR and not isinstance(error, HotplateError)
    )


def test_every_status_has_a_documented_meaning():
    assert {each.exit_status for each in Outcome} - {130} == set(EXIT_STATUSES)
    for page in ("docs/testing.rst", "README.rst"):
        text = " ".join((ROOT / page).read_text().split())
        for meaning in EXIT_STATUSES.values():
            assert meaning in text, f"{page}: {meaning}"
    assert errors.__doc__ is not None


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["shell"], ["that of the command in the guest", "killed after --timeout"]),
        (["ssh"], ["that of the command in the server, or 255 when ssh fails"]),
        (["lint"], ["no finding", "there is a finding"]),
        (["hook", "run"], ["the deployment would be COMPLETE", "or there is a finding"]),
        (["hook", "check"], ["no line failed", "a line failed"]),
        (["hook", "new"], ["all is written", "128+N"]),
        (["hook", "push"], ["the deployment is COMPLETE", "the deployment is FAILED"]),
    ],
    ids=lambda each: " ".join(each),
)
def test_help_of_a_verb_has_its_own_statuses(capsys, words, sentences):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    _, statuses = capsys.readouterr().out.split("exit status:\n")
    for each in sentences:
        assert each in statuses


def started(*words: object, **streams) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotplate", *map(str, words)]
    return subprocess.run(command, text=True, timeout=120, **streams)


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["test", "nowhere.qcow2"], 2, 'there is no image "nowhere.qcow2"'),
        (["test", "/"], 2, '"/" is a directory'),
        (["test", "empty.raw"], 1, "is empty"),
        (["test", "empty.raw", "-t", "nowhere.yaml"], 2, '"nowhere.yaml" does not exist'),
        (["test", "empty.raw", "-t", "empty.raw", "-e", "no"], 2, '"no" does not exist'),
        (["test", "empty.raw", "-t", "expect.yaml"], 2, '"expect.colour" in "expect.yaml"'),
        (["up", "nowhere.qcow2"], 2, 'there is no image "nowhere.qcow2"'),
        (["up", "empty.raw", "-t", "expect.yaml"], 2, '"expect.colour" in "expect.yaml"'),
        (["shell", "web"], 2, "no session runs in"),
        (["monitor", "web"], 2, "no session runs in"),
        (["down"], 2, "no session runs in"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else None,
)
def test_typed_command_ends_with_its_status(tmp_path, monkeypatch, words, status, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.raw").touch()
    (tmp_path / "expect.yaml").write_text("template: {}\nexpect: {colour: red}\n")
    done = hotplate(*words)
    assert sentence in done.stderr + done.stdout
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "NAME"],
        ["test", "NAME"],
        ["test", __file__, "-t", "NAME"],
        ["test", __file__, "--junit", "NAME"],
        ["build", "--release", "trixie", "--dry-run", "-o", "NAME"],
        ["lint", "NAME"],
        ["hook", "check", "NAME"],
        ["up", __file__, "-t", "NAME"],
    ],
    ids=" ".join,
)
def test_name_that_no_file_can_have_is_a_usage_error(words, capsys):
    """Path.is_file() raises OSError for it."""
    assert cli.main([word.replace("NAME", "x" * 5000) for word in words]) == 2
    sentence = capsys.readouterr().err
    assert "xxx... (" in sentence
    assert "File name too long" in sentence


def test_file_in_a_closed_directory_is_a_usage_error():
    with (
        pytest.raises(UsageError, match=r'"/a b" cannot be used: No right') as caught,
        usable_names(),
    ):
        raise PermissionError(errno.EACCES, "No right", "/a b")
    assert caught.value.hint == "namei -l '/a b'"
    # Not of a file: a fault of ours.
    with pytest.raises(PermissionError), usable_names():
        raise PermissionError(errno.EACCES, "No right")


def test_missing_working_directory_is_a_usage_error(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        f"import os, sys; os.rmdir({str(gone)!r}); from hotplate.cli import main; "
        "sys.exit(main(['test', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=gone,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("hotplate test: the current directory cannot be used")


@pytest.fixture
def _empty_cache(tmp_path, monkeypatch):
    """Let "cache list" end at once; to look through this host's cache may take long."""
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path))


@pytest.mark.usefixtures("_empty_cache")
@pytest.mark.parametrize("words", [("cache", "list"), ("--help",)])
def test_closed_reader_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = started(*words, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("_empty_cache")
def test_full_disk_behind_the_output_is_reported():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = started("cache", "list", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert done.stderr == (
        "hotplate cache: the standard output cannot be written: No space left on device\n"
    )


def test_unwritable_stderr_does_not_change_the_status():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = started("test", "nowhere", stdout=full, stderr=full)
    assert done.returncode == 2


@pytest.mark.usefixtures("_empty_cache")
def test_closed_standard_files_are_no_error():
    command = f"exec {sys.executable} -m hotplate cache list <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=120).returncode == 0


def test_database_on_a_full_disk_is_a_host_error():
    """SQLite wraps the operating system's error (SQLITE_FULL)."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as full:
            database.execute("CREATE TABLE t (c)")
        with pytest.raises(sqlite3.OperationalError) as other:
            database.execute("SELECT * FROM nowhere")
    assert outcome_of(full.value) is Outcome.HOST
    assert "database or disk is full" in sentence_of(full.value)
    assert "df -h" in sentence_of(full.value)
    assert outcome_of(other.value) is Outcome.ERROR


def test_file_that_cannot_be_closed_does_not_hide_the_reason():
    """The last write to a file on a full disk fails once more when the file is closed."""
    with (
        pytest.raises(OSError) as caught,
        Path("/dev/full").open("w") as stream,
    ):
        stream.write("a line")
        try:
            stream.flush()
        except OSError as error:
            raise HostError('the log "web.log" cannot be written') from error
    assert sentence_of(caught.value) == 'the log "web.log" cannot be written'
