"""The cached base system: whole, not too old, and made by one build at a time."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hotplate import locks
from hotplate.errors import HostError
from hotplate.image.base_cache import DAYS, BaseCache, prune


def made(tarball: Path) -> Path:
    with BaseCache(tarball, refresh=True) as base:
        assert base.making
        tarball.write_text("whole")
        base.settle()
    return tarball


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "debootstrap-debian-bookworm-amd64.tar.gz"


def test_one_that_is_whole_is_used(tarball: Path):
    made(tarball)
    with BaseCache(tarball, refresh=True) as base:
        assert not base.making
    assert tarball.read_text() == "whole"


def test_one_that_was_never_finished_is_made_anew(tarball: Path):
    with pytest.raises(KeyboardInterrupt), BaseCache(tarball, refresh=True):
        tarball.write_text("hal")
        raise KeyboardInterrupt
    with BaseCache(tarball, refresh=True) as base:
        assert base.making
        assert not tarball.exists()


@pytest.mark.parametrize("refresh", [True, False])
def test_an_old_one_is_made_anew_unless_offline(tarball: Path, refresh: bool):
    old = time.time() - (DAYS + 1) * 86400
    os.utime(made(tarball), (old, old))
    with BaseCache(tarball, refresh=refresh) as base:
        assert base.making is refresh


def test_a_second_build_waits_for_the_first_and_uses_its_base(tarball: Path):
    entered = []

    def second() -> None:
        with BaseCache(tarball, refresh=True) as base:
            entered.append(base.making)

    with BaseCache(tarball, refresh=True) as base:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        assert entered == []
        tarball.write_text("whole")
        base.settle()
        thread.join(10)
    assert entered == [False]


def test_nothing_is_marked_when_nothing_was_cached(tarball: Path):
    with BaseCache(tarball, refresh=True) as base:
        base.settle()
    with BaseCache(tarball, refresh=True) as base:
        assert base.making


def test_a_cache_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(HostError, match="cannot be written"),
        BaseCache(tmp_path / "file" / "x", refresh=True),
    ):
        pass


def test_nobody_makes_it_anew_while_another_build_unpacks_it(tarball: Path):
    old = time.time() - (DAYS + 1) * 86400
    os.utime(made(tarball), (old, old))
    entered = []

    def second() -> None:
        with BaseCache(tarball, refresh=True) as base:
            entered.append(base.making)

    with BaseCache(tarball, refresh=False) as base:
        assert not base.making
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        assert entered == []
        assert tarball.exists()
        base.settle()
        thread.join(10)
    assert entered == [True]


@pytest.mark.root
def test_what_diskimage_builder_wrote_as_root_is_given_to_the_user(tarball: Path):
    with BaseCache(tarball, refresh=True) as base:
        tarball.write_text("whole")
        os.chown(tarball, os.geteuid() + 1, -1)
        base.settle()
    assert tarball.stat().st_uid == os.geteuid()
    assert tarball.read_text() == "whole"
    assert [path.name for path in tarball.parent.glob("*.new")] == []


def test_what_no_build_has_used_for_long_goes_unless_one_uses_it(tmp_path: Path):
    now = time.time()
    for name, days in (("fresh", 29), ("old", 31), ("used", 31)):
        (tmp_path / name / "apt-archives").mkdir(parents=True)
        os.utime(tmp_path / name, (now - days * 86400,) * 2)
    with locks.shared(tmp_path / "used"):
        prune(tmp_path, now=now)
    assert {path.name for path in tmp_path.iterdir()} == {"fresh", "used"}
