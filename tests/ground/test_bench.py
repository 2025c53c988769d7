"""tools/bench: a part that fails for any reason does not lose the figures of the others."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.parametrize("kind", [KeyError, OSError, "PartFailed"])
def test_failed_part_leaves_the_other_figures(monkeypatch, capsys, tmp_path, kind) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    tool = runpy.run_path(str(TOOLS / "bench"))

    def measured(bench: Any) -> None:
        bench.figures.add("load: requests", 7.0, "")

    def fails(bench: Any) -> None:
        bench.figures.add("cloud: ready", 2.0)
        raise (tool[kind] if isinstance(kind, str) else kind)("a planted fault")

    monkeypatch.setitem(tool["PARTS"], "cloud", fails)
    monkeypatch.setitem(tool["PARTS"], "load", measured)
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "cloud,load", "--json", str(file)])
    assert tool["main"]() == 1
    shown = capsys.readouterr()
    assert "load: requests" in shown.out
    assert "cloud failed:" in shown.err
    assert "a planted fault" in shown.err
    names = [each["name"] for each in json.loads(file.read_text())["figures"]]
    assert names == ["cloud: ready", "load: requests"]
