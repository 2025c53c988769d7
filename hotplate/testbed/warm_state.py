"""Warm state: a server that was booted once to "agent idle and polling", and is restored after.

Machine state, disk and Heat's database are of the same instant and are kept together, by the hash
of the image, the versions and the machine's options.  A state that does not restore is thrown away
and made anew, once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hotplate import __version__
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import HostError, ImageError, MachineLostError
from hotplate.events import classify
from hotplate.events.log import EventLog
from hotplate.guest.base import CommandError
from hotplate.image.inspect import Image
from hotplate.image.overlay import check_space
from hotplate.machine import accelerator
from hotplate.machine.config import ARCHITECTURES
from hotplate.machine.process import find_tool
from hotplate.paths import cache_dir
from hotplate.settings import Settings
from hotplate.testbed.qemu_compute import arch_of
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline, retry

STACK = "warm"
POLLING_SECONDS = 0.5
KEPT = 6
"""How many states are kept; the one that was not used for longest goes first."""

AT_REST = (
    # systemd has started everything, and os-refresh-config holds its lock no more.
    "case $(systemctl is-system-running) in running | degraded) ;; *) exit 1 ;; esac; "
    "flock --nonblock /run/os-refresh-config.lock true"
)

TEMPLATE = {
    "heat_template_version": "2018-08-31",
    "resources": {
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "name": STACK,
                "image": "the image under test",
                "flavor": "m1.small",
                "key_name": "hotplate",
                "user_data_format": "SOFTWARE_CONFIG",
            },
            "metadata": {"os-collect-config": {"polling_interval": POLLING_SECONDS}},
        }
    },
}


@dataclass(frozen=True)
class WarmState:
    """A saved state, complete and ready to be restored."""

    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.qcow2"

    @property
    def memory(self) -> Path:
        return self.directory / "memory"

    @property
    def about(self) -> dict[str, object]:
        """What it is of: image, versions, options, when it was made."""
        document: dict[str, object] = json.loads((self.directory / "about.json").read_text())
        return document

    @property
    def spec(self) -> ServerSpec:
        """The server that was saved."""
        return ServerSpec.from_json(self._private()["spec"])

    @property
    def nonce(self) -> str:
        return str(self._private()["nonce"])

    @property
    def made_by(self) -> int:
        """Tells this state from one that was made later at the same place."""
        with contextlib.suppress(OSError):
            return (self.directory / "about.json").stat().st_ino
        return 0

    def lend_database(self, directory: Path) -> None:
        """Copy Heat's databases of that instant to where a cloud is going to be started.

        :raises MachineLostError: when they are damaged.
        """
        try:
            shutil.copytree(self.directory / "cloud", directory)
            for path in directory.glob("*.db"):
                with contextlib.closing(sqlite3.connect(path)) as database:
                    if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
                        raise sqlite3.DatabaseError("the check failed")
            if not (directory / "heat.db").exists():
                raise sqlite3.DatabaseError("heat.db is missing")
        except (sqlite3.Error, shutil.Error, FileNotFoundError) as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise MachineLostError(
                f'the saved state "{self.directory}" is damaged: its database: {error}'
            ) from error

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While the context lasts, :func:`forget` leaves this state alone, in any process."""
        with _lock_file(f"{self.directory.name}.use") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def _private(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.directory / "server.json").read_text())
        except FileNotFoundError as error:
            raise MachineLostError(
                f'the saved state "{self.directory}" was removed while it was used'
            ) from error
        except ValueError as error:
            raise MachineLostError(
                f'the saved state "{self.directory}" is damaged: server.json: {error}'
            ) from error
        return document

    def restore(self, testbed: Testbed) -> Server:
        """Start the server anew in a testbed whose cloud has this state's database.

        :raises MachineLostError: when the state does not fit.
        """
        self._check()
        with contextlib.suppress(OSError):
            # So that the one that is not used for longest is known; a cache may be read-only.
            os.utime(self.directory)
        server = testbed.compute.restore(
            self.spec, disk=self.disk, state=self.memory, nonce=self.nonce
        )
        try:
            server.renew()
        except (DeadlineExceeded, MachineLostError, CommandError) as error:
            testbed.compute.delete(server.spec.id)
            raise MachineLostError(
                f'the server that was restored from "{self.directory}" does not answer: {error}'
            ) from error
        return server

    def _check(self) -> None:
        """Compare the files' sizes with what they were when they were written."""
        for name, size in self._private().get("sizes", {}).items():
            path = self.directory / name
            try:
                is_now = path.stat().st_size
            except OSError as error:
                raise MachineLostError(
                    f'the saved state "{self.directory}" was removed while it was used'
                ) from error
            if is_now != size:
                raise MachineLostError(
                    f'the saved state "{self.directory}" is damaged: '
                    f'"{name}" has {is_now} bytes, not {size}'
                )


def store() -> Path:
    """Where the states are kept."""
    return cache_dir() / "warm"


def states() -> list[WarmState]:
    """The states that are kept, the one used last first."""
    found = []
    for path in store().glob("*/about.json"):
        # Another process may remove it right now.
        with contextlib.suppress(OSError):
            found.append((path.parent.stat().st_mtime, path.parent))
    return [WarmState(path) for _, path in sorted(found, reverse=True)]


def forget(*, keep: int = 0) -> list[WarmState]:
    """Remove all states but the ``keep`` that were used last and those that are in use.

    :return: those that were to go and are in use.
    """
    busy = []
    for state in states()[keep:]:
        with _lock_file(f"{state.directory.name}.use") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy.append(state)
                continue
            shutil.rmtree(state.directory, ignore_errors=True)
    return busy


def remove_leftover(path: Path) -> bool:
    """Remove what a process that was killed left while it made a state.

    :return: False for a state that is complete or that a process makes right now.
    """
    if path.suffix != ".new":
        return False
    with _lock_file(f"{path.stem}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(path, ignore_errors=True)
    return True


def identity(image: Image, settings: Settings) -> dict[str, str]:
    """All that a state depends on."""
    arch = arch_of(image, settings)
    program = find_tool(ARCHITECTURES[arch].program)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return {
        "image": image.sha256(cache_dir() / "checksums"),
        "name": image.path.name,
        "qemu": version.stdout.splitlines()[0],
        "hotplate": __version__,
        "arch": arch,
        "accelerator": accelerator.choose(settings.accelerator.value, arch=arch).name,
        "memory": f"{settings.memory}",
        "cpus": f"{settings.cpus}",
        "firmware": settings.firmware.value,
        "datasource": settings.datasource.value,
        "wiring": settings.wiring.value,
        "append": settings.append,
        "display": str(settings.display),
    }


def key(about: dict[str, str]) -> str:
    """The name of a state's folder."""
    named = {name: value for name, value in about.items() if name != "name"}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:24]


def _lock_file(name: str) -> IO[str]:
    try:
        store().mkdir(mode=0o700, parents=True, exist_ok=True)
        return (store() / name).open("w")
    except OSError as error:
        raise HostError(
            f'warm states cannot be kept in "{store()}": {error.strerror}',
            hint="set HOTPLATE_CACHE to a directory that can be written",
        ) from error


@contextlib.contextmanager
def _only_one(name: str) -> Iterator[None]:
    """Hold the lock of a state; the kernel gives it up when we die."""
    with _lock_file(f"{name}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_or_make(
    image: Image, settings: Settings, *, directory: Path, say: Callable[[str], None]
) -> WarmState:
    """The state for an image and settings; the first to ask for it on this host makes it.

    :param directory: for the boot's console and logs.
    :raises ImageError: when the image does not come to "agent idle and polling".
    """
    about = identity(image, settings)
    name = key(about)
    with _only_one(name):
        state = WarmState(store() / name)
        if (state.directory / "about.json").exists():
            return state
        # Memory, disk and what QEMU writes besides; a guest that fills less is the rule.
        check_space(store(), needed=settings.memory << 20)
        say(f"booting {image} once, to restore it from then on")
        began = time.monotonic()
        _make(state, image, settings, about, directory=directory)
        say(f"saved its state after {time.monotonic() - began:.0f} s")
        forget(keep=KEPT)
        return state


def discard(state: WarmState, made_by: int) -> None:
    """Remove a state that does not restore, unless another process has made it anew already.

    :param made_by: :attr:`WarmState.made_by` of the one that did not.
    """
    with _only_one(state.directory.name):
        if state.made_by in (0, made_by):
            shutil.rmtree(state.directory, ignore_errors=True)


def _make(
    state: WarmState, image: Image, settings: Settings, about: dict[str, str], *, directory: Path
) -> None:
    temporary = state.directory.with_name(state.directory.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        with Testbed(image, settings=settings, directory=directory, events=EventLog()) as testbed:
            server = boot(testbed)
            server.machine.save_state(temporary / "memory")
            # The disk as it is now belongs to the memory as it is now.
            server.machine.kill()
            shutil.copyfile(server.directory / "disk.qcow2", temporary / "disk.qcow2")
            private: dict[str, object] = {"spec": server.spec.to_json(), "nonce": server.nonce}
            testbed.cloud.copy_databases(temporary / "cloud")
        private["sizes"] = {
            name: (temporary / name).stat().st_size for name in ("memory", "disk.qcow2")
        }
        (temporary / "server.json").write_text(json.dumps(private))
        made = {**about, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        (temporary / "about.json").write_text(json.dumps(made, indent=2) + "\n")
        temporary.rename(state.directory)
    except OSError as error:
        raise HostError(
            f'the warm state cannot be written to "{temporary}": {error.strerror}',
            hint="hotplate cache clean",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def boot(testbed: Testbed) -> Server:
    """Boot a server and return it once its agent polls Heat and has nothing to do.

    :raises ImageError: when it does not come so far.
    """
    events, settings = testbed.events, testbed.settings
    # There may have been others in this cloud before.
    seen = len(events)
    testbed.cloud.heat().stacks.create(stack_name=f"{STACK}-{seen}", template=TEMPLATE)
    silence = GuestDeadline(settings.patience, "the agent's first polls")
    ours = ""
    polls = 0
    while polls < 3:
        event = events.wait(lambda _event: True, seconds=silence.left, since=seen)
        if event is None and not silence.passed:
            continue
        if event is None or (event.kind == "exit" and event.server == ours):
            raise ImageError(
                "the image was booted, and its agent did not come to poll Heat",
                hint=f"hotplate test {testbed.image.path}",
            )
        seen += 1
        if event.source == "machine" and event.kind == "power-on":
            ours = ours or event.server
        if event.server == ours and classify.is_poll(event) and classify.answered(event):
            polls += 1
        if not classify.is_request(event) or polls:
            silence.extend(settings.patience)
    server = testbed.compute.servers[ours]
    shell = server.shell(seconds=settings.patience)

    def at_rest(_last_try: bool) -> bool | None:
        return shell.run(AT_REST).rc == 0 or None

    retry(at_rest, GuestDeadline(settings.patience, "the agent to be idle"), every=0.5)
    return server
