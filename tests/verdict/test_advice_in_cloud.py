"""Advice for a run in a cloud names nothing that exists only in a run on this host."""

from __future__ import annotations

import re

import pytest

from hotplate.events.console_patterns import BY_NAME, PATTERNS
from hotplate.events.log import EventLog
from hotplate.verdict.diagnosis import diagnose
from hotplate.verdict.rules import RULES
from hotplate.verdict.stages import STAGES, Stage
from hotplate.verdict.tracker import StageTracker

#: Things that exist, or can be chosen, only for machines of this host.
OURS = re.compile(
    r"screenshot|qemu\.sh|requests\.jsonl|Heat's log|--cpus?|--artifacts|the harness|verdict\.json"
    r"|hotplate doctor|KVM|QEMU|overlay|(?:another|larger) CPU model|--memory"
)

UNSEEN = frozenset({Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED})


@pytest.mark.parametrize("row", [*RULES, *PATTERNS], ids=lambda row: f"{type(row).__name__}-{row}")
def test_rule_has_cloud_advice_when_its_own_names_this_host(row):
    assert not OURS.search(row.in_cloud or row.advice)
    assert bool(row.in_cloud) == bool(OURS.search(row.advice))


@pytest.mark.parametrize("row", STAGES, ids=lambda row: row.stage.value)
def test_stage_has_cloud_advice_when_its_own_names_this_host(row):
    assert not OURS.search(row.advice(in_cloud=True))
    assert row.advice(in_cloud=False) == f"look at {row.look}"


@pytest.mark.parametrize("unseen", [frozenset(), UNSEEN], ids=["here", "cloud"])
@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("watchdog: BUG: soft lockup - CPU#0 stuck for 22s!", "soft-lockup"),
        ("Buffer I/O error on dev vda1", "disk-errors"),
        ("[   1.2] int3: 0000 [#1]", "stray-breakpoint"),
        ("Kernel panic - not syncing: IO-APIC + timer doesn't work!", "timer-too-late"),
    ],
)
def test_diagnosis_has_advice_for_where_it_ran(line, pattern, unseen):
    events = EventLog()
    events.emit("machine", "power-on", server="a")
    events.emit("console", "line", server="a", text="Welcome to Debian GNU/Linux 12 (bookworm)!")
    events.emit("console", "line", server="a", text=line)
    diagnosis = diagnose(
        events, StageTracker(events, "a", unseen=unseen), stack_status="CREATE_FAILED"
    )
    row = BY_NAME[pattern]
    advice = row.in_cloud if unseen else row.advice
    if diagnosis.fault == "unknown":
        assert diagnosis.advice == advice
    assert not (unseen and OURS.search(str(diagnosis)))
