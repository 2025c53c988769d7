"""The phases in forks of the agent: the same as with each program in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"
FILES = ELEMENTS / "os-collect-config/os-collect-config-files"
PARTS = ELEMENTS / "os-refresh-config/os-refresh-config-files/dib-run-parts"
APPLY = ELEMENTS / "os-apply-config/os-refresh-config/configure.d/20-os-apply-config"

# The scripts ask for /usr/bin/python3, and so does the guest's environment; here they may differ.
DRIVER = f"""\
import subprocess, sys
sys.path.insert(0, {str(FILES)!r})
import run_phases
run_phases.INTERPRETER = sys.executable
assert run_phases.load()
"""
PYTHON = "#!/usr/bin/python3 -IS\n"


class Phases:
    """A tree of phases, and the ways to run them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / "orc"
        for name in ("pre-configure", "configure", "post-configure", "migration", "environment"):
            (self.base / f"{name}.d").mkdir(parents=True)
        programs = root / "bin"
        programs.mkdir()
        (programs / "dib-run-parts").symlink_to(PARTS)
        (programs / "os-apply-config").symlink_to(Path(sys.executable).with_name("os-apply-config"))
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LC_ALL": "C",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OS_REFRESH_CONFIG_BASE_DIR": str(self.base),
            "OS_CONFIG_APPLIER_TEMPLATES": str(root / "templates"),
            "OS_COLLECT_CONFIG_CONF": str(root / "none"),
            "HEAT_BOOT_METADATA": str(root / "none"),
        }

    def script(self, name: str, text: str, *, phase: str = "configure") -> Path:
        path = self.base / f"{phase}.d" / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def drive(self, text: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", DRIVER + text],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def forked(self, phase: str = "configure", **environment: str) -> tuple[int, str, str]:
        """A phase in forks: status, standard output, and what is said without its durations."""
        done = self.drive(
            "try:\n"
            f"    run_phases.check_call(['dib-run-parts', {str(self.base / phase)!r} + '.d'])\n"
            "except subprocess.CalledProcessError as error:\n"
            "    sys.exit(error.returncode)\n",
            **environment,
        )
        return done.returncode, done.stdout, timeless(done.stderr)

    def by_processes(self, phase: str = "configure", **environment: str) -> tuple[int, str, str]:
        """The same by the program dib-run-parts."""
        done = subprocess.run(
            [PARTS, self.base / f"{phase}.d"],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, timeless(done.stderr)


def timeless(text: str) -> str:
    return re.sub(r"after [0-9]+\.[0-9]{3} s", "after", text)


@pytest.fixture
def phases(tmp_path: Path) -> Phases:
    return Phases(tmp_path)


def test_names_and_order_are_those_of_dib_run_parts(phases: Phases) -> None:
    names = ["10-b", "9-a", "100-x", "010-a", "B", "a", "-5-x", "-a", "_x", "1_", "0x", "55-y", "5"]
    for name in [*names, "10-a.sh", "20-b~", ".hidden", "with blank"]:
        phases.script(name, f"echo '{name}'")
    phases.script("30-off", "echo off").chmod(0o644)
    (phases.base / "configure.d/40-directory").mkdir()
    status, stdout, stderr = phases.forked()
    assert stdout.split() != []
    assert sorted(stdout.split()) == sorted(names)
    assert (status, stdout, stderr) == phases.by_processes()
    only = {"RUN_PARTS_REGEX": "^[a-z]+$"}
    assert phases.forked(**only) == phases.by_processes(**only)


@pytest.mark.parametrize(
    "text",
    [
        "exit 3",
        "kill -9 $$",
        PYTHON + "import sys; sys.exit(3)",
        PYTHON + "import sys; sys.exit(256 + 7)",
        PYTHON + "import sys; sys.exit(True)",
        PYTHON + "import sys; sys.exit('a word\\nand another')",
        PYTHON + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        PYTHON + "import os; print('kept?', flush=True); os._exit(4)",
    ],
)
def test_a_script_that_fails_fails_its_phase_and_no_other_script(phases: Phases, text: str) -> None:
    phases.script("10-fails", text)
    phases.script("20-after", "echo reached; exit 77")
    status, stdout, stderr = phases.forked()
    assert status not in (0, 77)
    assert stdout.endswith("reached\n")
    expected = phases.by_processes()
    assert (status, stdout) == expected[:2]
    # Of a killed child, the shell says a line more.
    assert [line for line in stderr.splitlines() if line not in expected[2]] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'a=(no shebang); echo "${a[*]} $0" | sed "s|/.*/||"; exit 5', 5),
        (b"", 0),
        (b"\n", 0),
        (b"#!/usr/bin/python2.7-that-nobody-has\n", 127),
        (b"#!/bin/sh\r\necho never\r\n", 127),
        (b"#!/etc/passwd\n", 126),
        (b"#!/etc\n", 126),
        (b"#!\n", 0),
        (b"\x7fELF\x02\x01\x01\0" + b"\xff" * 120, 126),
        (b"\0\1\2 nothing that runs", 126),
    ],
    ids=repr,
)
def test_a_script_that_cannot_be_started_fails_alone(
    phases: Phases, content: bytes, expected: int
) -> None:
    """Bash has always run what has no "#!"; what it cannot start is one script's failure."""
    phases.script("10-first", "echo first")
    phases.script("20-odd", "").write_bytes(content)
    phases.script("30-last", "echo last")
    ways = [phases.forked(), phases.by_processes()]
    for status, stdout, stderr in ways:
        assert stdout.splitlines()[:: max(1, len(stdout.splitlines()) - 1)] == ["first", "last"]
        assert f"dib-run-parts: configure.d/20-odd status {expected} after" in stderr
        assert "Traceback" not in stderr
        assert status == expected
    assert ways[0][1] == ways[1][1]


def test_a_script_that_is_taken_away_fails_alone(phases: Phases) -> None:
    taken = phases.script("20-gone", "echo never")
    phases.script("10-takes", f"rm {taken}")
    phases.script("30-last", "echo last")
    for way in (phases.forked, phases.by_processes):
        status, stdout, stderr = way()
        assert (status, stdout) == (127, "last\n")
        assert "20-gone status 127" in stderr
        phases.script("20-gone", "echo never")


def test_what_a_python_does_at_its_end_is_done_in_a_fork(phases: Phases, tmp_path: Path) -> None:
    text = (
        "import atexit, logging.handlers, os, sys, tempfile, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('a thread'))).start()\n"
        "kept = tempfile.TemporaryDirectory(dir=os.environ['ROOM'])\n"
        "target = logging.StreamHandler(sys.stdout)\n"
        "logging.getLogger('x').addHandler(logging.handlers.MemoryHandler(9, target=target))\n"
        "logging.getLogger('x').error('a record')\n"
        "print('first')\n"
    )
    room = tmp_path / "room"
    room.mkdir()
    phases.script("10-forked", PYTHON + text)
    phases.script("20-own", "#!/usr/bin/python3\n" + text)
    status, stdout, stderr = phases.forked(ROOM=str(room))
    assert (status, list(room.iterdir())) == (0, []), stderr
    lines = stdout.splitlines()
    assert sorted(lines[:4]) == sorted(["first", "a thread", "at exit", "a record"])
    assert lines[:4] == lines[4:]


def test_an_exception_is_a_failure_with_its_traceback(phases: Phases) -> None:
    phases.script("10-raises", PYTHON + "print('before')\nraise OSError('what happened')\n")
    status, stdout, stderr = phases.forked()
    assert (status, stdout) == (1, "before\n")
    assert "OSError: what happened" in stderr
    assert "10-raises status 1" in stderr


def test_a_python_script_that_asks_for_nothing_is_run_in_a_fork(phases: Phases) -> None:
    what = (
        "import signal, sys\n"
        "print('os_refresh_config' in sys.modules, __name__, sys.argv, __file__ == sys.argv[0])\n"
        "print(signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN)\n"
    )
    forked = phases.script("10-forked", PYTHON + what)
    own = phases.script("20-own", "#!/usr/bin/python3\n" + what)
    status, stdout, _ = phases.forked()
    assert status == 0
    assert stdout.splitlines() == [
        f"True __main__ ['{forked}'] True",
        "True",
        f"False __main__ ['{own}'] True",
        "True",
    ]


def test_a_script_changes_nothing_for_the_next_one(phases: Phases) -> None:
    phases.script(
        "10-changes",
        PYTHON + "import os, sys\nos.chdir('/'); os.environ['LEFT'] = 'x'; os.umask(0o777)\n"
        "sys.path.insert(0, '/left'); os.close(1)\n",
    )
    phases.script("20-sees", PYTHON + "import os, sys\nprint(os.environ.get('LEFT'), sys.path[0])")
    status, stdout, _ = phases.forked()
    assert status == 0
    assert stdout.startswith("None ")
    assert "/left" not in stdout


def test_environment_files_are_for_a_shell(phases: Phases) -> None:
    (phases.base / "environment.d/10-x").write_text("export GIVEN=$((40 + 2))\n")
    phases.script("10-script", 'echo "$GIVEN"')
    assert phases.forked()[:2] == (0, "42\n")


def test_a_background_process_does_not_keep_the_phase(phases: Phases) -> None:
    phases.script("10-leaves", "sleep 60 > /dev/null 2>&1 & echo $! > $0.pid")
    try:
        assert phases.forked()[0] == 0
        os.kill(int((phases.base / "configure.d/10-leaves.pid").read_text()), 0)
    finally:
        os.kill(int((phases.base / "configure.d/10-leaves.pid").read_text()), 15)


@pytest.mark.parametrize(
    "command", ["true", "os-refresh-config | cat", "os-refresh-config; id", "/x/os-refresh-config"]
)
def test_any_other_command_is_the_agents_own_business(phases: Phases, command: str) -> None:
    phases.script("10-script", "echo reached")
    done = phases.drive(
        "run_phases.instead_of(lambda files, command: print('own', files, command))"
        f"(['a.json'], {command!r})\n"
    )
    assert done.stdout == f"own ['a.json'] {command}\n", done.stderr


def test_another_python_is_not_forked(phases: Phases) -> None:
    done = phases.drive("run_phases.INTERPRETER = '/bin/sh'\nprint(run_phases.load())\n")
    assert done.stdout == "False\n", done.stderr


def test_a_program_that_does_not_load_is_a_process_as_ever(phases: Phases) -> None:
    broken = phases.root / "broken" / "os_refresh_config"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('no kernel of ours')")
    done = phases.drive(
        f"sys.path.insert(0, {str(broken.parent)!r})\n"
        "for name in [name for name in sys.modules if name.startswith('os_refresh_config')]:\n"
        "    del sys.modules[name]\n"
        "print(run_phases.load())\n"
    )
    assert done.stdout == "False\n", done.stderr
    assert "os-refresh-config is not loaded ahead: RuntimeError('no kernel of ours')" in done.stderr


class Agent:
    """The real os-collect-config, for one round, with our way to run its command."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.lock = phases.root / "lock"
        local = phases.root / "local"
        local.mkdir(mode=0o700)
        self.document = local / "local.json"
        self.document.write_text('{"greeting": "hello", "deployments": []}')
        self.document.chmod(0o600)
        self.conf = phases.root / "conf"
        # Templates are found by the path that they make.
        self.rendered = phases.root / "rendered"
        template = phases.root / "templates" / str(self.rendered).lstrip("/")
        template.parent.mkdir(parents=True)
        template.write_text("{{greeting}}")

    def round(self, *, words: str = "") -> "subprocess.CompletedProcess[str]":
        self.conf.write_text(
            "[DEFAULT]\ncollectors = local\n"
            f"command = os-refresh-config --lockfile {self.lock}{words}\n"
            f"cachedir = {self.phases.root}/cache\n[local]\npath = {self.phases.root}/local\n"
        )
        return self.phases.drive(
            "from os_collect_config import collect\n"
            "collect.call_command = run_phases.instead_of(collect.call_command)\n"
            f"words = ['os-collect-config', '--config-file', {str(self.conf)!r}, '--one-time']\n"
            "sys.exit(collect.main(words))\n"
        )


@pytest.fixture
def agent(phases: Phases) -> Agent:
    return Agent(phases)


def test_the_real_programs_do_their_work(phases: Phases, agent: Agent) -> None:
    phases.script("20-os-apply-config", APPLY.read_text())
    phases.script("55-script", f"cat {agent.rendered}; cat $OS_CONFIG_FILES")
    done = agent.round()
    assert done.returncode == 0, done.stderr
    assert agent.rendered.read_text() == "hello"
    shown, _, rest = done.stdout.partition("{")
    assert shown == "hello"
    assert json.loads("{" + rest)["greeting"] == "hello"
    phases_said = re.findall(r"\[INFO\] (?:Starting|Completed) phase \S+", done.stderr)
    assert len(phases_said) == 8, done.stderr
    assert len(set(phases_said)) == 8, "no line is said twice"
    assert agent.lock.read_text() == ""


@pytest.mark.parametrize("text", ["exit 3", "#!/no/such/interpreter"])
def test_a_failure_is_tried_again_in_the_next_round(
    phases: Phases, agent: Agent, text: str
) -> None:
    phases.script("10-fails", text)
    phases.script("55-other", "echo the other script")
    phases.script("10-later", "echo a later phase", phase="post-configure")
    phases.script("10-error", "echo the error handler", phase="migration").rename(
        (phases.base / "error.d").mkdir() or phases.base / "error.d/10-error"
    )
    for _ in range(2):
        done = agent.round()
        assert done.returncode == 1
        assert "Command failed, will not cache new data" in done.stderr
        assert "the other script" in done.stdout
        assert "the error handler" in done.stdout
        assert "a later phase" not in done.stdout
    phases.script("10-fails", "exit 0")
    assert agent.round().returncode == 0
    assert "phase" not in agent.round().stderr, "nothing has changed since"


def test_its_time_limit_ends_what_hangs(phases: Phases, agent: Agent) -> None:
    phases.script("10-hangs", PYTHON + "import time; time.sleep(600)")
    done = agent.round(words=" --timeout 1")
    assert done.returncode == 1
    assert "Timeout reached: 1s" in done.stderr
    assert "10-hangs status 137" in done.stderr
