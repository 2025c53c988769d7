"""Boot a server from power-on to "agent idle and polling", and report the steps.

A server of an image without an agent is booted to the end of its boot.
"""

from __future__ import annotations

import queue
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hotplate.errors import HostError, HotplateError, ImageError, MachineLostError
from hotplate.events import classify, console_patterns
from hotplate.events.event import Event
from hotplate.events.kinds import DiskError, GuestPanic, MachineExit
from hotplate.events.log import EventLog
from hotplate.machine.cpu_models import missing_level
from hotplate.settings import Datasource, MachineChoice
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.text import clean
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline, retry

STACK = "warm"
#: The polling interval of a saved server: long enough that Heat has made a test's first deployment
#: before a restored server polls first, and no longer, because the test waits for that.
POLLING_SECONDS = 0.75
#: A container begins to poll again when it is restored, and a poll costs it next to nothing.
CONTAINER_POLLING_SECONDS = 0.1

MAX_POLL_SECONDS = 30.0
#: So many polls show that the agent keeps polling.
POLLS = 3

#: Attempts to catch the agent between two polls; on a busy host all may fail.
LOOKS = 20

#: The console patterns of a panic that say nothing about missing parts of the image.
PANICS = ("kernel-panic", "timer-too-late")

#: The number of last console lines that decide whether host or image caused a panic.
CONSOLE_LINES = 100

#: After so long without a step, the last console line is reported.
NEWS_SECONDS = 30.0

#: True once systemd has started everything.
BOOT_ENDED = "case $(systemctl is-system-running) in running | degraded) ;; *) exit 1 ;; esac"

#: True once systemd has started everything and os-refresh-config has released its lock.
AT_REST = f"{BOOT_ENDED}; flock --nonblock /run/os-refresh-config.lock true"

#: The agent's cache (os-collect-config: ``cachedir``).
CACHE = "/var/lib/os-collect-config"
#: Ends when systemd has started everything, with whatever result, and os-refresh-config is done.
#: The lock alone may be looked at between the agent's poll and the start of os-refresh-config; a
#: document has its file .last again once the first run of a boot has succeeded, if it does.
IDLE = f"""\
systemctl is-system-running --wait >/dev/null
timeout 5 sh -c '
for first in {CACHE}/*.json.orig; do
    while [ -e "$first" ] && [ ! -e "${{first%orig}}last" ]; do sleep 0.02; done
done'
flock -w 20 /run/os-refresh-config.lock true
"""

#: Without systemd nothing marks the end of the boot; the shell itself starts late in it.
WITHOUT_AGENT = f"command -v systemctl >/dev/null || exit 0; {BOOT_ENDED}"


def _template(user_data_format: str, **more: object) -> dict[str, object]:
    properties = {
        "name": STACK,
        "image": "the image under test",
        "flavor": "m1.small",
        "key_name": "hotplate",
        "user_data_format": user_data_format,
    }
    server = {"type": "OS::Nova::Server", "properties": properties, **more}
    return {"heat_template_version": "2018-08-31", "resources": {"server": server}}


def _polling(seconds: float) -> dict[str, object]:
    """Return the metadata of a server whose agent polls at this interval."""
    return {
        "os-collect-config": {"min_polling_interval": seconds, "polling_interval": seconds},
    }


METADATA = _polling(POLLING_SECONDS)
TEMPLATE = _template("SOFTWARE_CONFIG", metadata=METADATA)
CONTAINER_TEMPLATE = _template("SOFTWARE_CONFIG", metadata=_polling(CONTAINER_POLLING_SECONDS))
#: For an image without an agent.
PLAIN_TEMPLATE = _template("RAW")

#: The steps of a boot in their order, each with the event that shows it.
STEPS: tuple[tuple[str, Callable[[Event], bool]], ...] = (
    ("the console talks", lambda event: classify.console_text(event) is not None),
    ("the network is up", classify.is_request),
    (
        "metadata was served",
        lambda event: classify.is_metadata_fetch(event) and classify.answered(event),
    ),
    ("the agent polls", lambda event: classify.is_poll(event) and classify.answered(event)),
)

TALKS, _, SERVED, POLLED = STEPS


@dataclass(frozen=True)
class Sign:
    """The last step of a boot that events show.

    :param step: of :data:`STEPS`.
    :param times: how often it has to be seen.
    :param missing: the failure, as it reads behind "the image was booted, but".
    """

    step: tuple[str, Callable[[Event], bool]]
    times: int
    missing: str


POLLING = Sign(POLLED, POLLS, "its agent never polled Heat")
ASKED = Sign(SERVED, 1, "it never asked for its metadata")
#: For a server whose metadata is on a drive, the reading of which is not seen.
WROTE = Sign(TALKS, 1, "its console is silent")


class CpuError(HostError):
    """The image needs a better CPU than its machine has.

    :param level: the level that it needs; "" when no emulated CPU has more.
    """

    def __init__(self, message: str, *, hint: str, level: str) -> None:
        super().__init__(message, hint=hint)
        self.level = level


class Narrator:
    """Reports the steps of one server's boot, and its last console line when none comes for long.

    :param say: called with sentences.
    :param last: the last step that is expected.
    """

    def __init__(self, say: Callable[[str], None], last: Sign = POLLING) -> None:
        self._say = say
        self._began = self._reported = time.monotonic()
        self._left = list(STEPS[: STEPS.index(last.step) + 1])
        self._line = ""

    def see(self, event: Event) -> None:
        """Process an event of the server."""
        self._line = classify.console_text(event) or self._line
        for number, (words, shows) in enumerate(self._left):
            if shows(event):
                # A step that was skipped is not waited for any more.
                del self._left[: number + 1]
                self.tell(words)
                return

    def tell(self, words: str) -> None:
        """Report a step, and its time since power-on."""
        self._reported = time.monotonic()
        self._say(f"{self._reported - self._began:4.0f} s  {words}")

    def remind(self) -> None:
        """Report the step that is waited for, when nothing was reported for long."""
        if time.monotonic() - self._reported >= NEWS_SECONDS:
            last = f'; the console: "{clean(self._line).strip()[:80]}"' if self._line else ""
            self.tell(f"waiting until {self._left[0][0] if self._left else 'it is idle'}{last}")


def boot(testbed: Testbed, *, say: Callable[[str], None] = lambda _: None) -> Server:
    """Boot a server and return it once its agent polls Heat and has nothing to do.

    :param say: called with progress, in sentences.
    :raises ImageError: when it does not get that far.
    """
    narrator = Narrator(say)
    container = testbed.settings.machine is MachineChoice.CONTAINER
    template = CONTAINER_TEMPLATE if container else TEMPLATE
    server = _started(testbed, template, POLLING, narrator)
    unmet = " and its agent polls Heat, but it did not come to rest"
    _wait_for_shell(testbed, server, AT_REST, narrator, "the agent to be idle", unmet)
    narrator.tell("it is idle")
    return server


def boot_without_agent(
    testbed: Testbed, *, reader: bool = True, say: Callable[[str], None] = lambda _: None
) -> Server:
    """Boot a server of an image without an agent, and return it once its boot has ended.

    :param reader: False when nothing in the image reads its metadata.
    :param say: called with progress, in sentences.
    :raises ImageError: when it does not get that far.
    """
    seen = testbed.settings.datasource in (Datasource.OPENSTACK, Datasource.EC2)
    # A container has its shell independent of the metadata; a virtual machine has it by them.
    asks = reader or testbed.settings.machine is not MachineChoice.CONTAINER
    sign = ASKED if seen and asks else WROTE
    narrator = Narrator(say, sign)
    server = _started(testbed, PLAIN_TEMPLATE, sign, narrator)
    unmet = ", but the boot did not end"
    _wait_for_shell(testbed, server, WITHOUT_AGENT, narrator, "the boot to end", unmet)
    narrator.tell("its boot has ended")
    return server


def _started(
    testbed: Testbed, template: Mapping[str, object], sign: Sign, narrator: Narrator
) -> Server:
    """Create a stack with one server, and return the server once the sign was seen."""
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    # Subscribed before the stack is made, so that no event is missed.
    stop = testbed.events.subscribe(heard.put)
    try:
        # There may have been other stacks in this cloud before.
        name = f"{STACK}-{len(testbed.events)}"
        testbed.cloud.heat().stacks.create(stack_name=name, template=template)
        return testbed.compute.servers[_wait_for(sign, testbed, heard, narrator)]
    finally:
        stop()


def _wait_for_shell(
    testbed: Testbed, server: Server, command: str, narrator: Narrator, what: str, unmet: str
) -> None:
    """Wait until a command succeeds in the guest.

    :param unmet: the failure, as it reads behind "the image was booted".
    """
    patience = testbed.settings.patience

    def succeeds(_last_try: bool) -> bool:
        narrator.remind()
        return shell.run(command).rc == 0

    try:
        shell = server.shell(seconds=patience)
        retry(succeeds, GuestDeadline(patience, what), every=0.5)
    except DeadlineExceeded as error:
        raise ImageError(
            f"the image was booted{unmet}: {error}",
            hint=f"hotplate test {shlex.quote(str(testbed.image.path))}",
        ) from error


def _polled_by(server: Server) -> Callable[[Event], bool]:
    return lambda event: event.server == server.spec.id and classify.is_poll(event)


def wait_between_polls(events: EventLog, server: Server) -> bool:
    """Wait until the agent's poll was answered and it sleeps; return whether it does.

    An agent saved in the middle of a poll gets no answer when it is restored; one that has just
    polled leaves a test the time to deploy something before the next poll.
    """
    polled = _polled_by(server)
    for _ in range(LOOKS):
        since = len(events)
        if events.wait(polled, seconds=MAX_POLL_SECONDS, since=since) is None:
            return False
        since = len(events)
        # By the guest's own clock: time to read the answer, but only a part of the polling
        # interval.
        server.shell().run("sleep 0.1")
        if not any(map(polled, events.since(since))):
            return True
    return False


def wait_for_agent(events: EventLog, server: Server, *, since: int) -> None:
    """Wait until the agent of a container that was started again has polled, and is idle.

    :param since: the length of the event log before the start.
    :raises DeadlineExceeded: when it does not poll.
    """
    deadline = GuestDeadline(MAX_POLL_SECONDS, f'the agent of "{server.spec.name}" to poll')
    # The deadline may be stretched for a slow host: check() decides whether the time is over.
    while events.wait(_polled_by(server), seconds=deadline.left, since=since) is None:
        deadline.check()
    server.shell().run(IDLE, timeout=deadline.left)


def _end(
    testbed: Testbed, event: Event, console: Iterable[str], sign: Sign
) -> HotplateError | None:
    """Return the error of a boot that cannot continue after an event, if it is one.

    :param console: its last lines.
    :param sign: the awaited sign.
    """
    why = classify.hopeless(event)
    if classify.is_loss(event) or _panicked_for_the_host(event, console):
        return MachineLostError(
            f"the image was booted, but {why}", hint="try again; this says nothing about the image"
        )
    if (error := DiskError.of(event)) is not None and error.stopped:
        reason = "the host's disk is full" if error.full else error.message
        return HostError(
            f"the image was booted, but QEMU could not write its disk: {reason}",
            hint=f"df -h {shlex.quote(str(testbed.directory))}",
        )
    if (lack := _cpu_error(testbed, event)) is not None:
        return lack
    if why:
        return _never_came(testbed, sign, why)
    if ended := MachineExit.of(event):
        return _never_came(testbed, sign, f"the machine ended ({ended.reason})")
    return None


def _cpu_error(testbed: Testbed, event: Event) -> CpuError | None:
    """Return the error of a boot that lacks a CPU feature; the CPU is our choice, or the user's."""
    bad_cpu = console_patterns.BY_NAME["bad-cpu"]
    shown = console_patterns.match(classify.console_text(event) or "") is bad_cpu
    # QEMU's own event of a panic may come before the event of the line that tells its reason.
    if not shown and GuestPanic.of(event) is None:
        return None
    level, _ = missing_level(testbed.events, testbed.settings.cpu)
    if not (shown or level):
        return None
    return CpuError(
        f"the image was booted, but the console shows: {bad_cpu.reason}",
        hint=f"--cpu {level}" if level else bad_cpu.advice,
        level=level,
    )


def _panicked_for_the_host(event: Event, console: Iterable[str]) -> bool:
    pattern = console_patterns.match(classify.console_text(event) or "")
    if GuestPanic.of(event) is None and (pattern is None or pattern.name not in PANICS):
        return False
    return any(finding.pattern.of_host for finding in console_patterns.scan(console))


def _never_came(testbed: Testbed, sign: Sign, why: str = "") -> ImageError:
    return ImageError(
        f"the image was booted, but {sign.missing}{': ' if why else ''}{why}",
        hint=f"hotplate test {shlex.quote(str(testbed.image.path))}",
    )


def _wait_for(
    sign: Sign, testbed: Testbed, heard: queue.SimpleQueue[Event], narrator: Narrator
) -> str:
    """Return the id of the started server, once it has given the sign."""
    patience = testbed.settings.patience
    words, shows = sign.step
    silence = GuestDeadline(patience, words)
    ours = ""
    console: deque[str] = deque(maxlen=CONSOLE_LINES)
    seen = 0
    while seen < sign.times:
        try:
            event = heard.get(timeout=min(silence.left, NEWS_SECONDS))
        except queue.Empty:
            narrator.remind()
            if silence.passed:
                raise _never_came(testbed, sign) from None
            continue
        if event.source == "machine" and event.kind == "power-on":
            ours = ours or event.server
        if event.server == ours:
            narrator.see(event)
            console.append(classify.console_text(event) or "")
            if (end := _end(testbed, event, console, sign)) is not None:
                raise end
            seen += shows(event)
        narrator.remind()
        # Before the first sign, requests are no progress: a guest may repeat one in vain.
        if not classify.is_request(event) or seen:
            silence.extend(patience)
    return ours
