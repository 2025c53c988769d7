"""tools/crash-matrix counts a machine's markers, although the log keeps only a part of them."""

import runpy
import sys
from pathlib import Path

from hotplate.events.kinds import ConsoleLine
from hotplate.events.log import EventLog

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def test_events_dropped_from_the_log_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    tool = runpy.run_path(str(TOOLS / "crash-matrix"))
    seen = tool["Seen"]("one")
    events = EventLog(first=1, last=1)
    events.subscribe(seen)
    for number in range(20):
        marker = f'heat-config: finished id=i group=script name="{number}" status=0'
        events.add(ConsoleLine(text=f"crash-matrix: begin {number}"), server="one")
        events.add(ConsoleLine(text=marker), server="one")
        events.add(ConsoleLine(text="crash-matrix: begin 1"), server="another")
    assert len(list(events)) < 20
    assert set(seen.begun.values()) == {1}
    assert len(seen.begun) == len(seen.succeeded) == 20
