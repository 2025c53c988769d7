"""``expect:`` sections: their syntax, their errors and their results."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest
import testinfra

from hotplate.errors import UsageError
from hotplate.stacks import document, expect

HOT = """
heat_template_version: 2018-08-31
parameters:
  port: {type: number, default: 1}
resources:
  r:
    type: OS::Heat::SoftwareConfig
    properties:
      config: {get_file: script.sh}
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "web.yaml").write_text(HOT)
    (tmp_path / "script.sh").write_text("#!/bin/sh\n")

    def make(text: str) -> Path:
        path = tmp_path / "web-test.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return make


@pytest.fixture
def host():
    """The local host as a testinfra host."""
    return testinfra.get_host("local://")


def expected(write, text: str) -> expect.Expected:
    path = write(text)
    return expect.parse(path, document.read(path).content)


def test_template_beside_the_file_is_loaded(write):
    path = write(
        """
        template: web.yaml
        parameters: {port: 80}
        expect: {status: CREATE_FAILED}
        """
    )
    loaded = expect.load(path, parameters={"name": "x"})
    assert loaded.source == str(path)
    assert loaded.parameters == {"port": 80, "name": "x"}
    assert loaded.template["resources"]["r"]
    assert [Path(url).name for url in loaded.files] == ["script.sh"]
    assert loaded.expect_status == "CREATE_FAILED"
    assert loaded.expect({}) == []
    assert loaded.expect_guest is None


def test_inline_template_brings_the_files_it_names(write):
    path = write("expect:\ntemplate:\n" + textwrap.indent(HOT, "  "))
    loaded = expect.load(path)
    assert loaded.template["resources"]["r"]
    assert list(loaded.files.values()) == ["#!/bin/sh\n"]
    assert loaded.expect_status == "CREATE_COMPLETE"


def test_command_line_parameters_override_the_file(write):
    path = write("template: web.yaml\nparameters: {port: 80}\nexpect: {}\n")
    assert expect.load(path, parameters={"port": "81"}).parameters == {"port": "81"}


def test_plain_template_has_no_expectation(write):
    loaded = expect.load(write(HOT))
    assert loaded.expect is None
    assert loaded.template["resources"]["r"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("expect: {}", '"template" in "{}" is null; expected the name of a file, or a template'),
        ("template: web.yaml\nexpect: {}\nother: 1", '"other" in "{}" is not known'),
        ("template: web.yaml\nexpect: [1]", '"expect" in "{}" is [1]; expected a map'),
        ("template: web.yaml\nparameters: [1]\nexpect: {}", '"parameters" in "{}" is [1]'),
        ("template: web.yaml\nenvironments: e.yaml\nexpect: {}", "expected a list of file names"),
        ("template: none.yaml\nexpect: {}", 'none.yaml" does not exist'),
        ("template: web.yaml\nexpect: {status: DONE}", "expected one of CREATE_COMPLETE"),
        ("template: web.yaml\nexpect: {file: {}}", '"expect.file" in "{}" is not known'),
        ("template: web.yaml\nexpect: {files: [a]}", '"expect.files" in "{}" is ["a"]'),
        (
            "template: web.yaml\nexpect: {files: {/a: gone}}",
            '"expect.files./a" in "{}" is "gone"; expected one of present, absent, or a map of',
        ),
        (
            "template: web.yaml\nexpect: {files: {/a: {mode: 0644}}}",
            '"expect.files./a.mode" in "{}" is 420; expected a text in quotes, such as "0644"',
        ),
        (
            "template: web.yaml\nexpect: {files: {/a: {colour: red}}}",
            '"expect.files./a.colour" in "{}" is not known; expected one of exists,',
        ),
        (
            "template: web.yaml\nexpect: {services: {a: {running: 1}}}",
            '"expect.services.a.running" in "{}" is 1; expected true or false',
        ),
        (
            "template: web.yaml\nexpect: {commands: {ls: {status: true}}}",
            '"expect.commands.ls.status" in "{}" is true; expected a whole number',
        ),
        (
            'template: web.yaml\nexpect: {commands: {ls: {stdout: {matches: "("}}}}',
            '"expect.commands.ls.stdout.matches" in "{}" is "("; expected a regular expression',
        ),
        (
            'template: web.yaml\nexpect: {outputs: {a: {matches: "["}}}',
            '"expect.outputs.a.matches"',
        ),
        (
            "template: web.yaml\nexpect: {commands: {ls: {stdout: {like: a}}}}",
            '"expect.commands.ls.stdout.like" in "{}" is not known; expected one of equals,',
        ),
    ],
)
def test_error_is_reported_with_its_place(write, text, message):
    path = write(text)
    with pytest.raises(UsageError) as caught:
        expect.load(path)
    assert message.replace("{}", str(path), 1) in str(caught.value)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("actual", "wanted", "right"),
    [
        ("a\n", "a", True),
        ("a\n", "b", False),
        ("a b", {"contains": "b"}, True),
        ("a b", {"contains": "c"}, False),
        ("x\nport 80\n", {"matches": r"^port \d+$"}, True),
        ("port x", {"matches": r"^port \d+$"}, False),
        ("a b", {"contains": "a", "matches": "b$"}, True),
        ("a b", {"contains": "a", "matches": "a$"}, False),
        (3, 3, True),
        (True, 1, False),
        ("3", 3, False),
        ({"k": [1]}, {"k": [1]}, True),
        ({"k": [1]}, {"contains": '"k"'}, True),
        ({"contains": "x"}, {"equals": {"contains": "x"}}, True),
        (None, "", False),
    ],
)
def test_matches_compares_values(actual, wanted, right):
    assert expect.matches(actual, wanted) is right


def test_outputs_are_compared(write):
    expectation = expected(write, "outputs: {url: {contains: http}, code: 0, gone: 1}")
    assert expectation.of_outputs({"url": "http://x", "code": 0, "gone": 1}) == []
    assert expectation.of_outputs({"url": "ftp://x", "code": 1}) == [
        'output "url" is "ftp://x"; expected that it contains "http"',
        'output "code" is 1; expected 0',
        'there is no output "gone"; expected 1',
    ]


def test_files_pass_when_as_expected(write, host, tmp_path):
    (tmp_path / "motd").write_text("hello there\n")
    (tmp_path / "motd").chmod(0o640)
    expectation = expected(
        write,
        f"""
        files:
          {tmp_path}/motd: {{contains: hello, mode: "0640", size: 12, content: "hello there"}}
          {tmp_path}: {{directory: true}}
          {tmp_path}/none: absent
        """,
    )
    assert expectation.of_guest(host) == []


def test_files_fail_when_not_as_expected(write, host, tmp_path):
    (tmp_path / "motd").write_text("bye\n")
    (tmp_path / "motd").chmod(0o600)
    expectation = expected(
        write,
        f"""
        files:
          {tmp_path}/motd: {{contains: hello, mode: "0644"}}
          {tmp_path}/none: {{mode: "0644", contains: x}}
          {tmp_path}: absent
        """,
    )
    assert expectation.of_guest(host) == [
        f'the file "{tmp_path}/motd": its mode is "0600"; expected "0644"',
        f'the file "{tmp_path}/motd": its content is "bye\\n"; expected that it contains "hello"',
        f'the file "{tmp_path}/none" does not exist',
        f'the file "{tmp_path}": its exists is true; expected false',
    ]


def test_commands_are_checked(write, host):
    expectation = expected(
        write,
        """
        commands:
          "echo 100% of $((6 * 7)); exit 3": {status: 3, stdout: "100% of 42"}
          "true": succeeds
          "echo sorry >&2; false": {status: 0, stderr: {contains: sorry}}
        """,
    )
    assert expectation.of_guest(host) == [
        'the command "echo sorry >&2; false": its status is 1; expected 0'
    ]


@pytest.mark.tool("dpkg-query")
def test_packages_are_checked(write, host):
    version = subprocess.run(
        ["dpkg-query", "-f", "${Version}", "-W", "dpkg"], capture_output=True, text=True
    ).stdout
    expectation = expected(
        write,
        f"""
        packages:
          dpkg: {{installed: true, version: "{version}"}}
          no-such-package: absent
          no-such-either: installed
          no-such-third: {{version: "1"}}
        """,
    )
    expectation = expectation.of_guest(host)
    assert expectation[0] == ('the package "no-such-either": its installed is false; expected true')
    assert expectation[1].startswith('the package "no-such-third": its version cannot be checked')
    assert len(expectation) == 2


def test_duplicate_key_is_refused(write):
    """YAML silently takes the last one, so the checks of the first would never run."""
    path = write(
        """
        template: web.yaml
        expect:
          files:
            /etc/one: present
          packages: {x: installed}
          files:
            /etc/two: present
        """
    )
    with pytest.raises(UsageError, match=r'"files" is in .* twice, in lines 4 and 7'):
        expect.load(path)


class OddHost:
    """A testinfra host that does not know the package manager, or fails on an answer."""

    def package(self, name):
        raise NotImplementedError

    def service(self, name):
        raise KeyError("systemctl")

    def run(self, name):
        return testinfra.get_host("local://").run("echo hello")


def test_impossible_check_fails_alone(write):
    wanted = expected(
        write,
        """
        packages: {tree: installed}
        services: {cron: running}
        commands: {"echo hello": {stdout: goodbye}}
        """,
    )
    assert wanted.of_guest(OddHost()) == [
        'the package "tree" cannot be checked: NotImplementedError',
        "the service \"cron\" cannot be checked: 'systemctl'",
        'the command "echo hello": its stdout is "hello\\n"; expected "goodbye"',
    ]
