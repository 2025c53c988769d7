"""A server as a test sees it: deploy to it, inspect it, cut its power, break its link."""

from __future__ import annotations

import contextlib
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotplate.errors import ThreadFault
from hotplate.events import classify
from hotplate.events.kinds import InternalFault
from hotplate.events.log import EventLog
from hotplate.guest.base import COMMAND_SECONDS, CommandResult
from hotplate.guest.driver import WAIT_SECONDS, Driver
from hotplate.guest.testinfra_backend import testinfra_host
from hotplate.hookkit.push import (
    HEAT_AGENTS,
    OURS,
    Pushed,
    hook_file,
    push_command,
    pushed,
)
from hotplate.machine.machine import Capability
from hotplate.stacks.deployment import Config, Deployment, DeploymentSpec
from hotplate.timing.deadline import GuestDeadline
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.verdict import EndedTest

if TYPE_CHECKING:
    from testinfra.host import Host

    from hotplate.elsewhere.server import CloudConsole, CloudServer
    from hotplate.guest.ssh import Ssh
    from hotplate.machine.console import Console
    from hotplate.testbed.links import Links
    from hotplate.testbed.server import Server

BOOT_SECONDS = 300.0
#: The number of characters of a hook's output shown with a failed test.
WRITTEN = 8000

#: A connection to a guest ends with its machine, whose end is noted a moment later.
LOSS_SECONDS = 5.0

CONNECT_SECONDS = 10.0
NO_SUCH_PROGRAM = 127
#: Ends with 0 when the guest could connect, with 127 when it has no program for that.
CONNECT = """\
if command -v bash >/dev/null; then
    timeout {seconds} bash -c 'exec 3<>/dev/tcp/{address}/{port:d}'
else
    busybox nc -w {seconds} {address} {port:d} -e true
fi
"""


class Platform(ABC):
    """The platform of one server under test: a testbed of this host, or a project in a cloud.

    :ivar server: its machine is QEMU's or a container, or a cloud's.
    :ivar events: of the platform; those from the number ``since`` on may be the server's.
    """

    server: Server | CloudServer
    events: EventLog
    since: int = 0

    @abstractmethod
    def deploy(self, spec: DeploymentSpec) -> Deployment:
        """Begin a deployment on the server."""

    @abstractmethod
    def diagnose(
        self,
        deployments: Sequence[Deployment],
        *,
        status: str,
        reason: str,
        hook_outputs: dict[str, HookOutput],
    ) -> Diagnosis | None:
        """Return why the last deployment did not complete; None when it did.

        :param status: of its stack, and ``reason``: Heat's for it.
        :param hook_outputs: see :func:`hotplate.verdict.diagnosis.diagnose`.
        """

    @abstractmethod
    def leave_evidence(
        self, deployments: Sequence[Deployment], test: EndedTest, *, whole: bool
    ) -> None:
        """Write the evidence; see :meth:`ServerUnderTest.leave_evidence`."""

    @abstractmethod
    def pause(self, *, say: Callable[[str], None]) -> None:
        """Keep the server up until Enter is pressed, where that is possible."""

    def stop(self) -> None:
        """Cut the power; for a server with :attr:`Capability.POWER`."""
        raise NotImplementedError

    def start(self) -> None:
        """Switch the machine on again; for a server with :attr:`Capability.POWER`."""
        raise NotImplementedError

    @property
    def links(self) -> Links:
        """Return the links of a server with :attr:`Capability.LINKS`."""
        raise NotImplementedError


def skip_without(
    needed: Iterable[Capability], capabilities: frozenset[Capability], *, what: str, kind: str
) -> None:
    """Skip the test when its server lacks an ability; the reason names all those that it lacks.

    :param what: the test or the method that needs them.
    :param kind: words that complete "this server is ...".
    """
    if lacking := [each.value for each in needed if each not in capabilities]:
        pytest.skip(f"{what} needs {' and '.join(lacking)}; this server is {kind}")


def written_by_failed(deployments: Sequence[Deployment]) -> list[tuple[str, str]]:
    """Return the output of each failed deployment, with a title, to be shown with a failed test.

    Outputs that can no longer be fetched are left out.
    """
    written = []
    for each in deployments:
        if each.status == "FAILED":
            # The client may raise anything here, and the test has failed already.
            with contextlib.suppress(Exception):
                written.append(written_by_hook(each.group, each.outputs))
    return written


def written_by_hook(group: str, outputs: Mapping[str, object]) -> tuple[str, str]:
    """Return a title and the output of a failed deployment's hook.

    :param outputs: Heat's ``output_values`` of the deployment.
    """
    output = HookOutput.of(outputs)
    text = "\n".join(filter(None, (output.stderr, output.stdout)))
    return f"what the hook wrote, {group}", text[-WRITTEN:]


class ServerUnderTest(Driver):
    """One running server of the image under test; see also its :class:`Driver`.

    ::

        def test_puppet_writes_motd(server):
            done = server.deploy(group="puppet", config=MANIFEST, outputs=["result"]).wait()
            assert done.outputs["result"] == "hello"
            assert server.host.file("/etc/motd").contains("hello")
    """

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._server = platform.server
        self.deployments: list[Deployment] = []

    def __str__(self) -> str:
        return self._server.name

    @property
    def id(self) -> str:
        """Return Nova's id of the server."""
        return self._server.id

    @property
    def directory(self) -> Path:
        """Return the folder of its console log, QEMU's messages and ``qemu.sh``."""
        return self._server.directory

    # -- Heat ------------------------------------------------------------------------------------

    def deploy(
        self,
        *,
        group: str,
        config: Config,
        inputs: Mapping[str, object] | None = None,
        outputs: Sequence[str | Mapping[str, object]] = (),
        options: Mapping[str, object] | None = None,
        transport: str = "CFN_SIGNAL",
        actions: Sequence[str] = ("CREATE", "UPDATE"),
        name: str = "",
    ) -> Deployment:
        """Begin a deployment on this server, by Heat; returns at once.

        :param group: the hook's group; ``component`` takes a list of configs with their actions.
        :param config: text, or a map for a group that takes one.
        :param inputs: values by name; their types are derived from the values.
        :param outputs: names, or Heat's maps with ``name`` and ``error_output``.
        :param transport: Heat's ``signal_transport``.
        :raises TemplateError: when Heat refuses it.
        :raises ImageError: when the image has no agent.
        """
        spec = DeploymentSpec(
            group=group,
            config=config,
            inputs=inputs or {},
            outputs=outputs,
            options=options or {},
            transport=transport,
            actions=actions,
            name=name,
        )
        self.deployments.append(self._platform.deploy(spec))
        return self.deployments[-1]

    # -- inside the guest --------------------------------------------------------------------------

    @cached_property
    def host(self) -> Host:
        """Return a testinfra host over one connection, which is made again after a reboot."""
        return testinfra_host(self._server.shell, name=str(self))

    @property
    def ssh(self) -> Ssh:
        """Return a root connection to the guest's ssh server, made at first use.

        For tests of a login; everything else needs neither an ssh server nor a network.

        >>> server.ssh.run("whoami").text  # doctest: +SKIP
        'root'

        :raises SubjectError: when the image accepts no key for root.
        :raises HostError: when this host's wiring does not reach the guest's ports.
        """
        return self._server.ssh()

    @property
    def console(self) -> Console | CloudConsole:
        """Return the serial console; of a server in a cloud, as far as it has been read."""
        return self._server.console

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command as root; ``.check()`` of the result raises when it failed.

        >>> server.run("echo hello").text
        'hello'

        :param timeout: seconds.
        """
        return self._server.shell().run(command, timeout=timeout)

    def wait_for_console_text(self, pattern: str, *, seconds: float = WAIT_SECONDS) -> str:
        """Wait until a line on the serial console matches; return the matching text.

        >>> _ = server.succeed("echo hello from the guest > /dev/console")
        >>> server.wait_for_console_text("hello from")
        'hello from'

        :param pattern: a regular expression, looked for in each line since the server was
            switched on or restored.
        :raises DeadlineExceeded: after ``seconds``; quotes the last line.
        """
        deadline = GuestDeadline(seconds, f'"{pattern}" on the console of {self}')
        return self.console.wait_for(pattern, deadline).group()

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        """Write bytes, or a file of the host, to a file in the guest.

        >>> server.copy_in(b"hello", "/tmp/greeting", mode=0o600)
        >>> server.copy_out("/tmp/greeting")
        b'hello'

        :param mode: of the file in the guest.
        """
        self._server.shell().copy_in(data, target, mode=mode)

    def copy_out(self, source: str) -> bytes:
        """Return the contents of a file in the guest; see :meth:`copy_in`.

        :raises CommandError: when it cannot be read.
        """
        return self._server.shell().copy_out(source)

    def push_hook(self, hook: Path, *, group: str = "") -> Pushed:
        """Copy a hook from the host to the guest's directory of hooks, over an existing one.

        >>> print(server.push_hook(hooks / "tmpfiles.py"))  # doctest: +SKIP
        /usr/libexec/heat-config/hooks/tmpfiles

        :param hook: its file.
        :param group: the group of its deployments; by default the file's name without its
            suffix, with ``-`` for ``_``.
        :raises UsageError: when the file cannot be a hook.
        :raises ImageError: when the guest refused it, as it does without a runner of hooks.
        """
        file = hook_file(hook, group)
        done = self._server.shell().run(push_command(file), stdin=file.data)
        return pushed(file, done.rc, done.stdout)

    def journal(self, unit: str = "os-collect-config") -> str:
        """Return a unit's journal of this boot; the whole journal with ``""``."""
        only = ["--unit", unit] if unit else []
        command = ["journalctl", "--boot", "--no-pager", "--output", "short-monotonic", *only]
        return self.run(command).text

    def has_hook(self, group: str) -> bool:
        """Return True when the image has a hook for a group, in heat-config's directories.

        >>> server.has_hook("no-such-group")
        False
        """
        names = [f"{directory}/{group}" for directory in (OURS, HEAT_AGENTS)]
        tests = " || ".join(f"test -e {shlex.quote(name)}" for name in names)
        return self.run(tests).rc == 0

    # -- power -------------------------------------------------------------------------------------

    def reboot(self, *, seconds: float = BOOT_SECONDS) -> None:
        """Reboot the guest gracefully and wait until it answers again.

        :param seconds: those of a host that is not slow.
        :raises DeadlineExceeded: when it does not answer by then.
        """
        self._server.reboot(GuestDeadline(seconds, f"the reboot of {self}"))

    def crash(self) -> None:
        """Cut the power; the guest loses all data not yet written to its disk."""
        self._need(Capability.POWER, "crash")
        self._platform.stop()

    def start(self, *, wait: bool = True, seconds: float = BOOT_SECONDS) -> None:
        """Switch the machine on again, from its disk.

        :param wait: until the guest answers.
        :param seconds: how long, on a host that is not slow.
        :raises DeadlineExceeded: when it does not answer by then.
        """
        self._need(Capability.POWER, "start")
        self._platform.start()
        if wait:
            self._server.shell(seconds=seconds)

    # -- links -------------------------------------------------------------------------------------

    def address(self, network: str = "") -> str:
        """Return the server's IPv4 address on a network.

        >>> web.address("private")  # doctest: +SKIP
        '10.0.0.5'

        :param network: its name or id; "" for the first that the server is on.
        :raises UsageError: when the server is not on that network; names its networks.
        :raises HostError: when it is isolated, on no network with others.
        """
        if network:
            self._need(Capability.LINKS, "address of a network")
        return self._server.address(network)

    def can_reach(
        self,
        other: ServerUnderTest,
        port: int,
        *,
        network: str = "",
        seconds: float = CONNECT_SECONDS,
    ) -> bool:
        """Try once to connect from this guest to a TCP port of another server; return the success.

        False means that the connection was refused, or that nothing answered in time. Needs bash
        in the guest, or busybox.

        >>> web.can_reach(db, 5432)  # doctest: +SKIP
        True

        :param network: the network to use; "" for the first that both are on.
        :param seconds: how long to wait for an answer, on a host that is not slow.
        :raises UsageError: when the other is not on that network.
        :raises HostError: when one of the two is isolated.
        :raises CommandError: when the guest has no program to connect with.
        """
        links = self._links("can_reach")
        address = other._platform.links.address_for(links, network)
        # busybox's nc takes whole seconds only.
        left = math.ceil(GuestDeadline(seconds, f"{self} to reach {other}").left)
        result = self.run(CONNECT.format(address=address, port=port, seconds=left))
        if result.rc == NO_SUCH_PROGRAM:
            result.check()
        return result.rc == 0

    def block(self, network: str = "") -> None:
        """Disconnect the cable to a network, visibly for the guest; lasts until a power cut.

        >>> server.block()
        >>> server.unblock()

        :param network: its name or id; "" for every cable, also of an isolated server.
        :raises UsageError: when the server is not on that network.
        """
        self._links("block").set_up(network, up=False)

    def unblock(self, network: str = "") -> None:
        """Connect the cables that :meth:`block` disconnected."""
        self._links("unblock").set_up(network, up=True)

    def shape(self, network: str = "", *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Make a link slow or lossy; without ``delay`` and ``loss``, restore it.

        It lasts over a reboot and a power cut.

        >>> web.shape("private", delay=0.2, loss=0.05)  # doctest: +SKIP
        >>> web.shape("private")  # doctest: +SKIP

        :param network: its name or id; "" for every network that the server is on.
        :param delay: additional seconds for each frame, 0 to 60, each way.
        :param loss: the share of lost frames, 0 to 1, each way.
        :raises UsageError: when the server is not on that network, or for an invalid delay or loss.
        :raises HostError: when it is isolated.
        """
        self._links("shape").shape(network, delay=delay, loss=loss)

    def part(self, *others: ServerUnderTest, network: str = "") -> None:
        """Block all frames between this server and others, both ways; all other traffic passes.

        The guests notice it only by time-outs. It lasts over a reboot and a power cut.

        >>> web.part(db)  # doctest: +SKIP
        >>> web.join(db)  # doctest: +SKIP

        :param network: only on this one; "" for all that they share.
        :raises UsageError: when they share none.
        :raises HostError: when one is isolated.
        """
        links = self._links("part")
        for other in others:
            links.part(other._platform.links, network)

    def join(self, *others: ServerUnderTest, network: str = "") -> None:
        """Undo :meth:`part`."""
        links = self._links("join")
        for other in others:
            links.join(other._platform.links, network)

    def _links(self, method: str) -> Links:
        self._need(Capability.LINKS, method)
        return self._platform.links

    def _need(self, needed: Capability, method: str) -> None:
        """Skip the test when the server lacks the ability that a method needs."""
        skip_without([needed], self._server.capabilities, what=method, kind=self._server.kind)

    # -- results -----------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Return whether its machine went away by itself, which says nothing about the image."""
        return any(
            classify.is_loss(event) and event.server == self.id
            for event in self._platform.events.since(self._platform.since)
        )

    def await_loss(self) -> None:
        """Wait a moment for the note that its machine was lost, after a connection has ended."""
        # A fault of hotplate's own ends the wait; it shows in :attr:`faulty`.
        with contextlib.suppress(ThreadFault):
            self._platform.events.wait(
                lambda event: classify.is_loss(event) and event.server == self.id,
                seconds=LOSS_SECONDS,
                since=self._platform.since,
            )

    @property
    def faulty(self) -> bool:
        """Return whether a service or a thread of hotplate's own has failed since it was booted."""
        return any(map(InternalFault.of, self._platform.events.since(self._platform.since)))

    def diagnosis(self) -> Diagnosis | None:
        """Return why the last deployment did not complete, asked of both ends; None when it did.

        ::

            assert done.status == "COMPLETE", server.diagnosis()
        """
        last = self.deployments[-1] if self.deployments else None
        hook_outputs = {}
        if last is not None and last.status == "FAILED":
            hook_outputs = {last.config_id: HookOutput.of(last.outputs)}
        return self._platform.diagnose(
            self.deployments,
            status=last.stack.status if last else "",
            reason=last.reason if last else "",
            hook_outputs=hook_outputs,
        )

    def leave_evidence(
        self, test: str, *, problem: str = "", diagnosis: Diagnosis | None = None, whole: bool
    ) -> None:
        """Write the evidence to :attr:`directory`; the plug-in does it for each test.

        :param test: the name of the test that used it.
        :param problem: its problem, "" when it passed; with one, the guest is asked for its logs.
        :param whole: keep its disk too, even when the test passed.
        """
        ended = EndedTest(test, problem, self.lost, self.faulty, diagnosis)
        self._platform.leave_evidence(self.deployments, ended, whole=whole)

    def pause(self, *, say: Callable[[str], None]) -> None:
        """Keep it up and accept connections until Enter is pressed, as ``--pause-on-fail`` does."""
        self._platform.pause(say=say)
