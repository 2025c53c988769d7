"""Runs told as a story, so that each test reads like what happened."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hotplate.events.log import Event, EventLog
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker

SERVER = "0b9f9f0e-1c8a-4a38-8f2c-7a41a53c6a11"
CONFIG = "5c9f8f66-0f50-4b80-b0c4-7d7f5a6f0b7e"
# Heat names a deployment after its config unless the template names it.
NAME = "demo-config-3p6v2ckq7xan"
PARTS = ["cloud-config", "boothook.sh", "part-handler.py", "cfn-init-data", "loguserdata.py"]

KERNEL = "[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel@lists.debian.org)"
SYSTEMD = "Welcome to \x1b[1mDebian GNU/Linux 12 (bookworm)\x1b[0m!"
ADDRESS = (
    "[   14.2] cloud-init[301]: ci-info: |  eth0  | True | 169.254.169.15 | 255.255.255.0 "
    "| global | fa:16:3e:11:22:33 |"
)
LOGIN = "debian login: "


class Story:
    """Writes a run into an event log, one second an event."""

    def __init__(self, until: Stage = Stage.SIGNAL_ACCEPTED) -> None:
        self.events = EventLog()
        self.reached: list[Stage] = []
        self.until = until
        self.stderr = ""
        self.tracker = StageTracker(
            self.events,
            SERVER,
            until=until,
            on_reached=lambda mark: self.reached.append(mark.stage),
        )

    # -- what happens ----------------------------------------------------------------------------

    def emit(self, source: str, kind: str, *, server: str = SERVER, **detail: Any) -> Event:
        return self.events.emit(source, kind, server=server, **detail)

    def power(self) -> None:
        self.emit("nova", "boot", name="server", user_data_bytes=4711)
        self.emit("machine", "power-on", pid=4711, restored=False)

    def console(self, *lines: str) -> None:
        for line in lines:
            self.emit("console", "line", text=line)

    def boot(self) -> None:
        self.power()
        self.console("SeaBIOS (version 1.16.2-debian-1.16.2-1)", KERNEL, SYSTEMD)

    def request(
        self,
        service: str,
        method: str,
        path: str,
        status: int,
        *,
        server: str = SERVER,
        **detail: Any,
    ) -> None:
        facts = {"method": method, "path": path, "status": status, "seconds": 0.01, "side": "guest"}
        self.emit(service, "request", server=server, **{**facts, **detail})

    def metadata(self, status: int = 200) -> None:
        self.request("metadata", "GET", "/openstack", status)
        self.request("metadata", "GET", "/openstack/2018-08-27/meta_data.json", status)
        self.request("metadata", "GET", "/openstack/2018-08-27/user_data", status)

    def user_data(self, *parts: str) -> None:
        self.emit("harness", "user-data", parts=list(parts))

    def up(self) -> None:
        """To the point at which the agent is to poll."""
        self.boot()
        self.user_data(*PARTS)
        self.console(ADDRESS)
        self.metadata()
        self.console("Cloud-init v. 22.4.2 finished at ... Datasource DataSourceOpenStack", LOGIN)

    def poll(self, status: int = 200, *, times: int = 1) -> None:
        for _ in range(times):
            self.request(
                "cfn",
                "GET",
                "/v1/",
                status,
                action="DescribeStackResource",
                StackName="demo",
                LogicalResourceId="server",
            )

    def marker(self, word: str, *, group: str = "script", **facts: Any) -> None:
        tail = "".join(
            f" {key}={json.dumps(value) if isinstance(value, str) else value}"
            for key, value in facts.items()
        )
        self.console(
            f"[   40.1] heat-config: {word} id={CONFIG} group={group} name={json.dumps(NAME)}{tail}"
        )

    def deployment(self, status: str, reason: str = "") -> None:
        self.emit(
            "stack",
            "resource",
            server="",
            stack="demo",
            resource="deployment",
            type="OS::Heat::SoftwareDeployment",
            action="CREATE",
            status=status,
            reason=reason,
        )

    def taken(self, word: str = "succeeded") -> None:
        """Heat's own word that it took the signal."""
        self.emit(
            "stack",
            "resource",
            server="",
            stack="demo",
            resource="deployment",
            type="OS::Heat::SoftwareDeployment",
            action="SIGNAL",
            status="IN_PROGRESS",
            reason=f"Signal: deployment 82cfabcb {word}",
        )

    def delivered(self) -> None:
        self.up()
        self.deployment("IN_PROGRESS")
        self.poll()
        self.marker("received")

    def finished(self, status: int = 0, **facts: Any) -> None:
        self.delivered()
        self.marker("started")
        self.marker("finished", status=status, **facts)

    def signal(self, status: int = 200, *, times: int = 1) -> None:
        for _ in range(times):
            self.request(
                "cfn",
                "POST",
                "/v1/signal/arn:openstack:heat::t1:stacks/demo/9e1d/resources/deployment",
                status,
            )

    def probe(self, name: str, text: str, status: int = 0) -> None:
        self.emit("guest", "probe", probe=name, status=status, text=text)

    def agent(self, log: str = "", **properties: str) -> None:
        known = {
            "LoadState": "loaded",
            "UnitFileState": "enabled",
            "ActiveState": "active",
            "SubState": "running",
            "Result": "success",
            "NRestarts": "0",
        } | properties
        self.probe("agent-unit", "".join(f"{key}={value}\n" for key, value in known.items()))
        self.probe("agent-log", log)

    # -- what is made of it ----------------------------------------------------------------------

    def diagnosis(
        self, status: str = "CREATE_IN_PROGRESS", reason: str = "", stderr: str = ""
    ) -> Diagnosis | None:
        return diagnose(
            self.events,
            self.tracker,
            stack_status=status,
            stack_reason=reason,
            said={"deployment": stderr or self.stderr},
        )


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def passed(story: Story) -> Story:
    """A run in which everything went well."""
    story.finished()
    story.signal()
    story.taken()
    story.marker("signalled")
    story.deployment("COMPLETE")
    story.emit("machine", "exit", status=-9, reason="power-cut", message="")
    return story
