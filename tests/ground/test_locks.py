"""Locks of directories: shared, alone, and on what is removed meanwhile."""

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


def test_many_share_and_one_is_alone(tmp_path):
    with locks.shared(tmp_path), locks.shared(tmp_path):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    with locks.exclusive(tmp_path, wait=False):
        assert not is_free(tmp_path)


def test_one_that_is_not_there_is_made_when_asked_for(tmp_path):
    directory = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError), locks.shared(directory):
        pass
    with locks.exclusive(directory, make=True):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_who_waited_for_one_that_was_removed_gets_the_new_one(tmp_path):
    """As a build does that begins while the cache is cleaned."""
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


def test_one_that_goes_while_it_is_made_is_made_again(tmp_path):
    """As Path.mkdir ends when another makes the directory and removes it before it is looked at."""

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


def test_a_file_in_its_place_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), locks.exclusive(tmp_path / "file", make=True):
        pass


def test_a_file_system_without_locks_hinders_nobody(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locks.exclusive(tmp_path, wait=False):
        pass


@pytest.mark.parametrize("made", ["file", "nothing"])
def test_what_cannot_be_a_directory_is_an_error_of_the_system(tmp_path, made):
    path = tmp_path / made
    if made == "file":
        path.touch()
    with pytest.raises(OSError), locks.shared(path / "below", make=made == "file"):
        pass
