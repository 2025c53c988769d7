"""The hotplate command as a user types it: help, exit statuses, and no needless imports."""

import argparse
import subprocess
import sys

import pytest
from hotplate_command import hotplate

from hotplate import cli
from hotplate.errors import EXIT_STATUSES


def test_help_names_every_verb_and_the_exit_statuses():
    words = [sys.executable, "-m", "hotplate", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    for verb in cli.VERBS:
        assert verb in done.stdout
    for status, meaning in EXIT_STATUSES.items():
        assert f"{status}      {meaning}" in done.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_each_verb_has_help(verb):
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


def parsers(parser):
    """Yield the parser of each verb, and of each verb below one."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for each in action.choices.values():
            yield from parsers(each)


def needed(parser):
    """Return the mandatory words of a verb."""
    for action in parser._actions:
        if action.option_strings:
            words = [action.option_strings[-1]] if action.required else []
        else:
            words = [] if action.nargs in ("*", "?") else [""]
        if words:
            yield from filter(None, words)
            yield str(next(iter(action.choices or ["1"])))


@pytest.mark.parametrize("verb", [*parsers(cli.whole_parser())], ids=lambda verb: verb.prog)
def test_misspelt_option_is_answered_by_its_verb_with_the_nearest(verb, capsys):
    options = [name for each in verb._actions for name in each.option_strings]
    name = max(options, key=len)
    misspelt = name[:4] + name[5:]
    assert misspelt not in options
    # First: after a server, ssh and others take all words for their command.
    words = [*verb.prog.split()[1:], misspelt, *needed(verb)]
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: {verb.prog} [-h]")
    assert error.endswith(
        f"error: unrecognized arguments: {misspelt} (the nearest option is {name})\n"
    )


def test_misspelt_option_keeps_its_value_and_may_be_like_none(capsys):
    for words, nearest in (
        (["--frmware", "uefi"], " (the nearest option is --firmware)"),
        (["--frmware=uefi"], " (the nearest option is --firmware)"),
        (["--qqqqqq"], ""),
    ):
        with pytest.raises(SystemExit):
            cli.main(["up", "web.qcow2", *words])
        error = capsys.readouterr().err
        assert error.startswith("usage: hotplate up ")
        assert error.endswith(f"unrecognized arguments: {' '.join(words)}{nearest}\n")


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


def test_only_help_of_test_mentions_expectations():
    assert "(expect:)" in hotplate("test", "--help").stdout
    assert "expect" not in hotplate("up", "--help").stdout
