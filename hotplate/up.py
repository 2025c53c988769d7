"""A cloud and its guests that stay up until somebody ends them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from hotplate.cloud.options import CloudOptions
from hotplate.deadline import Deadline, DeadlineExceeded
from hotplate.errors import HotplateError, MachineLostError, UsageError
from hotplate.events import Event, EventLog
from hotplate.image.inspect import Image
from hotplate.server import Hotplate, Server
from hotplate.session import ABOUT, DOWN, Control, SessionDirectory
from hotplate.settings import Settings
from hotplate.stack import STACK_TYPE, Stack
from hotplate.template import Template

STACK_NAME = "hotplate"
SHELL_SECONDS = 30.0
SSH_SHELL_SECONDS = 5.0
SHUTDOWN_SECONDS = 60.0
SSH_PORT = 22


class Up:
    """One session, from its start to its end; a context manager.

    ::

        with Up(image, directory=SessionDirectory(path), settings=settings, say=print) as up:
            up.create(template)
            up.run()

    :param settings: with ``keep``, the state stays when the session ends.
    :param options: takes CloudOptions that name the key; see :meth:`SessionDirectory.public_key`.
    :param say: told what happens, in sentences and lines to paste.
    :raises UsageError: when a session runs in the directory, or it is that of another image.
    """

    def __init__(
        self,
        image: Image,
        *,
        directory: SessionDirectory,
        settings: Settings,
        options: Callable[[str], CloudOptions],
        say: Callable[[str], None],
    ) -> None:
        self.image = image
        self.directory = directory
        self.keep = settings.keep
        self.events = EventLog()
        self._settings = settings
        self._options = options
        self._say = say
        self._let_in: set[tuple[str, int | None]] = set()
        self._lock = threading.Lock()
        self._went_on = False
        self._started = False
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            owned.enter_context(self.directory.claim())
            self._went_on = self._check_image()
            self._control = owned.enter_context(Control(self.directory, self._answer))
            # Before Control is left, which tells who waits that all is over.
            owned.callback(self._forget)
            self.plate = owned.enter_context(
                Hotplate(
                    self.image,
                    settings=self._settings,
                    directory=self.directory.path,
                    events=self.events,
                    options=self._options(self.directory.public_key()),
                )
            )
            owned.callback(self._shut_down)
            owned.callback(self.events.subscribe(self._tell))
            self._write_files()
            for problem in self.plate.go_on() if self._went_on else []:
                self._say(problem)
            self._started = True
            self._owned = owned.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._went_on:
            # What was kept is not lost by a mistake.
            self.keep = True
        self._owned.close()

    def create(self, template: Template) -> None:
        """Create the session's own stack, unless an earlier session has made it.

        :raises TemplateError: when Heat refuses the template.
        """
        if STACK_NAME in {each.stack_name for each in self.plate.cloud.heat().stacks.list()}:
            self._say(f'the stack "{STACK_NAME}" is there already, and stays as it is')
            return
        Stack.create(self.plate.cloud, template, name=STACK_NAME)

    def run(self) -> None:
        """Stay up until a signal comes, or ``hotplate down``."""
        self._control.run()

    def ways_in(self) -> str:
        """Lines that a person can paste."""
        file = shlex.quote(str(self.directory.clouds_yaml))
        return (
            f"export OS_CLIENT_CONFIG_FILE={file} OS_CLOUD=hotplate\n"
            "openstack stack list\n"
            f"{self.directory.command('down')}"
        )

    # -- start and end ---------------------------------------------------------------------------

    def _check_image(self) -> bool:
        """Whether an earlier session is gone on with; writes down what this one is of."""
        about = self.directory.about()
        mine = {"image": str(self.image.path), "sha256": self.image.sha256()}
        if about and about.get("sha256") != mine["sha256"]:
            raise UsageError(
                f'the session in "{self.directory.path}" is of another image, '
                f'"{about.get("image")}" as it was then',
                hint=f"go on with that one, or forget it: rm -r {self.directory.path}",
            )
        # The disks of its servers name the image by its path.
        if about and about.get("image") != mine["image"]:
            raise UsageError(
                f'the session in "{self.directory.path}" needs its image at "{about["image"]}"'
            )
        if not about:
            self.directory.write(ABOUT, json.dumps(mine, indent=2) + "\n")
        return bool(about)

    def _write_files(self) -> None:
        self.directory.write(self.directory.clouds_yaml.name, self.plate.cloud.clouds_yaml())
        self.directory.write_ssh_config()

    def _forget(self) -> None:
        if not self.keep and (self._started or not self._went_on):
            self.directory.remove()

    def _shut_down(self) -> None:
        """Where the disks are needed again, let each guest end in an orderly way."""
        if not self.keep:
            return
        deadline = Deadline(SHUTDOWN_SECONDS, "the guests to shut down")

        def one(server: Server) -> None:
            with contextlib.suppress(HotplateError, DeadlineExceeded, RuntimeError, OSError):
                server.machine.shutdown(deadline)

        threads = [
            threading.Thread(target=one, args=(server,), name=f"shut-down-{server.spec.name}")
            for server in self.plate.servers
            if server.machine.running
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # -- what is told ----------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        detail = event.detail
        if event.source == "stack":
            if detail["status"] == "IN_PROGRESS" and detail["type"] != STACK_TYPE:
                return
            reason = f": {detail['reason']}" if detail["status"] == "FAILED" else ""
            name = f"{detail['stack']}/{detail['resource']}"
            what = f'stack "{detail["stack"]}"' if detail["type"] == STACK_TYPE else name
            self._say(f"{what}: {detail['action']}_{detail['status']}{reason}")
        elif event.kind == "power-on":
            server = self.plate.compute.servers.get(event.server)
            if server is not None:
                self._say(f'server "{server.machine.config.name}" is on\n{self._ways_into(server)}')
        elif event.kind == "exit":
            self._say(f"server {event.server} is off: {detail.get('reason', '')}")
        elif event.kind == "waiting":
            self._say(f'server "{detail["name"]}": {detail["text"]}')

    def _ways_into(self, server: Server) -> str:
        name = server.machine.config.name
        config = shlex.quote(str(self.directory.ssh_config))
        return (
            f"    ssh -F {config} {name}\n"
            f"    {self.directory.command('shell', name)}\n"
            f"    tail -f {shlex.quote(str(server.machine.console.path))}"
        )

    # -- what others ask -------------------------------------------------------------------------

    def _answer(self, request: dict[str, Any]) -> tuple[Any, list[int]]:
        ask = request["ask"]
        if ask == DOWN:
            self.keep = self.keep or bool(request["keep"])
            self._control.end()
            return self.keep, []
        if ask == "server":
            return self._server(str(request["server"])).machine.config.name, []
        if ask == "connect":
            return self._connect(self._server(str(request["server"])))
        if ask == "shell":
            return self._shell(
                self._server(str(request["server"])),
                str(request["command"]),
                float(request["timeout"]),
            )
        raise UsageError(f'the session does not know what "{ask}" is')

    def _server(self, name: str) -> Server:
        """The server of that name or id; with no name the only one."""
        servers = self.plate.servers
        if not name and len(servers) == 1:
            return servers[0]
        for server in servers:
            if name in (server.machine.config.name, server.spec.name, server.spec.id):
                return server
        names = ", ".join(f'"{each.machine.config.name}"' for each in servers) or "none"
        raise UsageError(
            f'there is no server "{name}"' if name else "name one of the servers",
            hint=f"the servers are: {names}",
        )

    def _connect(self, server: Server) -> tuple[Any, list[int]]:
        """A connection to the server's ssh, as a descriptor."""
        if not server.machine.running:
            raise UsageError(f'the server "{server.spec.name}" is off')
        self._let_root_in(server)
        try:
            channel = server.machine.wiring.connect(SSH_PORT)
        except ConnectionError as error:
            raise UsageError(str(error)) from error
        return server.machine.config.name, [channel.detach()]

    def _let_root_in(self, server: Server) -> None:
        """Put the session's key first among root's, where cloud-init only refuses it.

        A guest whose image starts no shell for us lets in whom its metadata says.
        """
        key = (server.spec.id, server.machine.pid)
        with self._lock:
            if key in self._let_in:
                return
            self._let_in.add(key)
        line = shlex.quote(self.directory.public_key())
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            shell = server.shell(seconds=SSH_SHELL_SECONDS)
            shell.run(
                "umask 077; mkdir -p /root/.ssh; cd /root/.ssh; touch authorized_keys; "
                f"if ! grep -qxF {line} authorized_keys; then "
                f"{{ echo {line}; cat authorized_keys; }} >.new && mv .new authorized_keys; fi"
            )

    def _shell(self, server: Server, command: str, timeout: float) -> tuple[Any, list[int]]:
        """Run a command; its output goes along in two files, for it may be long."""
        try:
            done = server.shell(seconds=SHELL_SECONDS).run(command, timeout=timeout)
        except DeadlineExceeded as error:
            raise MachineLostError(
                str(error), hint=f"see what it does: tail {server.machine.console.path}"
            ) from error
        return done.rc, [_in_memory(done.stdout), _in_memory(done.stderr)]


def _in_memory(data: bytes) -> int:
    """A descriptor from which ``data`` can be read."""
    descriptor = os.memfd_create("output", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
