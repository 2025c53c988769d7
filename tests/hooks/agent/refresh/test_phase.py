"""One phase: the isolation of scripts, the ways of failing, and which scripts run in forks."""

import pytest
from programs import completed

from .conftest import HOOKS, PYTHON, Phases

#: As PYTHON, but never in a fork.
SPAWNED = "#!/usr/bin/python3 -ISu\n"
BASH = completed(["bash", "-c", 'echo "${BASH_VERSINFO[*]:0:2}"'], check=True)
#: bash's own status for a script whose interpreter is missing.
NO_INTERPRETER = 126 if tuple(map(int, BASH.stdout.split())) >= (5, 3) else 127


def lines(phases: Phases) -> list[str]:
    done = phases.ours()
    assert done.status == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'a=(no shebang); echo "${a[*]} $0" | sed "s|/.*/||"; exit 5', 5),
        (b"", 0),
        (b"\n", 0),
        (b"#!/usr/bin/python2.7-that-nobody-has\n", NO_INTERPRETER),
        (b"#!/bin/sh\r\necho never\r\n", NO_INTERPRETER),
        (b"#!/etc/passwd\n", 126),
        (b"#!/etc\n", 126),
        (b"#!\n", 0),
        (b"\x7fELF\x02\x01\x01\0" + b"\xff" * 120, 126),
        (b"\0\1\2 nothing that runs", 126),
    ],
    ids=repr,
)
def test_script_that_cannot_be_started_fails_alone(phases, content, expected):
    """Its status and output are those of dib-run-parts, which is bash."""
    phases.script("20-odd", content)
    theirs = phases.theirs()
    phases.script("10-first", "echo first")
    phases.script("30-last", "echo last")
    ours = phases.ours()
    assert ours.stdout == f"first\n{theirs.stdout}last\n"
    assert f"dib-run-parts: configure.d/20-odd status {expected} after" in ours.stderr
    assert "Traceback" not in ours.stderr
    assert (ours.status, theirs.status) == (int(expected != 0),) * 2
    if expected:
        assert f"returned non-zero exit status {expected}." in theirs.stderr
        assert f"returned non-zero exit status {expected}." in ours.stderr


def test_script_that_is_removed_fails_alone(phases):
    taken = phases.script("20-gone", "echo never")
    phases.script("10-takes", f"rm {taken}")
    phases.script("30-last", "echo last")
    done = phases.ours()
    assert (done.status, done.stdout) == (1, "last\n")
    assert "20-gone status 127" in done.stderr


ENDS = [
    "import sys; sys.exit(3)",
    "import sys; sys.exit(256 + 7)",
    "import sys; sys.exit(True)",
    "import sys; sys.exit('a word\\nand another')",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import os; print('kept?', flush=True); os._exit(4)",
    "print('before')\nraise OSError('what happened')",
    "def broken(:",
    "print('printed'); import sys; sys.stdout.close()",
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "def function(x: int): pass\nprint(function.__annotations__)",
]


@pytest.mark.parametrize("text", ENDS)
def test_fork_ends_as_a_python_of_its_own_does(phases, text):
    outcomes = []
    for first_line in (PYTHON, SPAWNED):
        phases.script("10-ends", first_line + text)
        done = phases.ours()
        status = [line for line in done.stderr.splitlines() if "10-ends status" in line]
        trace = done.stderr.partition("Traceback")[2].partition("dib-run-parts")[0]
        outcomes.append((done.status, done.stdout, status, trace))
    assert outcomes[0] == outcomes[1]


def test_fork_does_the_steps_of_a_python_s_end(phases):
    text = (
        "import atexit, logging.handlers, os, sys, tempfile, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "said = threading.Event()\n"
        "def late(): said.wait(); time.sleep(0.3); print('a thread')\n"
        "threading.Thread(target=late).start()\n"
        "kept = tempfile.TemporaryDirectory(dir='room')\n"
        "target = logging.StreamHandler(sys.stdout)\n"
        "logging.getLogger('x').addHandler(logging.handlers.MemoryHandler(9, target=target))\n"
        "logging.getLogger('x').error('a record')\n"
        "print('first')\n"
        "said.set()\n"
    )
    room = phases.root / "room"
    room.mkdir()
    phases.script("10-forked", PYTHON + text)
    phases.script("20-own", SPAWNED + text)
    shown = lines(phases)
    assert list(room.iterdir()) == []
    assert sorted(shown[:4]) == sorted(["first", "a thread", "at exit", "a record"])
    assert shown[:4] == shown[4:]


STATE = """
import os, signal, sys
print(__name__, len(sys.argv), __file__ == sys.argv[0])
print(sorted(n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
print(sorted(set(os.environ) - {'PWD', 'SHLVL', '_', 'OLDPWD'}), os.getcwd(), oct(os.umask(0)))
print([number for number in range(3, 64) if os.path.exists(f'/proc/self/fd/{number}')
       and os.readlink(f'/proc/self/fd/{number}') != '/dev/null'])
print(sys.flags.isolated, sys.flags.no_site)
print(os.isatty(0), sys.stdin.read() == '', sys.stdout.encoding, sys.stderr.errors)
"""


def test_script_finds_the_same_in_a_fork_as_in_a_python(phases):
    phases.script("10-forked", PYTHON + STATE)
    phases.script("20-own", SPAWNED + STATE)
    shown = lines(phases)
    half = len(shown) // 2
    assert shown[:half] == shown[half:]
    assert shown[0] == "__main__ 1 True"


def test_scripts_in_plain_python_run_in_forks(phases):
    what = "import sys; print('heat_agent.refresh' in sys.modules)"
    phases.script("10-forked", PYTHON + what)
    phases.script("20-with-site", "#!/usr/bin/python3\n" + what)
    phases.script("30-other-options", SPAWNED + what)
    phases.script("40-env", "#!/usr/bin/env python3\n" + what)
    assert lines(phases) == ["True", "False", "False", "False"]


def test_script_changes_nothing_for_the_next_one(phases):
    phases.script(
        "10-changes",
        PYTHON + "import os, sys\nos.chdir('/'); os.environ['LEFT'] = 'x'; os.umask(0o777)\n"
        "sys.path.insert(0, '/left'); sys.modules['left'] = sys; os.close(1)\n",
    )
    phases.script(
        "20-sees",
        PYTHON + "import os, sys\n"
        "print(os.environ.get('LEFT'), sys.path[0], 'left' in sys.modules, os.getcwd())",
    )
    assert lines(phases) == [f"None {HOOKS} False {phases.root}"]


def test_process_can_run_the_phases_repeatedly(phases):
    """The resident agent does so, with an environment of its choice."""
    phases.script("10-forked", PYTHON + "import os; print('forked', os.environ['ROUND'])")
    phases.script("20-process", 'echo "process $ROUND"')
    driver = (
        f"import os, sys; sys.path.insert(0, {str(HOOKS)!r})\n"
        "from heat_agent.refresh.refresh import refresh\n"
        "kept, before = [], os.listdir('/proc/self/fd')\n"
        "for number in range(3):\n"
        f"    status = refresh({str(phases.base)!r}, log=lambda *a: kept.append(' '.join(a)),\n"
        f"        lockfile={str(phases.lock)!r}, environment={{'ROUND': str(number)}})\n"
        "    print('status', status, flush=True)\n"
        "print(len(os.listdir('/proc/self/fd')) == len(before))\n"
        "print(kept.count('INFO Completed phase configure'))\n"
    )
    done = completed(["/usr/bin/python3", "-IS", "-c", driver])
    assert done.stdout.splitlines() == [
        line
        for number in range(3)
        for line in (f"forked {number}", f"process {number}", "status 0")
    ] + ["True", "3"], done.stderr
