"""Questions to ask inside a guest after a missed stage, where the host has a connection to it.

Some faults look the same from outside: an agent that is not installed and one that is disabled
are both silent.  The caller that composes the run asks these questions when a stage is not
reached, and emits each answer as an event that the diagnosis reads.  The commands only read, and
print no inputs, outputs or secrets.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotplate.events.kinds import GuestProbe
from hotplate.events.log import EventLog
from hotplate.verdict import guest_standard, health
from hotplate.verdict.stages import ORDER, Stage

# An answer is evidence for a person, not an archive.
LIMIT = 16_000
#: The name, for the rules, of the answer read from the disk of a guest that could not be asked.
DISK = "disk"


@dataclass(frozen=True)
class Probe:
    """One question.

    :param name: of the answer, for the rules.
    :param command: a POSIX shell command; the caller bounds its time.
    :param first: the first missing stage for which it is worth asking.
    :param last: the last one.
    :param limit: characters of the answer that are kept.
    """

    name: str
    command: str
    first: Stage = Stage.BOOTED
    last: Stage = Stage.SIGNAL_ACCEPTED
    limit: int = LIMIT

    def __str__(self) -> str:
        return self.name


PROBES: tuple[Probe, ...] = (
    Probe("health", health.SCRIPT, limit=4 * LIMIT),
    Probe(
        "cloud-init",
        "cloud-init status --long; cat /run/cloud-init/result.json",
        last=Stage.AGENT_POLLED,
    ),
    Probe(
        "cloud-init-log",
        "tail -n 300 /var/log/cloud-init.log",
        first=Stage.NETWORK_UP,
        last=Stage.METADATA_SERVED,
    ),
    Probe(
        "cfn-init-data",
        "ls -l /var/lib/heat-cfntools/cfn-init-data",
        first=Stage.AGENT_POLLED,
        last=Stage.DEPLOYMENT_DELIVERED,
    ),
    Probe(
        "agent-log",
        "journalctl --boot --unit=os-collect-config --no-pager --output=cat --lines=200",
        first=Stage.METADATA_SERVED,
    ),
    Probe("heat-config", "heat-config status", first=Stage.HOOK_STARTED),
    Probe(
        "ordering",
        "journalctl --boot --no-pager --output=cat _PID=1 |"
        " grep -E 'rdering cycle|Found dependency on' | head -n 20",
        last=Stage.AGENT_POLLED,
    ),
    Probe("failed-units", "systemctl --failed --plain --no-legend --no-pager"),
)
#: Asked of each guest that can be asked, also after a good run.
CLOCK = Probe("clock", "date +%s")
STANDARD = Probe("standard", guest_standard.SCRIPT)


def for_stage(stage: Stage | None) -> tuple[Probe, ...]:
    """Return the questions worth asking when ``stage`` is the first that was not reached."""
    if stage is None:
        return ()
    at = ORDER.index(stage)
    return tuple(
        probe for probe in PROBES if ORDER.index(probe.first) <= at <= ORDER.index(probe.last)
    )


def report(events: EventLog, server: str, probe: Probe, *, status: int, text: str) -> None:
    """Emit an answer as the event that the diagnosis reads.

    :param status: the exit status of the command.
    :param text: its output; the end is kept when it is long.
    """
    events.add(GuestProbe(probe.name, status, text[-probe.limit :]), server=server)


def report_disk(events: EventLog, server: str, text: str) -> None:
    """Emit the state of the disk of a guest that could not be asked."""
    events.add(GuestProbe(DISK, 0, text[-LIMIT:]), server=server)
