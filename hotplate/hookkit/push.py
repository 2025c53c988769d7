"""Put a hook into the directory of a running guest's runner.

The guest's shell runs :func:`push_command`, a line that reads the hook on stdin; :func:`pushed`
reads its output. The caller transports the line.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import ImageError, UsageError
from hotplate.hookkit.run import HookTask, check_task
from hotplate.text import clean_line

#: The size limit of a hook in bytes.
SIZE_LIMIT = 16 << 20

OURS = "/usr/libexec/heat-config/hooks"
#: heat-agents' directory of hooks; our runner uses it too, after its own.
HEAT_AGENTS = "/var/lib/heat-config/hooks"

#: The lists of the agent's processes (cgroups(7), version 2 and 1): its environment is the
#: runner's, and systemctl takes a second to answer in an emulated guest.
AGENT = (
    "/sys/fs/cgroup/system.slice/os-collect-config.service/cgroup.procs",
    "/sys/fs/cgroup/systemd/system.slice/os-collect-config.service/cgroup.procs",
)

NO_RUNNER = 70
DAMAGED = 71
IN_THE_WAY = 72
#: Exit statuses of the line.
UNWRITABLE = 73

#: Written beside its place and renamed, so that a running hook is not truncated.
_LINE = """\
set -u
first=
for each in {agents}; do
    read -r pid 2>/dev/null <"$each" || continue
    first=$(tr '\\0' '\\n' <"/proc/$pid/environ" | sed -n 's/^HEAT_CONFIG_HOOKS=//p')
done 2>/dev/null
at=
for each in "$first" {places}; do
    [ -n "$each" ] && [ -d "$each" ] && {{ at=$each; break; }}
done
[ -n "$at" ] || exit {no_runner}
[ ! -d "$at"/{group} ] || exit {in_the_way}
new=$at/.pushed-{group}
cat 2>&1 >"$new" || {{ rm -f "$new"; exit {unwritable}; }}
case $(sha256sum <"$new") in {sha256}*) ;; *) rm -f "$new"; exit {damaged} ;; esac
how=new
[ ! -e "$at"/{group} ] || how=changed
cmp -s "$new" "$at"/{group} && how=same
chmod 0755 "$new" && mv -f "$new" "$at"/{group} || {{ rm -f "$new"; exit {unwritable}; }}
printf '%s %s\\n' "$how" "$at"/{group}
for each in "$first" {places}; do
    [ "$each" = "$at" ] || [ -z "$each" ] || [ ! -e "$each"/{group} ] || echo "over $each"/{group}
done
for each in {programs}; do
    command -v "$each" >/dev/null || echo "lacks $each"
done
"""

# After env's options, such as -S; a word with "=" sets a variable.
_ENV = re.compile(r"/(?:usr/)?bin/env(?:\s+-\S+)*\s+([^\s=-][^\s=]*)")


@dataclass(frozen=True)
class HookFile:
    """A hook to push.

    :param group: the group of its deployments; its name in the guest.
    :param data: the whole file.
    """

    group: str
    data: bytes

    @property
    def sha256(self) -> str:
        """Return its checksum, which is compared in the guest."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def _first_line(self) -> bytes:
        return self.data[2:4096].partition(b"\n")[0]

    @property
    def has_crlf(self) -> bool:
        """Return True for a script with CR LF, which the kernel cannot run."""
        return self.data.startswith(b"#!") and self._first_line.endswith(b"\r")

    @property
    def interpreter(self) -> str:
        """Return the program named in its first line; empty when there is none.

        >>> HookFile("a", b"#!/usr/bin/python3 -IS").interpreter
        '/usr/bin/python3'
        >>> HookFile("a", b"#!/usr/bin/env -S perl -T").interpreter
        'perl'
        """
        if not self.data.startswith(b"#!"):
            return ""
        words = self._first_line.decode("utf-8", "replace").strip()
        by_env = _ENV.match(words)
        return by_env[1] if by_env else (words.split() or [""])[0]


@dataclass(frozen=True)
class Pushed:
    """A hook in the guest, the one that its runner uses.

    :param path: in the guest.
    :param how: ``new``, ``changed``, or ``same`` when the guest had the same one.
    :param over: hooks of the same group in the guest that this one overrides.
    :param lacks: the hook's interpreter, when it is missing in the guest.
    :param has_crlf: its first line ends with CR LF.
    """

    path: str
    how: str
    over: Sequence[str] = ()
    lacks: Sequence[str] = ()
    has_crlf: bool = False

    def __str__(self) -> str:
        words = {"new": "", "changed": ", in place of another", "same": ", which was the same"}
        return self.path + words.get(self.how, "")

    @property
    def notes(self) -> list[str]:
        """Return additional notes, in sentences."""
        notes = [f"it runs, and not {each}, which is there too" for each in self.over]
        notes += [
            f'the guest has no "{each}", which the hook is to be run by' for each in self.lacks
        ]
        if self.has_crlf:
            notes.append("it cannot be run: its lines end with CR LF, where LF alone is expected")
        return notes


def hook_file(path: Path, group: str = "") -> HookFile:
    """Read a hook.

    :param group: by default the file's name without its suffix, with ``-`` for ``_``.
    :raises UsageError: when it cannot be a hook.
    """
    task = HookTask(path, "", group=group)
    check_task(task)
    try:
        with path.open("rb") as stream:
            data = stream.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise UsageError(f'the hook "{path}" cannot be read: {error.strerror}') from error
    if len(data) > SIZE_LIMIT:
        raise UsageError(f'the hook "{path}" has more than {SIZE_LIMIT >> 20} MiB')
    if not data.startswith((b"#!", b"\x7fELF")):
        raise UsageError(
            f'the hook "{path}" is neither a program nor a script with #! in its first line',
            hint="name its interpreter there, such as #!/bin/bash",
        )
    return HookFile(task.group_name, data)


def push_command(
    hook: HookFile,
    places: Sequence[str] = (OURS, HEAT_AGENTS),
    agents: Sequence[str] = AGENT,
) -> str:
    """Return the line for the guest's shell, as root, that reads the hook on stdin.

    :param places: the runners' directories of hooks, in order.
    :param agents: files that begin with the id of the agent's process.
    """
    return _LINE.format(
        places=shlex.join(places),
        agents=shlex.join(agents),
        group=shlex.quote(hook.group),
        sha256=hook.sha256,
        programs=shlex.quote(hook.interpreter) if hook.interpreter else "",
        no_runner=NO_RUNNER,
        damaged=DAMAGED,
        in_the_way=IN_THE_WAY,
        unwritable=UNWRITABLE,
    )


def pushed(hook: HookFile, status: int, output: bytes) -> Pushed:
    """Return the result of a push.

    :param status: the exit status of the line.
    :param output: its output; from a guest, so not trusted.
    :raises ImageError: when the guest refused the hook.
    """
    lines = [clean_line(each) for each in output.decode("utf-8", "replace").splitlines()]
    # The word and the rest of the line, without the blank between them.
    facts = [each.partition(" ")[::2] for each in lines if " " in each]
    if status or not facts or facts[0][0] not in ("new", "changed", "same"):
        raise ImageError(_problem(hook, status, lines))
    how, path = facts[0]
    return Pushed(
        path,
        how,
        tuple(value for name, value in facts if name == "over"),
        tuple(value for name, value in facts if name == "lacks"),
        hook.has_crlf,
    )


def _problem(hook: HookFile, status: int, lines: Sequence[str]) -> str:
    """Return the sentence for a push that failed."""
    last = f": {lines[-1][:300]}" if lines else ""
    reasons = {
        NO_RUNNER: f'there is no runner of hooks in the guest, neither "{OURS}" nor '
        f'"{HEAT_AGENTS}"',
        DAMAGED: f'the hook "{hook.group}" did not arrive whole in the guest; push it again',
        IN_THE_WAY: f'a directory is where the hook "{hook.group}" belongs in the guest',
        UNWRITABLE: f"the guest's directory of hooks cannot be written{last}",
    }
    unforeseen = f'the hook "{hook.group}" could not be pushed, status {status}{last}'
    return reasons.get(status, unforeseen)
