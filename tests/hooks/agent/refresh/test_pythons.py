"""Both programs under each Python that an image may have, from the oldest on."""

import json
import os
from pathlib import Path

import pytest
from programs import completed, python_of

from .conftest import HOOKS, PYTHON, STAMPS

DRIVER = f"""
import sys
sys.path.insert(0, {str(HOOKS)!r})
from heat_config import forks
from heat_agent.apply import program
from heat_agent.refresh.refresh import refresh
# The scripts name /usr/bin/python3; the one of this test stands in for it.
forks.INTERPRETER = sys.executable
program.LOG_FILE = "/dev/null"
print(program.main(["-t", "templates", "-o", "output", "-m", "metadata.json"]), flush=True)
print(program.main(["--key", "list", "--type", "raw", "-m", "metadata.json"]), flush=True)
print(refresh("base", log=lambda *_: None, lockfile="lock"), flush=True)
"""
THREAD = (
    "import atexit, sys, threading, time\n"
    "atexit.register(print, 'at exit')\n"
    "said = threading.Event()\n"
    "def late(): said.wait(); time.sleep(0.1); print('thread')\n"
    "threading.Thread(target=late).start()\n"
    "print('heat_agent' in sys.modules)\n"
    "said.set()\n"
)
PROGRAM = "import json, sys\nprint(json.load(sys.stdin)['word'], 'heat_agent' in sys.modules)\n"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_programs_work_in_every_supported_python(tmp_path, version):
    python = python_of(version)
    write(tmp_path / "metadata.json", json.dumps({"word": "ü", "list": [1, None, {}]}))
    write(tmp_path / "templates/plain", "{{word}} {{#list}}<{{.}}>{{/list}}\n")
    write(tmp_path / "templates/plain.oac", "mode: 0600  # private\nallow_empty: no\n")
    write(tmp_path / "templates/program", PYTHON + PROGRAM, 0o755)
    write(tmp_path / "base/configure.d/10-thread", PYTHON + THREAD, 0o755)
    write(tmp_path / "base/configure.d/20-raises", PYTHON + "raise ValueError('why')\n", 0o755)
    write(tmp_path / "base/configure.d/30-plain", "echo a shell\n", 0o755)
    done = completed(
        [python, "-IS", "-W", "error", "-c", DRIVER],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.splitlines() == [
        "0",
        "[1, null, {}]",
        "0",
        "True",
        "thread",
        "at exit",
        "a shell",
        "1",
    ], done.stderr
    assert (tmp_path / "output/plain").read_text() == "ü <1><><{}>\n"
    assert (tmp_path / "output/plain").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "output/program").read_text() == "ü True\n"
    stderr = done.stderr
    for pattern, plain in STAMPS:
        stderr = pattern.sub(plain, stderr)
    for line in (
        "dib-run-parts: configure.d/10-thread status 0 after",
        "ValueError: why",
        "dib-run-parts: configure.d/20-raises status 1 after",
        "dib-run-parts: configure.d/30-plain status 0 after",
    ):
        assert line in stderr.splitlines()
