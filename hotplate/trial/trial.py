"""One run: an image and a template go in, a verdict comes out.

Waits for events only: Heat's own events, requests, console lines.  A run is given up when nothing
new has happened for :attr:`~hotplate.settings.Settings.patience` seconds; polls that repeat
themselves are nothing new.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hotplate.cloud.options import CloudOptions
from hotplate.errors import HotplateError, MachineLostError
from hotplate.events import classify
from hotplate.events.log import Event, EventLog
from hotplate.image.inspect import Image
from hotplate.machine.machine import Machine
from hotplate.report.html import SCREENSHOT
from hotplate.settings import Settings
from hotplate.stacks.stack import STACK_TYPE, Stack
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline
from hotplate.trial.guest_probe import ask_guest, save_logs
from hotplate.verdict import console_patterns
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import Subject, Verdict, judge

STACK_NAME = "hotplate"
NO_SERVER = "no server"
DONE = ("COMPLETE", "FAILED")
PICTURE_SECONDS = 45.0
"""How long a guest that does not boot is watched at most for a picture of it."""


@dataclass(frozen=True)
class StackEnd:
    """How a stack ended.

    :param status: such as ``CREATE_COMPLETE``; the last one seen when it did not end.
    :param reason: Heat's words, or why it was not waited for any longer.
    """

    status: str
    reason: str = ""


class Watch:
    """Waits for a stack, event by event.

    :param on_server: called with the id of each server when its machine is switched on.
    """

    def __init__(
        self, events: EventLog, settings: Settings, *, on_server: Callable[[str], None]
    ) -> None:
        self._queue: queue.Queue[Event] = queue.Queue()
        self._settings = settings
        self._seen: set[tuple[object, ...]] = set()
        self._on_server = on_server
        self._unsubscribe = events.subscribe(self._queue.put)

    def close(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    def stack(self, name: str, action: str) -> StackEnd:
        """Wait until the stack has ended ``action``, or nothing more is to be expected.

        :return: how it ended; the status is ``<action>_IN_PROGRESS`` when it was given up.
        """
        silence = GuestDeadline(self._settings.patience, "anything new")
        limit = GuestDeadline(self._settings.limit, f'the stack "{name}"')
        while True:
            try:
                event = self._queue.get(timeout=max(0.0, min(silence.left, limit.left)))
            except queue.Empty:
                if not silence.passed and not limit.passed:
                    continue
                return StackEnd(f"{action}_IN_PROGRESS", self._why_given_up(silence, limit))
            if self._is_new(event):
                silence.extend(self._settings.patience)
            if limit.passed:
                return StackEnd(f"{action}_IN_PROGRESS", self._why_given_up(silence, limit))
            if event.source == "machine" and event.kind == "power-on":
                self._on_server(event.server)
            if end := self._end(event, name, action):
                return end

    def _why_given_up(self, silence: Deadline, limit: Deadline) -> str:
        if limit.passed:
            return f"not finished {limit.seconds:.0f} s after it was begun"
        return f"nothing new was seen for {silence.seconds:.0f} s"

    def _end(self, event: Event, name: str, action: str) -> StackEnd | None:
        detail = event.detail
        if event.source == "stack" and detail.get("type") == STACK_TYPE:
            ours = detail.get("resource") == name and detail.get("action") == action
            if ours and detail.get("status") in DONE:
                return StackEnd(f"{action}_{detail['status']}", str(detail.get("reason", "")))
        if why := hopeless(event):
            return StackEnd(f"{action}_IN_PROGRESS", why)
        return None

    def _is_new(self, event: Event) -> bool:
        if not classify.is_request(event):
            return True
        key = (
            event.server,
            event.source,
            event.detail.get("method"),
            classify.path(event),
            event.detail.get("status"),
        )
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def hopeless(event: Event) -> str:
    """Why a guest never goes on after an event, "" when it may."""
    if event.source == "machine" and event.kind == "panic":
        return "the guest's kernel panicked"
    if classify.is_loss(event):
        return "the machine was lost"
    if classify.is_stop(event):
        return "QEMU stopped the guest"
    if text := classify.console_text(event):
        pattern = console_patterns.match(classify.clean(text))
        if pattern is not None and pattern.fatal:
            return f"the console shows: {pattern.reason}"
    return ""


class Trial:
    """One image, one template, one stack; a context manager.

    :param folder: the run's own folder in the artefacts.
    :param say: told what is going on, in sentences.
    :param on_reached: told each stage of the first server as it is reached.
    """

    def __init__(
        self,
        image: Image,
        template: Template,
        *,
        settings: Settings,
        folder: Path,
        events: EventLog,
        say: Callable[[str], None],
        on_reached: Callable[[Mark], None],
        options: CloudOptions | None = None,
    ) -> None:
        self.image = image
        self.template = template
        self.settings = settings
        self.folder = folder
        self.events = events
        self._say = say
        self._on_reached = on_reached
        self._options = options
        self._owned = ExitStack()
        self.trackers: dict[str, StageTracker] = {}
        self.until = Stage.SIGNAL_ACCEPTED if template.has_deployments else Stage.METADATA_SERVED

    def __enter__(self) -> Trial:
        with ExitStack() as owned:
            began = time.monotonic()
            self.testbed = owned.enter_context(
                Testbed(
                    self.image,
                    settings=self.settings,
                    directory=self.folder,
                    events=self.events,
                    options=self._options,
                )
            )
            accelerator = self.testbed.compute.accelerator
            self._say(f"accelerator: {accelerator.name}, because {accelerator.reason}")
            self._say(f"Heat answers after {time.monotonic() - began:.1f} s")
            self._watch = Watch(self.events, self.settings, on_server=self._track)
            owned.callback(self._watch.close)
            owned.callback(self._stop_tracking)
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._owned.close()

    def judge(self) -> Verdict:
        """Create the stack, wait for it, and say how it went.

        :raises TemplateError: when Heat refuses the template.
        """
        stack = Stack.create(self.testbed.cloud, self.template, name=STACK_NAME)
        end = self._watch.stack(STACK_NAME, "CREATE")
        outputs = stack.outputs
        wanted = self.template.expect_status
        problems: list[str] = []
        if end.status == wanted:
            if self.template.expect is not None:
                problems += self.template.expect(outputs)
            problems += self._look_into_guests()
        tracker = self._decisive()
        now = time.monotonic()
        if end.status != wanted or tracker.missing() is not None:
            self._ask_guest(tracker)
        for server in self.testbed.servers:
            save_logs(server, self.folder / "guest" / server.directory.name)
        return judge(
            self._subject(tracker),
            self.events,
            tracker,
            stack_status=end.status,
            stack_reason=end.reason,
            outputs=outputs,
            said=stack.said() if end.status.endswith("_FAILED") else None,
            problems=problems,
            wanted=wanted,
            now=now,
            artefacts=str(self.folder),
        )

    def take_picture(self) -> Path | None:
        """When the guest did not boot: start it once more with a screen, for a picture of that.

        A screen costs each boot some time, so a guest has none unless it was asked for one.

        :return: the picture, None when the guest booted or has no screen to show.
        """
        tracker = self._decisive()
        server = self.testbed.compute.servers.get(tracker.server)
        picture = self.folder / SCREENSHOT
        if server is None or tracker.missing() is not Stage.BOOTED or picture.exists():
            return None
        self._say("starting it once more with a screen, for a picture of where it stops")
        first = server.machine
        first.kill()
        directory = self.folder / "screen"
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            directory.mkdir(mode=0o700)
            events = EventLog()
            with Machine(
                replace(first.config, display=True),
                wiring=first.wiring,
                accelerator=first.accelerator,
                directory=directory,
                events=events,
                server_id=first.server_id,
            ) as machine:
                machine.start()
                seconds = min(PICTURE_SECONDS, self.settings.patience)
                events.wait(lambda event: bool(hopeless(event)), seconds=seconds)
                machine.screenshot(picture)
        return picture if picture.exists() else None

    # -- inside ----------------------------------------------------------------------------------

    def _look_into_guests(self) -> list[str]:
        """What is not as the template's author expects it to be, in sentences."""
        if self.template.expect_guest is None:
            return []
        from hotplate.guest.testinfra_backend import testinfra_host

        problems = []
        servers = self.testbed.servers
        for server in servers:
            where = f'server "{server.spec.name}": ' if len(servers) > 1 else ""
            try:
                host = testinfra_host(server.shell, name=server.spec.name)
                problems += [f"{where}{each}" for each in self.template.expect_guest(host)]
            except (HotplateError, DeadlineExceeded) as error:
                problems.append(f"{where}the guest could not be asked: {error}")
        return problems

    def _track(self, server_id: str) -> None:
        if server_id in self.trackers:
            return
        first = not self.trackers
        self.trackers[server_id] = StageTracker(
            self.events,
            server_id,
            until=self.until,
            on_reached=self._on_reached if first else None,
        )
        server = self.testbed.compute.servers.get(server_id)
        wiring = server.machine.wiring if server else None
        if wiring is not None:
            self._say(f"network: {wiring.name}, because {wiring.reason}")

    def _stop_tracking(self) -> None:
        for tracker in self.trackers.values():
            tracker.close()

    def _decisive(self) -> StageTracker:
        """The tracker of the server that got least far, for it is the one to look at."""
        order = list(Stage)
        if not self.trackers:
            # No machine was switched on: nothing but the stack's own events can be followed.
            self.trackers[NO_SERVER] = StageTracker(self.events, NO_SERVER, until=self.until)
        return min(
            self.trackers.values(),
            key=lambda each: order.index(stage) if (stage := each.missing()) else len(order),
        )

    def _ask_guest(self, tracker: StageTracker) -> None:
        """Where the guest can be asked, let it say what is wrong; it may well be out of reach."""
        server: Server | None = self.testbed.compute.servers.get(tracker.server)
        if server is None or not server.machine.running:
            return
        ask_guest(self.events, server, tracker.missing())
        if not server.machine.config.display:
            return
        with contextlib.suppress(MachineLostError, OSError):
            server.machine.screenshot(self.folder / SCREENSHOT)

    def _subject(self, tracker: StageTracker) -> Subject:
        server = self.testbed.compute.servers.get(tracker.server)
        accelerator = self.testbed.compute.accelerator
        facts: dict[str, str] = {
            "accelerator": f"{accelerator.name} ({accelerator.reason})",
            "datasource": self.settings.datasource.value,
        }
        if server is not None:
            facts["network"] = f"{server.machine.wiring.name} ({server.machine.wiring.reason})"
            facts["firmware"] = server.machine.config.firmware.value
            facts["memory"] = f"{server.machine.config.memory_mib} MiB"
        stood_in = self.testbed.cloud.stand_ins(STACK_NAME)
        return Subject(
            image=str(self.image.path),
            template=self.template.source,
            server=server.spec.name if server else "",
            stand_ins=tuple(f"{each.kind} {each.name}" for each in stood_in),
            facts=facts,
        )
