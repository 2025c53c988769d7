"""The command os-refresh-config beside upstream's 14.1 and the dib-run-parts of dib-utils."""

import fcntl
import os
import re
import signal

import pytest
from heat_agent.refresh import program
from programs import alive, completed, wait_until

from .conftest import OURS, PYTHON, THEIRS

NAMES = ["10-b", "9-a", "100-x", "010-a", "B", "a", "-5-x", "-a", "_x", "1_", "0x", "55-y", "5"]


def test_phases_names_and_order_are_those_of_upstream(phases):
    for name in [*NAMES, "10-a.sh", "20-b~", ".hidden", "no-x"]:
        phases.script(name, f"echo '{name}'")
    (phases.base / "configure.d/no-x").chmod(0o644)
    (phases.base / "configure.d/40-directory").mkdir()
    (phases.base / "configure.d/50-link").symlink_to("10-b")
    (phases.base / "configure.d/60-dangling").symlink_to("nowhere")
    for phase in ("migration", "post-configure", "pre-configure", "error", "unknown"):
        phases.script("10-only", f"echo {phase}", phase=phase)
    ours, theirs = phases.ours(), phases.theirs()
    assert theirs.status == 0
    assert (ours.status, ours.stdout, ours.common) == (0, theirs.stdout, theirs.common)
    assert ours.stdout.split()[0] == "pre-configure"
    assert "Starting phase migration" in ours.stderr


@pytest.mark.parametrize("level", ["DEBUG", "WARN", "ERROR", "CRITICAL"])
def test_log_levels_are_those_of_upstream(phases, level):
    phases.script("10-fails", "exit 3")
    phases.script("10-error", "echo handled", phase="error")
    ours, theirs = phases.ours("--log-level", level), phases.theirs("--log-level", level)
    assert (ours.status, ours.stdout) == (1, "handled\n") == (theirs.status, theirs.stdout)
    assert ours.common == theirs.common


@pytest.mark.parametrize("regex", ["^[a-z]+$", "^[[:digit:]]+-", "[.]sh$", "^(10|20)", "x"])
def test_names_may_match_an_expression_of_the_user(phases, regex):
    """dib-run-parts uses grep -E."""
    for name in ["10-a", "20.b.sh", "abc", "1.25-x.sh", "1.3-x.sh", "9x", "-.5.sh", "X"]:
        phases.script(name, f"echo {name}")
    ours = phases.ours(RUN_PARTS_REGEX=regex)
    theirs = phases.theirs(RUN_PARTS_REGEX=regex)
    assert (ours.status, ours.stdout) == (0, theirs.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["--print-base"],
        ["--print-phases"],
        ["--log-level", "LOUD"],
        ["--timeout", "x"],
        ["--no"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_options_are_those_of_upstream(phases, words):
    ours, theirs = phases.ours(*words), phases.theirs(*words)
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)


def test_missing_phases_are_no_failure(phases):
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, ours.stdout, ours.common) == (0, "", theirs.common)


def test_failure_ends_the_run_after_its_phase(phases):
    """With dib-run-parts the scripts after it did not run either."""
    phases.script("10-first", "echo first")
    phases.script("20-fails", "echo failing; exit 7")
    phases.script("30-other", "echo other; exit 9")
    phases.script("10-later", "echo later", phase="post-configure")
    phases.script("10-handles", "echo handled; exit 9", phase="error")
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, ours.stdout) == (1, "first\nfailing\nother\nhandled\n")
    assert (theirs.status, theirs.stdout) == (1, "first\nfailing\nhandled\n")
    message = (
        f"(os-refresh-config) [ERROR] during configure phase. [Command '['dib-run-parts', "
        f"'{phases.base}/configure.d']' returned non-zero exit status 7.]"
    )
    assert message in ours.stderr
    assert message in theirs.stderr
    assert "dib-run-parts: configure.d/20-fails status 7 after" in ours.stderr


def test_environment_files_are_read_by_a_shell(phases):
    phases.environment_file("10-plain", "export GIVEN=$((40 + 2))\nUNSEEN=1\n")
    phases.environment_file("9-later.sh", "export ORDER=${ORDER:-}9\n")
    phases.environment_file("20-earlier", "export ORDER=${ORDER:-}20\numask 027; cd /\n")
    phases.environment_file("30~", "exit 1\n")
    phases.script("9-sees", 'echo "$GIVEN ${UNSEEN:-unseen} $ORDER"; umask; pwd')
    phases.script("10-python", PYTHON + "import os; print(os.environ['GIVEN'])")
    phases.script("11-fails", "exit 4")
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, ours.stdout) == (1, theirs.stdout)
    expected = [line for line in theirs.common if "Sourcing" in line or "Running" in line]
    assert [line for line in ours.common if "Sourcing" in line or "Running" in line] == expected
    assert len(expected) == 6


def test_values_of_environment_files_are_not_logged(phases):
    """Upstream traces the shell that reads them."""
    phases.environment_file("10-secret", "export PASSWORD=s3cr3t\n")
    phases.script("10-uses", 'test "$PASSWORD" = s3cr3t')
    assert "s3cr3t" in phases.theirs().stderr
    ours = phases.ours()
    assert ours.status == 0
    assert "s3cr3t" not in ours.stderr


@pytest.mark.parametrize("text", ["exit 5", "false", "exit 0", 'echo "$unbound"', "if"])
def test_environment_file_that_ends_its_shell_ends_the_phase(phases, text):
    phases.environment_file("10-x", text + "\n")
    phases.script("10-script", "echo reached")
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)
    numbers = [re.findall(r"exit status (\d+)", side.stderr) for side in (ours, theirs)]
    assert numbers[0] == numbers[1]


def test_phase_that_is_no_directory_fails(phases):
    (phases.base / "configure.d").write_text("")
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, theirs.status) == (1, 1)
    sentence = f"Scripts directory [{phases.base}/configure.d] must exist and be a directory"
    assert sentence in ours.stderr
    assert sentence in theirs.stderr


@pytest.mark.parametrize("program", [OURS, THEIRS], ids=["ours", "theirs"])
def test_only_one_run_at_a_time(phases, program):
    phases.script("10-script", "echo reached")
    with phases.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = phases.run(program)
        assert (done.status, done.stdout) == (11, "")
        assert f"[ERROR] Could not lock {phases.lock}. [Errno 11]" in done.stderr
    assert phases.run(program).stdout == "reached\n"
    assert phases.lock.read_text() == ""


def test_lock_names_its_holder(phases):
    phases.script("10-looks", f"cat {phases.lock}")
    assert re.fullmatch(r"Locked by pid==\d+ at .+\n", phases.ours().stdout)


def test_unavailable_lock_is_one_sentence(phases):
    done = phases.ours("--lockfile", str(phases.root / "no/such/lock"))
    assert (done.status, done.stdout) == (1, "")
    assert "Could not lock" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("with_environment", [False, True])
def test_time_limit_ends_all_descendants(phases, with_environment):
    if with_environment:
        phases.environment_file("10-x", "export A=1\n")
    hangs = phases.script("10-hangs", "sleep 600 & echo $! >$0.pid; wait")
    phases.script("20-other", "echo other")
    phases.script("10-later", "echo later", phase="post-configure")
    phases.script("10-handles", "echo handled", phase="error")
    began = hangs.with_name("10-hangs.pid")
    for run in (phases.theirs, phases.ours):
        began.unlink(missing_ok=True)
        # On a busy host the script may not have begun within a second.
        for seconds in ("1", "5", "30"):
            side = run("--timeout", seconds)
            assert (side.status, side.stdout) == (1, "handled\n")
            assert f"Timeout reached: {seconds}s." in side.stderr
            if began.exists():
                break
        pid = int(began.read_text())
        wait_until(lambda pid=pid: not alive(pid))


def test_error_handler_that_hangs_is_ended(phases):
    """Upstream waits for it for ever, and holds the lock."""
    phases.script("10-fails", "exit 1")
    phases.script("10-hangs", "exec sleep 600", phase="error")
    done = phases.ours("--timeout", "1")
    assert done.status == 1
    assert "error.d/10-hangs status 137" in done.stderr


def test_background_process_holds_neither_the_phase_nor_the_lock(phases):
    leaves = phases.script(
        "10-leaves",
        PYTHON + "import os, sys\nimport time\n"
        "pid = os.fork()\n"
        "if not pid:\n    [os.dup2(os.open('/dev/null', 2), n) for n in range(3)]\n"
        "    time.sleep(600)\n"
        "open(sys.argv[0] + '.pid', 'w').write(str(pid))\n",
    )
    assert phases.ours().status == 0
    pid = int(leaves.with_name("10-leaves.pid").read_text())
    try:
        os.kill(pid, 0)
        leaves.unlink()
        assert phases.ours().status == 0, "the lock can be had"
    finally:
        os.kill(pid, signal.SIGKILL)


def test_phases_run_without_bash_dib_run_parts_and_path(phases):
    """Scripts with an interpreter of their own need no other program."""
    phases.script("10-sh", "echo reached")
    done = completed(
        [OURS, "--lockfile", phases.lock],
        env={
            "OS_REFRESH_CONFIG_BASE_DIR": str(phases.base),
            "HEAT_CONFIG_LIB": str(OURS.parent),
        },
    )
    assert (done.returncode, done.stdout) == (0, "reached\n")


def test_old_base_directory_is_used(tmp_path, monkeypatch, capsys):
    """The directories are those of os-refresh-config 14.1, moved to tmp_path."""
    monkeypatch.setattr(program, "BASE", str(tmp_path / "new"))
    monkeypatch.setattr(program, "OLD_BASE", str(tmp_path / "old"))
    assert program.default_base({}) == str(tmp_path / "new")
    (tmp_path / "old").mkdir()
    assert program.default_base({}) == str(tmp_path / "old")
    assert "deprecated" in capsys.readouterr().err
    (tmp_path / "new").mkdir()
    assert program.default_base({}) == str(tmp_path / "new")
    assert program.default_base({"OS_REFRESH_CONFIG_BASE_DIR": ""}) == ""


def test_phase_that_is_a_link_is_followed(phases):
    """find, which dib-run-parts uses, does not follow it; a row of the table of differences."""
    real = phases.script("10-script", "echo reached").parent
    real.rename(phases.root / "real")
    real.symlink_to(phases.root / "real")
    ours, theirs = phases.ours(), phases.theirs()
    assert (ours.status, ours.stdout) == (0, "reached\n")
    assert (theirs.status, theirs.stdout) == (0, "")


def test_names_with_blanks_run(phases):
    """The shell of dib-run-parts splits names at blanks; a row of the table of differences."""
    phases.script("10 with blank", "echo reached")
    ours, theirs = phases.ours(RUN_PARTS_REGEX="."), phases.theirs(RUN_PARTS_REGEX=".")
    assert (ours.status, ours.stdout) == (0, "reached\n")
    assert (theirs.status, theirs.stdout) == (1, "")


def test_invalid_expression_fails_the_phase(phases):
    """A row of the table of differences: dib-run-parts takes it for one without matches."""
    phases.script("10-script", "echo reached")
    ours, theirs = phases.ours(RUN_PARTS_REGEX="("), phases.theirs(RUN_PARTS_REGEX="(")
    assert (ours.status, ours.stdout) == (1, "")
    assert (theirs.status, theirs.stdout) == (0, "")
    assert 'RUN_PARTS_REGEX "(" is not a regular expression' in ours.stderr


def test_defaults_are_those_of_the_parser():
    word = ["--log-level", "INFO"]
    assert program._options([]) == program._options(word)
