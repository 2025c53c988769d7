"""A hook that cannot be started for a moment is started later; one that never can is not.

The faults are planted in the runner's process: a limit on processes does not hold for root.
"""

import subprocess
from pathlib import Path

import pytest

from .conftest import PYTHON

HOOKS = Path(__file__).resolve().parents[3] / "hooks"

PLANTED = """
import errno, os, sys
sys.path.insert(0, {hooks!r})
from heat_config import process, runner
calls, fork = [], os.fork
def fail(number, nth=1):
    def failing(*_):
        calls.append(number)
        if len(calls) % nth == 0:
            raise OSError(number, os.strerror(number))
        return fork()
    return failing
{fault}
sys.exit(runner.main())
"""
# The first fork of each start is the pump's, the second the hook's.
FAULTS = {
    "hook-EAGAIN": ("os.fork = fail(errno.EAGAIN, 2)", "Resource temporarily unavailable"),
    "hook-ENOMEM": ("os.fork = fail(errno.ENOMEM, 2)", "Cannot allocate memory"),
    "pump-EAGAIN": ("os.fork = fail(errno.EAGAIN)", "Resource temporarily unavailable"),
    "note-ENOSPC": ("process.identity = fail(errno.ENOSPC)", "full"),
    "note-EDQUOT": ("process.identity = fail(errno.EDQUOT)", "full"),
    "files-EMFILE": ("os.memfd_create = fail(errno.EMFILE)", "Too many open files"),
}
PLAIN = f"#!{PYTHON} -IS\n"


@pytest.fixture(params=[PLAIN + "import sys\n", f"#!{PYTHON}\nimport sys\n"], ids=["fork", "exec"])
def look(request, guest):
    """A hook that records its run: in a fork of the runner, and as a program."""
    ran = guest.root / "ran"
    answer = """'{"deploy_status_code": 0}'"""
    guest.hook("look", request.param + f"open({str(ran)!r}, 'a').write('x')\nprint({answer})\n")
    guest.state.mkdir(mode=0o700)
    return ran


@pytest.fixture
def faulty(guest):
    """Do one pass with a fault; return its exit status."""

    def run(fault):
        code = PLANTED.format(hooks=str(HOOKS), fault=fault)
        return subprocess.run(
            [PYTHON, "-IS", "-c", code], env=guest.environment, timeout=60
        ).returncode

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_start_that_fails_is_tried_five_times(guest, heat, cfn, look, faulty, fault):
    planted, reason = FAULTS[fault]
    guest.metadata(cfn(group="look"))
    for _ in range(4):
        assert faulty(planted) == 1
        assert not look.exists()
        assert guest.state_of("d-1") == "received"
        assert guest.record("d-1")["heat_config"]["runs"] == 0
        assert not (guest.state / "d-1.pid").exists()
    assert heat.signals == []
    assert guest.run().status == 0
    assert guest.record("d-1")["heat_config"]["runs"] == 1
    assert look.read_text() == "x"
    assert [body["deploy_status_code"] for body in heat.signals] == [0]
    # Only failed passes in a row count.
    guest.metadata(cfn(group="look"), cfn(group="look", id="d-2"))
    for number in range(5):
        assert len(heat.signals) == 1, number
        assert faulty(planted) == 1
    body = heat.signals[1]
    assert body["deploy_status_code"] == 1
    assert reason in body["deploy_stderr"]
    assert "at every attempt" in body["deploy_stderr"]
    assert guest.run().status == 0
    assert look.read_text() == "x"
    assert guest.state_of("d-2") == "signalled"


def test_hook_that_can_never_start_fails_at_once(guest, heat, cfn):
    guest.hook("look", "#!/no/such/interpreter\n")
    assert guest.run(cfn(group="look")).status == 0
    assert heat.signals[0]["deploy_status_code"] == 126
