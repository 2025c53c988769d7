"""The command os-apply-config beside upstream's 14.1: bytes, modes, statuses, output."""

import json
import os
import resource
import subprocess

import pytest
from heat_agent.apply import program

from .conftest import tree

SECRET = "s3cr3t"
METADATA = {
    "word": SECRET,
    "dash": "a-b c",
    "number": 7,
    "float": 1.5,
    "yes": True,
    "no": False,
    "null": None,
    "list": [{"name": "first"}, "second", None],
    "object": {"inner": {"deep": "grüße"}},
    "line": "one\ntwo",
}


@pytest.fixture
def asked(pair):
    """Both programs with METADATA."""
    pair.metadata(METADATA)
    return pair


KEYS = [
    ["--key", "word"],
    ["--key", "dash"],
    ["--key", "dash", "--type", "raw"],
    ["--key", "object.inner.deep", "--type", "raw"],
    ["--key", "object", "--type", "raw"],
    ["--key", "list.0.name"],
    ["--key", "list.-2"],
    ["--key", "list.2"],
    ["--key", "yes"],
    ["--key", "number", "--type", "int"],
    ["--key", "word", "--type", "int"],
    ["--key", "float"],
    ["--key", "word", "--type", "no-such-type"],
    ["--key", "missing"],
    ["--key", "missing", "--key-default", ""],
    ["--key", "null", "--key-default", "a default!"],
    ["--boolean-key", "yes"],
    ["--boolean-key", "no"],
    ["--boolean-key", "word"],
    ["--key", "word", "--boolean-key", "yes"],
    ["--no-such-option"],
]


@pytest.mark.parametrize("words", KEYS, ids=" ".join)
def test_keys_are_printed_as_by_upstream(asked, words):
    ours, theirs = asked.run(*words, "-m", "metadata.json")
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)
    if ours.status == 0:
        assert ours.lines == theirs.lines


def test_templates_of_every_kind_are_rendered_as_by_upstream(asked):
    asked.template("etc/plain", "word={{word}}\nlist={{list}}\n", "mode: 0600\n")
    if os.geteuid() == 0:
        asked.template("etc/nobody", "{{word}}", "owner: nobody\ngroup: 0\nmode: 0640")
    asked.template("etc/.hidden", "{{missing}}")
    asked.template("etc/empty", "", "")
    asked.template("etc/unwanted", "{{missing}}", "allow_empty: false")
    asked.template("gone", "{{null}}", "{allow_empty: no}")
    asked.template("var/lib/crlf", b"a\r\nb {{object.inner.deep}}\r\n")
    asked.template("kept", "{{#list}}{{name}}{{/list}}")
    asked.template("zero", "0", "mode: 0")
    asked.write(
        "templates/program", "#!/bin/sh\necho \"$GIVEN\"; tr -d ' \\n' | wc -c\n", mode=0o755
    )
    asked.write("templates/python", "#!/usr/bin/python3 -IS\nprint(open(0).read())\n", mode=0o755)
    asked.write("output/gone", "old")
    asked.write("output/kept", "old", mode=0o4751)
    for side in (asked.ours, asked.theirs):
        (side.output / "linked").symlink_to("kept")
        (side.templates / "linked").symlink_to("etc/plain")
        (side.templates / "to-a-folder").symlink_to("etc")
    ours, theirs = asked.apply(GIVEN="by the environment")
    assert theirs.status == 0, theirs.stderr
    assert ours.tree == theirs.tree
    assert ours.tree["etc/plain"][0].startswith("-rw-------")
    assert (ours.status, ours.stdout, ours.lines) == (0, theirs.stdout, theirs.lines)


def test_new_directories_have_the_modes_of_the_umask(asked):
    asked.template("a/b/c", "x")
    ours, theirs = asked.apply(umask=0o077)
    assert ours.tree == theirs.tree


def test_sources_of_metadata_are_those_of_upstream(asked):
    asked.template("file", "{{word}} {{more}} {{list}}")
    asked.write("more.json", '{"more": "m", "list": null}')
    asked.write("listed.json", json.dumps(["metadata.json", "more.json", "not-there", ""]))
    asked.write("array.json", "[1, 2]")
    paths = ["-t", "templates", "-o", "output", "--fallback-metadata"]
    for words, environment in [
        (["-m", "metadata.json", "more.json"], {}),
        (["-m", "metadata.json", "-m", "array.json", "more.json"], {}),
        ([], {"OS_CONFIG_FILES": "metadata.json:more.json:"}),
        ([], {"OS_CONFIG_FILES_PATH": "listed.json"}),
        (["--os-config-files", "listed.json"], {}),
        (["--subhash", "object.inner", "-m", "metadata.json"], {}),
    ]:
        ours, theirs = asked.run(*paths, *words, **environment)
        assert (ours.status, ours.tree, ours.lines) == (0, theirs.tree, theirs.lines), words
        assert theirs.status == 0
    ours, theirs = asked.run(
        *paths, "more.json", "--metadata", "metadata.json", OS_CONFIG_FILES="not-there"
    )
    assert ours.tree == theirs.tree


def test_template_directory_is_that_of_upstream(pair):
    for words, environment in [
        (["--print-templates"], {}),
        (["--print-templates", "-t", "/elsewhere"], {}),
        (["--print-templates"], {"OS_CONFIG_APPLIER_TEMPLATES": "/x"}),
    ]:
        ours, theirs = pair.run(*words, **environment)
        assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)


def test_version_is_that_of_upstream(pair):
    ours, theirs = pair.run("--version")
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)


def test_validate_writes_nothing(asked):
    asked.template("file", "{{word}}")
    ours, theirs = asked.apply("--validate")
    assert (ours.status, ours.tree, ours.lines) == (0, theirs.tree, theirs.lines)
    asked.template("bad", "{{/word}}")
    ours, theirs = asked.apply("--validate")
    assert (ours.status, theirs.status) == (1, 1)


MISTAKES = {
    "template": ("templates/bad", "{{#a}}{{/b}}", 0o644),
    "not UTF-8": ("templates/bad", b"\xff", 0o644),
    "program fails": ("templates/bad", "#!/bin/sh\nexit 3\n", 0o755),
    "program is none": ("templates/bad", "#!/no/such/interpreter\n", 0o755),
    "program prints no text": ("templates/bad", "#!/bin/sh\nprintf '\\377'\n", 0o755),
    "control key": ("templates/good.oac", "colour: red", 0o644),
    "control mode": ("templates/good.oac", "mode: 0o600", 0o644),
    "control owner": ("templates/good.oac", "owner: nobody-has-this-name", 0o644),
    "control file": ("templates/good.oac", "{mode: 0600", 0o644),
    "metadata": ("metadata.json", '{"word": ', 0o644),
    "a directory in the way": ("output/good/file", "x", 0o644),
    "a file in the way": ("output/etc", "x", 0o644),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_error_is_one_sentence_and_changes_nothing(asked, mistake):
    asked.template("a-first", "{{word}}")
    asked.template("good", "{{word}}")
    asked.template("etc/good", "{{word}}")
    name, content, mode = MISTAKES[mistake]
    asked.write(name, content, mode=mode)
    before = asked.ours.run("--print-templates").tree
    ours, theirs = asked.apply()
    assert (ours.status, theirs.status) == (1, 1)
    assert ours.stdout == ""
    assert "Traceback" not in ours.stderr
    assert "[ERROR] " in ours.stderr
    assert SECRET not in ours.stderr
    assert {path: entry for path, entry in ours.tree.items() if path != "etc"} == {
        path: entry for path, entry in before.items() if path != "etc"
    }


def test_program_with_windows_line_ends_is_explained(asked):
    """Upstream reports the file itself as missing."""
    asked.write("templates/bad", "#!/bin/sh\r\nexit 0\r\n", mode=0o755)
    ours, theirs = asked.apply()
    assert (ours.status, theirs.status) == (1, 1)
    assert r'the interpreter "/bin/sh\r" in its first line does not exist' in ours.stderr
    assert "its lines end with CR LF" in ours.stderr


def test_full_disk_changes_nothing_and_leaves_nothing(asked):
    """Files may have 1000 bytes here, so that the second cannot be written to its end."""
    asked.template("a", "new")
    asked.template("b", "x" * 2000)
    asked.write("output/a", "old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        ours = asked.ours.apply()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert ours.status == 1
    assert f"{asked.ours.output.name}/b cannot be written: File too large" in ours.stderr
    assert [(name, entry[1]) for name, entry in ours.tree.items()] == [("a", b"old")]


def test_half_a_character_is_refused_before_any_file_is_written(pair):
    """Upstream notices it after it has replaced the file before."""
    pair.metadata('{"half": "\\ud800"}')
    pair.template("a", "x")
    pair.template("b", "{{half}}")
    ours, theirs = pair.apply()
    assert (ours.status, theirs.status) == (1, 1)
    assert ours.tree == {}
    assert "Traceback" not in ours.stderr
    ours, theirs = pair.run("--key", "half", "--type", "raw", "-m", "metadata.json")
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout) == (1, "")


def test_metadata_may_come_through_a_pipe(asked):
    """Upstream reads its files twice for --key, and a pipe is empty the second time."""
    words = [str(asked.ours.program), "--key", "word", "-m", "/dev/stdin"]
    environment = {**os.environ, "HEAT_CONFIG_LIB": str(asked.ours.program.parent)}
    done = subprocess.run(
        words, input=json.dumps(METADATA).encode(), stdout=subprocess.PIPE, env=environment
    )
    assert (done.returncode, done.stdout) == (0, f"{SECRET}\n".encode())


def test_old_template_directories_are_used(tmp_path, monkeypatch, capsys):
    """The directories are those of os-apply-config 14.1, moved to tmp_path."""
    old, new = tmp_path / "old", tmp_path / "new"
    monkeypatch.setattr(program, "OLD_TEMPLATES", (str(tmp_path / "older"), str(old)))
    monkeypatch.setattr(program, "TEMPLATES", str(new))
    assert program.default_templates({}) == str(new)
    old.mkdir()
    assert program.default_templates({}) == str(old)
    assert "deprecated" in capsys.readouterr().err
    new.mkdir()
    assert program.default_templates({}) == str(new)
    assert program.default_templates({"OS_CONFIG_APPLIER_TEMPLATES": ""}) == ""


def test_old_list_of_files_is_used(tmp_path, monkeypatch, capsys):
    """With the default list empty, that of /var/run counts, as in os-apply-config 14.1."""
    (tmp_path / "old.json").write_text(json.dumps([str(tmp_path / "metadata.json")]))
    (tmp_path / "metadata.json").write_text('{"word": "from the old list"}')
    monkeypatch.setattr(program, "OLD_CONFIG_FILES", str(tmp_path / "old.json"))
    monkeypatch.setattr(program, "LOG_FILE", str(tmp_path / "log"))
    environment = {"OS_CONFIG_FILES_PATH": str(tmp_path / "none.json")}
    words = ["--key", "word", "--type", "raw", "--fallback-metadata"]
    assert program.main(words, environment) == 0
    out, err = capsys.readouterr()
    assert out == "from the old list\n"
    assert "[WARNING] DEPRECATED: falling back to" in err
    if os.geteuid() == 0:
        assert (tmp_path / "log").read_text() == err
        assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_apply_for_the_agent_does_the_same_as_the_command(asked, capsys, monkeypatch):
    monkeypatch.setattr(program, "LOG_FILE", str(asked.ours.root / "log"))
    asked.template("file", "{{word}}")
    ours, _ = asked.apply()
    folder = asked.ours.root
    paths = {"templates": folder / "templates", "output": folder / "again"}
    metadata = [str(folder / "metadata.json")]
    names = {name: str(path) for name, path in paths.items()}
    assert program.apply({}, metadata=metadata, fallback_metadata=[], **names) == 0
    assert tree(folder / "again") == ours.tree
    asked.metadata("{")
    assert program.apply({}, metadata=metadata, **names) == 1
    assert "[ERROR]" in capsys.readouterr().err
    with pytest.raises(TypeError, match="fallback"):
        program.apply({}, fallback=[])


@pytest.mark.parametrize("environment", [{}, {"OS_CONFIG_FILES_PATH": "/x"}])
def test_defaults_are_those_of_the_parser(environment):
    assert vars(program._options([], environment)) == program._defaults(environment)
