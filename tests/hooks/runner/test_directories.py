"""Directories that are opened name by name, and whose links are followed by a rule."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from heat_config import directories

OTHER = 65534


def place(function: Callable[..., int], *arguments: object, **keywords: bool) -> str:
    """Return the path of the directory that *function* opens."""
    descriptor = function(*arguments, **keywords)
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)


def link(path: Path, target: object, owner: int = 0) -> Path:
    path.symlink_to(str(target))
    if os.geteuid() == 0:
        os.lchown(path, owner, owner)
    return path


@pytest.mark.parametrize("form", ["{0}/a/b", "{0}//a/./b/", "{0}/a/../a/b", "{0}/to-a/b", "{0}/to"])
def test_directory_is_the_one_of_the_path(tmp_path: Path, form):
    (tmp_path / "a/b").mkdir(parents=True)
    link(tmp_path / "to-a", "a")
    link(tmp_path / "to", tmp_path / "to-a" / "b")
    opened = place(directories.open_directory, form.format(tmp_path))
    assert opened == os.path.realpath(tmp_path / "a/b")


def test_missing_directories_are_made_for_everybody(tmp_path: Path):
    path = tmp_path / "a/b/c"
    with pytest.raises(FileNotFoundError):
        directories.open_directory(str(path))
    before = os.umask(0o077)
    try:
        assert place(directories.open_directory, str(path), make=True) == str(path)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)] == [0o755, 0o755]


def test_no_directory_is_made_where_a_link_leads_nowhere(tmp_path: Path):
    link(tmp_path / "to", tmp_path / "missing" / "b")
    with pytest.raises(FileNotFoundError):
        directories.open_directory(str(tmp_path / "to"), make=True)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("function", [directories.open_directory, directories.open_parent])
def test_circle_of_links_is_an_error(tmp_path: Path, function):
    link(tmp_path / "a", "b")
    link(tmp_path / "b", "a")
    with pytest.raises(OSError) as error:
        function(str(tmp_path / "a"))
    assert error.value.errno == errno.ELOOP


def test_file_in_the_way_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(NotADirectoryError):
            directories.open_directory(str(tmp_path / path), make=True)


def test_parent_of_a_link_is_that_of_its_target(tmp_path: Path):
    (tmp_path / "a").mkdir()
    link(tmp_path / "one", "two")
    link(tmp_path / "two", "a/file")
    for _ in range(2):  # first the file is missing, then it exists
        descriptor, name = directories.open_parent(str(tmp_path / "one"))
        assert place(lambda opened=descriptor: opened) == str(tmp_path / "a")
        assert name == "file"
        (tmp_path / "a/file").write_text("")


def directory_of(path: object, **keywords: bool) -> int:
    """Return the descriptor of the directory that has the file *path*."""
    return directories.open_parent(str(path), **keywords)[0]


@pytest.mark.root
@pytest.mark.parametrize(
    ("owners", "refused"),
    [
        # owners of the link, of its directory, and of its target
        ((0, 0, 0), False),
        ((0, 0, OTHER), False),
        ((OTHER, OTHER, OTHER), False),
        ((OTHER, 0, OTHER), False),
        ((0, OTHER, OTHER), False),
        ((OTHER, OTHER, 0), True),
        ((OTHER, 0, 0), True),
        ((0, OTHER, 0), True),
        ((OTHER, OTHER, 1), True),
        ((1, OTHER, OTHER), True),
    ],
)
def test_link_of_a_user_leads_only_to_files_of_that_user(tmp_path: Path, owners, refused):
    home, target = tmp_path / "home", tmp_path / "target"
    for path, owner in ((home, owners[1]), (target, owners[2])):
        path.mkdir()
        os.chown(path, owner, owner)
    for to, opened in (
        (link(home / "to-directory", target, owners[0]), directories.open_directory),
        (link(home / "to-file", target / "file", owners[0]), directory_of),
    ):
        if refused:
            with pytest.raises(PermissionError) as error:
                opened(str(to))
            assert "a link of user" in str(error.value.strerror)
        else:
            assert place(opened, str(to)) == str(target)


@pytest.mark.root
def test_root_owns_directories_below_one_of_another_user(tmp_path: Path):
    """They were made at the first deployment, and must be accepted at the next."""
    release = tmp_path / "release"
    release.mkdir()
    os.chown(release, OTHER, OTHER)
    current = link(tmp_path / "current", "release", OTHER)
    for _ in range(2):
        opened = place(directories.open_directory, str(current / "a/b"), make=True)
        assert opened == str(release / "a/b")


def test_links_below_an_open_directory_are_not_followed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    link(tmp_path / "to", "a")
    root = directories.open_directory(str(tmp_path))
    try:
        assert place(directories.open_below, root, ["a", "b"]) == str(tmp_path / "a/b")
        assert place(directories.open_below, root, []) == str(tmp_path)
        with pytest.raises(OSError) as error:
            directories.open_below(root, ["to", "c"])
        assert error.value.errno in (errno.ELOOP, errno.ENOTDIR)
    finally:
        os.close(root)
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a/b"]


def test_descriptors_are_closed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    link(tmp_path / "circle", "circle")
    link(tmp_path / "to", "a")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("a/b/c", "circle", "to/x/y", "to/x/../x/z"):
        for function in (directories.open_directory, directory_of):
            with contextlib.suppress(OSError):
                place(function, str(tmp_path / path), make=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
