"""hotplate.stacks.document: a file is parsed once, or refused in one sentence."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.errors import TemplateError, UsageError
from hotplate.stacks import document


@pytest.fixture
def read(tmp_path):
    def read(content):
        path = tmp_path / "a.yaml"
        path.write_bytes(content)
        return document.read(path)

    return read


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"a: [1, b]\n", {"a": [1, "b"]}),
        (b'{"a": "b"}', {"a": "b"}),
        # Tabs: JSON that is not YAML.
        (b'{\n\t"a": 1e3\n}', {"a": 1000.0}),
        # And YAML that is not JSON.
        (b"{a: b}", {"a": "b"}),
        (b"", None),
        # Heat has no dates; python-heatclient sends this version as a text.
        (b"heat_template_version: 2018-08-31", {"heat_template_version": "2018-08-31"}),
    ],
)
def test_read_returns_the_content(read, content, value):
    assert read(content).content == value
    assert read(content).twice == ""


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"a: 1\nb: 2\na: 3\nb: 4\n", '"a" is in "{}" twice, in lines 1 and 3'),
        (b"x:\n  b: 1\n  b: 2\n", '"b" is in "{}" twice, in lines 2 and 3'),
        (b'{"x": [{"b": 1, "b": 2}]}', '"b" is in "{}" twice;'),
    ],
)
def test_duplicate_key_is_refused(read, content, where):
    read_back = read(content)
    assert read_back.twice.startswith(where.replace("{}", str(read_back.path)))


def test_merge_key_is_no_duplicate(read):
    read_back = read(b"a: &a {k: 1, l: 2}\nb: {<<: *a, k: 3}\nc: {<<: *a, k: 4}\n")
    assert read_back.content["b"] == {"k": 3, "l": 2}
    assert read_back.twice == ""


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\0", b"\0", b"a: &a\n\tb", b"? !!python/x"])
def test_invalid_file_is_refused_in_one_sentence(read, content):
    with pytest.raises(TemplateError, match=r'a\.yaml" cannot be read as YAML or JSON') as caught:
        read(content)
    assert "\n" not in caught.value.message


def test_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        document.read(tmp_path / "none.yaml")


@given(st.text(max_size=200))
def test_any_content_is_read_or_refused(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.yaml")
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            assert document.read(path).path == path
        except TemplateError as error:
            assert str(path) in error.message


@pytest.mark.parametrize(
    "content",
    [
        b"a: " + b"[" * 3000,
        b'{"a": ' + b"[" * 100_000,
        b"a: !!int ''",
        b"a: !!bool x",
        b"a: !!float 1:::",
        b"? {a: b}\n: c",
    ],
)
def test_text_that_pyyaml_trips_over_is_refused_in_one_sentence(read, content):
    """PyYAML 6.0 raises IndexError, KeyError, RecursionError and others of these."""
    with pytest.raises(TemplateError, match="cannot be read as YAML or JSON") as caught:
        read(content)
    assert "\n" not in str(caught.value)
