"""End a script with all its descendants."""

import subprocess

from heat_agent.refresh import processes
from programs import alive, wait_until


def test_all_descendants_of_a_process_are_ended(tmp_path):
    script = f"""
    for number in 1 2; do (sleep 600 & echo $! >>{tmp_path}/pids; wait) & done
    setsid sleep 600 & echo $! >>{tmp_path}/pids
    while [ "$(wc -l <{tmp_path}/pids)" -lt 3 ]; do sleep 0.05; done
    echo ready; wait
    """
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 3
        processes.kill(child.pid)
        assert child.wait(60) == -9
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))


def test_process_that_is_gone_is_no_error():
    with subprocess.Popen(["true"]) as child:
        child.wait()
    processes.kill(child.pid)
