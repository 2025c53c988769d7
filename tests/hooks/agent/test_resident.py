"""The agent as a service: its own command runs in a fork, any other in a shell."""

from pathlib import Path

import pytest
from programs import completed, program

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
AGENT = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
refused = int(sys.argv[4])
fork = os.fork
def fork_later():
    global refused
    if refused:
        refused -= 1
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()
os.fork = fork_later
from heat_agent import resident
resident.REFRESH = sys.argv[2]
resident._load()
open_files = os.listdir("/proc/self/fd")
print(resident.run(sys.argv[3], ["/a", "/b"]), flush=True)
assert os.listdir("/proc/self/fd") == open_files
"""
COMMAND = """\
#!/usr/bin/python3 -IS
import os, sys
print(os.environ["OS_CONFIG_FILES"], "heat_agent.refresh.program" in sys.modules, *sys.argv[1:])
sys.exit(3)
"""
KILLED = """\
#!/usr/bin/python3 -IS
import os
os.kill(os.getpid(), {})
"""


@pytest.fixture
def agent(tmp_path):
    """Run a command as the agent does; return its output and the status that the agent saw.

    *refused* is how many forks the kernel refuses first.
    """
    path = program(tmp_path / "os-refresh-config", COMMAND)

    def run(text: str, own: Path = path, refused: int = 0) -> list[str]:
        done = completed(
            ["/usr/bin/python3", "-IS", "-c", AGENT, HOOKS, own, text, str(refused)],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        )
        assert "Traceback" not in done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("text", ["os-refresh-config", " 'os-refresh-config' "])
def test_own_command_has_everything_loaded(agent, text):
    assert agent(text) == ["/a:/b True", "3"]


@pytest.mark.parametrize("text", ["os-refresh-config --x", "os-refresh-config # x", "exit 5"])
def test_other_command_runs_in_a_shell(agent, text):
    *printed, status = agent(text)
    if text == "exit 5":
        assert (printed, status) == ([], "5")
    else:
        words = " --x" if "--x" in text else ""
        assert (printed, status) == ([f"/a:/b False{words}"], "3")


def test_upstreams_program_is_a_process(agent, tmp_path):
    assert agent("os-refresh-config", tmp_path / "another") == ["/a:/b False", "3"]


def test_unparsable_command_runs_in_the_shell(agent):
    (status,) = agent("'")
    assert status == "2"


@pytest.mark.parametrize("number", [9, 15])
def test_status_after_a_signal_is_that_of_dash(agent, tmp_path, number):
    """Upstream starts the command in a shell; Debian's waits for it, and exits with 128 + n."""
    (tmp_path / "os-refresh-config").write_text(KILLED.format(number))
    assert agent("os-refresh-config") == [str(128 + number)]


def test_command_runs_in_the_shell_when_fork_fails(agent):
    """fork(2): EAGAIN at a limit of processes; the next may succeed. It used to end the agent."""
    assert agent("os-refresh-config", refused=1) == ["/a:/b False", "3"]


def test_agent_continues_when_no_process_can_be_started(agent):
    """The agent tries again after each poll, so no descriptor may stay open."""
    assert agent("os-refresh-config", refused=2) == ["127"]
