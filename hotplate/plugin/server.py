"""A server as a test sees it: deploy to it, look into it, cut it off, break its link."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.errors import ImageError
from hotplate.events import classify
from hotplate.events.kinds import InternalFault
from hotplate.guest.base import COMMAND_SECONDS, CommandResult
from hotplate.guest.driver import WAIT_SECONDS, Driver
from hotplate.guest.testinfra_backend import testinfra_host
from hotplate.hookkit.push import Pushed, hook_file, push_command, pushed
from hotplate.machine.console import Console
from hotplate.session import access
from hotplate.stacks.deployment import Config, Deployment, DeploymentSpec
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline
from hotplate.trial.guest_probe import diagnose_since
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.hook_output import HookOutput

if TYPE_CHECKING:
    from testinfra.host import Host

    from hotplate.guest.ssh import Ssh

BOOT_SECONDS = 300.0
WRITTEN = 8000
"""As many characters of what a hook wrote are shown with a test that failed."""

CONNECT_SECONDS = 10.0
NO_SUCH_PROGRAM = 127
CONNECT = """\
if command -v bash >/dev/null; then
    timeout {seconds} bash -c 'exec 3<>/dev/tcp/{address}/{port:d}'
else
    busybox nc -w {seconds} {address} {port:d} -e true
fi
"""
"""Ends with 0 when the guest could connect, with 127 when it has no program for that."""

HOOKS = ("/usr/libexec/heat-config/hooks", "/var/lib/heat-config/hooks")
"""Where heat-config looks for hooks, and where it did before."""


def written_by_failed(deployments: Sequence[Deployment]) -> list[tuple[str, str]]:
    """Return what each failed deployment wrote, with a title, to be shown with a failed test.

    What cannot be asked any more is left out.
    """
    written = []
    for each in deployments:
        if each.status == "FAILED":
            with contextlib.suppress(Exception):
                output = HookOutput.of(each.outputs)
                text = "\n".join(filter(None, (output.stderr, output.stdout)))
                written.append((f"what the hook wrote, {each.group}", text[-WRITTEN:]))
    return written


class ServerUnderTest(Driver):
    """One running server of the image under test; see also its :class:`Driver`.

    ::

        def test_puppet_writes_motd(server):
            done = server.deploy(group="puppet", config=MANIFEST, outputs=["result"]).wait()
            assert done.outputs["result"] == "hello"
            assert server.host.file("/etc/motd").contains("hello")
    """

    def __init__(
        self, testbed: Testbed, server: Server, *, since: int = 0, agent: bool = True
    ) -> None:
        self._testbed = testbed
        self._agent = agent
        self._server = server
        self.deployments: list[Deployment] = []
        self._since = since

    def __str__(self) -> str:
        return self._server.spec.name

    @property
    def id(self) -> str:
        """Nova's id of the server."""
        return self._server.spec.id

    @property
    def directory(self) -> Path:
        """Where its console log, QEMU's messages and ``qemu.sh`` are."""
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
        :param inputs: values by name; their types are declared by what they are.
        :param outputs: names, or Heat's maps with ``name`` and ``error_output``.
        :param transport: Heat's ``signal_transport``.
        :raises TemplateError: when Heat refuses it.
        :raises ImageError: when the image has no agent.
        """
        if not self._agent:
            raise ImageError(
                f'the image "{self._testbed.image.path}" has no agent, so no deployment runs',
                hint=f"hotplate inspect {self._testbed.image.path}",
            )
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
        deployment = Deployment(self._testbed.cloud, self.id, spec)
        self.deployments.append(deployment)
        return deployment

    # -- inside the guest --------------------------------------------------------------------------

    @cached_property
    def host(self) -> Host:
        """A testinfra host over one connection, which is made again after a reboot."""
        return testinfra_host(self._server.shell, name=str(self))

    @property
    def ssh(self) -> Ssh:
        """A connection as root to the guest's ssh server, made when it is first asked for.

        For what only a login shows; all else needs neither an ssh server nor a network.

        >>> server.ssh.run("whoami").text  # doctest: +SKIP
        'root'

        :raises SubjectError: when the image lets root in with no key.
        :raises HostError: when this host's wiring does not reach the guest's ports.
        """
        return self._server.ssh()

    @property
    def console(self) -> Console:
        """The serial console."""
        return self._server.machine.console

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
        """Wait until a line on the serial console matches; return what matched.

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
        """Write bytes, or a file of the host's, to a file in the guest.

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
        """Put a hook from the host where the guest's runner takes it from, over one that is there.

        >>> print(server.push_hook(hooks / "tmpfiles.py"))  # doctest: +SKIP
        /usr/libexec/heat-config/hooks/tmpfiles

        :param hook: its file.
        :param group: of the deployments that it is for; by default the file's name without its
            suffix, with ``-`` for ``_``.
        :raises UsageError: when the file cannot be a hook.
        :raises ImageError: when the guest did not take it, as when it has no runner of hooks.
        """
        file = hook_file(hook, group)
        done = self._server.shell().run(push_command(file), stdin=file.data)
        return pushed(file, done.rc, done.stdout)

    def journal(self, unit: str = "os-collect-config") -> str:
        """Return the journal of this boot of a unit; of everything with ``""``."""
        only = ["--unit", unit] if unit else []
        command = ["journalctl", "--boot", "--no-pager", "--output", "short-monotonic", *only]
        return self.run(command).text

    def has_hook(self, group: str) -> bool:
        """Whether the image has a hook for a group, where heat-config looks for them.

        >>> server.has_hook("no-such-group")
        False
        """
        names = [f"{directory}/{group}" for directory in HOOKS]
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
        """Cut the power; what the guest had not written to its disk is lost."""
        self._testbed.compute.stop(self.id)

    def start(self, *, wait: bool = True, seconds: float = BOOT_SECONDS) -> None:
        """Switch the machine on again, from its disk.

        :param wait: until the guest answers.
        :param seconds: how long, on a host that is not slow.
        :raises DeadlineExceeded: when it does not answer by then.
        """
        self._testbed.compute.start(self.id)
        if wait:
            self._server.shell(seconds=seconds)

    # -- links -------------------------------------------------------------------------------------

    def address(self, network: str = "") -> str:
        """Return the server's IPv4 address on a network.

        >>> web.address("private")  # doctest: +SKIP
        '10.0.0.5'

        :param network: its name or id; "" for the first that the server is on.
        :raises UsageError: when the server is not on that network; says which it is on.
        :raises HostError: when it is by itself, on no network with others.
        """
        return self._server.links.address(network)

    def can_reach(
        self,
        other: ServerUnderTest,
        port: int,
        *,
        network: str = "",
        seconds: float = CONNECT_SECONDS,
    ) -> bool:
        """Try once whether this guest can connect to a TCP port of another server.

        False says that the connection was refused, or that nothing answered in time.  Needs bash
        in the guest, or busybox.

        >>> web.can_reach(db, 5432)  # doctest: +SKIP
        True

        :param network: where the other is meant; "" for the first that both are on.
        :param seconds: how long an answer is waited for, on a host that is not slow.
        :raises UsageError: when the other is not on that network.
        :raises HostError: when one of the two is by itself.
        :raises CommandError: when the guest has nothing to connect with.
        """
        address = other._server.links.address_for(self._server.links, network)
        left = math.ceil(GuestDeadline(seconds, f"{self} to reach {other}").left)
        result = self.run(CONNECT.format(address=address, port=port, seconds=left))
        if result.rc == NO_SUCH_PROGRAM:
            result.check()
        return result.rc == 0

    def block(self, network: str = "") -> None:
        """Pull the cable to a network out, which the guest notices; it holds until a power cut.

        >>> server.block()
        >>> server.unblock()

        :param network: its name or id; "" for every cable, also of a server that is by itself.
        :raises UsageError: when the server is not on that network.
        """
        self._server.links.set_up(network, up=False)

    def unblock(self, network: str = "") -> None:
        """Plug what :meth:`block` has pulled in again."""
        self._server.links.set_up(network, up=True)

    def shape(self, network: str = "", *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Make a link slow or lossy; without ``delay`` and ``loss``, good again.

        It stays so over a reboot and a power cut.

        >>> web.shape("private", delay=0.2, loss=0.05)  # doctest: +SKIP
        >>> web.shape("private")  # doctest: +SKIP

        :param network: its name or id; "" for every network that the server is on.
        :param delay: seconds, 0 to 60, that a frame takes longer, each way.
        :param loss: the share of frames, 0 to 1, that is lost, each way.
        :raises UsageError: when the server is not on that network, or for no time and no share.
        :raises HostError: when it is by itself.
        """
        self._server.links.shape(network, delay=delay, loss=loss)

    def part(self, *others: ServerUnderTest, network: str = "") -> None:
        """Let nothing pass between this server and others, either way; all else passes.

        Neither notices, but by waiting.  It stays so over a reboot and a power cut.

        >>> web.part(db)  # doctest: +SKIP
        >>> web.join(db)  # doctest: +SKIP

        :param network: on this one alone; "" for all that they share.
        :raises UsageError: when they share none.
        :raises HostError: when one is by itself.
        """
        for other in others:
            self._server.links.part(other._server.links, network)

    def join(self, *others: ServerUnderTest, network: str = "") -> None:
        """Undo :meth:`part`."""
        for other in others:
            self._server.links.join(other._server.links, network)

    # -- what became of it -------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether its machine went away by itself, which says nothing about the image."""
        return any(
            classify.is_loss(event) and event.server == self.id
            for event in self._testbed.events.since(self._since)
        )

    @property
    def faulty(self) -> bool:
        """Whether a service or a thread of hotplate's own has failed since it was booted."""
        return any(map(InternalFault.of, self._testbed.events.since(self._since)))

    def diagnosis(self) -> Diagnosis | None:
        """Why the last deployment did not complete, asked of both ends; None when it did.

        ::

            assert done.status == "COMPLETE", server.diagnosis()
        """
        last = self.deployments[-1] if self.deployments else None
        hook_outputs = {}
        if last is not None and last.status == "FAILED":
            hook_outputs = {last.config_id: HookOutput.of(last.outputs)}
        return diagnose_since(
            self._testbed.events,
            self._server,
            since=self._since,
            stacks=[each.stack.name for each in self.deployments],
            status=last.stack.status if last else "",
            reason=last.reason if last else "",
            hook_outputs=hook_outputs,
        )

    def leave_evidence(
        self, test: str, *, problem: str = "", diagnosis: Diagnosis | None = None, whole: bool
    ) -> None:
        """Write what was seen of it to :attr:`directory`; the plug-in does it for each test.

        :param test: what it was used for.
        :param problem: why that failed, "" when it did not; the guest is asked for its logs then.
        :param whole: leave its disk too, also when nothing failed.
        """
        from hotplate.trial import evidence

        evidence.leave(
            self._testbed,
            self._server,
            self.deployments,
            since=self._since,
            test=test,
            problem=problem,
            lost=self.lost,
            faulty=self.faulty,
            diagnosis=diagnosis,
            keep_disk=whole,
        )

    def pause(self, *, say: Callable[[str], None]) -> None:
        """Leave it up and let others in until somebody presses Enter, as ``--pause-on-fail``."""
        access.pause(self._testbed, [self._server], self.directory / "doors", say=say)
