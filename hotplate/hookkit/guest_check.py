"""Check a hook against the contract inside a guest, and print the results as JSON.

Runs as root with the guest's own Python, from the archive of
:func:`hotplate.hookkit.image_check.bundle`. The first argument is a file with a request of
:func:`hotplate.hookkit.image_check.request`; one object is printed, for
:func:`hotplate.hookkit.image_check.read_results`. The hook is run by the image's own runner code,
with the agent's environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotplate.errors import HotplateError, UsageError
from hotplate.hookkit.check import check, lines_document
from hotplate.hookkit.contract_configs import ContractFile
from hotplate.hookkit.push import AGENT, HEAT_AGENTS, OURS
from hotplate.hookkit.trials import CheckTask, ToolMissingError

#: The directory where it was unpacked.
TOP = Path(__file__).resolve().parents[2]

#: The runner's code in an image; heat-agents' images have none.
LIBRARY = Path("/usr/libexec/heat-config/lib")


def agent_environment() -> dict[str, str]:
    """Return the environment of the agent's first process, or else our own."""
    for name in AGENT:
        try:
            first = Path(name).read_text().split()[0]
            # The environment with which the process was started (proc(5)): that of its unit.
            data = Path(f"/proc/{first}/environ").read_bytes()
        except (OSError, IndexError):
            continue
        pairs = (each.partition("=") for each in os.fsdecode(data).split("\0"))
        return {key: value for key, _, value in pairs if key}
    return dict(os.environ)


def find_hook(name: str, environ: Mapping[str, str]) -> Path:
    """Return the file of a hook, from the directories of the image's runner.

    :param name: of its group, or a path.
    :raises UsageError: without one.
    """
    if "/" in name:
        if not Path(name).is_file():
            raise UsageError(f'the image has no file "{name}"')
        return Path(name)
    places = [Path(each) for each in (environ.get("HEAT_CONFIG_HOOKS"), OURS, HEAT_AGENTS) if each]
    for place in places:
        if (place / name).is_file():
            return place / name
    there = {each.name for place in places if place.is_dir() for each in place.iterdir()}
    raise UsageError(
        f'the image has no hook for the group "{name}"; it has {", ".join(sorted(there)) or "none"}'
    )


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a hook; return the results, or the reason that there are none."""
    environ = agent_environment()
    has_own = (LIBRARY / "heat_config").is_dir()
    try:
        hook = find_hook(request["hook"], environ)
        results = check(
            CheckTask(
                hook,
                request["group"],
                ContractFile.from_json(request["given"]),
                environ,
                timeout=request["timeout"],
                roots=[Path(each) for each in request["roots"]],
                lines=request["lines"],
                library=LIBRARY if has_own else TOP / "hooks",
            )
        )
    except ToolMissingError as error:
        return {"outcome": "failed", "message": error.in_image()}
    except HotplateError as error:
        return {"outcome": error.outcome.value, "message": error.message, "hint": error.hint}
    return {"hook": str(hook), "lines": lines_document(results)}


def main() -> None:
    """Read a request, check its hook, and print the results."""
    # The scratch files have inputs.
    os.umask(0o077)
    print(json.dumps(answer(json.loads(Path(sys.argv[1]).read_bytes()))))
