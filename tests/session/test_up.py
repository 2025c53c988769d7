"""The lines that ``hotplate up`` prints about its servers; the rest is in tests/cli/test_up.py."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_disk
from openstack.config import OpenStackConfig
from openstack.connection import Connection
from played_guest import Guest, PlayedMachine

from hotplate.cloud.options import CloudOptions
from hotplate.container.machine import ContainerMachine
from hotplate.errors import UsageError
from hotplate.events.kinds import ConsoleLine, PowerOn
from hotplate.image.inspect import Image
from hotplate.session.channel import in_memory
from hotplate.session.directory import SessionDirectory
from hotplate.session.up import Up
from hotplate.settings import Settings
from hotplate.stacks.template import Template
from hotplate.timing.deadline import Deadline, retry

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]


PANIC = "[    2.2] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000004"


def server(name: str, *networks: str, image: str = "any") -> dict[str, Any]:
    return {
        "type": "OS::Nova::Server",
        "depends_on": ["web"] if name != "web" else [],
        "properties": {
            "name": name,
            "image": image,
            "flavor": "any",
            "user_data_format": "RAW",
            "networks": [{"network": each} for each in networks],
        },
    }


def session(
    play: Any,
    tmp_path: Path,
    say: Callable[[str], None],
    *,
    others: dict[str, Image] | None = None,
    **given: str,
) -> Up:
    """Return a session of played machines."""
    given = {"accelerator": "tcg", "memory": "128", "cache": str(tmp_path / "cache"), **given}
    return Up(
        play.image,
        directory=SessionDirectory(tmp_path / "up"),
        settings=Settings.load(given, environ={}, directory=tmp_path),
        options=lambda key: CloudOptions(public_key=key),
        say=say,
        others=others,
    )


ADDRESS = "[0-9.]+"


def test_topology_is_reported_when_a_stack_is_complete(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The fixture plays the machines; here they stay silent.
    monkeypatch.setattr(PlayedMachine, "_live", lambda _machine: None)
    lines: list[str] = []
    complete = threading.Event()

    def say(text: str) -> None:
        lines.extend(text.splitlines())
        if text.startswith("network "):
            complete.set()

    first = play.image.path.stem
    others = {"debian": Image.open(tiny_disk.make(tmp_path / "d.raw"))}
    web, db = rf"web \({first}\) {ADDRESS}", rf"db \(debian\) {ADDRESS}"
    resources = {
        "web": server("web", "front", image=first),
        "db": server("db", "front", "back", image="debian"),
    }
    template = {"heat_template_version": "2018-08-31", "resources": resources}
    with session(play, tmp_path, say, others=others) as up:
        up.create(Template(source="a test", template=template))
        assert complete.wait(60), lines
    front, back = (each for each in lines if each.startswith("network "))
    assert re.fullmatch(rf"network front {ADDRESS}/\d+: {web}, {db}", front)
    assert re.fullmatch(rf"network back {ADDRESS}/\d+: {db}", back)


@pytest.mark.parametrize(
    ("cpu", "remedy"),
    [("qemu64", "begin it with --cpu x86-64-v3"), ("host", "name a CPU model that has them")],
)
def test_server_that_needs_a_better_cpu_is_reported_once(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpu: str, remedy: str
) -> None:
    monkeypatch.setattr(PlayedMachine, "_live", lambda _machine: None)
    lines: list[str] = []
    resources = {"web": server("web", "front")}
    template = {"heat_template_version": "2018-08-31", "resources": resources}
    with session(play, tmp_path, lines.append) as up:
        up.create(Template(source="a test", template=template))
        # Its own, with which the machine's CPU begins anew; the server is listed before.
        assert up.events.wait(lambda event: event.kind == "power-on", seconds=60)
        (web,) = up.testbed.servers
        up.events.add(PowerOn(1, cpu=cpu), server=web.spec.id)
        for line in ("Fatal glibc error: CPU does not support x86-64-v3", "[ 1.0] x", PANIC):
            up.events.add(ConsoleLine(line), server=web.spec.id)
    told = [line for line in lines if "does not boot" in line]
    assert len(told) == 1
    assert told[0].startswith('server "web" does not boot, as the image')
    assert remedy in told[0]


def test_renamed_server_is_reached_by_its_new_name(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PlayedMachine, "_live", lambda _machine: None)
    lines: list[str] = []
    with session(play, tmp_path, lambda text: lines.extend(text.splitlines())) as up:

        def asked(name: str) -> object:
            return up._answer({"ask": "server", "server": name})[0]

        clouds = OpenStackConfig(config_files=[str(up.directory.clouds_yaml)])
        nova = Connection(config=clouds.get_one("hotplate")).compute

        def made(name: str) -> Any:
            server = nova.create_server(name=name, image_id="i", flavor_id="f", networks="auto")
            is_on = up.events.wait(
                lambda event: (event.kind, event.server) == ("power-on", server.id), seconds=60
            )
            assert is_on is not None
            return server

        def until(line: str) -> None:
            retry(lambda _: line in lines, Deadline(60, line))

        first = made("web")
        until('server "web" is on')
        nova.update_server(first, name="front")
        assert (asked("front"), asked(first.id), asked("web")) == ("front",) * 3
        second = made("web")
        # Its folder is web-2; the first server's folder is still called web.
        assert asked("web") == "web"
        assert up._doors._server("web").spec.id == second.id
        assert up._answer({"ask": "servers"})[0] == ["front", "web"]
        # All servers have the one image of the session, which is not named.
        up._tell_topology()
        # Lines about the second server may still come from its own thread.
        shown = [line for line in lines if line.startswith("network ")]
        assert re.fullmatch(
            rf"network \S+ {ADDRESS}/\d+: front {ADDRESS}, web {ADDRESS}", shown[-1]
        )
        with pytest.raises(UsageError) as refused:
            asked("nobody")
        assert refused.value.hint == 'the servers are: "front", "web"'
        for name, other in (("front", "web"), ("web", "front")):
            (way,) = (
                each
                for each in up._doors.ways_into(up._doors._server(name)).splitlines()
                if "openstack" in each
            )
            assert f" {name} " in way
            assert f" {other} " not in way
        assert "hotplate monitor" in up._doors.ways_into(up._doors._server("web"))
        monkeypatch.setattr(PlayedMachine, "capabilities", ContainerMachine.capabilities)
        assert "hotplate monitor" not in up._doors.ways_into(up._doors._server("web"))
        nova.delete_server(first)
        until('server "front" is off: power-cut')
        third = made("web")
        assert up._answer({"ask": "servers"})[0] == ["web-2", "web-3"]
        nova.delete_server(third)


def test_deployed_config_leaves_no_stack(
    play: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: dict[str, dict[str, object]] = {}
    guest = Guest(answers=answers)
    monkeypatch.setattr(PlayedMachine, "role", staticmethod(lambda _name: guest))
    properties = {"image": "any", "flavor": "any", "user_data_format": "SOFTWARE_CONFIG"}
    resources = {"web": {"type": "OS::Nova::Server", "properties": properties}}
    template = {"heat_template_version": "2018-08-31", "resources": resources}
    wanted = {"group": "mine", "config": "x", "outputs": ["made"], "timeout": 60}
    with session(play, tmp_path, lambda _: None, wiring="namespace") as up:
        up.create(Template(source="a test", template=template))
        is_on = up.events.wait(lambda event: event.kind == "power-on", seconds=60)
        assert is_on is not None
        for number, status in ((0, "COMPLETE"), (3, "FAILED")):
            answers["deployment"] = {
                "deploy_stdout": "hello",
                "deploy_status_code": number,
                "made": "this",
            }
            handed = in_memory(json.dumps(wanted).encode())
            request: dict[str, object] = {"ask": "deploy", "server": "", "descriptors": [handed]}
            ended, (file,) = up._answer(request)
            os.close(handed)
            with os.fdopen(file, "rb") as stream:
                about = json.loads(stream.read())
            assert ended == status
            assert about["outputs"]["deploy_stdout"] == "hello"
            assert about["outputs"]["made"] == "this"
            heat = up.testbed.cloud.heat()
            left = [each for each in heat.stacks.list() if each.action != "DELETE"]
            assert [each.stack_name for each in left] == ["hotplate"]
