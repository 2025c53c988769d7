from __future__ import annotations

import pytest

from hotplate import history as module
from hotplate.history import RUNS, History


def test_median_of_last_runs_is_expected(tmp_path):
    history = History(tmp_path / "cache" / "history.json")
    assert history.expected("image") == {}
    for seconds in (100.0, *range(10, 10 + RUNS)):
        history.record("image", {"booted": seconds})
    assert history.expected("image") == {"booted": 14.5}


def test_several_keys_are_recorded_by_one_writing(tmp_path, monkeypatch):
    """A command of a thousand cases wrote it a thousand times."""
    written = []
    monkeypatch.setattr(History, "_write", lambda _, entries: written.append(entries))
    History(tmp_path / "history.json").record_all({"one": {"ended": 1.0}, "two": {"ended": 2.0}})
    assert written == [{"one": {"ended": [1.0]}, "two": {"ended": [2.0]}}]


def test_history_is_bounded(tmp_path, monkeypatch):
    # Each record reads and writes the whole file.
    monkeypatch.setattr(module, "KEYS", 20)
    history = History(tmp_path / "history.json")
    for number in range(25):
        history.record(f"image {number}", {"booted": 1.0})
    assert history.expected("image 4") == {}
    assert history.expected("image 5") == {"booted": 1.0}
    assert history.expected("image 24") == {"booted": 1.0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"image": 3}', '{"image": {"booted": ["x"]}}'])
def test_damaged_file_is_no_history(tmp_path, text):
    path = tmp_path / "history.json"
    path.write_text(text)
    history = History(path)
    assert history.expected("image") == {}
    history.record("image", {"booted": 2.0})
    assert history.expected("image") == {"booted": 2.0}


def test_unwritable_file_is_no_failure(tmp_path):
    (tmp_path / "file").write_text("")
    History(tmp_path / "file" / "history.json").record("image", {"booted": 2.0})
