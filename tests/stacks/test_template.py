"""hotplate.stacks.template: the data sent to Heat, and one-sentence errors."""

from pathlib import Path

import pytest

from hotplate.errors import TemplateError, UsageError
from hotplate.stacks import template

SAMPLE = Path(__file__).parents[1] / "seeds" / "one-template-sample" / "template.yaml"


def test_sample_template_brings_the_file_it_names():
    loaded = template.load(SAMPLE)
    assert [Path(url).name for url in loaded.files] == ["web.sh"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"heat_template_version: [", "cannot be"),
        (b"\x00\x01\x02", "cannot be"),
        (b"just a word", "cannot be"),
        (b"", "cannot be"),
        (
            b"heat_template_version: 2013-05-23\nresources:\n  c:\n"
            b"    type: OS::Heat::SoftwareConfig\n    properties:\n"
            b"      config: {get_file: gone.sh}\n",
            "gone.sh",
        ),
    ],
    ids=["missing", "broken-yaml", "binary", "no-map", "empty", "get_file"],
)
def test_unusable_template_error_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "template.yaml"
    if content is not None:
        path.write_bytes(content)
    # A missing file is a typing error, not a faulty template.
    kind = UsageError if content is None else TemplateError
    with pytest.raises(kind) as caught:
        template.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "resources", ["{a: {type: stack.yaml}}", "{a: &a {x: *a}}"], ids=["file", "alias"]
)
def test_template_that_names_itself_is_refused(tmp_path, resources):
    path = tmp_path / "stack.yaml"
    path.write_text(f"heat_template_version: 2018-08-31\nresources: {resources}\n")
    with pytest.raises(TemplateError, match="it names itself"):
        template.load(path)


def test_missing_environment_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"env\.yaml"):
        template.load(SAMPLE, environments=[tmp_path / "env.yaml"])


def test_parameters_are_split_into_name_and_value():
    assert template.parse_parameters(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}


@pytest.mark.parametrize("word", ["a", "=b", ""])
def test_parameter_without_a_name_is_refused(word):
    with pytest.raises(UsageError, match="name=value"):
        template.parse_parameters([word])


def test_builtin_template_checks_its_outputs():
    builtin = template.builtin()
    assert builtin.expect is not None
    good = {
        "word": builtin.parameters["word"],
        "status_code": 0,
        "stderr": "script warned\n",
        "stdout": 'script started\nnumber=42 flag=true tree={"fruit": ["apple", "pear"]}\n',
    }
    assert builtin.expect(good) == []
    for name in good:
        assert any(f'"{name}"' in problem for problem in builtin.expect({**good, name: "other"})), (
            name
        )


@pytest.mark.parametrize(
    ("declared", "given", "hidden"),
    [
        ({"key": {"type": "string", "hidden": True}}, {"key": "s3cret"}, {"s3cret"}),
        ({"key": {"type": "string", "hidden": True, "default": "d"}}, {}, {"d"}),
        ({"key": {"type": "string", "hidden": False}}, {"key": "s3cret"}, set()),
        ({"key": {"Type": "String", "NoEcho": "true"}}, {"key": "s3cret"}, {"s3cret"}),
        ({"key": {"hidden": True}}, {}, set()),
        ({"key": {"type": "json", "hidden": True}}, {"key": '{"a": ["b"]}'}, {'{"a": ["b"]}', "b"}),
        ({"key": {"type": "json", "hidden": True, "default": {"a": {"b": 1}}}}, {}, {"1"}),
        ({"key": {"type": "json", "hidden": True}}, {"key": "not JSON"}, {"not JSON"}),
        (
            {"key": {"type": "comma_delimited_list", "hidden": True}},
            {"key": "a, b"},
            {"a, b", "a", "b"},
        ),
        ({"key": {"Type": "CommaDelimitedList", "NoEcho": True}}, {"key": ["a", "b"]}, {"a", "b"}),
    ],
)
def test_hidden_values_are_masked(declared, given, hidden):
    parsed = template.Template("t", {"parameters": declared}, parameters=given)
    assert parsed.hidden_values() == hidden
    shown = {"key": "***" if hidden else "s3cret"} if given else {}
    assert parsed.shown_parameters() == shown
