"""A stack as a test sees it: its actions, and its servers by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from hotplate.errors import UsageError
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest, written_by_hook
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed


class StackUnderTest(Stack):
    """A stack that a test made, and its servers.

    ::

        def test_page(stack):
            made = stack("pages.yaml").wait()
            web, db = made.server("web"), made.server("db")
            assert web.can_reach(db, 5432)
    """

    _testbed: Testbed
    _servers: dict[str, ServerUnderTest]
    _began: int

    @classmethod
    def begin(cls, testbed: Testbed, path: Path, parameters: Mapping[str, object]) -> Self:
        """Begin to create a stack from a template file, with the files that it names.

        :raises TemplateError: when Heat refuses it, or it cannot be read.
        """
        template = load(path, parameters=parameters)
        began = len(testbed.events)
        self = cls.create(testbed.cloud, template)
        self._testbed, self._servers, self._began = testbed, {}, began
        return self

    def server(self, name: str) -> ServerUnderTest:
        """Return a server of the stack, those of nested stacks included.

        The same object until an update replaces the server.

        :param name: of its resource in the template, or Nova's.
        :raises UsageError: when there is none, or several; lists the servers.
        """
        running = self._running()
        by_resource = [server for resource, server in running if resource == name]
        by_name = [server for _, server in running if server.spec.name == name]
        # By the template's name first: Nova's name may be one that Heat has made up.
        for chosen in (by_resource, by_name):
            if len(chosen) == 1:
                return self._seen(chosen[0])
        how_many = "several servers" if by_resource or by_name else "no server"
        there = ", ".join(f'"{resource}" ("{each.spec.name}")' for resource, each in running)
        raise UsageError(
            f'the stack "{self.name}" has {how_many} "{name}"; there are {there or "none"}'
        )

    def running_servers(self) -> list[ServerUnderTest]:
        """Return its running servers, those of nested stacks included."""
        return [self._seen(server) for _, server in self._running()]

    def written_by_failed(self) -> list[tuple[str, str]]:
        """Return the output of the hook of each failed deployment, with a title."""
        servers = [identity for _, identity in self.servers()]
        return [
            written_by_hook(self._heat.software_configs.get(config).group, outputs)
            for config, outputs in self.failed_outputs(servers).items()
        ]

    def _running(self) -> list[tuple[str, Server]]:
        return [
            (resource, server)
            for resource, identity in self.servers()
            if (server := self._testbed.server(identity)) is not None
        ]

    def _seen(self, server: Server) -> ServerUnderTest:
        made = ServerUnderTest(LocalPlatform(self._testbed, server, since=self._began))
        return self._servers.setdefault(server.spec.id, made)
