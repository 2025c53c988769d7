"""Connections of other processes to a testbed's servers: ssh, a shell, console, monitor.

``hotplate ssh``, ``hotplate shell`` and ``hotplate monitor`` use the control socket of a
:class:`~hotplate.session.directory.SessionDirectory`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hotplate.errors import HotplateError, ImageError, MachineLostError, UsageError
from hotplate.events.background import Background
from hotplate.machine.machine import Capability
from hotplate.session.channel import Control, content_of, in_memory
from hotplate.session.directory import ABOUT, SessionDirectory
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.testbed.server import SSH_PORT, Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded

SHELL_SECONDS = 30.0
SSH_SHELL_SECONDS = 5.0
#: A name that ssh accepts as a host name.
PLAIN = re.compile("[A-Za-z0-9_][A-Za-z0-9._-]*")


class Access:
    """Answers requests of other processes for the servers of a testbed.

    :param testbed: the servers.
    :param directory: the folder of the control socket and the ssh key.
    """

    def __init__(self, testbed: Testbed, directory: SessionDirectory) -> None:
        self.testbed = testbed
        self.directory = directory
        self._let_in: set[tuple[str, int | None]] = set()
        self._lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> tuple[Any, list[int]]:
        """Answer a request; see :data:`hotplate.session.channel.Handler`.

        :raises UsageError: for an unknown server or request.
        """
        ask = request["ask"]
        if ask == "servers":
            return [self.name_of(each.spec.id) for each in self.testbed.servers], []
        if ask not in ("server", "connect", "shell", "deploy", "monitor"):
            raise UsageError(f'the session does not know what "{ask}" is')
        server = self._server(str(request["server"]))
        if ask == "server":
            return self.name_of(server.spec.id), []
        if ask == "connect":
            return self._connect(server)
        if ask == "monitor":
            return self._monitor(server, str(request["command"]))
        if ask == "deploy":
            (handed,) = request["descriptors"]
            return self._deploy(server, json.loads(content_of(handed)))
        command, timeout = str(request["command"]), float(request["timeout"])
        return self._shell(server, command, timeout, request["descriptors"])

    def name_of(self, server_id: str) -> str:
        """Return the name by which a user reaches a server.

        It is Nova's name, when that is a plain word and unique; else the name of its folder, or
        its id.
        """
        names = self.testbed.names()
        name = names.get(server_id, "")
        if PLAIN.fullmatch(name) and [*names.values()].count(name) == 1:
            return name
        server = self.testbed.server(server_id)
        folder = server.machine.name if server else ""
        others = {each for other, each in names.items() if other != server_id}
        return folder if folder and (folder == name or folder not in others) else server_id

    def ways_into(self, server: Server) -> str:
        """Return lines to paste for a connection to a server."""
        name = self.name_of(server.spec.id)
        config = shlex.quote(str(self.directory.ssh_config))
        lines = [
            f"ssh -F {config} {name}",
            f"openstack server ssh --private {shlex.quote(self._in_nova(server))}"
            f" -- -F {config} -l root",
            self.directory.command("shell", name),
            f"tail -f {shlex.quote(str(server.machine.console.path))}",
        ]
        if Capability.MONITOR in server.capabilities:
            lines.insert(3, self.directory.command("monitor", name))
        return "\n".join(f"    {line}" for line in lines)

    def _server(self, name: str) -> Server:
        """Return the server of that name, id or address; without a name, the only one."""
        servers = self.testbed.servers
        if not name and len(servers) == 1:
            return servers[0]
        called = [each for each in servers if name in (self._in_nova(each), each.spec.id)]
        folders = [each for each in servers if name == each.machine.name]
        # Of several servers of a name, the first one's folder has that name.
        for server in called if len(called) == 1 else [*folders, *called]:
            return server
        there = [each for each in servers if name in self.testbed.addresses(each)]
        if len(there) == 1:
            return there[0]
        names = ", ".join(f'"{self.name_of(each.spec.id)}"' for each in servers) or "none"
        if there:
            raise UsageError(
                f'several servers have the address "{name}"', hint=f"name one of: {names}"
            )
        raise UsageError(
            f'there is no server "{name}"' if name else "name one of the servers",
            hint=f"the servers are: {names}",
        )

    def _in_nova(self, server: Server) -> str:
        """Return Nova's current name of a server."""
        return self.testbed.names().get(server.spec.id, server.spec.name)

    def _connect(self, server: Server) -> tuple[object, list[int]]:
        """Return a connection to the server's ssh, as a descriptor."""
        if not server.machine.running:
            raise UsageError(f'the server "{server.spec.name}" is off')
        self._let_root_in(server)
        try:
            channel = server.machine.wiring.connect(SSH_PORT)
        except ConnectionError as error:
            raise UsageError(str(error)) from error
        return self.name_of(server.spec.id), [channel.detach()]

    def _let_root_in(self, server: Server) -> None:
        """Put the session's key first among root's; cloud-init's own entry only refuses a login.

        A guest whose image starts no shell for us accepts the keys in its metadata.
        """
        key = (server.spec.id, server.machine.pid)
        with self._lock:
            if key in self._let_in:
                return
            # Before the attempt: a guest without our shell is waited for once, not at each
            # connection.
            self._let_in.add(key)
        key_line = self.directory.public_key()
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            server.let_root_in(key_line, seconds=SSH_SHELL_SECONDS)

    def _shell(
        self, server: Server, command: str, timeout: float, handed: Sequence[int]
    ) -> tuple[object, list[int]]:
        """Run a command; its input and output are passed as files, because they may be long."""
        stdin = b"".join(content_of(each) for each in handed)
        try:
            way = server.shell(seconds=SHELL_SECONDS)
            done = way.run(command, timeout=timeout, stdin=stdin)
        except DeadlineExceeded as error:
            raise MachineLostError(
                str(error),
                hint=f"see what it does: tail {shlex.quote(str(server.machine.console.path))}",
            ) from error
        return done.rc, [in_memory(done.stdout), in_memory(done.stderr)]

    def _deploy(self, server: Server, wanted: dict[str, Any]) -> tuple[object, list[int]]:
        """Deploy a config by Heat, and wait for its end; its stack is removed.

        :param wanted: the non-default fields of :class:`DeploymentSpec`, and
            ``timeout`` in seconds.
        :return: its status; as a file, JSON of ``reason`` and ``outputs``.
        :raises ImageError: when it has not ended in time.
        """
        seconds = float(wanted.pop("timeout"))
        deployment = Deployment(self.testbed.cloud, server.spec.id, DeploymentSpec(**wanted))
        try:
            deployment.wait(seconds=seconds)
            status = deployment.status
            about = {"reason": deployment.reason, "outputs": deployment.outputs}
        except DeadlineExceeded as error:
            name = self.name_of(server.spec.id)
            raise ImageError(
                f"the deployment has not ended: {error}",
                hint=self.directory.command("shell", name, "heat-config status"),
            ) from error
        finally:
            deployment.forget()
        return status, [in_memory(json.dumps(about).encode())]

    def _monitor(self, server: Server, command: str) -> tuple[object, list[int]]:
        """Return the answer of QEMU's monitor for people to a command."""
        if not server.machine.running:
            raise UsageError(f'the server "{server.spec.name}" is off')
        return 0, [in_memory(server.machine.monitor(command).encode())]


def pause(
    testbed: Testbed, servers: Iterable[Server], directory: Path, *, say: Callable[[str], None]
) -> None:
    """Keep servers up, accept other processes, and wait for Enter, Ctrl-C or the end of input.

    :param directory: a new one, for the control socket and the ssh key; it is removed again.
    :param say: called with the lines to paste for a connection.
    """
    door = SessionDirectory(directory.absolute())
    with door.claim():
        door.write(ABOUT, "{}\n")
        door.public_key()
        door.write_ssh_config()
        access = Access(testbed, door)
        with Control(door.path, access.answer) as control:
            for server in servers:
                say(
                    f'the server "{access.name_of(server.spec.id)}" is up\n'
                    f"{access.ways_into(server)}"
                )
                if (script := server.machine.write_script()) is not None:
                    say(f"    {script}    (the same machine once more, by hand)")
            say("press Enter to continue")

            def enter() -> None:
                with contextlib.suppress(OSError, ValueError):
                    # A standard input that was closed raises ValueError.
                    sys.stdin.readline()
                control.end()

            Background(testbed.events, enter, name="enter").start()
            control.run()
        door.remove()
