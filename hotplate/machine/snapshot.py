"""The state of a machine in a file: save it, and continue from it.

The state is passed through a descriptor that QEMU gets over its monitor, so that no path is quoted
and QEMU starts no program. Source: QEMU's ``docs/devel/migration.rst``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hotplate.errors import HostError, MachineLostError
from hotplate.machine.qmp import Qmp
from hotplate.timing.deadline import Deadline

SECONDS = 120.0

Wait = Callable[[Deadline], str]
"""Waits for the end of a migration; returns QEMU's ``completed`` or ``failed``."""


def save(qmp: Qmp, path: Path, wait: Wait, *, apart: bool = False) -> None:
    """Stop the guest and write its memory and devices to ``path``, whole or not at all.

    :param apart: leave out its memory, which is in a file shared with QEMU.
    :raises HostError: when the file cannot be written.
    """
    qmp.execute("stop")
    temporary = path.with_name(path.name + ".new")
    try:
        with temporary.open("wb") as stream:
            status = _move(qmp, wait, stream.fileno(), "migrate", apart=apart)
            if status != "completed" or os.fstat(stream.fileno()).st_size == 0:
                raise HostError(
                    f'the machine\'s state could not be written to "{path}"',
                    hint=f"df -h {path.parent}",
                )
        temporary.chmod(0o600)
        temporary.rename(path)
    except OSError as error:
        raise HostError(
            f'the machine\'s state could not be written to "{path}": {error.strerror}',
            hint=f"df -h {path.parent}",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def restore(qmp: Qmp, path: Path, wait: Wait, *, apart: bool = False) -> None:
    """Load a state into a QEMU that was started with ``-incoming defer``, and let it run.

    :param apart: the state has no memory: QEMU got that as a file.
    :raises MachineLostError: when the state does not fit this machine.
    """
    try:
        with path.open("rb") as stream:
            status = _move(qmp, wait, stream.fileno(), "migrate-incoming", apart=apart)
    except OSError as error:
        raise MachineLostError(f'"{path}" cannot be read: {error.strerror}') from error
    if status != "completed":
        raise MachineLostError(f'the saved state "{path}" does not fit this machine')
    qmp.execute("cont")


def _move(qmp: Qmp, wait: Wait, descriptor: int, command: str, *, apart: bool) -> str:
    """Run one of the two migration commands on a descriptor and wait for its end."""
    wanted = {"events": True, "x-ignore-shared": apart}
    capabilities = [{"capability": name, "state": state} for name, state in wanted.items()]
    qmp.execute("migrate-set-capabilities", capabilities=capabilities)
    # The default limit of 128 MiB/s is for networks.
    qmp.execute("migrate-set-parameters", max_bandwidth=1 << 40)
    qmp.execute("getfd", descriptor=descriptor, fdname="state")
    qmp.execute(command, uri="fd:state")
    when = "saved" if command == "migrate" else "restored"
    return wait(Deadline(SECONDS, f"the machine's state while it was {when}"))
