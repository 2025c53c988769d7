"""hotplate.text: only printable text reaches the reader."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.errors import HotplateError
from hotplate.text import clean, clean_line, shortened


@pytest.mark.parametrize(
    ("dirty", "words"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        # Removing a nested sequence once must not leave another sequence.
        ("\x1b\x1b[0m[2Jx", "[2Jx"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]52;c;ZXZpbA==", "52;c;ZXZpbA=="),
        ("\x9b2Jx\x07\x08", "2Jx"),
        ("PAS\u202eDES\u202c\u2066\u200b", "PASDES"),
        ("a\u2028b\u2029c\U000e0041", "abc"),
        ("\ud800half", "\ufffdhalf"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("äöü 漢字 \u00a0", "äöü 漢字 \u00a0"),
    ],
)
def test_clean_removes_escape_sequences(dirty: str, words: str):
    assert clean(dirty) == words


@given(st.text(alphabet=st.characters(), max_size=60))
def test_clean_removes_all_invisible_characters(text: str):
    kinds = {unicodedata.category(each) for each in clean(text)} - {"Cn", "Co"}
    assert not kinds & {"Cf", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.category(each) == "Cc" for each in clean(text) if each not in "\t\n")
    clean(text).encode()
    assert clean(clean(text)) == clean(text)
    assert "\n" not in clean_line(text)


def test_error_message_is_cleaned():
    error = HotplateError('the guest said "\x1b]0;owned\x07\u202ex"', hint="run \x1b[2J")
    assert (error.message, str(error)) == (
        'the guest said "x"',
        'the guest said "x"\n  hint: run ',
    )


def test_long_text_is_shortened_with_its_length():
    assert shortened("abc", 3) == "abc"
    assert shortened("x" * 1000, 4) == "xxxx... (1000 characters)"
