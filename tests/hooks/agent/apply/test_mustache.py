"""Templates render as with upstream's renderer (os-apply-config 14.1 on pystache)."""

import os

import pytest
from heat_agent.apply import mustache
from heat_agent.apply.errors import ApplyError
from heat_agent.apply.tree import render_one
from hypothesis import given, settings
from hypothesis import strategies as st
from os_apply_config import apply_config

DOCUMENT = {
    "a": {"b": {"c": "deep"}, "n": None},
    "text": "x < y & 'z' \"q\"",
    "unicode": "grüße ☃",
    "number": 1.50,
    "big": 10**30,
    "zero": 0,
    "true": True,
    "false": False,
    "null": None,
    "empty": "",
    "list": [1, "two", None, {"name": "three"}, [4, 5]],
    "nothing": [],
    "people": [{"name": "a", "jobs": ["x", "y"]}, {"name": "b", "jobs": []}],
    "name": "outer",
    "with blank": "a key",
}

TEMPLATES = [
    "",
    "plain\n",
    "{{text}} {{{text}}} {{&text}} {{ text }} {{{ text }}} {{& text }}",
    "{{unicode}} {{number}} {{big}} {{zero}} {{true}} {{false}} [{{null}}] [{{empty}}]",
    "{{list}} {{a}} {{a.b.c}} [{{a.x}}] [{{a.b.c.d}}] [{{a.n.x}}] [{{list.0}}] [{{missing}}]",
    "{{#list}}<{{.}}>{{/list}}",
    "{{#people}}{{#jobs}}{{.}}{{name}} {{/jobs}}{{^jobs}}none{{/jobs}};{{/people}}{{name}}",
    "{{#nothing}}never{{/nothing}}{{^nothing}}empty{{/nothing}}{{^missing}}missing{{/missing}}",
    "{{#zero}}0{{/zero}}{{#empty}}e{{/empty}}{{#null}}n{{/null}}{{#false}}f{{/false}}",
    "{{#true}}t{{/true}}{{^zero}}0{{/zero}}{{^null}}n{{/null}}",
    "{{#text}}{{.}}{{/text}}{{#number}}{{.}}{{/number}}",
    "{{#a}}{{#b}}{{c}}{{/b}}{{/a}} {{#a.b}}{{c}}{{name}}{{/a.b}}",
    "{{! a comment }}x{{!\nover lines\n}}y",
    "  {{! alone }}\nnext\n",
    "before\n  {{#people}}\n  {{name}}\n  {{/people}}\nafter\n",
    "before\r\n{{#people}}\r\n{{name}}\r\n{{/people}}\r\nafter",
    "{{=<% %>=}}<%name%> {{name}} <%={{ }}=%>{{name}} <%name%>",
    "{{=| |=}}|#people||name||/people|",
    "{{with blank}} {{ with blank }}",
    "{{.}}",
    "}} { {x} {{{{name}}}} {{name}",
    "{{ }} {{name}}",
    "{{#people}}not closed {{name}}",
    "a{{#people}}b{{#jobs}}c",
    "{{/people}}",
    "{{#people}}{{/name}}",
    "{{=x=}}",
    "{{> no-such-partial}}.",
    "\ufeff{{name}}",
    "{{name}}\n\n\n",
]


def theirs(template, document):
    """Return the text that upstream renders; None where it fails."""
    try:
        return apply_config.render_moustache(template, document)
    except Exception:
        return None


def ours(template, document):
    try:
        return mustache.render(template, document, lambda _name: "")
    except ValueError:
        return None


@pytest.mark.parametrize("template", TEMPLATES)
def test_corpus_renders_as_with_upstream(template):
    assert ours(template, DOCUMENT) == theirs(template, DOCUMENT)


BLANK = st.sampled_from(["", "", " ", "\t", "\n", "\r\n", "\r"])
NAME = st.sampled_from(["a", "b", "c", "a.b", "a.b.c", ".", "list", "list.0", "A b", ""])
MARKS = {kind: ("{{" + kind, "}}") for kind in "&#^/!>="} | {"": ("{{", "}}"), "{": ("{{{", "}}}")}
TAG = st.builds(
    lambda before, marks, inside, name, after: before + marks[0] + inside + name + marks[1] + after,
    BLANK,
    st.sampled_from(list(MARKS.values())),
    BLANK,
    NAME,
    BLANK,
)
NOISE = st.text("ab{}#^/&>!= \n\t\r.|<%", max_size=10)
SECTION = st.builds(
    lambda kind, name, blank, body: f"{{{{{kind}{name}}}}}{blank}{body}{{{{/{name}}}}}{blank}",
    st.sampled_from("#^"),
    NAME,
    BLANK,
    TAG | NOISE,
)
DELIMITERS = st.sampled_from(
    ["{{=<% %>=}}", "<%a%>", "<%={{ }}=%>", "{{=| |=}}", "|a|", "{{= }}", "{{==}}", "{{=# #=}}"]
)
TEMPLATE = st.lists(TAG | SECTION | DELIMITERS | NOISE, max_size=7).map("".join)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats()
    | st.text("a{}<&é\ud800\n", max_size=4)
)
KEY = st.sampled_from(["a", "b", "c", "list", "0", "A b", ""])
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4)
)


@settings(max_examples=500, deadline=None)
@given(TEMPLATE, st.dictionaries(KEY, VALUE, max_size=4))
def test_any_template_and_document_render_as_with_upstream(template, document):
    assert ours(template, document) == theirs(template, document)


PARTIALS = {
    "one": "[{{name}}]",
    "lines": "first\nsecond {{name}}\r\n\n",
    "nested": "({{> one}} {{#list}}{{> dot}}{{/list}})",
    "dot": "<{{.}}>",
    "folder/inside": "in a folder",
    "marks": "{{name}} <%name%>",
}


@pytest.mark.parametrize(
    "template",
    [
        "{{> one}}{{>lines}}",
        "  {{> lines}}\nafter",
        "\t{{> nested}}\n  x {{> lines}}\n",
        "{{#people}}\n {{> one}}\n{{/people}}",
        "{{=<% %>=}}<%> marks%>",
        "{{> folder/inside}} {{> ./one}} {{> missing}} {{> one.mustache}}",
    ],
)
def test_partials_are_files_of_the_working_directory(template, tmp_path, monkeypatch):
    """Upstream leaves pystache's default search in place: NAME.mustache below the directory."""
    (tmp_path / "folder").mkdir()
    for name, text in PARTIALS.items():
        (tmp_path / f"{name}.mustache").write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)
    expected = theirs(template, DOCUMENT)
    assert expected
    (tmp_path / "template").write_bytes(template.encode())
    assert render_one(str(tmp_path / "template"), DOCUMENT, os.environ) == expected


def test_template_that_includes_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.mustache").write_text("{{> loop}}")
    assert theirs("{{> loop}}", {}) is None
    with pytest.raises(ApplyError, match="has no end"):
        render_one("loop.mustache", {}, os.environ)
