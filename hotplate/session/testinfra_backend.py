"""testinfra's hosts ``hotplate://NAME``: servers of a running ``hotplate up``.

::

    pytest --hosts=hotplate://web tests/

A suite that was written for ssh or paramiko runs on the server unchanged, also when its image has
neither a network nor an ssh server.  The pytest plug-in registers it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from testinfra.backend.base import BaseBackend
from testinfra.backend.base import CommandResult as TestinfraResult

from hotplate.guest.base import COMMAND_SECONDS
from hotplate.session.channel import content_of
from hotplate.session.directory import find
from hotplate.settings import Settings


class SessionBackend(BaseBackend):  # type: ignore[misc]
    """Runs testinfra's commands as root in a server of a session.

    The session is that of the artifacts directory, which ``HOTPLATE_ARTIFACTS`` or
    ``hotplate.toml`` may name.

    :param hostname: the server's name, id or address; "" when there is only one.
    :param timeout: limit of one command in seconds, ``hotplate://web?timeout=600``.
    """

    NAME = "hotplate"

    def __init__(self, hostname: str, *, timeout: str = "", **more: Any) -> None:
        super().__init__(hostname, **more)
        self._timeout = float(timeout or COMMAND_SECONDS)

    def run(self, command: str, *args: str, **_: object) -> TestinfraResult:
        """Run a command for testinfra.

        :raises HotplateError: the session's error, such as an unknown server.
        """
        text = self.get_command(command, *args)
        settings = Settings.load({}, environ=os.environ, directory=Path.cwd())
        wanted = {"server": unquote(self.hostname), "command": text, "timeout": self._timeout}
        with find(None, settings).asked("shell", **wanted) as (status, outputs, _channel):
            stdout, stderr = map(content_of, outputs)
        return self.result(int(status), text.encode(), stdout, stderr)

    def get_encoding(self) -> str:
        """Return the encoding of command output, without running Python in the guest."""
        return "utf-8"
