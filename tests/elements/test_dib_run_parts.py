"""Our dib-run-parts keeps the contract of the one in dib-utils."""

import os
import subprocess
from pathlib import Path

import pytest
from programs import completed

OURS = (
    Path(__file__).resolve().parents[2]
    / "elements/os-refresh-config/os-refresh-config-files/dib-run-parts"
)


@pytest.fixture
def phase(tmp_path: Path) -> Path:
    """An empty phase directory beside an empty environment.d."""
    (tmp_path / "environment.d").mkdir()
    directory = tmp_path / "configure.d"
    directory.mkdir()
    return directory


def script(path: Path, body: str, *, mode: int = 0o755) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)


def run(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    return completed([OURS, *map(str, arguments)], env={"PATH": os.environ["PATH"], **environment})


def test_executable_plain_names_run_in_numeric_order(phase: Path) -> None:
    for name in ("100-last", "9-second", "10-third", "05-first"):
        script(phase / name, f"echo {name}")
    script(phase / "20-dotted.sh", "echo never")
    script(phase / "21-not-executable", "echo never", mode=0o644)
    (phase / "22-directory").mkdir()
    assert run(phase).stdout.split() == ["05-first", "9-second", "10-third", "100-last"]
    listed = run("--list", phase).stdout.splitlines()
    assert [Path(line).name for line in listed] == ["05-first", "9-second", "10-third", "100-last"]


def test_links_to_programs_run(phase: Path, tmp_path: Path) -> None:
    script(tmp_path / "program", "echo linked")
    (phase / "10-link").symlink_to(tmp_path / "program")
    assert run(phase).stdout == "linked\n"


@pytest.mark.defect("A5")
def test_failing_script_fails_the_phase_and_stops_no_other_script(phase: Path) -> None:
    script(phase / "10-good", "echo good")
    script(phase / "20-bad", "exit 7")
    script(phase / "30-worse", "exit 9")
    script(phase / "40-good", "echo reached")
    result = run(phase)
    assert (result.returncode, result.stdout) == (7, "good\nreached\n")
    assert "configure.d/20-bad status 7" in result.stderr


def test_environment_is_sourced_in_order_and_not_logged(phase: Path) -> None:
    (phase.parent / "environment.d/10-a.bash").write_text("export COLOUR=s3cret\n")
    (phase.parent / "environment.d/20-b").write_text("export COLOUR=${COLOUR}x\n")
    script(phase / "10-show", 'test "$COLOUR" = s3cretx && echo seen')
    result = run(phase)
    assert result.stdout == "seen\n"
    assert "s3cret" not in result.stderr


def test_log_has_one_line_per_script_with_its_duration(phase: Path) -> None:
    script(phase / "10-slow", "sleep 0.2")
    script(phase / "20-quick", ":")
    lines = run(phase).stderr.splitlines()
    assert [line.split(" after ")[0] for line in lines] == [
        "dib-run-parts: configure.d/10-slow status 0",
        "dib-run-parts: configure.d/20-quick status 0",
    ]
    assert 0.2 <= float(lines[0].split()[-2]) < 30


def test_environment_may_allow_other_names(phase: Path) -> None:
    script(phase / "10-dotted.sh", "echo yes")
    assert run(phase, RUN_PARTS_REGEX=r"^[0-9a-z.-]+$").stdout == "yes\n"


def test_empty_phase_is_no_failure(phase: Path) -> None:
    assert (run(phase).returncode, run("--list", phase).stdout) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["--list"], ["nowhere"], [".", "."]])
def test_wrong_usage_is_an_error(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 1
    assert "usage:" in result.stderr


def test_names_with_blanks_do_not_split(phase: Path) -> None:
    script(phase / "10 odd name", "echo never")
    script(phase / "20-even", "echo even")
    assert run(phase).stdout == "even\n"
