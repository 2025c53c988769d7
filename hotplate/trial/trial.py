"""One run: an image and a template go in, a verdict comes out.

Waits for events only (:mod:`hotplate.trial.watch`): Heat's own, requests, console lines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from hotplate.cloud.options import CloudOptions
from hotplate.errors import HotplateError, MachineLostError
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import GuestFlood
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine.wiring import FIRST_GUEST_ADDRESS
from hotplate.report import deployment_output
from hotplate.report.artifacts import Folder, redacted
from hotplate.report.html import SCREENSHOT
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guest_probe import ask_guest, save_logs, wait_for_boot
from hotplate.trial.network_check import NetworkCheck
from hotplate.trial.rest import Rest
from hotplate.trial.subject import subject_of, taken_for_granted
from hotplate.trial.watch import StackEnd, Watch
from hotplate.verdict.deployment_track import WaitSignal
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.tracker import StageTracker, decisive
from hotplate.verdict.verdict import StackResult, Subject, Verdict, judge

STACK_NAME = "hotplate"
NO_SERVER = "no server"
NO_NETWORK_BETWEEN = (
    "the network between the servers: "
    f"each has the address {FIRST_GUEST_ADDRESS} and reaches no other"
)
PICTURE_SECONDS = 45.0
"""The longest time to wait for a screenshot of a guest that does not boot."""


class Trial:
    """One image, one template, one stack; a context manager.

    :param others: more images by name; see :class:`~hotplate.testbed.testbed.Testbed`.
    :param folder: the run's own folder in the artifacts.
    :param say: called with progress messages, in sentences.
    :param on_reached: called with each stage as it is reached, and the server's name.
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
        on_reached: Callable[[Mark, str], None],
        options: CloudOptions | None = None,
        others: Mapping[str, Image] | None = None,
    ) -> None:
        self.image = image
        self.others = others
        self.template = template
        self.settings = settings
        self.folder = folder
        self.events = events
        self._say = say
        self._on_reached = on_reached
        self._options = options
        self._owned = ExitStack()
        self.trackers: dict[str, StageTracker] = {}
        self._told_wiring = False

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
                    others=self.others,
                )
            )
            accelerator = self.testbed.accelerator
            self._say(f"accelerator: {accelerator.name}, because {accelerator.reason}")
            self._say(f"Heat answers after {time.monotonic() - began:.1f} s")
            rest = Rest(self.events, self.testbed.server, self.trackers)
            self._network = NetworkCheck(self.events, self.testbed.server, self.trackers)
            self._watch = Watch(
                self.events,
                self.settings,
                on_server=self._track,
                on_waiting=self._say,
                at_work=lambda: at_work(self.trackers.values()),
                at_rest=rest.why,
                check=self._network.look,
            )
            owned.callback(self._watch.close)
            owned.callback(self._stop_tracking)
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._owned.close()

    def judge(self) -> Verdict:
        """Create the stack, wait for it and for its servers' due stages, and return the verdict.

        :raises TemplateError: when Heat refuses the template.
        :raises HostError: or another error, when it kept a server from being started.
        """
        stack = Stack.create(self.testbed.cloud, self.template, name=STACK_NAME)
        end = self._watch.stack(STACK_NAME, "CREATE")
        self._check_host()
        if as_wanted := end.status == self.template.expect_status:
            # Heat waits for signals only, and reports COMPLETE for a server that was switched on.
            done = self._wait_for_what_is_due()
        self.testbed.compute.images.check()
        result = self._result(stack, end)
        problems = self._look_into_guests(result) if as_wanted else []
        self._ask_guests(result)
        if as_wanted and done:
            # A guest may have begun to reboot in the meantime.
            self._wait_for_what_is_due()
        return self._judge(replace(result, given_up=self._watch.given_up), problems)

    def take_picture(self) -> Path | None:
        """Start a guest that did not boot once more with a screen, for a screenshot.

        A screen costs each boot some time, so a guest has none by default.

        :return: the picture, None when the guest booted or has no screen to show.
        """
        tracker = decisive(self._followed())
        server = self.testbed.server(tracker.server)
        picture = self.folder / SCREENSHOT
        if server is None or tracker.missing() is not Stage.BOOTED or picture.exists():
            return None
        self._say("starting it once more with a screen, for a picture of where it stops")
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            directory = self.folder / "screen"
            directory.mkdir(mode=0o700)
            server.picture_boot(
                picture,
                directory=directory,
                until=lambda event: bool(classify.hopeless(event)),
                seconds=min(PICTURE_SECONDS, self.settings.patience),
            )
        return picture if picture.exists() else None

    # -- inside ----------------------------------------------------------------------------------

    def _check_host(self) -> None:
        """Raise a start error of ours first: Heat reports a server that did not start as failed."""
        if (fault := self.testbed.fault) is not None:
            raise fault

    def _wait_for_what_is_due(self) -> bool:
        """Return True when all due stages were reached, False when the wait was given up."""
        done = not self._watch.until(self._nothing_is_due)
        self._network.conclude()
        return done

    def _nothing_is_due(self) -> bool:
        return all(each.done() for each in self.trackers.values())

    def _result(self, stack: Stack, end: StackEnd) -> StackResult:
        return StackResult(
            status=end.status,
            reason=end.reason,
            wanted=self.template.expect_status,
            outputs=stack.outputs,
            hook_outputs=hook_outputs(stack, self.trackers, Folder(self.folder)),
            unsent=stack.unsent_outputs(self.trackers),
        )

    def _judge(self, result: StackResult, problems: list[str]) -> Verdict:
        return judge(
            self._subject(),
            self.events,
            self._followed(),
            result,
            problems=problems,
            strict=self.settings.strict,
            now=time.monotonic(),
            artifacts=str(self.folder),
        )

    def _look_into_guests(self, result: StackResult) -> list[str]:
        """Return the unmet expectations of the template's author, in sentences."""
        problems: list[str] = []
        if self.template.expect is not None:
            problems += self.template.expect(result.outputs)
        if self.template.expect_guest is None:
            return problems
        servers = self.testbed.servers
        for server in servers:
            tracker = self.trackers[server.spec.id]
            # A guest that misses a stage fails by that, and may accept no connection.
            if tracker.missing() is None:
                where = f'server "{server.spec.name}": ' if len(servers) > 1 else ""
                problems += [f"{where}{each}" for each in self._look_into(server, tracker)]
        return problems

    def _look_into(self, server: Server, tracker: StageTracker) -> list[str]:
        """Return the unmet expectations of one guest in sentences, once its boot has ended."""
        if why := stopped_by(self.events, server.spec.id):
            return [f"the guest could not be asked: {why}"]
        boot = tracker.boots.number
        problems = self._ask_what_is_expected(server)
        if problems and (tracker.boots.rebooting or tracker.boots.number != boot):
            # It rebooted meanwhile, as a template may ask it to.
            self._wait_for_what_is_due()
            if tracker.missing() is None:
                problems = self._ask_what_is_expected(server)
        return problems

    def _ask_what_is_expected(self, server: Server) -> list[str]:
        from hotplate.guest.testinfra_backend import testinfra_host

        assert self.template.expect_guest is not None
        try:
            late = wait_for_boot(server, seconds=self.settings.patience)
            host = testinfra_host(server.shell, name=server.spec.name)
            return [*filter(None, [late]), *self.template.expect_guest(host)]
        except (HotplateError, DeadlineExceeded) as error:
            return [f"the guest could not be asked: {error}"]

    def _track(self, server_id: str) -> None:
        """Follow a server from now on; report once how the first machine is connected, and why."""
        if server_id not in self.trackers:
            self.trackers[server_id] = StageTracker(
                self.events,
                server_id,
                on_reached=lambda mark: self._tell(server_id, mark),
                checked=True,
            )
        server = self.testbed.server(server_id)
        if not self._told_wiring and server is not None and server.machine.wiring is not None:
            self._told_wiring = True
            wiring = server.machine.wiring
            self._say(f"network: {wiring.name}, because {wiring.reason}")

    def _tell(self, server_id: str, mark: Mark) -> None:
        several = len(self.testbed.servers) > 1
        server = self.testbed.server(server_id)
        self._on_reached(mark, server.spec.name if several and server is not None else "")

    def _stop_tracking(self) -> None:
        for tracker in self.trackers.values():
            tracker.close()

    def _followed(self) -> list[StageTracker]:
        if not self.trackers:
            # No machine was switched on: only the stack's own events can be followed.
            self.trackers[NO_SERVER] = StageTracker(self.events, NO_SERVER)
        return [*self.trackers.values()]

    def _ask_guests(self, result: StackResult) -> None:
        """Ask the guests that can be asked for their state, and save their logs."""
        tracker = decisive(self._followed())
        server = self.testbed.server(tracker.server)
        well = result.as_wanted and tracker.missing() is None
        shut = None
        if server is not None and server.machine.running and not well:
            shut = None if self._ask_guest(server, tracker) else server
        for each in self.testbed.servers:
            # Skip the guest whose shell just timed out.
            if each is not shut:
                save_logs(each, self.folder / "guest" / each.directory.name, events=self.events)

    def _ask_guest(self, server: Server, tracker: StageTracker) -> bool:
        """Ask a guest for its state; return False when it is out of reach."""
        let_in = ask_guest(self.events, server, tracker.missing())
        if server.machine.config.display:
            with contextlib.suppress(MachineLostError, OSError):
                server.machine.screenshot(self.folder / SCREENSHOT)
        return let_in

    def _subject(self) -> Subject:
        stand_ins = [
            f'{each.kind} "{each.name}"' for each in self.testbed.cloud.stand_ins(STACK_NAME)
        ]
        stand_ins += taken_for_granted(self.testbed.cloud.taken_for_granted())
        if len(self.trackers) > 1 and not self.testbed.compute.networked:
            stand_ins.append(NO_NETWORK_BETWEEN)
        return subject_of(
            self.testbed,
            self.testbed.server(decisive(self._followed()).server),
            template=self.template.source,
            stand_ins=stand_ins,
        )


def stopped_by(events: Iterable[Event], server: str) -> str:
    """Return why a guest cannot continue since its last start, "" when it may.

    A flood stops no guest.
    """
    why = ""
    for event in events:
        if event.server != server:
            continue
        if event.source == "machine" and event.kind in ("power-on", "reset"):
            why = ""
        elif not why and GuestFlood.of(event) is None:
            why = classify.hopeless(event)
    return why


def at_work(trackers: Iterable[StageTracker]) -> str:
    """Return the work in progress in the guests that is waited for, in words."""
    words = []
    for tracker in trackers:
        track = tracker.stuck()
        where = f' in "{tracker.name}"' if tracker.name else ""
        if isinstance(track, WaitSignal) and tracker.boots.runs_user_data:
            words.append(f"the user data{where}")
        elif track is not None and track.missing() is Stage.HOOK_FINISHED:
            words.append(f'the hook of "{track.label}"{where}')
    return " and ".join(words)


def hook_outputs(
    stack: Stack, trackers: Mapping[str, StageTracker], folder: Folder
) -> dict[str, HookOutput]:
    """Write the outputs of failed deployments into files, and return them by config id.

    :param trackers: of the stack's servers, by their ids.
    :param folder: of the run.
    """
    outputs = stack.failed_outputs(trackers)
    if not outputs:
        return {}
    secrets = stack.secrets(trackers)
    written = {key: HookOutput.of(each).without(secrets, redacted) for key, each in outputs.items()}
    for tracker in trackers.values():
        for track in tracker.deployments:
            if track.id in written:
                deployment_output.write(
                    folder,
                    written[track.id],
                    server=tracker.name if len(trackers) > 1 else "",
                    label=track.label,
                    group=track.group,
                )
    return written
