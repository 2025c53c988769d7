"""Pieces of data on the disk, and what is done where it has no room."""

from __future__ import annotations

import os

import pytest

from hotplate.report import spool
from hotplate.report.spool import Spool

PIECES = [b"first", b"", b"x" * 100_000, b"last"]


def test_what_is_kept_is_read_in_any_order_and_leaves_no_file(tmp_path):
    with Spool(tmp_path) as kept:
        places = [kept.add(each) for each in PIECES]
        assert [kept.read(each) for each in reversed(places)] == [*reversed(PIECES)]
        assert places[0] == 0
        assert [*tmp_path.iterdir()] == []


def test_without_a_folder_all_is_in_memory():
    with Spool() as kept:
        places = [kept.add(each) for each in PIECES]
        assert [kept.read(each) for each in places] == PIECES
        assert max(places) < 0


@pytest.mark.parametrize("how", ["refused", "in part"])
def test_what_has_no_room_on_the_disk_is_in_memory(tmp_path, monkeypatch, how):
    real = os.pwrite

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        if len(data) < 1000:
            return real(handle, data, offset)
        if how == "refused":
            raise OSError(28, "No space left on device")
        return real(handle, data[:500], offset)

    monkeypatch.setattr(spool.os, "pwrite", pwrite)
    with Spool(tmp_path) as kept:
        places = [kept.add(each) for each in PIECES]
        assert [each < 0 for each in places] == [False, False, True, False]
        assert [kept.read(each) for each in places] == PIECES


def test_a_folder_that_is_not_there_yet(tmp_path):
    with Spool(tmp_path / "artifacts") as kept:
        places = [kept.add(b"before")]
        (tmp_path / "artifacts").mkdir()
        places.append(kept.add(b"after"))
        assert [each < 0 for each in places] == [True, False]
        assert [kept.read(each) for each in places] == [b"before", b"after"]
