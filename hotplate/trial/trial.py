"""One run: an image and a template go in, a verdict comes out.

Waits for events only (:mod:`hotplate.trial.watch`): Heat's own, requests, console lines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from hotplate.cloud.options import CloudOptions
from hotplate.errors import HotplateError, MachineLostError
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import GuestFlood
from hotplate.heat_releases import installed_version
from hotplate.image.inspect import Image
from hotplate.machine.machine import Capability
from hotplate.machine.wiring import FIRST_GUEST_ADDRESS
from hotplate.report.html import SCREENSHOT
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.base import BaseTrial, Surroundings
from hotplate.trial.guest_probe import ask_guest, read_unsent, save_logs
from hotplate.trial.guests import Guests
from hotplate.trial.network_check import NetworkCheck
from hotplate.trial.rest import Rest
from hotplate.trial.subject import subject_of, taken_for_granted
from hotplate.trial.user_checks import CheckedGuest, ServerAccess
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker, decisive
from hotplate.verdict.verdict import StackResult, Subject, Verdict

if TYPE_CHECKING:
    from hotplate.trial.guest_check import GuestCheck, PlainImage

STACK_NAME = "hotplate"
NO_NETWORK_BETWEEN = (
    "the network between the servers: "
    f"each has the address {FIRST_GUEST_ADDRESS} and reaches no other"
)
#: The longest time to wait for a screenshot of a guest that does not boot.
PICTURE_SECONDS = 45.0


class Trial(BaseTrial):
    """One image, one template, one stack; a context manager.

    :param options: of its cloud.
    :param others: more images by name; see :class:`~hotplate.testbed.testbed.Testbed`.
    :param plain: of an image without an agent, which the built-in template tries; None for others.
    :param more: see :class:`~hotplate.trial.base.BaseTrial`.
    """

    checked = True

    def __init__(
        self,
        image: Image,
        template: Template,
        *,
        options: CloudOptions | None = None,
        others: Mapping[str, Image] | None = None,
        plain: PlainImage | None = None,
        **more: Unpack[Surroundings],
    ) -> None:
        super().__init__(template, **more)
        self.image = image
        self.others = others
        self.asked = plain is not None
        self._plain = plain
        self._guest_checks: list[NetworkCheck | GuestCheck] = []
        self._options = options
        self._owned = ExitStack()
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
            self._say(self.testbed.compute.maker().told)
            name = "the cloud" if self._plain else f"Heat {installed_version()}"
            self._say(f"{name} answers after {time.monotonic() - began:.1f} s")
            guests = Guests(self.events, self.testbed.server, self.trackers)
            own = self.testbed.cloud.options.own_network_data
            self._guest_checks = [NetworkCheck(guests, own_network_data=own)]
            if self._plain is not None:
                self._guest_checks.append(self._ask_plain(self._plain, guests))
            self._watch_from(owned, at_rest=Rest(guests).why, check=self._look)
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
        # A start error of ours first: Heat reports a server that did not start as failed.
        if (fault := self.testbed.fault) is not None:
            raise fault
        as_wanted = end.status == self.template.expect_status
        # Heat waits for signals only, and reports COMPLETE for a server that was switched on.
        settled = as_wanted and self._wait_for_what_is_due()
        self.testbed.compute.images.check()
        result = self._result(stack, end)
        problems = self._unmet(result, self._guests()) if as_wanted else []
        self._ask_guests(result)
        result = replace(result, hook_outputs={**result.hook_outputs, **self._unsent(stack)})
        verdict = self._verdict_at_rest(
            lambda: self._verdict(self._subject(), result, problems), settled=settled
        )
        # Last: a check may do anything to its guest, and the verdict on the boot stands.
        return self._with_checks(verdict, map(self._checked_guest, self.testbed.servers))

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
        if Capability.SCREEN not in server.machine.capabilities:
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

    def _wait_for_what_is_due(self) -> bool:
        done = super()._wait_for_what_is_due()
        for check in self._guest_checks:
            check.conclude()
        return done

    def _ask_plain(self, plain: PlainImage, guests: Guests) -> GuestCheck:
        """Give the servers a key pair of this run; return the check that asks their guests."""
        # Imported here: paramiko is slow to load, and most runs do without it.
        from paramiko import ECDSAKey

        from hotplate.trial.guest_check import GuestCheck

        key = ECDSAKey.generate()
        public_key = f"{key.get_name()} {key.get_base64()} hotplate"
        self.template = plain.fitted(self.template, public_key)
        return GuestCheck(guests, image=plain, key=key, seconds=self.settings.patience)

    def _look(self) -> None:
        for check in self._guest_checks:
            check.look()

    def _guests(self) -> dict[str, tuple[str, Callable[[], list[str]]]]:
        return {
            each.spec.id: (each.spec.name, partial(self._look_into, each))
            for each in self.testbed.servers
        }

    def _checked_guest(self, server: Server) -> CheckedGuest:
        platforms = ("openstack", "qemu")
        has_kernel = Capability.KERNEL in server.machine.capabilities
        return CheckedGuest(
            ServerAccess(server),
            name=self._shown_name(server.spec.id),
            platforms=platforms if has_kernel else platforms[:1],
            memory=self.settings.memory,
        )

    def _look_into(self, server: Server) -> list[str]:
        """Return the unmet expectations of one guest in sentences, once its boot has ended."""
        if why := stopped_by(self.events, server.spec.id):
            return [f"the guest could not be asked: {why}"]
        tracker = self.trackers[server.spec.id]
        boot = tracker.boots.number
        problems = self._ask_what_is_expected(server)
        if problems and (tracker.boots.rebooting or tracker.boots.number != boot):
            # It rebooted meanwhile, as a template may ask it to.
            self._wait_for_what_is_due()
            if tracker.missing() is None:
                problems = self._ask_what_is_expected(server)
        return problems

    def _ask_what_is_expected(self, server: Server) -> list[str]:
        connect = partial(server.shell, seconds=self.settings.patience)
        try:
            return self._unmet_by_guest(server.spec.name, connect)
        except (HotplateError, DeadlineExceeded) as error:
            return [f"the guest could not be asked: {error}"]

    def _track(self, server_id: str) -> None:
        """Follow a server from now on; report once how the first machine is connected, and why."""
        super()._track(server_id)
        server = self.testbed.server(server_id)
        if not self._told_wiring and server is not None and server.machine.wiring is not None:
            self._told_wiring = True
            wiring = server.machine.wiring
            self._say(f"network: {wiring.name}, because {wiring.reason}")

    def _shown_name(self, server_id: str) -> str:
        server = self.testbed.server(server_id)
        return server.spec.name if len(self.testbed.servers) > 1 and server is not None else ""

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

    def _unsent(self, stack: Stack) -> dict[str, HookOutput]:
        """Return the output of failed hooks for which Heat wants no signal, by config id."""
        outputs: dict[str, HookOutput] = {}
        for tracker in self._followed():
            failed = [each.id for each in tracker.deployments if each.silent and each.failed]
            server = self.testbed.server(tracker.server)
            if failed and server is not None and server.machine.running:
                outputs |= read_unsent(server, failed)
        return self._written(outputs, stack)

    def _ask_guest(self, server: Server, tracker: StageTracker) -> bool:
        """Ask a guest for its state; return False when it is out of reach."""
        let_in = ask_guest(self.events, server, tracker.missing())
        if self.settings.display and Capability.SCREEN in server.machine.capabilities:
            with contextlib.suppress(MachineLostError, OSError):
                server.machine.screenshot(self.folder / SCREENSHOT)
        return let_in

    def _subject(self) -> Subject:
        stand_ins = [
            f'{each.kind} "{each.name}"' for each in self.testbed.cloud.stand_ins(STACK_NAME)
        ]
        if self._plain is not None:
            # Of the built-in template, which is not the user's.
            stand_ins = []
        stand_ins += taken_for_granted(self.testbed.cloud.taken_for_granted())
        if len(self.trackers) > 1 and not self.testbed.compute.networked:
            stand_ins.append(NO_NETWORK_BETWEEN)
        subject = subject_of(
            self.testbed,
            self.testbed.server(decisive(self._followed()).server),
            template=self.template.source,
            stand_ins=stand_ins,
        )
        return replace(subject, plain=self._plain is not None)


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
