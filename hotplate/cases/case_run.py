"""One case of ``hotplate test``, in this process: it always gets a folder and a verdict."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hotplate.cases.request import OsCloudRequest, Request
from hotplate.cases.table import Case
from hotplate.errors import HostError, HotplateError, Outcome, is_unforeseen
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.history import FILE, History
from hotplate.image.inspect import Image
from hotplate.inspection.findings import ImageFault, Level
from hotplate.inspection.inspection import BOOT_KINDS, inspected
from hotplate.interrupts import Interrupts
from hotplate.machine.cpu_models import missing_level
from hotplate.report.artifacts import DATABASES, REPORT, Artifacts, Folder, earlier_run, is_full
from hotplate.report.html import RunReport, report
from hotplate.report.terminal import Progress, summary
from hotplate.settings import MachineChoice
from hotplate.stacks.template import Template
from hotplate.testbed.boot_images import open_image, open_images
from hotplate.testbed.maker import DISKS
from hotplate.text import clean
from hotplate.verdict.stages import ORDER, Mark, Stage
from hotplate.verdict.verdict import Subject, Verdict, of_error

if TYPE_CHECKING:
    from hotplate.trial.guest_check import PlainImage
    from hotplate.trial.trial import Trial

LOST_ONCE = "the machine was lost, which says nothing about the image; trying once more"

#: Outcomes that say something about the image, and so may be another on a better CPU.
_OF_THE_IMAGE = (Outcome.PASSED, Outcome.FAILED, Outcome.GIVEN_UP)

#: The label in a verdict's facts and reasons for the findings of ``hotplate inspect``.
SEEN = "seen before the boot"


class Follower(Protocol):
    """Receives the progress of a case; a context manager that lasts as long as its machines."""

    def __enter__(self) -> Follower: ...

    def __exit__(self, *exc: object) -> None: ...

    def say(self, text: str) -> None:
        """Show a sentence on the present action."""

    def reached(self, mark: Mark, server: str) -> None:
        """Show a reached stage, with the server's name when there are several."""


#: Makes a follower, given the seconds from power-on to each stage in earlier runs.
Follow = Callable[["Mapping[str, float]", "EventLog"], Follower]


class CaseRun:
    """Runs one case.

    :param request: the command.
    :param interrupts: end the test of an image, but not the writing of its results.
    :param follow: makes its follower; by default the terminal.
    :param begun: called with the folder of the case once it exists.
    :param losses: earlier losses of its machine or its process, one sentence each.
    :param lost: called with the reason at each loss of its machine.
    """

    def __init__(
        self,
        request: Request,
        case: Case,
        interrupts: Interrupts,
        *,
        follow: Follow | None = None,
        begun: Callable[[Path], None] = lambda _: None,
        losses: Sequence[str] = (),
        lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.request = request
        self.case = case
        self.interrupts = interrupts
        self._follow = follow or self._on_terminal
        self._begun = begun
        self._losses = [*losses]
        self._lost = lost
        self._lacks: list[str] = []
        self.settings = case.settings_from(request.settings)
        self._artifacts: Artifacts | None = None

    @cached_property
    def template(self) -> Template:
        """Return the template to deploy.

        :raises UsageError: and TemplateError, see :meth:`TemplateChoice.load`.
        """
        return self.case.template.load()

    @property
    def folder(self) -> Path | None:
        """Return the folder of the case."""
        return self._artifacts.folder if self._artifacts is not None else None

    def run(self) -> RunReport:
        """Run it; the verdict and the artifacts always exist."""
        began = time.monotonic()
        subject = self.case.subject
        try:
            artifacts = Artifacts(self.settings.artifacts.absolute(), self.case.name)
        # Without a folder nothing can run; the verdict has the reason.
        except HostError as error:
            return RunReport(of_error(error, subject, EventLog(), now=began), ())
        self._artifacts = artifacts
        artifacts.begin(subject)
        self._begun(artifacts.folder)
        done = self._attempts(artifacts, subject)
        self.leave(artifacts, done)
        return done

    def write_report(self, done: RunReport) -> None:
        """Write the report, last of all; print what could not be written."""
        if self._artifacts is None:
            return
        earlier = earlier_run(self._artifacts.folder, str(done.verdict.subject))
        page = report(done.verdict, done.events, earlier=earlier)
        self._artifacts.write(REPORT, page)
        if self._artifacts.problem is not None:
            print(f"hotplate test: {self._artifacts.problem}", file=sys.stderr)

    def _attempts(self, artifacts: Artifacts, subject: Subject) -> RunReport:
        """Test an image, and repeat that on a better CPU, or when its machine was lost.

        The latter as often as requested.
        """
        done = self._attempt(artifacts.folder, subject)
        while why := self._retry(done):
            number = len(self._losses) + len(self._lacks)
            artifacts.write_json(f"{nth(number)}-try.json", done.verdict.to_json())
            self._follow({}, EventLog()).say(why)
            # A folder for each further try, so that the files of the one before stay.
            done = self._attempt(artifacts.folder / f"{nth(number + 1)}-try", subject)
        return replace(
            done, verdict=after_losses(after_cpus(done.verdict, self._lacks), self._losses)
        )

    def _retry(self, done: RunReport) -> str:
        """Return the reason to try once more, as a sentence; "" when the try was the last."""
        if done.verdict.outcome is Outcome.LOST and len(self._losses) < self.request.retry_lost:
            why = clean(done.verdict.reasons[-1])
            self._losses.append(why)
            self._lost(why)
            return f"{LOST_ONCE} ({why})"
        fault = done.verdict.diagnosis.fault if done.verdict.diagnosis else ""
        if done.verdict.outcome not in _OF_THE_IMAGE and fault != "bad-cpu":
            return ""
        level, line = missing_level(done.events, self.settings.cpu)
        if not level:
            return ""
        self._lacks.append(f'"{clean(line)}"; --cpu {level} begins with a CPU that has it')
        self.settings = replace(self.settings, cpu=level)
        return f'the image needs a better CPU: "{clean(line)}"; trying once more with {level}'

    def _attempt(self, folder: Path, subject: Subject) -> RunReport:
        """Test an image once; an exception becomes a verdict too."""
        events = EventLog()
        ended: BaseException | None = None
        try:
            with self.interrupts.allowed():
                verdict = self._try(folder, events)
                # Check again: a background thread may have failed since the last wait.
                events.check()
        # Interrupted is a KeyboardInterrupt, which "Exception" does not include.
        except (Exception, KeyboardInterrupt) as error:
            ended = error
            verdict = of_error(error, subject, events, now=time.monotonic(), artifacts=str(folder))
        unwanted = (Outcome.FAILED, Outcome.GIVEN_UP)
        if verdict.outcome in unwanted and (fault := events.fault) is not None:
            # Our fault may be the cause of the failure, so nothing is known about the image.
            ended = fault
            verdict = of_error(fault, subject, events, now=time.monotonic(), artifacts=str(folder))
        # A full disk shows as any of these outcomes, so that the exception alone does not tell.
        if verdict.outcome in (*unwanted, Outcome.ERROR) and is_full(folder):
            full = HostError(
                f'the disk of "{folder}" is full, so nothing is known about the image',
                hint=f"df -h {shlex.quote(str(folder))}",
            )
            verdict = of_error(full, subject, events, now=time.monotonic(), artifacts=str(folder))
        elif ended is not None and is_unforeseen(ended):
            _keep_traceback(ended, folder)
        named = replace(verdict, subject=replace(verdict.subject, case=self.case.name))
        return RunReport(named, tuple(events))

    def _image(self) -> Image:
        return open_image(self.case.image, self.settings)

    def _hash_of(self, image: Image) -> str:
        return image.sha256(self.settings.cache / "checksums")

    def _seen(self) -> tuple[list[ImageFault], PlainImage | None]:
        """Return the image's faults that are visible without a boot.

        The second value is for the built-in test of an image without an agent; None for others.
        """
        in_container = self.settings.machine is MachineChoice.CONTAINER
        # Bootability is checked elsewhere, and an unreadable image is no fault.
        with (
            contextlib.suppress(HotplateError),
            inspected(
                self.case.image,
                **self.settings.reading,
                # The kernel mounts the image of a container in any case.
                cache=self.settings.cache if in_container else None,
            ) as inspection,
        ):
            unwanted = set(self.settings.skip)
            if in_container:
                unwanted |= BOOT_KINDS
            if self.case.template.is_plain:
                # The test says so itself, of an image that is meant to be without them.
                unwanted |= {"no-agent", "no-metadata"}
            faults = [
                each
                for each in inspection.findings
                if each.level is Level.FAILS and each.kind not in unwanted
            ]
            if not self.case.template.is_plain:
                return faults, None
            from hotplate.trial.guest_check import PlainImage

            return faults, PlainImage.of(inspection)
        return [], None

    def _try_elsewhere(self, cloud: OsCloudRequest, folder: Path, events: EventLog) -> Verdict:
        """Run it in a cloud of ``clouds.yaml``."""
        from hotplate.elsewhere.ways import WayOptions
        from hotplate.trial.cloud_trial import CloudChoice, CloudTrial

        options = CloudChoice(
            name=cloud.name,
            image=cloud.image,
            network=cloud.network,
            ways=WayOptions(
                jump=cloud.ssh_jump,
                config=cloud.ssh_config,
                user=cloud.ssh_user,
                environment=dict(os.environ),
            ),
            keep=self.request.keep,
            uninterrupted=self.interrupts.postponed,
        )
        template = self.template
        image = None if options.image else self._image()
        faults = [] if image is None else self._seen()[0]
        history = History(self.settings.cache / FILE)
        content = options.image if image is None else self._hash_of(image)
        key = f"{options.name}-{content}-{template.source}"
        with self._follow(history.expected(key), events) as follower:
            trial = CloudTrial(
                image,
                template,
                options=options,
                settings=self.settings,
                folder=folder,
                events=events,
                say=follower.say,
                on_reached=follower.reached,
                checks=self.case.checks,
            )
            follower.say(f"template: {template.source}")
            _tell(faults, follower)
            verdict = with_faults(trial.judge(), faults)
        # Only a passed run tells how long the stages take.
        if verdict.passed:
            history.record(key, verdict.times)
        return verdict

    def _try(self, folder: Path, events: EventLog) -> Verdict:
        if self.request.os_cloud:
            return self._try_elsewhere(self.request.os_cloud, folder, events)
        from hotplate.trial.trial import Trial

        template = self.template
        image = self._image()
        faults, plain = self._seen()
        history = History(self.settings.cache / FILE)
        # Times are comparable for the same image, template and kind of machine only.
        key = f"{self._hash_of(image)}-{template.source}-{self.settings.machine.value}"
        with (
            self._follow(history.expected(key), events) as follower,
            Trial(
                image,
                template,
                settings=self.settings,
                folder=folder,
                events=events,
                say=follower.say,
                on_reached=follower.reached,
                checks=self.case.checks,
                options=self.request.cloud,
                plain=plain,
                others=open_images(self.request.named_images, self.settings),
            ) as trial,
        ):
            follower.say(f"image: {image.path} ({image.layout.value}, {image.format})")
            follower.say(f"{'template' if plain is None else 'test'}: {template.source}")
            if self.case.template.note:
                follower.say(self.case.template.note)
            _tell(faults, follower)
            verdict = with_faults(trial.judge(), faults)
            last = not any(missing_level(events, self.settings.cpu))
            paused = self.request.keep or (self.request.pause_on_fail and not verdict.passed)
            if last and paused:
                _pause(trial, verdict)
            # Inside the context: afterwards the machine is gone, and its screen with it.
            if last and verdict.outcome is Outcome.FAILED:
                trial.take_picture()
        if verdict.passed:
            history.record(key, verdict.times)
        return verdict

    def leave(self, artifacts: Artifacts, done: RunReport) -> None:
        """Write the results; the verdict first."""
        artifacts.finish(done.verdict, done.events)
        artifacts.copy(self.case.template.file, "template.yaml")
        # cached_property keeps its value in vars(): a template that failed to load is not loaded
        # again.
        if "template" in vars(self):
            if not self.case.template.is_file:
                # Only a part of the file was deployed.
                artifacts.write_json("template.yaml", dict(self.template.template))
            artifacts.write_json("parameters.json", self.template.shown_parameters())
        if self.request.keep:
            return
        artifacts.remove(DATABASES)
        if done.verdict.passed:
            for disk in DISKS:
                artifacts.remove(f"**/servers/*/{disk}")

    def _on_terminal(self, expected: Mapping[str, float], events: EventLog) -> Progress:
        """Return the line on the terminal that follows one machine."""
        progress = Progress(sys.stdout, stages=ORDER, expected=expected, quiet=self.request.quiet)

        def powered(event: Event) -> None:
            if event.kind == "power-on":
                progress.powered(event.at)

        events.subscribe(powered)
        return progress


def _keep_traceback(error: BaseException, folder: Path) -> None:
    """Print an exception's traceback, and keep it with the run."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, end="")
    Folder(folder).write("traceback.txt", text)


def _pause(trial: Trial, verdict: Verdict) -> None:
    """Keep the guests up for the user."""
    from hotplate.session import access

    def say(text: str) -> None:
        print(f"hotplate: {clean(text)}", flush=True)

    if running := [each for each in trial.testbed.servers if each.machine.running]:
        say(summary(verdict).splitlines()[-1])
        access.pause(trial.testbed, running, trial.folder / "doors", say=say)


def _tell(faults: Sequence[ImageFault], follower: Follower) -> None:
    for each in faults:
        follower.say(f"{SEEN}: {each.kind}: {each.sentence}")


def with_faults(verdict: Verdict, faults: Sequence[ImageFault]) -> Verdict:
    """Return a verdict with the faults seen in the image before its boot.

    When the image failed, they are the first reasons: one may be the cause.  A missing agent is
    none where no server had to poll.
    """
    if not faults:
        return verdict
    facts = {SEEN: ", ".join(each.kind for each in faults)}
    due = {each.stage for each in verdict.stages}
    idle = {"no-agent"} if due and Stage.AGENT_POLLED not in due else set()
    reasons = [f"{SEEN}: {each.kind}: {each.sentence}" for each in faults if each.kind not in idle]
    return _with(verdict, facts, reasons if verdict.outcome is Outcome.FAILED else ())


def after_losses(verdict: Verdict, losses: Sequence[str]) -> Verdict:
    """Return the verdict of a later try, with the reasons of the tries before it.

    :param losses: the reason of each lost machine.
    """
    numbered = [(nth(number), why) for number, why in enumerate(losses, start=1)]
    tries = {f"{which} try": f"the machine was lost: {why}" for which, why in numbered}
    reasons = [f"a {which} try lost its machine: {why}" for which, why in numbered]
    return _with(verdict, tries, reasons)


def after_cpus(verdict: Verdict, lacks: Sequence[str]) -> Verdict:
    """Return the verdict of a try on a better CPU, with the reasons of the tries before it.

    :param lacks: the line that showed what each CPU lacked, and the option that begins with more.
    """
    tries = {"lesser CPUs": "; ".join(lacks)} if lacks else {}
    return _with(verdict, tries, [f"a try on a lesser CPU ended: {why}" for why in lacks])


def _with(verdict: Verdict, facts: Mapping[str, str], reasons: Sequence[str]) -> Verdict:
    """Return a verdict with more facts, and with reasons before its own."""
    return replace(
        verdict,
        subject=replace(verdict.subject, facts={**verdict.subject.facts, **facts}),
        reasons=(*reasons, *verdict.reasons),
    )


def nth(number: int) -> str:
    """Return an ordinal number, from 1 on.

    >>> [nth(number) for number in (1, 2, 4)]
    ['first', 'second', '4th']
    """
    return ("first", "second", "third")[number - 1] if number <= 3 else f"{number}th"
