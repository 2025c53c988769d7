"""tools/bench: no figures are lost by a part that fails; containers are measured as machines."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_disk

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch) -> dict[str, Any]:
    """The names of tools/bench."""
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    return runpy.run_path(str(TOOLS / "bench"))


@pytest.mark.parametrize("kind", [KeyError, OSError, "PartFailed"])
def test_failed_part_leaves_the_other_figures(monkeypatch, capsys, tmp_path, tool, kind) -> None:
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


def test_container_part_measures_the_parts_of_virtual_machines(
    monkeypatch, capsys, tmp_path, tool
) -> None:
    def measured(bench: Any, name: str) -> None:
        bench.figures.add(f"{name}: {bench._settings.machine.value}", 2.0)

    def fails(bench: Any) -> None:
        raise tool["PartFailed"]("a planted fault")

    for name in ("boot", "command", "tests"):
        monkeypatch.setattr(tool["Bench"], name, lambda bench, name=name: measured(bench, name))
    monkeypatch.setattr(tool["Bench"], "noop", fails)
    monkeypatch.setenv("HOTPLATE_MACHINE", "qemu")
    file = tmp_path / "figures.json"
    options = ["--image", "web.qcow2", "--only", "container", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    assert tool["main"]() == 1
    assert "container failed: a planted fault" in capsys.readouterr().err
    names = [each["name"] for each in json.loads(file.read_text())["figures"]]
    assert names == [
        "container, boot: container",
        "container, command: container",
        "container, tests: container",
    ]


def test_cpu_part_boots_each_level_once_a_run(monkeypatch, tmp_path, tool) -> None:
    booted: list[tuple[str, str, str]] = []

    def boot_once(bench: Any, name: str, image: Path, folder: Path, settings: Any) -> None:
        booted.append((name, settings.cpu, settings.accelerator.value))
        bench.figures.add(f"{name}: the whole run", 2.0)

    monkeypatch.setattr(tool["Bench"], "_boot_once", boot_once)
    disk, file = tiny_disk.make(tmp_path / "web.raw"), tmp_path / "figures.json"
    options = ["--image", str(disk), "--only", "cpu", "-n", "2", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    assert tool["main"]() == 0
    levels = ["x86-64-v1", "x86-64-v2", "x86-64-v3"]
    assert booted == 2 * [(f"cpu {level}", level, "tcg") for level in levels]
    names = [each["name"] for each in json.loads(file.read_text())["figures"]]
    assert names == [f"cpu {level}: the whole run" for level in levels]


def test_parts_that_boot_need_an_image(monkeypatch, capsys, tool) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--only", "cloud,container"])
    with pytest.raises(SystemExit) as ended:
        tool["main"]()
    assert ended.value.code == 2
    assert "container need --image IMAGE" in capsys.readouterr().err
