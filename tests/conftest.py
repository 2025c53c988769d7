"""Fixtures for runs told as a story, so that a test reads like the course of events."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from hotplate.events import expected
from hotplate.events.event import Event
from hotplate.events.expected import ExpectedDeployment, Transport
from hotplate.events.log import EventLog
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.health import AGENT
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import StackResult, Subject, Verdict, judge

if TYPE_CHECKING:
    from built_images import Images

# In a workflow the commands that tests run would annotate its step, and print more.
os.environ.pop("GITHUB_ACTIONS", None)

# With PYTHONDONTWRITEBYTECODE each worker would rewrite the assertions of all files again, which is
# a third of its collection time.
sys.dont_write_bytecode = False

# A deadline would fail tests on a busy host.
settings.register_profile("hotplate", deadline=None)
settings.load_profile("hotplate")

# A script's "&" and nohup ignore these signals, and child programs would inherit that.  A signal
# with a handler is reset to its default in a child.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The helpers beside the tests (own_podman, played_guest, ...) are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

import programs  # noqa: E402


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that this host cannot run; CI, which can run them all, counts the skips."""
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")
    for mark in item.iter_markers("tool"):
        if programs.tool_path(mark.args[0]) is None:
            pytest.skip(f'"{mark.args[0]}" is not on this host; tools/setup test installs it')


@pytest.fixture(scope="session")
def images() -> Images:
    import built_images

    if os.geteuid() != 0:
        pytest.skip("building an image needs root")
    return built_images.Images()


SERVER = "0b9f9f0e-1c8a-4a38-8f2c-7a41a53c6a11"
CONFIG = "5c9f8f66-0f50-4b80-b0c4-7d7f5a6f0b7e"
# Heat names a deployment after its config unless the template names it.
NAME = "demo-config-3p6v2ckq7xan"
DEPLOYMENT = "OS::Heat::SoftwareDeployment"
STACK = "9e1d5a0c-3f0b-4c0e-8d5f-0a4f6a1b7c21"
PARTS = ["cloud-config", "boothook.sh", "part-handler.py", "cfn-init-data", "loguserdata.py"]

KERNEL = "[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel@lists.debian.org)"
SYSTEMD = "Welcome to \x1b[1mDebian GNU/Linux 12 (bookworm)\x1b[0m!"
ADDRESS = (
    "[   14.2] cloud-init[301]: ci-info: |  eth0  | True | 169.254.169.15 | 255.255.255.0 "
    "| global | fa:16:3e:11:22:33 |"
)
LOGIN = "debian login: "


class Story:
    """Writes a run into an event log, one event per second."""

    STACK = STACK

    def __init__(self) -> None:
        self.events = EventLog()
        self.reached: list[Stage] = []
        self.stderr = ""
        self.deployed = True
        self.tracker = StageTracker(
            self.events, SERVER, on_reached=lambda mark: self.reached.append(mark.stage)
        )

    # -- what happens ----------------------------------------------------------------------------

    def emit(self, source: str, kind: str, *, server: str = SERVER, **detail: Any) -> Event:
        return self.events.emit(source, kind, server=server, **detail)

    def power(self) -> None:
        self.emit("nova", "boot", name="server", user_data_bytes=4711)
        self.emit("machine", "power-on", pid=4711, restored=False)
        if self.deployed:
            # Heat creates a deployment as soon as Nova reports its server.
            self.expect(self.wanted())

    def wanted(
        self,
        identity: str = CONFIG,
        resource: str = "deployment",
        *,
        group: str = "script",
        transport: str = Transport.CFN,
        name: str = NAME,
    ) -> ExpectedDeployment:
        """Return one deployment as Heat serves it."""
        path = f"stacks/demo/{STACK}/resources/{resource}"
        return ExpectedDeployment(
            id=identity,
            name=name,
            group=group,
            stack=STACK,
            resource=resource,
            label=resource,
            transport=transport,
            signal="" if transport == Transport.NONE else path,
        )

    def expect(self, *deployments: ExpectedDeployment) -> None:
        """Have Heat serve these deployments from now on."""
        expected.emit(self.events, SERVER, list(deployments))

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

    def user_data(self, *parts: str, handles: tuple[str, ...] = ()) -> None:
        sources = ["cfn"] if "cfn-init-data" in parts else []
        self.emit("harness", "user-data", parts=list(parts), sources=sources, handles=list(handles))

    def up(self) -> None:
        """Run to the point at which the agent should poll."""
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
        self.marker_of(CONFIG, word, group=group, **facts)

    def marker_of(self, identity: str, word: str, *, group: str = "script", **facts: Any) -> None:
        tail = "".join(
            f" {key}={json.dumps(value) if isinstance(value, str) else value}"
            for key, value in facts.items()
        )
        self.console(
            f"[   40.1] heat-config: {word} id={identity} group={group} "
            f"name={json.dumps(NAME)}{tail}"
        )

    def deployment(self, status: str, reason: str = "", *, resource: str = "deployment") -> None:
        self.resource(resource, DEPLOYMENT, status, reason)

    def taken(self, word: str = "succeeded") -> None:
        """Emit Heat's event that it accepted the signal."""
        reason = f"Signal: deployment 82cfabcb {word}"
        self.resource("deployment", DEPLOYMENT, "IN_PROGRESS", reason, action="SIGNAL")

    def resource(
        self, name: str, kind: str, status: str, reason: str = "", *, action: str = "CREATE"
    ) -> None:
        """Emit Heat's event of a resource."""
        self.emit(
            "stack",
            "resource",
            server="",
            stack="demo",
            stack_id=STACK,
            resource=name,
            type=kind,
            action=action,
            status=status,
            reason=reason,
        )

    def signalling(self) -> None:
        """Boot a server without deployments, whose user data have the address of a handle."""
        self.deployed = False
        self.boot()
        self.user_data("cloud-config", handles=(f"{STACK}/handle",))
        self.metadata()

    def wait_condition(self, status: str = "IN_PROGRESS") -> None:
        self.resource("wait", "OS::Heat::WaitCondition", status)

    def delivered(self) -> None:
        self.up()
        self.deployment("IN_PROGRESS")
        self.poll()
        self.marker("received")

    def finished(self, status: int = 0, **facts: Any) -> None:
        self.delivered()
        self.marker("started")
        self.marker("finished", status=status, **facts)

    def failed(self, status: int) -> None:
        """Run a hook that ends with this status, up to Heat's event of the failure."""
        self.finished(status=status)
        self.signal()
        reason = f"Deployment exited with non-zero status code: {status}"
        self.deployment("FAILED", f"deploy_status_code : {reason}")

    def signal(self, status: int = 200, *, times: int = 1, resource: str = "deployment") -> None:
        for _ in range(times):
            self.request(
                "cfn",
                "POST",
                f"/v1/signal/arn:openstack:heat::t1:stacks/demo/{STACK}/resources/{resource}",
                status,
            )

    def probe(self, name: str, text: str, status: int = 0) -> None:
        self.emit("guest", "probe", probe=name, status=status, text=text)

    def agent(self, log: str = "", **properties: str) -> None:
        unit = {
            "LoadState": "loaded",
            "UnitFileState": "enabled",
            "ActiveState": "active",
            "SubState": "running",
            "Result": "success",
            "NRestarts": "0",
        } | properties
        shown = "".join(f"{key}={value}\n" for key, value in unit.items())
        self.probe("health", f"=== units\nId={AGENT}\n{shown}")
        self.probe("agent-log", log)

    def result(self, status: str = "CREATE_COMPLETE", **more: Any) -> Verdict:
        """Return the verdict as ``hotplate test`` gives it.

        :param more: arguments of :class:`Subject`, :class:`StackResult` and :func:`judge`.
        """

        def taken(*names: str) -> dict[str, Any]:
            return {name: more.pop(name) for name in names if name in more}

        subject = Subject(**{"image": "a.qcow2"} | taken("image", "template", "facts", "stand_ins"))
        of_stack = ("reason", "wanted", "outputs", "output_errors", "hook_outputs", "unsent")
        stack = StackResult(status, **taken(*of_stack, "given_up"))
        return judge(subject, self.events, [self.tracker], stack, now=time.monotonic(), **more)

    # -- what is made of it ----------------------------------------------------------------------

    def diagnosis(
        self, status: str = "CREATE_IN_PROGRESS", reason: str = "", stderr: str = ""
    ) -> Diagnosis | None:
        return diagnose(
            self.events,
            self.tracker,
            stack_status=status,
            stack_reason=reason,
            hook_outputs={CONFIG: HookOutput(stderr=stderr or self.stderr)},
        )


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def passed(story: Story) -> Story:
    """A run without any fault."""
    story.finished()
    story.signal()
    story.taken()
    story.marker("signalled")
    story.deployment("COMPLETE")
    story.emit("machine", "exit", status=-9, reason="power-cut", message="")
    return story


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stage that tests templates on played guests; see ``tests/played_guest.py``."""
    # Imported late: it imports Heat, which most tests do not need.
    import played_guest

    return played_guest.Stage(tmp_path, monkeypatch)
