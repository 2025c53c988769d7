"""A hook of this host in a server of a session: pushed, and deployed there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

from hotplate.errors import HotplateError, SubjectError, UsageError
from hotplate.hookkit.push import HookFile, Pushed, hook_file, push_command, pushed
from hotplate.hookkit.show import answer_lines
from hotplate.session.channel import content_of, in_memory
from hotplate.session.directory import SessionDirectory
from hotplate.text import clean_line

PUSH_SECONDS = 60.0

#: Seconds between two readings of a watched hook; a save is complete when they are alike.
SETTLED = 0.2


@dataclass(frozen=True)
class HookDeployment:
    """A config for the pushed hook, which Heat deploys.

    :param outputs: the declared ones.
    :param timeout: seconds on a host that is not slow.
    """

    config: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    timeout: float = 300.0


class Pusher:
    """Pushes a hook into one server of a session, and deploys a config there.

    :param path: the hook's file.
    :param group: of its deployments; "" for the one that the file is named after.
    :param server: the server's name; "" when there is only one.
    :param deployment: None for no deployment.
    """

    def __init__(
        self,
        directory: SessionDirectory,
        path: Path,
        *,
        group: str,
        server: str,
        deployment: HookDeployment | None,
    ) -> None:
        self.path = path
        self._directory = directory
        self._group = group
        self._server = server
        self._deployment = deployment

    def hook(self) -> HookFile:
        """Return the present hook.

        :raises UsageError: when the file cannot be a hook.
        """
        return hook_file(self.path, self._group)

    def push(self, hook: HookFile) -> bool:
        """Push a hook, and deploy; return False when the deployment failed.

        :raises SubjectError: when the guest refused it, or the deployment does not end.
        """
        began = time.monotonic()
        done = self._sent(hook)
        print(f"pushed  {hook.group}: {done}  [{time.monotonic() - began:.1f} s]", flush=True)
        for each in done.notes:
            print(f"note    {each}", flush=True)
        return self._deployment is None or self._deploy(hook, self._deployment)

    def _sent(self, hook: HookFile) -> Pushed:
        handed = [in_memory(hook.data)]
        try:
            with self._directory.asked(
                "shell",
                descriptors=handed,
                server=self._server,
                command=push_command(hook),
                timeout=PUSH_SECONDS,
            ) as (status, outputs, _):
                return pushed(hook, int(status), content_of(outputs[0]))
        finally:
            os.close(handed[0])

    def _deploy(self, hook: HookFile, deployment: HookDeployment) -> bool:
        wanted = {"group": hook.group, **asdict(deployment)}
        handed = [in_memory(json.dumps(wanted).encode())]
        began = time.monotonic()
        try:
            with self._directory.asked("deploy", descriptors=handed, server=self._server) as (
                status,
                files,
                _,
            ):
                about = json.loads(content_of(files[0]))
        finally:
            os.close(handed[0])
        self._show(deployment, str(status), about, time.monotonic() - began)
        return bool(status == "COMPLETE")

    def _show(
        self, deployment: HookDeployment, status: str, about: Mapping[str, object], seconds: float
    ) -> None:
        outputs = about["outputs"]
        assert isinstance(outputs, dict)
        number = outputs.get("deploy_status_code")
        print(f"result  {status}, deploy_status_code {number}  [{seconds:.1f} s]")
        for line in answer_lines(outputs):
            print(line)
        for name in deployment.outputs:
            if name not in outputs:
                print(f"output {clean_line(name)}: declared, and not written")
        if status != "COMPLETE" and number is None:
            print(f"reason  {clean_line(str(about['reason']))}")
        print(end="", flush=True)


def watch(pusher: Pusher) -> NoReturn:
    """Push at once and at each save, until a signal.

    :raises UsageError: when the session, or its server, has ended.
    """
    contents = pusher.hook().data
    while True:
        _try(pusher)
        print(f"waiting for {pusher.path} to be saved; Ctrl-C ends it", flush=True)
        contents = _saved(pusher.path, contents)


def _saved(path: Path, before: bytes) -> bytes:
    """Wait until a file has other contents than before; return them."""
    seen = before
    while True:
        time.sleep(SETTLED)
        try:
            contents = path.read_bytes()
        except OSError:
            # An editor has removed it, and is about to write it.
            continue
        # Editors write in several steps, so the contents have to be there twice.
        if contents == seen and contents != before:
            return contents
        seen = contents


def _try(pusher: Pusher) -> None:
    """Push; print errors that the next save can fix."""
    problem: HotplateError
    try:
        hook = pusher.hook()
    except UsageError as error:
        problem = error
    else:
        # Without a session or its server waiting is useless: that error is raised.
        try:
            pusher.push(hook)
            return
        except SubjectError as error:
            problem = error
    print(f"failed  {problem}", flush=True)
