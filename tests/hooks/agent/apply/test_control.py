"""Control files: a map in YAML, read as PyYAML reads it for upstream, or refused."""

import pytest
import yaml
from heat_agent.apply import control
from heat_agent.apply.errors import ApplyError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from os_apply_config.config_exception import ConfigException
from os_apply_config.oac_file import OacFile


def theirs(text):
    """Return (allow_empty, mode, owner, group) as upstream reads them; None where it fails."""
    try:
        settings = yaml.safe_load(text) or {}
        # Upstream lets a control file set other attributes of its object too.
        assert set(settings) <= set(control.KEYS)
        file = OacFile("", **settings)
    except Exception:
        return None
    return file.allow_empty, file.mode, file.owner, file.group


def ours(text):
    try:
        read = control.Control(control.parse(text))
    except ApplyError:
        return None
    return read.allow_empty, read.mode, read.owner, read.group


ACCEPTED = [
    "",
    "\n# nothing but a comment\n\n",
    "---\n",
    "--- # why\n",
    "--- {mode: 0600}\n",
    "{}",
    "mode: 0600",
    "mode: 0600\n",
    "mode: 0600\r\nowner: root\r\n",
    "---\nmode: 0600   # why\nowner: root\ngroup: root\nallow_empty: false\n...\n",
    "  mode: 384\n  group: 0\n",
    "mode: 0x180",
    "mode: 0b110",
    "mode: 1_0",
    "mode: 1:30",
    "mode: 0",
    "mode : 0600",
    "'mode': 0600\n\"owner\": 'root'\ngroup: \"root\"",
    "mode:\n  0600\n",
    "allow_empty: no",
    "allow_empty: On",
    "allow_empty: false\nallow_empty: true",
    "{mode: 0600, owner: root}",
    '{"mode": 384,\n "allow_empty": false, }  # as JSON',
    "\ufeffmode: 0600\n",
]

REFUSED = [
    "mode: 0o600",
    "mode: '0600'",
    "mode:",
    "mode: ~",
    "mode: true",
    "mode: 01000",
    "mode: -1",
    "mode: 1.5",
    "mode: [1]",
    "mode:0600",
    "mode: 0600: 0700",
    "mode: 0600\n owner: root",
    "mode: 0600\n\towner: root",
    "owner: nobody-has-this-name",
    "owner: 4000000000",
    "owner: '0'",
    "owner: yes",
    "group: 1.5",
    "allow_empty: 1",
    "allow_empty: 'false'",
    "unknown: 1",
    "- mode",
    "mode",
    "{mode: 0600",
    "{mode: 0600} }",
    "{mode: 0 # c}",
    "...",
    "mode: 0600\n---\nmode: 0700",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_valid_control_file_is_read_as_by_upstream(text):
    assert theirs(text) is not None
    assert ours(text) == theirs(text)


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_control_file_is_refused_as_by_upstream(text):
    assert theirs(text) is None
    assert ours(text) is None


def sentence(make):
    with pytest.raises((ApplyError, ConfigException)) as raised:
        make()
    return str(raised.value)


@pytest.mark.parametrize("key", ["owner", "group"])
@pytest.mark.parametrize(
    "value", ["nobody-has-this-name", "4000000000", "'0'", "''", "-1", "~", "no"]
)
def test_unknown_owner_or_group_is_named(key, value):
    text = f"{key}: {value}"
    ours = sentence(lambda: control.Control(control.parse(text)))
    assert ours == sentence(lambda: OacFile("", **yaml.safe_load(text)))
    database = "passwd" if key == "owner" else key
    word = yaml.safe_load(value)
    end = f"not found in {database} database"
    assert ours == f"{key} '{word}' {'must be a string or int' if word in (None, False) else end}"


@pytest.mark.parametrize("value", [1 << 70, "a\0b", "\ud800"], ids=ascii)
def test_owner_that_no_database_can_hold_is_one_sentence(value):
    """Upstream's lookups raise unexpected errors: a number too large, a null, a surrogate."""
    assert "not found in passwd database" in sentence(lambda: control.Control({"owner": value}))


@pytest.mark.parametrize("text", ["mode: !!int 0600", "mode: &x 0600", "owner: |-\n  root\n", "[]"])
def test_yaml_beyond_a_map_of_words_is_refused(text):
    """A row of the table of differences: upstream reads all of YAML."""
    assert theirs(text) is not None
    assert ours(text) is None


@pytest.mark.parametrize("text", ["_mode: other", "DEFAULTS: 1", "set: x"])
def test_other_keys_than_the_four_are_refused(text):
    """With upstream, any attribute of its object could be set."""
    assert OacFile("", **yaml.safe_load(text))
    with pytest.raises(ApplyError, match="unrecognised file control key"):
        control.Control(control.parse(text))


KEY = st.sampled_from(["mode", "owner", "group", "allow_empty", "'mode'", '"owner"', "bad", "yes"])
# fmt: off
VALUES = [
    "0600", "384", "0o600", "'0600'", "0x180", "0b1", "1:30", "+0600", "-1", "1_000", "yes", "Off",
    "true", "~", "null", "root", "'root'", "rootx", "0", "root#c", "a:b", "[1]", "*x", "-x",
    ":x", "root:", "root,", "08", "0_", "0b_", "1.5", "2001-01-01", "it''s", "'it''s'", "@x",
]
# fmt: on
ODD = ["", "0 # c", "a: b", "{a: b}", "? x", "- x", "root \t", "'a' b", "\n  0600"]
ODDER = ["\n 0600\n 0700", "\n  # c\n  0600"]
VALUE = st.sampled_from(VALUES + ODD + ODDER)
LINE = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", "", "", "  "]),
    KEY,
    st.sampled_from([": ", ": ", ":  ", " : ", ":"]),
    VALUE,
    st.sampled_from(["\n", "\n", "\n\n", " # c\n", "#c\n", ""]),
)
WORD_LINE = st.builds(
    "{}: {}{}".format,
    KEY,
    st.sampled_from([value for value in VALUES if value not in ("[1]", "*x", "@x")]),
    st.sampled_from(["\n", "\n\n", " # c\n", "#c\n"]),
)
PAIR = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from(["", " ", "\n"]),
    KEY,
    st.sampled_from([": ", ":", " : ", ":\n", "\n:", ""]),
    VALUE,
    st.sampled_from(["", " ", "\n", " # c\n"]),
)
FLOW = st.builds(
    lambda pairs, begin, end: begin + ",".join(pairs) + end,
    st.lists(PAIR, max_size=3),
    st.sampled_from(["{", "{ ", "{\n"]),
    st.sampled_from(["}", ",}", " }\n", ", }", "} # x", "} x", ""]),
)
HEAD = st.sampled_from(["", "", "---\n", "# c\n", "--- ", "...\n"])
TEXT = st.builds(
    "{}{}{}".format,
    HEAD,
    st.lists(LINE, max_size=4).map("".join) | FLOW | st.text("mode: 06'\"{},#\n-_~&|\t\xa0"),
    st.sampled_from(["", "", "...\n", "---\n", "# end"]),
)


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_accepted_yaml_has_the_meaning_of_pyyaml(text):
    """We may refuse more, but must never read a different value."""
    read = ours(text)
    if read is not None:
        assert read == theirs(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORD_LINE, max_size=3).map("".join))
@example("owner: 'root'#c\n")
def test_maps_of_one_word_lines_are_read_as_by_upstream(text):
    assert ours(text) == theirs(text)
