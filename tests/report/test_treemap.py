"""Rectangles as large as what they stand for, beside one another, in the picture."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.report import html, treemap
from hotplate.report.treemap import HEIGHT, MOST, REST, WIDTH, tiles

SIZES = st.dictionaries(st.text(max_size=8), st.integers(0, 10**12), max_size=40)


@given(SIZES)
def test_areas_are_as_the_sizes(sizes):
    laid_out = tiles(sizes)
    total = sum(sizes.values())
    assert {tile.name: tile.size for tile in laid_out} == {n: s for n, s in sizes.items() if s}
    for tile in laid_out:
        area = tile.width * tile.height / (WIDTH * HEIGHT)
        assert area == pytest.approx(tile.size / total, rel=1e-3, abs=1e-6)


@given(SIZES)
def test_none_lies_over_another_or_outside(sizes):
    laid_out = tiles(sizes)
    for tile in laid_out:
        assert tile.x >= -0.01
        assert tile.x + tile.width <= WIDTH + 0.01
        assert tile.y >= -0.01
        assert tile.y + tile.height <= HEIGHT + 0.01
    for one, other in itertools.combinations(laid_out, 2):
        wide = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
        high = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
        assert wide <= 0.01 or high <= 0.01


def test_what_is_small_is_one_rectangle_together():
    laid_out = tiles({f"p{number}": 1000 - number for number in range(MOST + 5)})
    assert len(laid_out) == MOST + 1
    assert laid_out[-1].name == REST
    assert laid_out[-1].size == sum(1000 - number for number in range(MOST, MOST + 5))


def test_nothing_gives_no_rectangle():
    assert tiles({}) == []
    assert tiles({"empty": 0}) == []


def test_rectangles_are_nearly_squares():
    laid_out = tiles(dict.fromkeys("abcdefghijkl", 100))
    ratios = [max(t.width / t.height, t.height / t.width) for t in laid_out]
    assert max(ratios) < 2


def test_a_label_fits_into_its_rectangle():
    for tile in tiles({"a-name-that-is-long" * 3: 1, "other": 99, "third": 5}):
        assert len(tile.label) * treemap.LETTER <= tile.width


def test_a_page_shows_names_as_text():
    bad = "<script>alert(1)</script>\x1b[31m"
    image = {"image": f"/x/{bad}", "bytes": 1, "files": 1, "files_bytes": 1, "sizes": {bad: 10**7}}
    change = {"name": bad, "how": "added", "before": "", "after": bad}
    empty = {part: [] for part in ("facts", "hooks", "services", "users")}
    owner = {"owner": bad, "files": [change], "before": 0, "after": 1}
    document = {"images": [image, image], "packages": [change], "owners": [owner], **empty}
    page = html.images(document)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page


def test_a_page_has_so_many_rows():
    rows = [{"name": f"p{n}", "how": "added", "before": "", "after": ""} for n in range(3000)]
    image = {"image": "a", "bytes": 1, "files": 1, "files_bytes": 1, "sizes": {}}
    empty = {part: [] for part in ("facts", "hooks", "services", "users", "owners")}
    page = html.images({"images": [image, image], "packages": rows, **empty})
    assert page.count("<td>added</td>") == html.MOST_ROWS
    assert "packages: 3000" in page
