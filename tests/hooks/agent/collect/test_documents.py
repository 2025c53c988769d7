"""Documents of deployments and the cache, compared with upstream's code."""

from __future__ import annotations

import json
import stat
from types import SimpleNamespace

import pytest
from heat_agent.collect import documents
from heat_agent.collect.cache import Cache
from heat_agent.collect.documents import encode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from os_collect_config import cache as their_cache
from os_collect_config import merger

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
NAMES = st.sampled_from(["web", "cfn", "..", "a/b", "", "ü", "os_config_files"]) | VALUES
GROUPS = st.sampled_from(["os-apply-config", "Heat::Ungrouped", "script", None, ""]) | VALUES
DEPLOYMENT = VALUES | st.fixed_dictionaries(
    {}, optional={"name": NAMES, "group": GROUPS, "config": VALUES, "id": st.text()}
)
KEYS = ("deployments", "more")
DOCUMENT = st.dictionaries(st.text(), VALUES).flatmap(
    lambda plain: st.fixed_dictionaries(
        {}, optional={key: st.lists(DEPLOYMENT) | VALUES for key in KEYS}
    ).map(lambda lists: {**plain, **lists})
)
MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def theirs(document, keys):
    """Return the result of os_collect_config.merger, or None if it raises."""
    try:
        return merger.merged_list_from_content(document, keys, "cfn")
    except Exception:
        return None


@MANY
@given(document=DOCUMENT, keys=st.lists(st.sampled_from([*KEYS, "none"]), max_size=3))
def test_deployments_become_documents_as_upstream_s(document, keys):
    sentences: list[str] = []
    ours = documents.explode("cfn", document, keys, sentences.append)
    assert ours[0] == ("cfn", document)
    expected = theirs(document, keys)
    if expected is None:
        assert sentences  # every skipped deployment is logged
        return
    usable = [
        (name, config)
        for name, config in expected[1:]
        if documents.is_file_name(name) and name not in documents.RESERVED
    ]
    assert ours[1:] == usable


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "../escape", "config": 1},
        {"name": "a/b", "config": 1},
        {"name": "cfn", "config": 1},
        {"name": "ec2", "config": 1},
        {"name": "os_config_files", "config": 1},
        {"name": "", "config": 1},
        {"name": "x" * 201, "config": 1},
        {"name": "n\0l", "config": 1},
        {"name": "\ud800", "config": 1},
        {"name": ["list"], "config": 1},
        {"name": 5, "config": 1},
        {"name": "no config"},
        {"config": 1},
        "text with name",
        7,
        None,
    ],
    ids=repr,
)
def test_unusable_deployments_are_skipped_with_a_sentence(entry):
    """For some of these upstream writes outside its cache; others kill its daemon (C15)."""
    sentences: list[str] = []
    good = {"name": "good", "config": 2}
    pairs = documents.explode("cfn", {"d": [entry, good]}, ["d"], sentences.append)
    assert [name for name, _ in pairs] == ["cfn", "good"]
    assert len(sentences) == 1
    assert "escape" not in sentences[0]


def test_last_of_documents_with_the_same_name_is_used():
    pairs = [("a", 1), ("b", 2), ("a", 3)]
    assert documents.last_of_each(pairs) == [("b", 2), ("a", 3)]


@MANY
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["cfn", "a b", "ü"]),
            st.recursive(
                st.none() | st.integers() | st.text(),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                max_leaves=4,
            ),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_cache_has_the_same_files(tmp_path_factory, steps):
    base = tmp_path_factory.mktemp("caches")
    before = their_cache.cfg
    their_cache.cfg = SimpleNamespace(CONF=SimpleNamespace(cachedir=str(base / "theirs")))
    try:
        ours = Cache(str(base / "ours"))
        for key, document, commits in steps:
            expected, _ = their_cache.store(key, document)
            assert ours.store(key, encode(document)) is expected
            if commits:
                their_cache.commit(key)
                ours.commit(key)
    finally:
        their_cache.cfg = before
    assert tree(base / "ours") == tree(base / "theirs")


def tree(directory):
    return {
        path.name: (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in directory.glob("*")
    }


@pytest.mark.parametrize(
    ("before", "now", "is_change"),
    [
        ({"a": 1}, {"a": True}, True),
        ({"a": [0]}, {"a": [False]}, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({"a": float("nan")}, {"a": float("nan")}, False),
    ],
)
def test_change_is_a_difference_in_json(tmp_path, before, now, is_change):
    """Upstream compares with ==, where True equals 1 and NaN does not equal itself."""
    cache = Cache(str(tmp_path / "cache"))
    assert cache.store("cfn", encode(before))
    cache.commit("cfn")
    assert cache.store("cfn", encode(now)) is is_change


def test_damaged_last_counts_as_a_change(tmp_path):
    """A ``.last`` damaged by a power cut kills upstream at each start (json.load)."""
    cache = Cache(str(tmp_path))
    cache.store("cfn", "{}")
    for damage in (b"", b'{"a', b"\xff", b"[" * 100_000):
        (tmp_path / "cfn.json.last").write_bytes(damage)
        assert cache.store("cfn", "{}")
    cache.commit("cfn")
    assert not cache.store("cfn", "{}")


def test_unchanged_files_are_not_written(tmp_path):
    cache = Cache(str(tmp_path))
    cache.store("cfn", json.dumps({"a": 1}, indent=1))
    cache.commit("cfn")
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    cache.store("cfn", json.dumps({"a": 1}, indent=1))
    cache.commit("cfn")
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == inodes


def test_copy_of_the_cache_is_the_same(tmp_path):
    own, copy = tmp_path / "cache", tmp_path / "run" / "copy"
    cache = Cache(str(own))
    cache.store("cfn", "{}")
    (own / "local-data").mkdir(mode=0o750)
    (own / "local-data" / "x").write_text("y")
    (own / "link").symlink_to("cfn.json")
    copy.mkdir(parents=True)
    (copy / "stale").write_text("")
    cache.back_up(str(copy))
    assert sorted(path.name for path in copy.rglob("*")) == sorted(
        path.name for path in own.rglob("*")
    )
    assert stat.S_IMODE((copy / "local-data").stat().st_mode) == 0o750
    assert (copy / "link").read_text() == "{}"
    assert (copy / "cfn.json").stat().st_mtime_ns == (own / "cfn.json").stat().st_mtime_ns


@pytest.mark.parametrize("place", ["cache", "cache/copy", "."])
def test_copy_inside_of_the_cache_is_refused(tmp_path, place):
    cache = Cache(str(tmp_path / "cache"))
    cache.store("cfn", "{}")
    with pytest.raises(OSError, match="inside"):
        cache.back_up(str(tmp_path / place))
    assert (tmp_path / "cache" / "cfn.json").exists()
