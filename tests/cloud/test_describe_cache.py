"""The cache of polls: its contents, and its limit against guests that fill the memory."""

from __future__ import annotations

from typing import Any

import pytest

from hotplate.cloud.heat import describe_cache
from hotplate.cloud.heat.describe_cache import DescribeCache


class Heat:
    """Answers and counts polls."""

    def __init__(self) -> None:
        self.asked = 0
        self.version = 1
        self.status = "200 OK"
        self.body = b"metadata"

    def __call__(self, _environ: Any, start_response: Any) -> list[bytes]:
        self.asked += 1
        start_response(self.status, [("Content-Type", "text/xml")])
        return [self.body]


@pytest.fixture
def heat() -> Heat:
    return Heat()


@pytest.fixture
def cache(heat: Heat) -> DescribeCache:
    return DescribeCache(heat, lambda: heat.version)


def poll(cache: DescribeCache, extra: str = "") -> bytes:
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/v1/",
        "QUERY_STRING": f"Action=DescribeStackResource&StackName=s{extra}",
    }
    return b"".join(cache(environ, lambda *_: None))


def test_poll_is_cached_until_the_database_changes(heat: Heat, cache: DescribeCache) -> None:
    assert [poll(cache), poll(cache, "&Signature=1"), heat.asked] == [heat.body, heat.body, 1]
    heat.version, heat.body = 2, b"other"
    assert [poll(cache), heat.asked] == [b"other", 2]


def test_cache_is_limited_in_bytes(
    heat: Heat, cache: DescribeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_cache, "MAX_BYTES", 100_000)
    heat.body = b"x" * 10_000
    # As a guest's signed polls with a meaningless parameter.
    for number in range(100):
        poll(cache, f"&x={number}")
    kept = len(cache._answers)
    assert 5 < kept < 10
    assert cache._bytes == sum(size for _, _, size in cache._answers.values()) <= 100_000
    asked = heat.asked
    for number in range(100 - kept, 100):
        poll(cache, f"&x={number}")
    assert heat.asked == asked
    heat.body = b"x" * 200_000
    assert poll(cache, "&x=large") == heat.body
    assert cache._bytes <= 100_000


def test_long_query_counts_for_the_limit(
    cache: DescribeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_cache, "MAX_BYTES", 100_000)
    for number in range(100):
        poll(cache, f"&x={number:08000}")
    assert len(cache._answers) <= 12


def test_answered_poll_leaves_no_lock(heat: Heat, cache: DescribeCache) -> None:
    for status in ("200 OK", "403 Forbidden"):
        heat.status = status
        for number in range(50):
            poll(cache, f"&x={status[:3]}{number}")
    assert cache._locks == {}
    assert len(cache._answers) == 50
