"""A file saved in the ways of editors, and one that is not saved."""

from __future__ import annotations

import signal
import threading

import pytest

from hotplate.errors import HostError, UsageError
from hotplate.hookkit.saves import Saves


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "hook"
    path.write_text("one")
    return path


def in_place(path):
    path.write_text("two")


def by_renaming(path):
    new = path.with_name(".new")
    new.write_text("two")
    new.rename(path)


def by_removing(path):
    path.unlink()
    path.write_text("two")


def in_pieces(path):
    with path.open("w") as stream:
        for each in "two":
            stream.write(each)
            stream.flush()


@pytest.mark.parametrize("save", [in_place, by_renaming, by_removing, in_pieces])
def test_save_is_noticed(path, save):
    with Saves(path) as saves:
        assert saves.contents == b"one"
        save(path)
        assert saves.wait() == b"two"


def test_other_changes_are_no_save(path, tmp_path):
    """Neither another file nor the same contents again end the wait; the next real save does."""
    seen = []

    def others():
        (tmp_path / "other").write_text("x")
        path.write_text("one")
        path.chmod(0o755)
        seen.append("others")
        timer = threading.Timer(0.5, lambda: (seen.append("save"), path.write_text("two")))
        timer.start()

    with Saves(path) as saves:
        others()
        assert saves.wait() == b"two"
    assert seen == ["others", "save"]


def test_save_during_processing_is_not_lost(path):
    with Saves(path) as saves:
        path.write_text("two")
        assert saves.wait() == b"two"
        path.write_text("three")
        assert saves.wait() == b"three"


def test_signal_handler_is_restored(path):
    before = signal.getsignal(signal.SIGIO), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before[1])
    with Saves(path):
        path.write_text("two")
    after = signal.getsignal(signal.SIGIO), signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after[1])
    assert before == after


def test_signal_ends_the_wait(path):
    def ended(_number, _frame):
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, ended)
    try:
        with Saves(path) as saves, pytest.raises(InterruptedError):
            threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGUSR1)).start()
            saves.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_unwatchable_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        Saves(tmp_path / "none").__enter__()
    with pytest.raises(HostError, match="cannot be watched: No such file"):
        Saves(tmp_path / "none" / "none").__enter__()
    assert signal.getsignal(signal.SIGIO) is signal.SIG_DFL
