"""Shell completion by the Tab key, and the man page."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.cli import VERBS, completion, whole_parser
from hotplate.session.access import Access
from hotplate.session.channel import Control
from hotplate.session.directory import SessionDirectory

ROOT = Path(__file__).resolve().parents[2]
HOTPLATE = Path(sys.executable).with_name("hotplate")


@pytest.fixture
def offered(tmp_path):
    """Press Tab behind a line; return the completions that bash's shell function gets."""

    def press(line, cursor=None):
        answer = tmp_path / "answer"
        environ = {
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line) if cursor is None else cursor),
            "COMP_TYPE": "9",
        }
        work = tmp_path / "work"
        work.mkdir(exist_ok=True)
        (work / "web.qcow2").touch()
        subprocess.run([HOTPLATE], env=environ, cwd=work, check=True, timeout=60)
        return {each.strip() for each in answer.read_text().split("\n")}

    return press


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("hotplate ", set(VERBS), {"web.qcow2"}),
        ("hotplate hook ", {"new", "run", "check"}, {"build"}),
        ("hotplate inspect w", {"web.qcow2"}, {"--json"}),
        ("hotplate test --pause", {"--pause-on-fail"}, {"--keep"}),
        ("hotplate build --release t", {"trixie", "testing"}, {"bookworm", "web.qcow2"}),
        ("hotplate build --group script,p", {"script,puppet"}, {"puppet"}),
        ("hotplate build --package w", set(), {"web.qcow2"}),
    ],
)
def test_completion_offers_the_possible_words(offered, line, some, none):
    shown = offered(line)
    assert some <= shown
    assert not none & shown


def test_servers_of_a_session_are_offered(tmp_path):
    machines = [
        SimpleNamespace(
            spec=SimpleNamespace(id=name),
            machine=SimpleNamespace(config=SimpleNamespace(name=name)),
        )
        for name in ("web", "db")
    ]
    testbed = SimpleNamespace(servers=machines, names=lambda: {"web": "web", "db": "db"})
    directory = SessionDirectory(tmp_path / "up")
    typed = argparse.Namespace(directory=tmp_path / "up")
    assert list(completion._servers(typed)) == []
    with directory.claim():
        access = Access(testbed, directory)
        names = []
        with Control(directory.path, access.answer) as control:

            def ask():
                names.extend(completion._servers(typed))
                control.end()

            asking = threading.Thread(target=ask)
            asking.start()
            control.run()
            asking.join(30)
    assert names == ["web", "db"]


def test_completion_script_completes_hotplate_in_bash(tmp_path):
    script = ROOT / "docs" / "completion" / "hotplate"
    path = f"{HOTPLATE.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'. "{script}"; complete -p hotplate'],
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split()[-1:] == ["hotplate"], done.stderr
    assert "-F" in done.stdout


def test_help_does_not_import_argcomplete():
    code = "import sys, hotplate.cli as c; c._parser([]); sys.exit('argcomplete' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Return every long option of a parser and of its verbs."""
    names: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            names |= {word for each in action.choices.values() for word in options(each)}
        elif action.help != argparse.SUPPRESS:
            names |= {word for word in action.option_strings if word.startswith("--")}
    return names


def test_man_page_has_each_verb_and_option_and_no_date():
    """As in a built wheel; by names, because the layout depends on the version of Python."""
    spec = importlib.util.spec_from_file_location("wheel", ROOT / "docs" / "wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.page(ROOT)
    assert page.startswith('.TH HOTPLATE "1"\n')
    plain = page.replace("\\-", "-")
    assert [verb for verb in VERBS if f"hotplate {verb}'" not in plain] == []
    listed = set(re.findall(r"^\\fB(--[a-z-]+)|, \\fB(--[a-z-]+)", plain, re.MULTILINE))
    assert {one or two for one, two in listed} == options(whole_parser()) - {"--help"}
