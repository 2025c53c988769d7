"""Run the scripts of one phase in order: the counterpart of upstream's dib-run-parts.

A failing script does not keep the others from running. Scripts in plain Python run in forks of
this process, all others are processes; where there are environment files, which are written for a
shell, a shell reads them and starts the scripts.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from heat_config import forks, process

from . import processes
from .scripts import environment_files, scripts

BASH = "/bin/bash"
DATE = "%a %b %e %H:%M:%S %Z %Y"

#: Bash runs a file without "#!" itself, and explains why another cannot be started.
BY_ITSELF = ("-c", '"$1"', "dib-run-parts")

# One shell for all, so that a script gets the variables that the files set. Bash before 4.4
# treats an empty array as unset under "set -u", hence ${scripts[@]+...}. EPOCHREALTIME (Bash 5.0)
# has the decimal point of the locale.
WITH_ENVIRONMENT = """
set -eu -o pipefail
directory=$1 count=$2
files=("${@:3:count}")
scripts=("${@:3 + count}")
read_environment() {
    local file
    for file in "${files[@]}"; do
        printf 'dib-run-parts %(%a %b %e %H:%M:%S %Z %Y)T Sourcing environment file %s\\n' \\
            -1 "$file" >&2
        source "$file"
    done
}
read_environment
failed=0
for script in ${scripts[@]+"${scripts[@]}"}; do
    printf 'dib-run-parts %(%a %b %e %H:%M:%S %Z %Y)T Running %s\\n' -1 "$directory/$script" >&2
    began=${EPOCHREALTIME/[.,]/} status=0
    "$directory/$script" || status=$?
    elapsed=$((${EPOCHREALTIME/[.,]/} - began))
    printf 'dib-run-parts: %s/%s status %d after %d.%03d s\\n' "${directory##*/}" "$script" \\
        "$status" $((elapsed / 1000000)) $((elapsed / 1000 % 1000)) >&2
    if [ "$status" -eq 0 ]; then
        printf 'dib-run-parts %(%a %b %e %H:%M:%S %Z %Y)T %s completed\\n' -1 "$script" >&2
    elif [ "$failed" -eq 0 ]; then
        failed=$status
    fi
done
exit "$failed"
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def run(directory: str, environment: Mapping[str, str], deadline: float | None = None) -> int:
    """Run the scripts of the phase *directory*; return the status of the first that failed, else 0.

    *environment* is all of theirs. 128 + n is the status of a script that signal n ended, 126 and
    127 that of one that could not be started. At the *deadline*, a time of the monotonic clock, the
    running script is killed with all its descendants, and no other runs.
    """
    directory = directory.rstrip("/") or "/"
    try:
        names = scripts(directory, environment.get("RUN_PARTS_REGEX"))
    except NotADirectoryError:
        _say(f"Scripts directory [{directory}] must exist and be a directory")
        return 1
    except (OSError, ValueError) as error:
        _say(str(error))
        return 1
    files = environment_files(directory)
    if files:
        shell = [BASH, "-c", WITH_ENVIRONMENT, "dib-run-parts"]
        words = [directory, str(len(files)), *files, *names]
        return _run_words([*shell, *words], environment, deadline)
    failed = 0
    for name in names:
        if _is_over(deadline):
            break
        status = _run_script(directory, name, environment, deadline)
        failed = failed or status
    return failed


def _run_script(
    directory: str, name: str, environment: Mapping[str, str], deadline: float | None
) -> int:
    path = f"{directory}/{name}"
    _say(f"Running {path}")
    began = time.monotonic()
    try:
        status = _wait(_start(path, environment), deadline)
    except OSError as error:
        _say(f"{path}: {error.strerror}")
        # As a shell: 127 for a program that is missing, 126 for one that cannot be started.
        status = process.NOT_FOUND if error.errno == errno.ENOENT else process.NOT_RUNNABLE
    seconds = time.monotonic() - began
    phase = os.path.basename(directory)
    _write(f"dib-run-parts: {phase}/{name} status {status} after {seconds:.3f} s")
    if status == 0:
        _say(f"{name} completed")
    return status


def _run_words(words: list[str], environment: Mapping[str, str], deadline: float | None) -> int:
    try:
        return _wait(_spawn(words, environment), deadline)
    except OSError as error:
        _say(f"{words[0]}, which reads environment files, cannot be run: {error.strerror}")
        return process.NOT_RUNNABLE


def _start(path: str, environment: Mapping[str, str]) -> int:
    """Start the script at *path*; return its process id. Raises OSError."""
    if forks.fits(path, environment):
        return forks.start(path, environment)
    try:
        return _spawn([path], environment)
    except OSError:
        return _spawn([BASH, *BY_ITSELF, path], environment)


def _spawn(words: list[str], environment: Mapping[str, str]) -> int:
    # So that lines of this program come before those of the script.
    sys.stdout.flush()
    sys.stderr.flush()
    return process.spawn(words, env=environment, stdin=0, stdout=1, stderr=2)


def _wait(pid: int, deadline: float | None) -> int:
    """Return the exit status of a child, which is killed with its descendants at the deadline."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    status = process.wait(pid, left)
    if status is None:
        processes.kill(pid)
        status = process.wait(pid)
    return status or 0


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _say(text: str) -> None:
    _write(f"dib-run-parts {time.strftime(DATE)} {text}")


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
