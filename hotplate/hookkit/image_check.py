"""Check a hook in an image against the contract, in a guest that runs the image.

The check itself is :mod:`hotplate.hookkit.guest_check`, which is packed with its modules, sent to
the guest and run there: in the image's file system, with its tools, its Python and the environment
of its agent. The caller transports it.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from hotplate.errors import HotplateError, Outcome, SubjectError, error_of
from hotplate.hookkit.check import read_lines
from hotplate.hookkit.contract import LineResult
from hotplate.hookkit.trials import CheckTask
from hotplate.paths import hooks_dir

_GROUND = ("__init__", "errors", "paths", "text")
#: The modules of the check; all need only Python's standard library.
_HOOKKIT = (
    *("__init__", "check", "contract", "contract_configs", "findings", "guest_check"),
    *("guest_runner", "lines", "push", "run", "traces", "trials"),
)

#: The oldest Python that they support; the image's own runner supports older ones.
OLDEST = (3, 11)

#: Exit status of :data:`COMMAND` when the guest has no such Python.
NO_PYTHON = 70

# -I and -S: no variable and no package of the image changes the check; the umask keeps the request,
# which has the configs, private.
COMMAND = f"""\
python3 -ISc 'import sys; sys.exit(sys.version_info < {OLDEST})' || exit {NO_PYTHON}
set -eu
umask 077
mkdir -p {{place}}
tar -x -z -f {{place}}.tar.gz -C {{place}}
cd /
python3 -ISc 'import sys
sys.path.insert(0, "{{place}}")
from hotplate.hookkit.guest_check import main
main()' {{place}}.json
"""

#: Its directory in the guest: not on a disk, so that it is no changed file and is gone after a
#: reboot.
PLACE = "/run/hotplate-check"


def request(task: CheckTask, hook: str) -> bytes:
    """Return a request in the format of the program in the guest.

    :param task: its configs, limits and lines; its roots are directories of the image.
    :param hook: the name of a group, or the path of a file in the image.
    """
    document = {name: getattr(task, name) for name in ("group", "timeout", "roots", "lines")}
    # Here the path means another file, or none.
    given = {**vars(task.given), "path": None}
    return json.dumps({"hook": hook, "given": given, **document}, default=str).encode()


def bundle() -> bytes:
    """Return the program for the guest with its modules, as a compressed tar archive."""
    package = Path(__file__).resolve().parents[1]
    library = hooks_dir() / "heat_config"
    modules = [*_GROUND, *(f"hookkit/{name}" for name in _HOOKKIT)]
    files = {f"hotplate/{name}.py": package / f"{name}.py" for name in modules}
    files |= {f"hooks/heat_config/{each.name}": each for each in sorted(library.glob("*.py"))}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, path in files.items():
            data = path.read_bytes()
            # Not by add(): it would send the owner, the time and the mode of this host's file.
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def read_results(status: int, output: bytes, errors: bytes) -> tuple[str, list[LineResult]]:
    """Return the hook's path in the image, and a result for each line of the contract.

    :param status: the exit status of :data:`COMMAND`.
    :param output: and ``errors``: its output; from a guest, so not trusted.
    :raises HotplateError: when there are no results; the guest decides whose fault it is, but may
        only blame the command line or itself.
    """
    if status == NO_PYTHON:
        version = ".".join(map(str, OLDEST))
        raise SubjectError(
            f"the image has no Python {version} or later, with which its hooks could be checked",
            hint="check the hook on this host: hotplate hook check FILE",
        )
    try:
        answer: Any = json.loads(output)
        if not isinstance(answer, dict):
            raise ValueError("it is no map")
        if "message" in answer:
            raise _refusal(answer)
        # PATH_MAX; a guest may send any amount.
        return str(answer["hook"])[:4096], read_lines(answer["lines"])
    except (ValueError, KeyError) as error:
        last = (errors.decode("utf-8", "replace").strip().splitlines() or [str(error)])[-1]
        raise SubjectError(
            f"the check in the guest gave no results, status {status}: {last[:300]}"
        ) from error


def _refusal(answer: dict[str, Any]) -> HotplateError:
    """Return the error of the check in the guest; a host error there is the image's fault."""
    outcome = Outcome.USAGE if answer.get("outcome") == Outcome.USAGE else Outcome.FAILED
    message, hint = (str(answer.get(name, ""))[:2000] for name in ("message", "hint"))
    return error_of(outcome, message, hint=hint)
