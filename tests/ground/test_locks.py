"""Locks of directories: shared, exclusive, and on a directory that is removed meanwhile."""

from __future__ import annotations

import errno
import shutil
import threading

import pytest

from hotplate import locks


def is_free(directory) -> bool:
    try:
        with locks.exclusive(directory, wait=False):
            return True
    except locks.InUse:
        return False


def test_lock_is_shared_by_many_or_exclusive(tmp_path):
    with locks.shared(tmp_path), locks.shared(tmp_path):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    with locks.exclusive(tmp_path, wait=False):
        assert not is_free(tmp_path)


def test_missing_directory_is_created_on_request(tmp_path):
    directory = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError), locks.shared(directory):
        pass
    with locks.exclusive(directory, make=True):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_waiter_for_a_removed_directory_locks_the_new_one(tmp_path):
    """Like a build that starts while the cache is cleaned."""
    directory = tmp_path / "cache"
    directory.mkdir()
    seen = []

    def build() -> None:
        with locks.shared(directory, make=True):
            seen.append(directory.is_dir())

    with locks.exclusive(directory):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join(0.3)
        assert seen == []
        shutil.rmtree(directory)
    thread.join(30)
    assert seen == [True]


def test_directory_removed_during_creation_is_created_again(tmp_path):
    """Path.mkdir fails so when another process creates and removes the directory meanwhile."""

    class Going(type(tmp_path)):
        left = 3

        def mkdir(self, *args, **words) -> None:
            if Going.left:
                Going.left -= 1
                raise FileExistsError(errno.EEXIST, "File exists", str(self))
            super().mkdir(*args, **words)

    directory = Going(tmp_path / "going")
    with locks.exclusive(directory, make=True):
        assert directory.is_dir()
    assert Going.left == 0


def test_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), locks.exclusive(tmp_path / "file", make=True):
        pass


def test_file_system_without_locks_is_accepted(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locks.exclusive(tmp_path, wait=False):
        pass


@pytest.mark.parametrize("made", ["file", "nothing"])
def test_impossible_directory_raises_os_error(tmp_path, made):
    path = tmp_path / made
    if made == "file":
        path.touch()
    with pytest.raises(OSError), locks.shared(path / "below", make=made == "file"):
        pass
