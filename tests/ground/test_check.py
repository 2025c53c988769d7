"""tools/check, with stand-ins for what it runs."""

import os
import re
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check"
STAND_INS = {
    "tools/setup": 'echo "$1" > profile',
    "tools/count-tests": "exit 1",
    "tools/newer-qemu": 'mkdir -p "$1"; cd "$1" && pwd',
    ".venv/bin/sphinx-build": "true",
    ".venv/bin/python": "true",
}


def lay_out(folder: Path, **stand_ins: str) -> None:
    """Put tools/check into a folder, and programs of a line of shell for what it calls."""
    for name, body in (STAND_INS | stand_ins).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    shutil.copy2(CHECK, folder / "tools" / "check")


def check(folder: Path, *lanes: str, status: int = 0, path: str = os.environ["PATH"]) -> str:
    """Run the lanes; return what was printed."""
    done = subprocess.run(
        [folder / "tools" / "check", *lanes],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_documentation_alone_needs_no_test_tool_and_no_test(tmp_path: Path) -> None:
    """tox -e docs ended with 1 for want of results, after it had installed every tool."""
    lay_out(tmp_path)
    check(tmp_path, "docs")
    assert (tmp_path / "profile").read_text() == "docs\n"


def test_six_commits_in_a_row_run_the_whole_long_lane(tmp_path: Path) -> None:
    lay_out(tmp_path, **{".venv/bin/python": 'echo "$@" >> words'})
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    printed = ""
    for _ in range(6):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one more"], check=True)
        printed += check(tmp_path, "slice")
    parts = sorted(re.findall(r"hash:\d+/\d+", (tmp_path / "words").read_text()))
    assert parts == [f"hash:{part}/6" for part in range(1, 7)]
    assert "slice 3 of 6 of the long lane" in printed


def test_the_long_lane_has_a_newer_qemu_and_the_others_the_hosts(tmp_path: Path) -> None:
    seen = 'echo "$*: $(qemu-system-x86_64 --version) ${HOTPLATE_CPUS:-}" >> seen'
    own, newer = "bin/qemu-system-x86_64", ".venv/newer-qemu/qemu-system-x86_64"
    programs = {own: "echo its own", newer: "echo a newer one", ".venv/bin/git": "echo 1"}
    lay_out(tmp_path, **programs, **{".venv/bin/python": seen, "tools/count-tests": "true"})
    printed = check(tmp_path, "image", "slice", path=f"{tmp_path}/bin:{os.environ['PATH']}")
    lines = (tmp_path / "seen").read_text()
    assert re.search(r"xml=\S+/image\.xml.*: its own $", lines, re.MULTILINE)
    assert re.search(r"xml=\S+/slice\.xml.*: a newer one 1$", lines, re.MULTILINE)
    assert "with a newer one" in printed


def test_a_slice_of_the_long_lane_is_run_or_all_of_it(tmp_path: Path) -> None:
    programs = ("ruff", "shellcheck", "hotplate", "doc8", "codespell", "mypy")
    stand_ins = {f".venv/bin/{name}": "true" for name in programs}
    git = {".venv/bin/git": 'case "$1" in ls-files) printf "tools/check\\0" ;; *) echo 1 ;; esac'}
    lay_out(tmp_path, **stand_ins, **git)
    summaries = [check(tmp_path, *words) for words in ([], ["--all"])]
    passed = [re.findall(r"^ +(slice|long) +passed", each, re.MULTILINE) for each in summaries]
    assert passed == [["slice"], ["long"]]


@pytest.mark.parametrize("words", [("--quick",), ("unit", "types"), ("unit",)], ids=" ".join)
def test_slow_tests_are_left_out_of_a_quick_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Of unit tests in a lane of its own, too."""
    programs = ("ruff", "shellcheck", "hotplate", "doc8", "codespell", "mypy")
    stand_ins = {f".venv/bin/{name}": "true" for name in programs}
    git = {".venv/bin/git": 'case "$1" in ls-files) printf "tools/check\\0" ;; *) echo 1 ;; esac'}
    lay_out(tmp_path, **stand_ins, **git, **{".venv/bin/python": 'echo "$*" >> words'})
    check(tmp_path, *words)
    (unit,) = re.findall(r".*/unit\.xml .*", (tmp_path / "words").read_text())
    assert ("and not slow" in unit) == ("--quick" in words)


MEET = """case "$*" in
    *tests/hooks*) echo hooks one; echo here > meet; echo hooks two ;;
    *tests/machine*) echo machine one; read -r word < meet; echo machine two; exit 1 ;;
esac"""
"""Each of two lanes waits for the other, which only one at its side can end."""


def test_lanes_run_side_by_side_and_each_is_shown_whole(tmp_path: Path) -> None:
    lay_out(tmp_path, **{".venv/bin/python": MEET, "tools/count-tests": "true"})
    os.mkfifo(tmp_path / "meet")
    printed = check(tmp_path, "hooks", "machine", status=1)
    for lane in ("hooks", "machine"):
        assert f"{lane} one\n{lane} two\n" in printed
    assert re.search(r"hooks +passed +\d+ s +\d+ s\n +machine +FAILED +\d+ s +\d+ s\n", printed)
    assert printed.endswith("failed: machine\n")


COUNT = """workers=1
while [ $# -gt 0 ]; do [ "$1" != -n ] || workers=$2; shift; done
echo "+$workers" >> workers; sleep 0.3; echo "-$workers" >> workers"""


@pytest.mark.parametrize(
    "lanes",
    [("unit", "hooks", "cloud", "machine", "elements"), ("unit", "image", "slice"), ("image",)],
    ids=" ".join,
)
def test_no_more_than_eight_workers_run_at_a_time(tmp_path: Path, lanes: tuple[str, ...]) -> None:
    lay_out(tmp_path, **{".venv/bin/python": COUNT, ".venv/bin/git": "echo 1"})
    check(tmp_path, *lanes)
    running = peak = 0
    for line in (tmp_path / "workers").read_text().splitlines():
        running += int(line)
        peak = max(peak, running)
    assert running == 0
    assert 2 <= peak <= 8


def test_each_lane_of_several_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Linux shares the processors by session: with one for all, lanes starve beside guests."""
    lay_out(tmp_path, **{".venv/bin/python": 'ps -o sid= -p "$$" >> sessions'})
    check(tmp_path, "hooks", "machine", "cloud")
    sessions = [int(line) for line in (tmp_path / "sessions").read_text().split()]
    assert len({os.getsid(0), *sessions}) == 4


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel does not share by session"
)
def test_what_waits_least_gives_way_to_the_others(tmp_path: Path) -> None:
    """autogroup in sched(7): its session has a nice value."""
    stand_in = 'case "$*" in *hooks*) lane=hooks ;; esac; cp /proc/self/autogroup ${lane-rest}'
    lay_out(tmp_path, **{".venv/bin/python": stand_in})
    check(tmp_path, "hooks", "machine")
    assert (tmp_path / "hooks").read_text().endswith(" nice 3\n")
    assert (tmp_path / "rest").read_text().endswith(" nice 0\n")


def test_what_is_wrong_with_conftest_is_for_the_lanes_to_show(tmp_path: Path) -> None:
    """It ended tools/check without a word, while pytest's plug-ins were made ready."""
    lay_out(
        tmp_path,
        **{
            ".venv/bin/python": 'case "$*" in *--collect-only*) exit 4 ;; esac; echo in the lane',
            "tools/count-tests": "true",
        },
    )
    assert "in the lane" in check(tmp_path, "machine")


def test_what_runs_ends_with_it(tmp_path: Path) -> None:
    stand_in = 'case "$*" in *tests/hooks*) echo $$ > began; exec sleep 1000 ;; esac'
    lay_out(tmp_path, **{".venv/bin/python": stand_in})
    os.mkfifo(tmp_path / "began")
    command = [tmp_path / "tools" / "check", "hooks", "machine"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        pid = int((tmp_path / "began").read_text())
        descriptor = os.pidfd_open(pid)
        running.send_signal(signal.SIGTERM)
    try:
        ended, _, _ = select.select([descriptor], [], [], 30)
        if not ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
    assert ended, f"the process {pid} of a lane outlived tools/check"


def test_the_time_of_the_processors_is_shown_of_each_lane(tmp_path: Path) -> None:
    """Of what a lane starts, too: all of it is pytest's and its children's."""
    burn = "python3 -c 'import time\nwhile time.process_time() < 1.5: pass'"
    lay_out(tmp_path, **{".venv/bin/python": burn, "tools/count-tests": "true"})
    printed = check(tmp_path, "hooks")
    shown = re.search(r"hooks +passed +\d+ s +(\d+) s\n", printed)
    assert shown, printed
    assert int(shown[1]) >= 1
