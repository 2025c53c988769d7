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


def test_complete_base_system_is_used(tarball: Path):
    made(tarball)
    with BaseCache(tarball, refresh=True) as base:
        assert not base.making
    assert tarball.read_text() == "whole"


def test_unfinished_base_system_is_made_again(tarball: Path):
    with pytest.raises(KeyboardInterrupt), BaseCache(tarball, refresh=True):
        tarball.write_text("hal")
        raise KeyboardInterrupt
    with BaseCache(tarball, refresh=True) as base:
        assert base.making
        assert not tarball.exists()


@pytest.mark.parametrize("refresh", [True, False])
def test_old_base_system_is_made_again_unless_offline(tarball: Path, refresh: bool):
    old = time.time() - (DAYS + 1) * 86400
    os.utime(made(tarball), (old, old))
    with BaseCache(tarball, refresh=refresh) as base:
        assert base.making is refresh


@pytest.mark.parametrize("first_makes_it", [True, False])
def test_second_build_waits_for_one_that_makes_or_unpacks_the_base(
    tarball: Path, first_makes_it: bool
):
    """It uses what the first makes, and makes again what was too old for it."""
    entered = []
    if not first_makes_it:
        old = time.time() - (DAYS + 1) * 86400
        os.utime(made(tarball), (old, old))

    def second() -> None:
        with BaseCache(tarball, refresh=True) as base:
            entered.append(base.making)

    with BaseCache(tarball, refresh=first_makes_it) as base:
        assert base.making is first_makes_it
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        assert entered == []
        if first_makes_it:
            tarball.write_text("whole")
        assert tarball.exists()
        base.settle()
        thread.join(10)
    assert entered == [not first_makes_it]


def test_mark_is_not_written_when_nothing_was_cached(tarball: Path):
    with BaseCache(tarball, refresh=True) as base:
        base.settle()
    with BaseCache(tarball, refresh=True) as base:
        assert base.making


def test_unwritable_cache_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(HostError, match="cannot be written"),
        BaseCache(tmp_path / "file" / "x", refresh=True),
    ):
        pass


@pytest.mark.root
def test_tarball_written_by_root_is_given_to_the_user(tarball: Path):
    with BaseCache(tarball, refresh=True) as base:
        tarball.write_text("whole")
        os.chown(tarball, os.geteuid() + 1, -1)
        base.settle()
    assert tarball.stat().st_uid == os.geteuid()
    assert tarball.read_text() == "whole"
    assert [path.name for path in tarball.parent.glob("*.new")] == []


def test_long_unused_base_system_is_removed_unless_in_use(tmp_path: Path):
    now = time.time()
    for name, days in (("fresh", 29), ("old", 31), ("used", 31)):
        (tmp_path / name / "apt-archives").mkdir(parents=True)
        os.utime(tmp_path / name, (now - days * 86400,) * 2)
    with locks.shared(tmp_path / "used"):
        prune(tmp_path, now=now)
    assert {path.name for path in tmp_path.iterdir()} == {"fresh", "used"}
