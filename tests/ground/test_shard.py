"""Shards of a run, chosen by name alone."""

from __future__ import annotations

import os

import pytest

from hotplate.shard import Shard


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_each_name_is_in_exactly_one_shard(parts):
    shards = [Shard.parse(f"hash:{part}/{parts}") for part in range(1, parts + 1)]
    for name in [*(f"web.qcow2 {number}" for number in range(50)), os.fsdecode(b"a\xff.raw")]:
        assert sum(shard.has(name) for shard in shards) == 1


@pytest.mark.parametrize("text", ["1/2", "hash:0/2", "hash:3/2", "hash:a/b", "hash:1/0", "hash:1"])
def test_other_shard_syntax_is_refused(text):
    with pytest.raises(ValueError, match="is not of the form hash:M/N with 1 <= M <= N"):
        Shard.parse(text)
