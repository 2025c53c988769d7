"""docs/expect.rst: its example loads, and it documents every word."""

from pathlib import Path

import pytest

from hotplate.stacks import expect

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "expect.rst").read_text()


def test_documented_example_loads():
    template = expect.load(DOCS / "examples" / "expect" / "greeting.yaml")
    assert template.expect is not None
    assert list(template.expect({"greeting": "hello, world\n"})) == []
    assert len(template.expect({})) == 1
    assert template.expect_guest is not None


@pytest.mark.parametrize("name", expect.SECTIONS)
def test_every_word_of_a_section_is_documented(name):
    section = expect.SECTIONS[name]
    words = [name, *section.words, *(check.name for check in section.checks)]
    assert [word for word in words if f"``{word}``" not in PAGE] == []


def test_every_comparison_is_documented():
    assert [way for way in expect.WAYS if f"``{way}``" not in PAGE] == []
