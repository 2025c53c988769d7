"""hotplate.hookkit.traces: the differences of two looks, within bounds."""

import os

from hotplate.hookkit.traces import ChangeKind, FileChange, changes, look


def test_change_is_found_in_spite_of_a_reset_time(tmp_path):
    """utimensat(2) sets the time of modification; the time of change is the kernel's."""
    file = tmp_path / "file"
    file.write_text("a")
    status = file.stat()
    before = look([tmp_path])
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert changes(before, look([tmp_path])) == [FileChange(ChangeKind.CHANGED, str(file))]


def test_file_beyond_the_bounds_is_no_change(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "file").write_text("")
    before = look([tmp_path], entries=8)
    after = look([tmp_path])
    assert (before.whole, after.whole) == (False, True)
    assert changes(before, after) == changes(after, before) == []


def test_look_is_limited_in_time(tmp_path):
    assert not look([tmp_path], seconds=-1).whole


def test_skipped_and_missing_directories_are_ignored(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    before = look([tmp_path, tmp_path / "absent"], without=[own])
    (own / "file").write_text("")
    assert changes(before, look([tmp_path, tmp_path / "absent"], without=[own])) == []


def test_links_are_not_followed(tmp_path):
    below = tmp_path / "below"
    other = tmp_path / "other"
    below.mkdir()
    other.mkdir()
    (below / "link").symlink_to(other)
    before = look([below])
    (other / "file").write_text("")
    assert changes(before, look([below])) == []
