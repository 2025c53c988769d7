"""hotplate.hookkit.changes: what two looks at the same files show, within bounds."""

import os

from hotplate.hookkit.changes import ChangeKind, FileChange, changes, look


def test_a_time_that_was_set_back_hides_nothing(tmp_path):
    """utimensat(2) sets the time of modification; that of change is the kernel's."""
    file = tmp_path / "file"
    file.write_text("a")
    status = file.stat()
    before = look([tmp_path])
    file.write_text("b")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert changes(before, look([tmp_path])) == [FileChange(ChangeKind.CHANGED, str(file))]


def test_what_is_beyond_the_bounds_is_not_called_a_change(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "file").write_text("")
    before = look([tmp_path], entries=8)
    after = look([tmp_path])
    assert (before.whole, after.whole) == (False, True)
    assert changes(before, after) == changes(after, before) == []


def test_time_is_bounded(tmp_path):
    assert not look([tmp_path], seconds=-1).whole


def test_directories_that_are_left_out_or_not_there(tmp_path):
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
