"""Warm state: a server booted once to "agent idle and polling", and restored from then on.

The state of the machine (of a container, its layer of changes) and Heat's database are of the same
instant and are kept together, by the hash of everything that the guest boots from, the versions and
the machine's options.  A state that does not restore is discarded and made again, once.

Each state has a directory of its own, ``KEY-TOKEN``, because overlays refer to its disk by path,
and that path is never used again. A user of a state locks the directory; the last one removes a
discarded state.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from hotplate import __version__, heat_releases, locks
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.container.machine import nspawn_version
from hotplate.errors import HostError, MachineLostError
from hotplate.events.log import EventLog
from hotplate.guest.base import CommandError
from hotplate.history import FILE, History
from hotplate.host_tools import find_tool
from hotplate.image.checksum import hash_directory
from hotplate.image.inspect import Image
from hotplate.image.overlay import check_space
from hotplate.machine import accelerator
from hotplate.machine.config import ARCHITECTURES
from hotplate.machine.cpu_models import is_model, models_above
from hotplate.machine.machine import Capability
from hotplate.settings import MachineChoice, Settings
from hotplate.testbed.first_boot import CpuError, boot, wait_between_polls, wait_for_agent
from hotplate.testbed.maker import DISKS
from hotplate.testbed.qemu_maker import arch_of, cpu_of
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded

#: The number of states kept; the least recently used goes first.
KEPT = 6

#: Marks the directory of a state that does not restore, until its last user removes it.
DISCARDED = "discarded"


@dataclass(frozen=True)
class WarmState:
    """A saved state, complete and ready to be restored."""

    directory: Path

    @property
    def about(self) -> dict[str, object]:
        """Return its description: image, versions, options and time."""
        document: dict[str, object] = json.loads((self.directory / "about.json").read_text())
        return document

    @property
    def spec(self) -> ServerSpec:
        """Return the saved server."""
        return ServerSpec.from_json(self._private()["spec"])

    @property
    def nonce(self) -> str:
        """Return the nonce in the guest's answers."""
        return str(self._private()["nonce"])

    def settings_from(self, settings: Settings) -> Settings:
        """Return the settings of a testbed that restores it: with the CPU of its machine."""
        cpu = self.about.get("cpu")
        # A container has none.
        return settings if cpu is None else replace(settings, cpu=str(cpu))

    @property
    def discarded(self) -> bool:
        """Return whether it failed to restore; it is kept only for its present users."""
        return (self.directory / DISCARDED).exists()

    def lend_database(self, directory: Path) -> None:
        """Copy Heat's databases of that instant to the directory of a new cloud.

        :raises MachineLostError: when they are damaged.
        """
        try:
            shutil.copytree(self.directory / "cloud", directory)
            for path in directory.glob("*.db"):
                # sqlite3's own context manager ends a transaction, and does not close.
                with contextlib.closing(sqlite3.connect(path)) as database:
                    if database.execute("PRAGMA quick_check").fetchone() != ("ok",):
                        raise sqlite3.DatabaseError("the check failed")
            if not (directory / "heat.db").exists():
                raise sqlite3.DatabaseError("heat.db is missing")
        except (sqlite3.Error, shutil.Error, FileNotFoundError) as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise self._lost(f"is damaged: its database: {error}") from error

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Prevent the removal of this state by any process while the context lasts.

        :raises MachineLostError: when it has been removed already.
        """
        try:
            with contextlib.ExitStack() as held:
                try:
                    held.enter_context(locks.shared(self.directory))
                except FileNotFoundError as error:
                    raise self._lost("was removed before it was used") from error
                yield
        finally:
            # The last user removes it: before that, others hold their locks.
            if self.discarded:
                self.remove()

    def remove(self) -> bool:
        """Remove it, unless it is in use; return whether it is gone."""
        try:
            with locks.exclusive(self.directory, wait=False):
                shutil.rmtree(self.directory, ignore_errors=True)
        except locks.InUse:
            return False
        except FileNotFoundError:
            # Another process has removed it.
            pass
        return True

    def _lost(self, why: str) -> MachineLostError:
        return MachineLostError(f'the saved state "{self.directory}" {why}')

    def _private(self) -> dict[str, Any]:
        try:
            document: dict[str, object] = json.loads((self.directory / "server.json").read_text())
        except FileNotFoundError as error:
            raise self._lost("was removed while it was used") from error
        except ValueError as error:
            raise self._lost(f"is damaged: server.json: {error}") from error
        return document

    def restore(self, testbed: Testbed, *, another: bool = False) -> Server:
        """Start the saved server in a testbed whose cloud has this state's database.

        :param another: begin with the next one, too; see :meth:`restore_ahead`.
        :raises MachineLostError: when the state does not fit.
        """
        self._check()
        since = len(testbed.events)
        with contextlib.suppress(OSError):
            # Marks it as used, for the removal of the least recently used; a cache may be
            # read-only.
            os.utime(self.directory)
        server = testbed.compute.restore(
            self.spec,
            testbed.cloud,
            state=self.directory,
            nonce=self.nonce,
        )
        try:
            if another:
                self.restore_ahead(testbed)
            server.renew()
            if Capability.KERNEL not in server.machine.capabilities:
                # A container's processes are new, and begin where those of the state have ended.
                wait_for_agent(testbed.events, server, since=since)
        except (DeadlineExceeded, MachineLostError, CommandError) as error:
            testbed.compute.delete(server.spec.id)
            raise MachineLostError(
                f'the server that was restored from "{self.directory}" does not answer: {error}'
            ) from error
        return server

    def restore_ahead(self, testbed: Testbed) -> None:
        """Begin to restore the server that the next :meth:`restore` returns, where that helps."""
        testbed.compute.restore_ahead(
            self.spec, testbed.cloud, state=self.directory, nonce=self.nonce
        )

    def _check(self) -> None:
        """Compare the files' sizes with those recorded when they were written."""
        for name, size in self._private().get("sizes", {}).items():
            path = self.directory / name
            try:
                is_now = path.stat().st_size
            except OSError as error:
                raise self._lost("was removed while it was used") from error
            if is_now != size:
                raise self._lost(f'is damaged: "{name}" has {is_now} bytes, not {size}')


def store(cache: Path) -> Path:
    """Return the folder of the states in a cache directory."""
    return cache / "warm"


def states(cache: Path) -> list[WarmState]:
    """Return the kept states, the most recently used first."""
    kept = []
    for path in store(cache).glob("*/about.json"):
        # Another process may remove it right now.
        with contextlib.suppress(OSError):
            kept.append((path.parent.stat().st_mtime, path.parent))
    return [WarmState(path) for _, path in sorted(kept, reverse=True)]


def forget(cache: Path, *, keep: int = 0) -> list[WarmState]:
    """Remove all states but the ``keep`` most recently used and those in use.

    :return: the states that should have been removed, but are in use.
    """
    kept = [state for state in states(cache) if not state.discarded][:keep]
    return [state for state in states(cache) if state not in kept and not state.remove()]


def remove_leftover(path: Path) -> bool:
    """Remove the unfinished state of a process that was killed while it made one.

    :return: False for a complete state, or one that a process is making.
    """
    if path.suffix != ".new":
        return False
    with _lock_file(path.parent, _key_of(path)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The process that makes it holds the lock.
            return False
        shutil.rmtree(path, ignore_errors=True)
    return True


def identity(image: Image, settings: Settings) -> dict[str, str]:
    """Return everything that a state depends on."""
    about = {
        **image.fingerprint(settings.cache / "checksums"),
        "name": image.path.name,
        "machine": settings.machine.value,
        "hotplate": __version__,
        "code": _code(),
        "heat": importlib.metadata.version("openstack-heat"),
        "memory": f"{settings.memory}",
        "datasource": settings.datasource.value,
    }
    if settings.machine is MachineChoice.CONTAINER:
        return {**about, "nspawn": nspawn_version(), "kernel": platform.release()}
    arch = arch_of(image, settings)
    program = find_tool(ARCHITECTURES[arch].program)
    chosen = accelerator.choose(settings.accelerator.value, arch=arch, cache=settings.cache)
    return {
        **about,
        "qemu": accelerator.qemu_version(program),
        "arch": arch,
        "accelerator": chosen.name,
        "cpu": cpu_of(image, settings, chosen)[0],
        "host cpu": _host_cpu() if chosen.name == "kvm" else "",
        "cpus": f"{settings.cpus or chosen.cpus}",
        "firmware": settings.firmware.value,
        "wiring": settings.wiring.value,
        "append": settings.append,
        "tpm": str(settings.tpm),
        "display": str(settings.display),
    }


def key(about: dict[str, str]) -> str:
    """Return the name of a state's folder."""
    # A renamed image has the same state.
    named = {name: value for name, value in about.items() if name != "name"}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:24]


@functools.cache
def _code(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of the code that makes states; two checkouts may share a version.

    That is this room and the rooms that it imports, directly or through others.
    """
    rooms = [Path(__file__).parent.name]
    for room in rooms:
        # The list grows while it is read.
        for module in (package / room).rglob("*.py"):
            imported = re.findall(r"from hotplate\.(\w+)", module.read_text())
            rooms += [each for each in dict.fromkeys(imported) if each not in rooms]
    parts = [hash_directory(package / room) for room in sorted(rooms)]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _host_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the guest-visible properties of the host's processor under KVM, except its speed."""
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    # The first paragraph is that of the first processor; the others are like it.
    lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if line.partition(":")[0].strip() in names)


def _key_of(directory: Path) -> str:
    """Return the key of a complete or unfinished state, from its directory's name."""
    return directory.stem.partition("-")[0]


def _lock_file(directory: Path, name: str) -> IO[str]:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Never removed: another process may be waiting for it.
        return (directory / f"{name}.lock").open("w")
    except OSError as error:
        raise HostError(
            f'warm states cannot be kept in "{directory}": {error.strerror}',
            hint="set HOTPLATE_CACHE to a directory that can be written",
        ) from error


@contextlib.contextmanager
def _only_one(directory: Path, name: str) -> Iterator[None]:
    """Hold the lock of a state; the kernel releases it when this process dies."""
    with _lock_file(directory, name) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find(image: Image, settings: Settings) -> WarmState | None:
    """Return the state for an image and settings, if there is one."""
    return _kept(identity(image, settings), settings)


def _kept(about: dict[str, str], settings: Settings) -> WarmState | None:
    names = [key(about)]
    if not is_model(settings.cpu):
        names += [key({**about, "cpu": model}) for model in models_above(about.get("cpu", ""))]
    for state in states(settings.cache):
        if _key_of(state.directory) in names and not state.discarded:
            return state
    return None


def find_or_make(
    image: Image, settings: Settings, *, directory: Path, say: Callable[[str], None]
) -> WarmState:
    """Return the state for an image and settings; the first caller on this host makes it.

    An image that needs a better CPU than it was given is booted once more with the next. That is
    not done again: of an image that runs on several, any state serves.

    :param directory: for the boot's console and logs.
    :raises ImageError: when the image does not get to "agent idle and polling".
    :raises UsageError: when this process has not the chosen Heat.
    """
    # Before an image is booted for minutes.
    heat_releases.check(settings.heat, settings.cache)
    about = identity(image, settings)
    name = key(about)
    kept_in = store(settings.cache)
    with _only_one(kept_in, name):
        # Under the lock: another process may just have made it.
        if (state := _kept(about, settings)) is not None:
            return state
        state = WarmState(kept_in / f"{name}-{secrets.token_hex(4)}")
        # Memory, disk and QEMU's device stream; most guests fill less.
        check_space(kept_in, needed=settings.memory << 20)
        history, kind = History(settings.cache / FILE), f"first-boot-{about['name']}"
        usual = history.expected(kind).get("saved")
        long = f"usually takes {usual:.0f} s" if usual else "takes minutes"
        say(f"booting {image} once, to restore it from then on; the first time {long}")
        began = time.monotonic()
        try:
            _make(state, image, settings, about, directory=directory, say=say)
        except CpuError as error:
            if not error.level:
                raise
            say(f"{error.message}; once more with {error.level}, as --cpu {error.level} begins")
            directory = directory.with_name(f"{directory.name}-{error.level}")
            # Levels only rise, and so no two processes wait for each other's locks.
            return find_or_make(
                image, replace(settings, cpu=error.level), directory=directory, say=say
            )
        history.record(kind, {"saved": time.monotonic() - began})
        say(f"saved its state after {time.monotonic() - began:.0f} s")
        forget(settings.cache, keep=KEPT)
        return state


def discard(state: WarmState) -> None:
    """Discard a state that does not restore: the next caller makes another.

    It is removed at once, or with its last user, whose disk is an overlay of its disk.
    """
    with contextlib.suppress(OSError):
        # Another process may have removed it meanwhile.
        (state.directory / DISCARDED).touch()
    state.remove()


def _make(
    state: WarmState,
    image: Image,
    settings: Settings,
    about: dict[str, str],
    *,
    directory: Path,
    say: Callable[[str], None],
) -> None:
    temporary = state.directory.with_name(state.directory.name + ".new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        # Isolated, because several are restored side by side, each with the same address.
        with Testbed(
            image,
            settings=settings,
            directory=directory,
            events=EventLog(),
            networks=False,
            saves=True,
        ) as testbed:
            server = boot(testbed, say=say)
            if Capability.KERNEL in server.machine.capabilities:
                wait_between_polls(testbed.events, server)
            say("saving its state")
            saved = testbed.compute.maker(server.spec).save(server.machine, temporary)
            private: dict[str, object] = {"spec": server.spec.to_json(), "nonce": server.nonce}
            testbed.cloud.copy_databases(temporary / "cloud")
        private["sizes"] = {name: (temporary / name).stat().st_size for name in saved}
        # As of a server that passed: a disk contains passwords, and its copy is in the state.
        for disk in DISKS:
            (server.directory / disk).unlink(missing_ok=True)
        (temporary / "server.json").write_text(json.dumps(private))
        # The last file, without which states() lists no directory.
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
