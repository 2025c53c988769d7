"""Pieces of data on the disk, and in memory where the disk is full."""

from __future__ import annotations

import os

import pytest

from hotplate.report import spool
from hotplate.report.spool import Spool

PIECES = [b"first", b"", b"x" * 100_000, b"last"]


def test_pieces_are_read_in_any_order_and_leave_no_file(tmp_path):
    with Spool(tmp_path) as kept:
        places = [kept.add(each) for each in PIECES]
        assert [kept.read(each) for each in reversed(places)] == [*reversed(PIECES)]
        assert places[0] == 0
        assert [*tmp_path.iterdir()] == []


def test_pieces_are_in_memory_without_folder():
    with Spool() as kept:
        places = [kept.add(each) for each in PIECES]
        assert [kept.read(each) for each in places] == PIECES
        assert max(places) < 0


@pytest.mark.parametrize("how", ["refused", "in part"])
def test_piece_is_in_memory_when_disk_is_full(tmp_path, monkeypatch, how):
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


def test_folder_may_appear_later(tmp_path):
    with Spool(tmp_path / "artifacts") as kept:
        places = [kept.add(b"before")]
        (tmp_path / "artifacts").mkdir()
        places.append(kept.add(b"after"))
        assert [each < 0 for each in places] == [True, False]
        assert [kept.read(each) for each in places] == [b"before", b"after"]
