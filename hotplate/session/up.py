"""A cloud and its guests that stay up until they are ended."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

from hotplate.cloud.options import CloudOptions
from hotplate.errors import HotplateError, MachineLostError, UsageError
from hotplate.events.background import Background
from hotplate.events.classify import STACK_TYPE, console_text
from hotplate.events.console_patterns import BY_NAME
from hotplate.events.event import Event
from hotplate.events.kinds import (
    InternalFault,
    MachineExit,
    ServerWaiting,
    StackResource,
    StartFault,
)
from hotplate.events.log import EventLog
from hotplate.events.topology import Topology
from hotplate.image.inspect import Image
from hotplate.machine.cpu_models import missing_level
from hotplate.session.access import Access
from hotplate.session.channel import DOWN, Control
from hotplate.session.directory import ABOUT, FIRST_BOOT, SessionDirectory
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed import warm_state
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.testbed.warm_state import WarmState
from hotplate.timing.deadline import Deadline, DeadlineExceeded

STACK_NAME = "hotplate"
SHUTDOWN_SECONDS = 60.0
_BAD_CPU = BY_NAME["bad-cpu"]


class Up:
    """One session, from its start to its end; a context manager.

    ::

        with Up(image, directory=SessionDirectory(path), settings=settings, say=print) as up:
            up.create(template)
            up.run()

    :param settings: with ``keep``, the state stays when the session ends.
    :param options: takes CloudOptions that name the key; see :meth:`SessionDirectory.public_key`.
    :param say: called with progress, in sentences and lines to paste.
    :param others: more images by name; see :class:`~hotplate.testbed.testbed.Testbed`.
    :param restored: begin with a server restored from the image's warm state.
    :raises UsageError: when a session runs in the directory, or it is one of another image.
    """

    def __init__(
        self,
        image: Image,
        *,
        directory: SessionDirectory,
        settings: Settings,
        options: Callable[[str], CloudOptions],
        say: Callable[[str], None],
        others: Mapping[str, Image] | None = None,
        restored: bool = False,
    ) -> None:
        self.image = image
        self.others = others or {}
        self.directory = directory
        self.keep = settings.keep
        self.events = EventLog()
        self._settings = settings
        self._options = options
        self._say = say
        self._restored = restored
        self._went_on = False
        self._topology = ""
        self._lack: set[str] = set()
        self._started = False
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            owned.enter_context(self.directory.claim())
            self._went_on = self._check_image()
            # Before the control socket takes over signals: an image's first boot takes minutes.
            state = owned.enter_context(self._warm_state()) if self._restored else None
            self._control = owned.enter_context(Control(self.directory.path, self._answer))
            # Before Control is left, whose end shows waiting clients that all is over.
            owned.callback(self._forget)
            self.testbed = owned.enter_context(
                Testbed(
                    self.image,
                    settings=(
                        self._settings if state is None else state.settings_from(self._settings)
                    ),
                    directory=self.directory.path,
                    events=self.events,
                    options=self._options(self.directory.public_key()),
                    others=self.others,
                )
            )
            self._doors = Access(self.testbed, self.directory)
            owned.callback(self._shut_down)
            owned.callback(self.events.subscribe(self._tell))
            self._write_files()
            if state is not None:
                state.restore(self.testbed)
            for problem in self.testbed.go_on() if self._went_on else []:
                self._say(problem)
            self._tell_topology()
            self._started = True
            self._owned = owned.pop_all()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and self._went_on:
            # A mistake must not lose a kept session.
            self.keep = True
        self._owned.close()

    def create(self, template: Template) -> None:
        """Create the session's own stack, unless an earlier session made it.

        :raises TemplateError: when Heat refuses the template.
        """
        if STACK_NAME in {each.stack_name for each in self.testbed.cloud.heat().stacks.list()}:
            self._say(f'the stack "{STACK_NAME}" is there already, and stays as it is')
            return
        Stack.create(self.testbed.cloud, template, name=STACK_NAME)

    def run(self) -> None:
        """Stay up until a signal or ``hotplate down``."""
        self._control.run()

    def ways_in(self) -> str:
        """Return lines to paste: the ways to the cloud, and the command that ends the session."""
        file = shlex.quote(str(self.directory.clouds_yaml))
        return (
            f"export OS_CLIENT_CONFIG_FILE={file} OS_CLOUD=hotplate\n"
            "openstack stack list\n"
            f". {shlex.quote(str(self.directory.environment))}    "
            "# the same, and a proxy to the addresses that Heat hands to guests\n"
            f"{self.directory.command('down')}"
        )

    # -- start and end ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _warm_state(self) -> Iterator[WarmState]:
        """Find or make the image's warm state, and copy its database for the cloud.

        :raises UsageError: when an earlier session is resumed, which has its own servers.
        """
        if self._went_on:
            raise UsageError(
                f'in "{self.directory.path}" is a session that was kept, with servers of its own',
                hint="resume it without --restored, or discard it: rm -r "
                f"{shlex.quote(str(self.directory.path))}",
            )
        first_boot = self.directory.path / FIRST_BOOT
        try:
            state = warm_state.find_or_make(
                self.image, self._settings, directory=first_boot, say=self._say
            )
        except BaseException:
            self._forget()
            raise
        with state.in_use():
            try:
                state.lend_database(self.directory.path / "cloud")
                yield state
            except MachineLostError:
                # The next session makes it again.
                warm_state.discard(state)
                raise

    def _check_image(self) -> bool:
        """Return whether an earlier session is resumed; record this session's image."""
        about = self.directory.about()
        mine = self._recorded(self.image)
        mine["others"] = {name: self._recorded(each) for name, each in self.others.items()}
        if about and not (about.get("keep") or self.keep):
            # It was killed; otherwise it would have removed everything itself.
            self._say("an earlier session here was killed; it had no --keep, so it is discarded")
            self.directory.clear()
            about = {}
        if about and about.get("sha256") != mine["sha256"]:
            raise UsageError(
                f'the session in "{self.directory.path}" is of another image, '
                f'"{about.get("image")}" as it was then',
                hint=f"use that one, or discard the session: "
                f"rm -r {shlex.quote(str(self.directory.path))}",
            )
        # The disks of its servers refer to the image by its path.
        if about and about.get("image") != mine["image"]:
            raise UsageError(
                f'the session in "{self.directory.path}" needs its image at "{about["image"]}"'
            )
        if about:
            self._check_others(about, mine)
        # A kill must not lose a kept session.
        mine["keep"] = self.keep or bool(about)
        self.directory.write(ABOUT, json.dumps(mine, indent=2) + "\n")
        return bool(about)

    def _recorded(self, image: Image) -> dict[str, object]:
        digest = image.sha256(self._settings.cache / "checksums")
        return {"image": str(image.path), "sha256": digest}

    def _check_others(self, about: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
        """Refuse to resume a session with other additional images than it had."""
        before = about.get("others") or {}
        if before != mine["others"]:
            words = [f"--image {name}={each['image']}" for name, each in before.items()]
            raise UsageError(
                f'the session in "{self.directory.path}" was started with '
                f"{' '.join(words) or 'no --image'}, and those as they were then",
                hint=f"use those, or discard the session: "
                f"rm -r {shlex.quote(str(self.directory.path))}",
            )

    def _write_files(self) -> None:
        self.directory.write(self.directory.clouds_yaml.name, self.testbed.cloud.clouds_yaml())
        self.directory.write_environment(self.testbed.cloud.proxy)
        self.directory.write_ssh_config()

    def _forget(self) -> None:
        # A kept session that could not be resumed stays.
        if not self.keep and (self._started or not self._went_on):
            self.directory.remove()
        elif about := self.directory.about():
            # The option may have been set during the session.
            self.directory.write(ABOUT, json.dumps(about | {"keep": True}, indent=2) + "\n")

    def _shut_down(self) -> None:
        """Shut each guest down gracefully when its disk is kept."""
        if not self.keep:
            return
        self._tell_in_progress()
        deadline = Deadline(SHUTDOWN_SECONDS, "the guests to shut down")

        def one(server: Server) -> None:
            # The power is cut afterwards in any case.
            with contextlib.suppress(HotplateError, DeadlineExceeded, RuntimeError, OSError):
                server.machine.shutdown(deadline)

        threads = [
            Background(self.events, one, server, name=f"shut-down-{server.spec.name}")
            for server in self.testbed.servers
            if server.machine.running
        ]
        # All at once, as they share one deadline.
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _tell_in_progress(self) -> None:
        """Name the stacks that are in progress: Heat does not continue with them."""
        from heatclient import exc
        from keystoneauth1.exceptions import ClientException

        # A Heat that does not answer must not stop the end of the session.
        with contextlib.suppress(exc.BaseException, ClientException):
            for stack in self.testbed.cloud.heat().stacks.list():
                action, _, status = stack.stack_status.partition("_")
                if status == "IN_PROGRESS":
                    self._say(
                        f'the stack "{stack.stack_name}" is in {stack.stack_status}, which Heat '
                        f"does not go on with: in the next session it is {action}_FAILED"
                    )

    # -- output ----------------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        if change := StackResource.of(event):
            if change.status == "IN_PROGRESS" and change.type != STACK_TYPE:
                return
            reason = f": {change.reason}" if change.status == "FAILED" else ""
            name = f"{change.stack}/{change.resource}"
            what = f'stack "{change.stack}"' if change.type == STACK_TYPE else name
            self._say(f"{what}: {change.action}_{change.status}{reason}")
            if change.type == STACK_TYPE:
                self._tell_topology()
        elif event.kind == "power-on":
            server = self.testbed.server(event.server)
            if server is not None:
                name = self._doors.name_of(event.server)
                self._say(f'server "{name}" is on\n{self._doors.ways_into(server)}')
        elif internal := InternalFault.of(event):
            self._say(f"hotplate itself is at fault: {internal.message}")
        elif ended := MachineExit.of(event):
            self._say(f'server "{self._doors.name_of(event.server)}" is off: {ended.reason}')
        elif fault := StartFault.of(event):
            self._say(f"a server cannot be started, and its image is not to blame: {fault.message}")
        elif waiting := ServerWaiting.of(event):
            self._say(f'server "{waiting.name}": {waiting.text}')
        elif event.server not in self._lack and _BAD_CPU.regex.search(console_text(event) or ""):
            self._lack.add(event.server)
            self._tell_cpu(event.server)

    def _tell_cpu(self, server_id: str) -> None:
        """Name the option for a server that needs a better CPU; a session repeats nothing."""
        level, _ = missing_level(self.events, self._settings.cpu)
        remedy = f"end the session, and begin it with --cpu {level}" if level else _BAD_CPU.advice
        name = self._doors.name_of(server_id)
        self._say(f'server "{name}" does not boot, as {_BAD_CPU.reason}; {remedy}')

    def _tell_topology(self) -> None:
        """Report the servers of each network, when that has changed since the last report."""
        topology = Topology()
        names = self.testbed.names()
        for server in self.testbed.servers:
            spec = server.spec
            images = self.testbed.compute.images
            topology.add(
                spec.id,
                names.get(spec.id, spec.name),
                [port.shown() for port in spec.ports],
                image=images.name_of(spec.image) if images.by_name else "",
            )
        if (text := str(topology)) not in ("", self._topology):
            self._say(text)
            self._topology = text

    # -- requests --------------------------------------------------------------------------------

    def _answer(self, request: dict[str, object]) -> tuple[object, list[int]]:
        ask = request["ask"]
        if ask == DOWN:
            if request["keep"] and self._restored:
                raise UsageError("a restored server cannot be kept", hint="leave out --keep")
            self.keep = self.keep or bool(request["keep"])
            return self.keep, []
        return self._doors.answer(request)
