"""The search for programs in PATH, and the wait for a child."""

import os
import shutil
import threading

import pytest
from heat_config import process


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Two directories, of which the first is the current one."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for program, mode in (("both", 0o755), (f"only-{name}", 0o755), (f"no-{name}", 0o644)):
            (tmp_path / name / program).write_text("")
            (tmp_path / name / program).chmod(mode)
    (tmp_path / "one" / "only-two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    return tmp_path


@pytest.mark.parametrize("path", ["{0}/one:{0}/two", "/none:{0}/two:", ":{0}/two", "", None])
def test_program_path_is_that_of_which(programs, monkeypatch, path):
    if path is None:
        monkeypatch.delenv("PATH")
    else:
        monkeypatch.setenv("PATH", path.format(programs))
    names = [
        "both",
        "only-one",
        "only-two",
        "no-one",
        "no-two",
        "none",
        "",
        "sh",
        "/bin/sh",
        "/bin",
    ]
    names += ["./only-one", "./no-one", "../two/both", "/none/sh"]
    for name in names:
        assert process.path_of(name) == shutil.which(name), name


def test_child_whose_signal_went_to_another_thread_is_waited_for(monkeypatch):
    """The child ends between the check and the wait, while a thread does not block its signal."""
    looked = os.waitpid
    go, gone = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)

    def look_first(pid, options):
        monkeypatch.setattr(os, "waitpid", looked)
        # The signal is blocked here by now, so the kernel must deliver it to the other thread.
        os.write(gone, b"\n")
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return 0, 0

    monkeypatch.setattr(os, "waitpid", look_first)
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        argv = ["/bin/sh", "-c", "read go; exit 7"]
        pid = process.spawn(argv, env={}, stdin=go, stdout=null, stderr=null)
        with process.at_most(60):
            status = process.wait(pid, timeout=3000)
    finally:
        for descriptor in (go, gone, null):
            os.close(descriptor)
        over.set()
        other.join()
    assert status == 7
