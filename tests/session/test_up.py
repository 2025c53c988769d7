"""What ``hotplate up`` says of its servers; the rest is in tests/cli/test_up.py."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from played_guest import PlayedMachine

from hotplate.cloud.options import CloudOptions
from hotplate.session.directory import SessionDirectory
from hotplate.session.up import Up
from hotplate.settings import Settings
from hotplate.stacks.template import Template

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]


def server(name: str, *networks: str) -> dict[str, Any]:
    return {
        "type": "OS::Nova::Server",
        "depends_on": ["web"] if name != "web" else [],
        "properties": {
            "name": name,
            "image": "any",
            "flavor": "any",
            "user_data_format": "RAW",
            "networks": [{"network": each} for each in networks],
        },
    }


def test_who_is_on_which_network_is_said_when_a_stack_is_complete(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The fixture plays the machines; here nobody is to talk.
    monkeypatch.setattr(PlayedMachine, "_live", lambda _machine: None)
    settings = Settings.load(
        {"accelerator": "tcg", "memory": 128, "cache": tmp_path / "cache"},
        environ={},
        directory=tmp_path,
    )
    lines: list[str] = []
    complete = threading.Event()

    def say(text: str) -> None:
        lines.extend(text.splitlines())
        if text.startswith("network "):
            complete.set()

    resources = {"web": server("web", "front"), "db": server("db", "front", "back")}
    template = {"heat_template_version": "2018-08-31", "resources": resources}
    with Up(
        play.image,
        directory=SessionDirectory(tmp_path / "up"),
        settings=settings,
        options=lambda key: CloudOptions(public_key=key),
        say=say,
    ) as up:
        up.create(Template(source="a test", template=template))
        assert complete.wait(60), lines
    front, back = (each for each in lines if each.startswith("network "))
    address = r"[0-9.]+"
    assert re.fullmatch(rf"network front {address}/\d+: web {address}, db {address}", front)
    assert re.fullmatch(rf"network back {address}/\d+: db {address}", back)
