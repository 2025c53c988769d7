"""The hotplate command as it is typed: help, exit statuses, and nothing loaded needlessly."""

import subprocess
import sys

import pytest

from hotplate import cli
from hotplate.errors import EXIT_STATUSES


def hotplate(*words):
    return subprocess.run(
        [sys.executable, "-m", "hotplate", *words], capture_output=True, text=True, timeout=120
    )


def test_help_names_every_verb_and_the_exit_statuses():
    done = hotplate("--help")
    assert done.returncode == 0
    for verb in cli.VERBS:
        assert verb in done.stdout
    for status, meaning in EXIT_STATUSES.items():
        assert f"{status}      {meaning}" in done.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_explains_itself(verb):
    done = hotplate(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: hotplate" in done.stdout


@pytest.mark.parametrize(
    "words", [(), ("nonsense",), ("test",), ("--frobnicate",), ("test", __file__, "--image", "web")]
)
def test_wrong_usage_is_2_and_no_traceback(words):
    done = hotplate(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_help_does_not_load_heat():
    program = (
        "import sys; from hotplate.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('heat', 'oslo_config', 'pytest')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_only_the_verb_that_checks_expectations_promises_to():
    assert "(expect:)" in hotplate("test", "--help").stdout
    assert "expect" not in hotplate("up", "--help").stdout
