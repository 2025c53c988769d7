"""Scripts compiled before their fork: when the compiled code is used, and when not."""

import os

import pytest
from programs import completed

from .conftest import HOOKS

PROGRAM = """
import builtins, os, sys
sys.path.insert(0, sys.argv[1])
from heat_config import forks, process
path = sys.argv[2]
forks.compile_ahead([path, path + "-that-is-not-there"])
kept = os.stat(path)
exec(sys.argv[3])
compiled = []
real = builtins.compile
def compile(*arguments, **options):
    sys.stderr.write("compiled\\n")
    return real(*arguments, **options)
builtins.compile = compile
print(process.wait(forks.start(path, os.environ)), flush=True)
"""
SCRIPT = "#!/usr/bin/python3 -IS\nprint('one', flush=True)\n"


def ran(tmp_path, text: str, change: str) -> tuple[list[str], bool, str]:
    """Return the output of a script and its parent, if the fork compiled it, and its errors."""
    script = tmp_path / "script"
    script.write_text(text)
    words = ["/usr/bin/python3", "-IS", "-c", PROGRAM, HOOKS, script, change]
    done = completed(words, check=True)
    return done.stdout.split(), "compiled\n" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("change", "printed", "compiled"),
    [
        ("", "one", False),
        ("os.utime(path)", "one", True),
        ("with open(path, 'a') as stream: stream.write('print(2)')", "one 2", True),
        # The same size and time as before.
        (
            "with open(path, 'r+') as stream: stream.write(stream.read().replace('one', 'two'))\n"
            "text = open(path).read().split('\\n', 2)[2]\n"
            "open(path, 'w').write(text)\n"
            "os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))",
            "two",
            True,
        ),
        (
            "open(path + '.new', 'w').write(open(path).read().replace('one', 'new'))\n"
            "os.rename(path + '.new', path)",
            "new",
            True,
        ),
    ],
)
def test_script_changed_since_is_compiled_by_its_fork(
    tmp_path, change: str, printed: str, compiled: bool
) -> None:
    words, by_fork, errors = ran(tmp_path, SCRIPT, change)
    assert (words, by_fork) == ([*printed.split(), "0"], compiled), errors


def test_script_that_cannot_be_compiled_fails_in_its_fork(tmp_path) -> None:
    words, by_fork, errors = ran(tmp_path, SCRIPT + "no python\n", "")
    assert (words, by_fork) == (["1"], True)
    assert "SyntaxError" in errors


@pytest.mark.parametrize(
    "text",
    [
        f"x = {'(' * 5000}1{')' * 5000}\n",
        f"x = {'-' * 200_000}1\n",
        "x = 'a null \0'\n",
    ],
    ids=["parentheses", "minus signs", "null"],
)
def test_broken_script_fails_alone(tmp_path, text: str) -> None:
    words, _, errors = ran(tmp_path, SCRIPT + text, "")
    assert words == ["1"], errors
    assert "Error" in errors


def test_python_warning_is_printed_by_the_fork(tmp_path) -> None:
    words, by_fork, errors = ran(tmp_path, SCRIPT + "assert 1 is 1\n", "")
    assert (words, by_fork) == (["one", "0"], True)
    assert errors.count("SyntaxWarning") == 1


def test_pipe_among_the_scripts_does_not_block(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    change = f"forks.compile_ahead([{str(tmp_path / 'pipe')!r}, {str(tmp_path)!r}])"
    assert ran(tmp_path, SCRIPT, change)[:2] == (["one", "0"], False)
