"""hotplate.stacks.template: the data sent to Heat, and one-sentence errors."""

import os
from pathlib import Path

import pytest

from hotplate import yaml_text
from hotplate.errors import TemplateError, UsageError
from hotplate.stacks import template
from hotplate.stacks.fitting import Fit, fitted

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


LAUGHS = "\n".join(
    ["a0: &a0 {x: 1}"]
    + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
)


@pytest.mark.parametrize("content", [LAUGHS, '{"a": ' * 300 + "1" + "}" * 300])
def test_template_that_expands_without_a_limit_is_refused(tmp_path, content):
    path = tmp_path / "stack.yaml"
    path.write_text(content)
    with pytest.raises(TemplateError, match=r"grows by|nested too deeply") as caught:
        template.load(path)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("depth", [yaml_text.MAX_DEPTH + 1, 2000])
@pytest.mark.parametrize("where", ["default", "given"])
def test_json_text_that_is_nested_too_deeply_is_refused(tmp_path, where, depth):
    """Heat's engine would end in a RecursionError; a string is not parsed."""
    deep = "[" * depth + "1" + "]" * depth
    default = f", default: '{deep}'" if where == "default" else ""
    path = tmp_path / "stack.yaml"
    path.write_text(
        "heat_template_version: 2018-08-31\n"
        f"parameters: {{a: {{type: string{default}}}, b: {{type: json{default}}}}}\n"
    )
    given = {"a": deep, "b": deep} if where == "given" else {}
    with pytest.raises(TemplateError, match='its parameter "b" is nested too deeply'):
        template.load(path, parameters=given)


def _template_with_file(folder: Path, name: object) -> Path:
    path = folder / "stack.yaml"
    path.write_text(
        "heat_template_version: 2018-08-31\nresources:\n  c:\n"
        f"    type: OS::Heat::SoftwareConfig\n    properties: {{config: {{get_file: {name}}}}}\n"
    )
    return path


def test_device_in_place_of_a_file_is_refused(tmp_path):
    """It would be read until the host has no memory left."""
    with pytest.raises(TemplateError, match='"/dev/zero" cannot be read: it is not a regular'):
        template.load(_template_with_file(tmp_path, "/dev/zero"))


def test_fifo_in_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TemplateError, match='pipe" cannot be read: it is not a regular file'):
        template.load(_template_with_file(tmp_path, "pipe"))


@pytest.mark.parametrize("pending", [b"", b"a line"])
def test_file_that_waits_for_more_at_its_end_is_refused(tmp_path, monkeypatch, pending):
    """As /proc/kmsg does, which is a regular file by its mode."""
    os.mkfifo(tmp_path / "kmsg")
    stack = _template_with_file(tmp_path, "kmsg")
    # With a writer that stays, a read waits and the open does not.
    with (tmp_path / "kmsg").open("r+b", buffering=0) as stream:
        stream.write(pending)
        monkeypatch.setattr(Path, "is_file", lambda _: True)
        with pytest.raises(TemplateError, match='kmsg" cannot be read: it has no end'):
            template.load(stack)


def test_file_larger_than_any_request_is_refused(tmp_path):
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(template.MAX_FILE + 1)
    with pytest.raises(TemplateError, match='large" cannot be read: it is larger than 64 MiB'):
        template.load(_template_with_file(tmp_path, "large"))


@pytest.mark.parametrize("name", ["nested.yaml", "env.yaml"])
def test_other_file_that_expands_without_a_limit_is_refused(tmp_path, name):
    (tmp_path / name).write_text(LAUGHS)
    stack = _template_with_file(tmp_path, name if name == "nested.yaml" else "stack.yaml")
    (tmp_path / "empty.yaml").write_text("{}")
    environment = tmp_path / (name if name == "env.yaml" else "empty.yaml")
    if name == "env.yaml":
        stack.write_text("heat_template_version: 2018-08-31\nresources: {}\n")
    with pytest.raises(TemplateError, match=rf'{name}" cannot be read: it grows by'):
        template.load(stack, environments=[environment])


@pytest.mark.parametrize("content", ["cat <<end\n: [\nend\n", "a: !!int ''\n"])
def test_file_that_is_no_yaml_is_read_as_text_or_refused(tmp_path, content):
    (tmp_path / "script").write_text(content)
    try:
        loaded = template.load(_template_with_file(tmp_path, "script"))
    except TemplateError as error:
        assert "\n" not in error.message
    else:
        assert [*loaded.files.values()] == [content]


def test_names_in_files_are_looked_up_beside_them(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a file?.sh").write_bytes(b"\xff")
    _template_with_file(inner, "a file?.sh").rename(inner / "type.yaml")
    (tmp_path / "env.yaml").write_text("resource_registry: {X: inner/type.yaml}\n")
    stack = tmp_path / "stack.yaml"
    stack.write_text("heat_template_version: 2018-08-31\nresources: {x: {type: X}}\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "env.yaml")
    loaded = template.load(stack, environments=[tmp_path / "link.yaml"])
    assert {url.rpartition("/")[2]: text for url, text in loaded.files.items()}[
        "a file?.sh"
    ] == "/w==\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", "expected a map at its top"),
        ("resource_registry: [a]", "resource_registry: expected a map"),
        ("resource_registry: {a: 5}", 'resource_registry: "a": expected a type or a file'),
        ("resource_registry: {resources: {x: 5}}", "resources: expected a map of maps"),
        ("parameters:\n\ta: b\n", "cannot start any token .*line 2"),
        ("parameters: {a: \xe9}\n", "can't decode byte 0xe9"),
    ],
)
def test_misshapen_environment_is_named(tmp_path, text, why):
    (tmp_path / "env.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(TemplateError, match=f'env.yaml" cannot be read: .*{why}'):
        template.load(SAMPLE, environments=[tmp_path / "env.yaml"])


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


def test_hidden_values_of_an_environment_are_masked(tmp_path):
    path = tmp_path / "stack.yaml"
    hidden = "{type: string, hidden: true, default: c}"
    path.write_text(
        f"heat_template_version: 2018-08-31\nparameters: {{a: {hidden}, b: {hidden}}}\n"
    )
    environment = tmp_path / "env.yaml"
    environment.write_text("parameter_defaults: {a: one, b: never}\nparameters: {b: two}\n")
    assert template.load(path, environments=[environment]).hidden_values() == {"one", "two"}


@pytest.mark.parametrize("wrong", ["5", "[1]", "text"])
def test_parameters_of_another_kind_are_left_to_heat(tmp_path, wrong):
    path = tmp_path / "stack.yaml"
    path.write_text(f"heat_template_version: 2018-08-31\nparameters: {wrong}\n")
    assert template.load(path).hidden_values() == set()
    (tmp_path / "env.yaml").write_text(f"parameters: {wrong}\n")
    hidden = "heat_template_version: 2018-08-31\nparameters: {a: {hidden: true, default: b}}\n"
    path.write_text(hidden)
    loaded = template.load(path, environments=[tmp_path / "env.yaml"])
    assert loaded.hidden_values() == {"b"}
    assert fitted(loaded, Fit(image="i")).parameters == {}
