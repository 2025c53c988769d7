"""CPU models of guests: the levels of instructions that images need, and a model for each level.

Sources: the micro-architecture levels of the x86-64 psABI, and the architecture's versions of the
Arm ARM, by GCC's names (``-march``).
"""

from __future__ import annotations

import difflib
import functools
import re
import subprocess
from collections.abc import Iterable, Mapping

from hotplate.errors import HostError, UsageError
from hotplate.events import classify
from hotplate.events.console_patterns import BY_NAME
from hotplate.events.event import Event
from hotplate.events.kinds import GuestJournal, PowerOn

#: The setting by which each image gets the model that it needs.
AUTO = "auto"

_V2 = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"
# With XSAVE, which AVX needs, and without XSAVEOPT, Linux 6.12 hangs on QEMU 7.2.
_V3 = f"{_V2},+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+abm,+xsave,+xsaveopt"

#: The levels of instructions of each architecture, lowest first, each with the cheapest model that
#: has it. QEMU's models of Intel's CPUs cost a boot a fifth more, as Linux isolates their page
#: tables (Meltdown), and TCG warns of each feature that it lacks, as of four of ``Haswell``. There
#: is no model for x86-64-v4, as QEMU emulates no AVX-512.
LEVELS: Mapping[str, Mapping[str, str]] = {
    "x86_64": {"x86-64-v1": "qemu64", "x86-64-v2": _V2, "x86-64-v3": _V3},
    # Pointers are signed by an algorithm that is cheap to emulate, instead of QARMA5.
    "aarch64": {"armv8-a": "cortex-a57", "armv9-a": "max,pauth-impdef=on"},
}

#: The patterns of lines by which a guest shows that its CPU lacks something.
_PATTERNS = (BY_NAME["bad-cpu"], BY_NAME["illegal-instruction"])

#: Limit of the time in which QEMU makes a machine and ends.
CHECK_SECONDS = 60.0

#: The names of all levels, the lowest of each architecture first.
NAMES = tuple(name for levels in LEVELS.values() for name in levels)


def is_model(cpu: str) -> bool:
    """Return whether a setting names a model: neither a level nor the choice of hotplate."""
    return cpu not in (AUTO, *NAMES)


def model_of(wanted: Iterable[str], *, arch: str) -> str:
    """Return the model that has all of some levels; other words do not count.

    >>> model_of(["auto", "x86-64-v1"], arch="x86_64")
    'qemu64'
    """
    models = [*LEVELS[arch].values()]
    places = {name: place for place, name in enumerate(LEVELS[arch])}
    return models[max(places.get(each, 0) for each in wanted)]


def models_above(model: str) -> list[str]:
    """Return the models of the levels above that of a model; none for one that stands for none.

    >>> models_above("cortex-a57")
    ['max,pauth-impdef=on']
    """
    for levels in LEVELS.values():
        models = [*levels.values()]
        if model in models:
            return models[models.index(model) + 1 :]
    return []


def missing_level(events: Iterable[Event], cpu: str = AUTO) -> tuple[str, str]:
    """Return the level that guests lacked, and the line of a console or journal that shows it.

    A line that names no level, as that of a program killed by SIGILL, stands for the next one.
    Lines may show several levels; the highest counts.

    :param cpu: the setting that the guests were started with.
    :return: both "" when no guest lacked one, when there is no higher one, and when somebody has
        named the model.
    """
    models: dict[str, str] = {}
    lacking = {"": ""}
    for event in () if is_model(cpu) else events:
        if (started := PowerOn.of(event)) is not None:
            models[event.server] = started.cpu
        for line in _lines(event):
            if any(pattern.regex.search(line) for pattern in _PATTERNS):
                level = _level_above(models.get(event.server, ""), line, least=cpu)
                lacking.setdefault(level, line.strip())
    return max(lacking.items(), key=lambda each: NAMES.index(each[0]) if each[0] else -1)


def _lines(event: Event) -> Iterable[str]:
    if (text := classify.console_text(event)) is not None:
        return [text]
    journal = GuestJournal.of(event)
    return () if journal is None else journal.lines


def _level_above(model: str, line: str, *, least: str) -> str:
    """Return the level that a guest with a model asks for in a line, "" when there is none.

    :param least: the setting. A guest that was to have this level already gets a higher one, so
        that no guest is started with the same again.
    """
    for levels in LEVELS.values():
        names, models = [*levels], [*levels.values()]
        if model not in models:
            continue
        number = max(models.index(model), names.index(least) if least in names else 0) + 1
        if named := re.search(r"x86-64-v\d", line):
            number = max(number, names.index(named[0]) if named[0] in names else len(names))
        return names[number] if number < len(names) else ""
    return ""


@functools.cache
def check(cpu: str, *, arch: str, machine: str, program: str, accelerator: tuple[str, ...]) -> None:
    """Check that guests can have a CPU: a model by making a machine with it, which does not run.

    :param cpu: the setting: a level, or the value of QEMU's ``-cpu``, a model with features after
        commas.
    :param arch: the guest's architecture.
    :param machine: the value of ``-machine``.
    :param program: QEMU.
    :param accelerator: the options that choose the accelerator.
    :raises UsageError: when QEMU does not know the model, or the accelerator does not have it.
    """
    levels = [AUTO, *LEVELS[arch]]
    if cpu in levels:
        return
    name, why = cpu.partition(",")[0], ""
    # With -cpu help QEMU prints its models, and ends well.
    if name not in ("help", "?"):
        command = [program, "-machine", machine, *accelerator, "-cpu", cpu, "-m", "32M"]
        options = ["-nodefaults", "-no-user-config", "-display", "none", "-S", "-monitor", "stdio"]
        done = _qemu([*command, *options], stdin="quit\n")
        if done.returncode == 0:
            return
        why = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
    known = [*levels, *_models(program)]
    if name in known:
        raise UsageError(f'QEMU does not make a CPU "{cpu}": {why}', hint=f"{program} -cpu help")
    near = difflib.get_close_matches(name, known, n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(
        f'the CPU model "{name}" is not known{meant}',
        hint=f"{program} -cpu help; or {', '.join(levels)}",
    )


def _models(program: str) -> list[str]:
    """Return the names of QEMU's CPU models."""
    listed = _qemu([program, "-cpu", "help"]).stdout.partition("\n\n")[0].splitlines()[1:]
    # A PC's QEMU has the architecture before each name.
    return [line.split()[1 if line.startswith("x86 ") else 0] for line in listed if line.strip()]


def _qemu(command: list[str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f'"{command[0]}" did not end within {CHECK_SECONDS:.0f} s', hint="hotplate doctor"
        ) from error
