"""hotplate.settings: the source of each value, and a one-sentence error for a bad one."""

import ast
from pathlib import Path

import pytest

from hotplate import cli, settings
from hotplate.errors import UsageError
from hotplate.settings import AcceleratorChoice, Settings

HOTPLATE = Path(__file__).parents[2] / "hotplate"


def load(given=None, environ=None, directory=Path("/nonexistent")):
    return Settings.load(given or {}, environ=environ or {}, directory=directory)


def test_command_line_overrides_environment_overrides_file(tmp_path):
    (tmp_path / "hotplate.toml").write_text("memory = 512\ncpus = 1\npatience = 5\n")
    settings = load({"memory": 2048}, {"HOTPLATE_MEMORY": "768", "HOTPLATE_CPUS": "4"}, tmp_path)
    assert (settings.memory, settings.cpus, settings.patience) == (2048, 4, 5.0)
    assert settings.limit == Settings().limit


def test_enums_and_booleans_are_parsed():
    settings = load({}, {"HOTPLATE_ACCELERATOR": "tcg", "HOTPLATE_KEEP": "yes"})
    assert settings.accelerator is AcceleratorChoice.TCG
    assert settings.keep is True


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("MEMORY", "lots", "a number greater than zero"),
        ("MEMORY", "-5", "a number greater than zero"),
        *(("PATIENCE", value, "a number greater than zero") for value in ("nan", "inf", "1e400")),
        ("CPUS", "-1", "a number, or 0"),
        ("KEEP_RUNS", "all", "a number, or 0"),
        ("MEMORY", "0", "a number greater than zero"),
        ("ACCELERATOR", "warp", "one of auto, kvm, tcg"),
        ("KEEP", "perhaps", "true or false"),
    ],
)
def test_bad_value_is_named_with_its_source(name, value, expected):
    with pytest.raises(UsageError) as caught:
        load({}, {f"HOTPLATE_{name}": value})
    assert f"HOTPLATE_{name}" in str(caught.value)
    assert f'"{value}"' in str(caught.value)
    assert expected in str(caught.value)


def test_words_come_from_a_list_or_with_commas(tmp_path):
    assert load().skip == ()
    assert load({"skip": ["a,b", "c", "a"]}).skip == ("a", "b", "c")
    assert load({}, {"HOTPLATE_SKIP": "a, b,"}).skip == ("a", "b")
    (tmp_path / "hotplate.toml").write_text('skip = ["a", "b"]\n')
    assert load(directory=tmp_path).skip == ("a", "b")
    (tmp_path / "hotplate.toml").write_text("skip = [1]\n")
    with pytest.raises(UsageError, match=r'"skip" from .* expected words, with commas'):
        load(directory=tmp_path)


@pytest.mark.parametrize("name", ["cpus", "keep_runs"])
def test_zero_is_accepted_where_it_has_a_meaning(name):
    assert getattr(load({}, {f"HOTPLATE_{name.upper()}": "0"}), name) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memory = inf", '"memory" .* is "inf"; expected a number greater'),
        ("memmory = 1", '"memmory"'),
        ("artifacts = 5", '"artifacts" .* is "5"; expected a path'),
        ("[[artifacts]]", '"artifacts" .*; expected a path'),
        ("append = ['a']", '"append" .*; expected text'),
        ("keep_runs = 1.5", '"keep_runs" .* is "1.5"; expected a number'),
        ("limit = true", '"limit" .* is "True"; expected a number'),
        (f"limit = 1{'0' * 5000}", "cannot be read as TOML"),
        (f"limit = 1{'0' * 2000}", "(2001 characters)"),
        (f"limit = {'[' * 5000}", "cannot be read as TOML"),
        (f"{'x' * 5000} = 1", "(5000 characters)"),
    ],
)
def test_bad_line_of_the_file_is_named(tmp_path, line, words):
    (tmp_path / "hotplate.toml").write_text(f"{line}\n")
    with pytest.raises(UsageError, match=words):
        load(directory=tmp_path)


def test_whole_number_may_be_written_with_a_fraction(tmp_path):
    (tmp_path / "hotplate.toml").write_text("memory = 1e3\npatience = 5\n")
    assert (load(directory=tmp_path).memory, load(directory=tmp_path).patience) == (1000, 5.0)


def test_empty_variable_of_a_directory_counts_as_not_set(tmp_path):
    """The current directory is no cache: "hotplate cache clean" would remove files of the user."""
    empty = {"HOTPLATE_CACHE": "", "HOTPLATE_ARTIFACTS": "", "HOME": "/h"}
    assert load(environ=empty).cache == Path("/h/.cache/hotplate")
    assert load(environ=empty).artifacts == Path("artifacts")
    (tmp_path / "hotplate.toml").write_text('cache = "/filed"\n')
    assert load(environ=empty, directory=tmp_path).cache == Path("/filed")


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HOTPLATE_CACHE": "/here", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/here"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/hotplate"),
        ({"HOME": "/h"}, "/h/.cache/hotplate"),
    ],
)
def test_cache_setting_defaults_to_the_users_cache(tmp_path, environ, cache):
    assert load(environ=environ).cache == Path(cache)
    (tmp_path / "hotplate.toml").write_text('cache = "/filed"\n')
    by_file = {} if "HOTPLATE_CACHE" in environ else {"cache": Path("/filed")}
    assert load(environ=environ, directory=tmp_path).cache == by_file.get("cache", Path(cache))


#: Files outside hotplate/cli that may read it: a case, and a probe, runs in its own process.
ENTRY_POINTS = {
    "settings.py",
    "plugin/plugin.py",
    "hookkit/guest_runner.py",
    "hookkit/guest_check.py",
    *("cases/case_run.py", "cases/releases.py", "cases/side_by_side.py"),
    # testinfra makes it, and passes no settings.
    "session/testinfra_backend.py",
    "testbed/host_probes.py",
    # The kind of the terminal, as the standard library reads its size.
    "output.py",
}


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOTPLATE_MACHIN", "HOTPLATE_MACHINE"),
        ("HOTPLATE_KEEP_RUN", "HOTPLATE_KEEP_RUNS"),
        ("HOTPLATE_SIGN_PASSPHRAS", "HOTPLATE_SIGN_PASSPHRASE"),
    ],
)
def test_misspelt_variable_is_named_by_the_command(monkeypatch, capsys, name: str, meant: str):
    monkeypatch.setenv(name, "a secret")
    assert cli.main(["elements-path"]) == 0
    assert capsys.readouterr().err == f"hotplate: nothing reads {name}; did you mean {meant}?\n"


def test_known_and_foreign_variables_are_not_misspelt():
    known = [settings.variable_of(name) for name in settings.TABLE]
    foreign = ["HOTPLATE_TEST_PORTS", "HOTPLATE_WHEEL", "HOTPLATE", "MACHIN"]
    assert settings.misspelt(dict.fromkeys([*known, *settings.OTHER_VARIABLES, *foreign], "")) == {}


def test_environment_is_read_by_entry_points_only():
    reads = {
        str(path.relative_to(HOTPLATE))
        for path in HOTPLATE.rglob("*.py")
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(getattr(node, "value", None), ast.Name) and node.value.id == "os"
        )
    }
    assert {name for name in reads if not name.startswith("cli/")} == ENTRY_POINTS


@pytest.mark.parametrize("content", [b"memory = ", b"\xff\xfe"])
def test_broken_file_is_named(tmp_path, content):
    (tmp_path / "hotplate.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"hotplate\.toml"):
        load(directory=tmp_path)
