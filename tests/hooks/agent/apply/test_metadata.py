"""Reading, merging and looking up metadata, beside upstream's functions."""

import json
import os

import pytest
from heat_agent.apply import metadata
from heat_agent.apply.errors import ApplyError
from hypothesis import given, settings
from hypothesis import strategies as st
from os_apply_config import apply_config, collect_config
from os_apply_config.config_exception import ConfigException

WORD = st.sampled_from(["a", "b", "0", "1", "-1", " 1 ", "\u0661", "x", ""])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
)
OBJECT = st.dictionaries(WORD, VALUE, max_size=3)
DOTTED = st.lists(WORD, min_size=1, max_size=4).map(".".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(OBJECT | VALUE, max_size=4))
def test_documents_are_merged_as_upstream_merges_them(documents):
    before = json.dumps(documents)
    assert metadata.merge(documents) == collect_config.merge_configs(documents)
    assert json.dumps(documents) == before, "the documents stay as they are"


@settings(max_examples=200, deadline=None)
@given(OBJECT, DOTTED)
def test_key_has_the_value_of_upstream(tmp_path_factory, document, key):
    path = tmp_path_factory.getbasetemp() / "keys.json"
    path.write_text(json.dumps(document))
    assert metadata.value_of(document, key) == apply_config._extract_key([str(path)], key)


@settings(max_examples=200, deadline=None)
@given(OBJECT, DOTTED | st.none())
def test_part_is_that_of_upstream(document, key):
    try:
        expected = apply_config.strip_hash(document, key)
    except ConfigException as error:
        with pytest.raises(ApplyError, match="does not correspond to a hash"):
            metadata.part(document, key)
        assert "does not correspond to a hash" in str(error)
    else:
        assert metadata.part(document, key) == expected


def test_missing_files_are_skipped(tmp_path):
    here = tmp_path / "here"
    here.write_text('{"a": {"b": 1}}')
    over = tmp_path / "over"
    over.write_text('{"a": {"c": null}}')
    paths = ["", str(tmp_path / "not"), str(here), str(over)]
    assert metadata.collect(paths) == collect_config.collect_config(paths)
    assert metadata.collect(paths) == {"a": {"b": 1, "c": None}}


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"secret": value}', b"\xff{}", b"\xef\xbb\xbf{}", b"[" * 100_000, b"{}x"],
    ids=repr,
)
def test_invalid_json_is_one_sentence_without_its_content(tmp_path, data):
    """Upstream ends with status 1 too, for most of these with a traceback."""
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises((ConfigException, UnicodeDecodeError, RecursionError)):
        collect_config.collect_config([str(path)])
    with pytest.raises(ApplyError) as refusal:
        metadata.collect([str(path)])
    assert str(refusal.value) == f"Could not parse metadata file: {path}"


def test_directory_is_an_error(tmp_path):
    with pytest.raises(ApplyError, match="Could not open"):
        metadata.collect([str(tmp_path)])


def test_documents_nested_too_deeply_are_refused():
    document = {}
    for _ in range(100_000):
        document = {"a": document}
    with pytest.raises(ApplyError, match="too deeply"):
        metadata.merge([document, document])
    while document:  # freed at once, the interpreter would recurse into it
        document = document.pop("a")


@pytest.mark.parametrize("text", ["{}", '"a"', "[1]", "{"])
def test_invalid_list_of_files_is_refused(tmp_path, text):
    path = tmp_path / "os_config_files.json"
    path.write_text(text)
    with pytest.raises(ApplyError):
        metadata.read_list(str(path))


def test_list_of_files_is_read(tmp_path):
    path = tmp_path / "os_config_files.json"
    assert metadata.read_list(str(path)) == []
    path.write_text('["/a", "", null]')
    assert metadata.read_list(os.fspath(path)) == ["/a"]
