"""The types of --type, beside upstream's."""

import pytest
from heat_agent.apply import value_types
from heat_agent.apply.errors import ApplyError
from hypothesis import given, settings
from hypothesis import strategies as st
from os_apply_config import value_types as theirs
from os_apply_config.config_exception import ConfigException

TEXTS = [
    "",
    "0",
    "12",
    "-1",
    "1.5",
    "word_1",
    "two words",
    "with-dash",
    "line\n",
    "10.0.0.1/24",
    "fe80::1",
    "eth0:1",
    "mysql://user:pass@host/db?charset=utf8",
    "sqlite:////var/lib/x.db",
    "mysql://u:p:q@h.example/d-b",
    "http://",
    "r1z1-10.0.0.1:%PORT%/d1,r1z2-10.0.0.2:%PORT%/d2",
    "r1z1-10.0.0.1:6000/d1",
    "a;rm -rf /",
    "ünïcode",
]
LETTERS = "r1z2-a:/@?=%PORT,._ \n"


def accepts(check, text, kind, error):
    try:
        check(text, kind)
    except error:
        return False
    return True


def test_types_are_those_of_upstream():
    assert value_types.PATTERNS.keys() == theirs.TYPES.keys()


@pytest.mark.parametrize("kind", theirs.TYPES)
def test_each_type_accepts_the_values_of_upstream(kind):
    for text in TEXTS:
        expected = accepts(theirs.ensure_type, text, kind, ConfigException)
        assert accepts(value_types.check, text, kind, ApplyError) == expected, text


@settings(max_examples=300, deadline=None)
@given(
    st.text(LETTERS, max_size=12) | st.text("http://u:p@", max_size=12),
    st.sampled_from([*theirs.TYPES]),
)
def test_any_text_is_checked_as_by_upstream(text, kind):
    expected = accepts(theirs.ensure_type, text, kind, ConfigException)
    assert accepts(value_types.check, text, kind, ApplyError) == expected


def test_value_is_not_quoted_in_the_error():
    with pytest.raises(ApplyError) as refusal:
        value_types.check("s3cr3t value", "int")
    assert "s3cr3t" not in str(refusal.value)
