"""A real OpenStack on this machine, to test against: Debian's packages in namespaces of their own.

    tools/openstack start      make it if need be (10 minutes, once), start it, wait until it is up
    tools/openstack run -- COMMAND ... run a command where the cloud is, with its clouds.yaml
    tools/openstack status     say whether it runs, since when, and its memory
    tools/openstack stop       end it: no process, mount, network or file of the run is left
    tools/openstack remove     stop it, and delete all that was made

Keystone, Glance, Placement, Nova (libvirt and QEMU), Neutron (networks, routers, floating IPs,
security groups) and Heat, with MariaDB, RabbitMQ and memcached.  They have a chroot, and mount,
network, process, IPC and host name namespaces, which lead nowhere.  clouds.yaml has "real", an
ordinary user, and "admin".

All is kept in hotplate's cache: the packages, and over them the databases with users and networks.
A start puts a third layer over both and stop drops it, so that each begins the same, and nothing
that happens to a cloud, or to this host meanwhile, harms the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PARTS = Path(__file__).resolve().parent
ROOT = PARTS.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import with_setup  # noqa: F401, E402

from hotplate.errors import HostError, HotplateError  # noqa: E402
from hotplate.image.mirrors import of_this_host  # noqa: E402
from hotplate.locks import InUse, exclusive  # noqa: E402
from hotplate.settings import cache_dir  # noqa: E402


@dataclass(frozen=True)
class Release:
    """An OpenStack, the Debian that has it, and its switch: an agent of Neutron."""

    suite: str
    switch: str
    packages: tuple[str, ...]


PACKAGES = (PARTS / "packages").read_text().split()
RELEASES = {
    "zed": Release("bookworm", "linuxbridge", ("neutron-server", "neutron-linuxbridge-agent")),
    "epoxy": Release(
        "trixie",
        "openvswitch",
        ("neutron-api", "neutron-rpc-server", "neutron-openvswitch-agent", "openvswitch-switch"),
    ),
}
TOOLS = ("mmdebstrap", "unshare", "setpriv", "nsenter", "mount", "ip")
#: GiB for the packages, the databases and a run with some images, and for a run with three guests.
DISK = 8
MEMORY = 5
#: For a process that ends to let its lock go.
LOCK_SECONDS = 20.0
CLOUDS = """\
clouds:
  real: &real
    auth: &demo
      auth_url: http://172.24.4.1:5000/v3
      username: demo
      password: secret
      project_name: demo
      user_domain_name: Default
      project_domain_name: Default
    region_name: RegionOne
  admin:
    <<: *real
    auth:
      <<: *demo
      username: admin
      project_name: admin
"""

began = time.monotonic()


def say(words: str) -> None:
    print(f"[{time.monotonic() - began:4.0f}s] openstack: {words}", flush=True)


@dataclass(frozen=True)
class Place:
    """The directory of a release in the cache, which is locked while something is done or runs.

    ``system-KEY`` and ``state-KEY`` are complete: each is made as ``NAME.new`` and renamed.
    """

    folder: Path
    release: str

    @property
    def clouds(self) -> Path:
        """Return the configuration of clients; while it is there, the cloud is up."""
        return self.folder / "clouds.yaml"

    @property
    def logs(self) -> Path:
        """Return the directory of the last start's logs, one a service."""
        return self.folder / "log"

    @property
    def pid(self) -> Path:
        """Return the file with the PID of the cloud's first process."""
        return self.folder / "pid"

    def layer(self, name: str, *made_of: str) -> Path:
        """Return the directory of the layer that is made of these texts."""
        key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:12]
        return self.folder / f"{name}-{key}"

    @contextlib.contextmanager
    def lock(self, *, seconds: float = 0) -> Iterator[int]:
        """Hold it alone; yield the descriptor that holds it.

        :param seconds: how long to wait for another holder.
        """
        end = time.monotonic() + seconds
        with contextlib.ExitStack() as held:
            while True:
                try:
                    descriptor = held.enter_context(exclusive(self.folder, wait=False, make=True))
                    break
                except InUse:
                    if time.monotonic() > end:
                        raise HostError(
                            f'another "tools/openstack" is at work in "{self.folder}"',
                            hint="wait for its end, or stop it",
                        ) from None
                time.sleep(0.1)
            yield descriptor

    def cloud(self) -> int:
        """Return the PID of the cloud's first process, 0 when none is there."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self.pid.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"inside.py\0" in words and b"\0%b/" % os.fsencode(self.folder) in words:
                return pid
        return 0

    def is_up(self) -> bool:
        """Say whether a cloud is there and has been up."""
        return bool(self.cloud()) and self.clouds.exists()

    def drop_run(self) -> None:
        """Delete the leftovers of a run, and of everything that was interrupted."""
        for pattern in ("clouds.yaml", "pid", "run", "*.new"):
            for path in self.folder.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def start(place: Place) -> None:
    """Make the layers that are not there, and start the cloud."""
    check_host(place)
    if place.is_up():
        say(f"{place.release} runs already")
        return
    release = RELEASES[place.release]
    with place.lock() as lock:
        place.drop_run()
        if (free := shutil.disk_usage(place.folder).free >> 30) < DISK:
            raise HostError(f'"{place.folder}" has {free} GiB left; a cloud needs {DISK}')
        packages = sorted({*PACKAGES, *release.packages})
        system = place.layer("system", release.suite, *packages)
        if not system.exists():
            install(release.suite, packages, system, lock)
        texts = [(PARTS / name).read_text() for name in ("etc", "inside.py", "inhabitants.py")]
        state = place.layer("state", system.name, *texts)
        if not state.exists():
            new = state.with_suffix(".new")
            boot(place, "make", new, [system], lock)
            finish(new / "upper", state)
            place.drop_run()
        for path in set(place.folder.glob("s*-*")) - {system, state}:
            shutil.rmtree(path)
        boot(place, "run", place.folder / "run", [state, system], lock)
        new = place.clouds.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(CLOUDS)
        new.rename(place.clouds)
    say("up; for example: tools/openstack run -- openstack --os-cloud real flavor list")


def check_host(place: Place) -> None:
    """Raise when this host cannot have a cloud."""
    if os.geteuid() != 0:
        raise HostError("a cloud needs root, for namespaces, mounts and bridges", hint="sudo")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise HostError(f'"{tool}" is not on this host', hint="tools/setup test")
    available = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if not place.cloud() and available and int(available[1]) >> 20 < MEMORY:
        raise HostError(f"{int(available[1]) >> 10} MiB are available; a cloud needs {MEMORY} GiB")


def install(suite: str, packages: list[str], system: Path, lock: int) -> None:
    """Make the chroot of Debian's packages."""
    say(f"installing {len(packages)} packages of Debian {suite}, and their dependencies")
    mirrors = of_this_host(suite)
    sources = [line.partition(":")[2] for line in mirrors.sources_conf(suite).splitlines()]
    new = system.with_suffix(".new")
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    command = [
        # Its processes end with this one, however it ends.
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"),
        *("--mount-proc", "mmdebstrap", "--mode=root", "--variant=minbase"),
        "--dpkgopt=force-unsafe-io",
        *left_out,
        *(f"--aptopt={line}" for line in mirrors.options),
        *(f"--include={','.join(packages)}", suite, str(new), *sources),
    ]
    with (system.parent / "install.log").open("wb") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock]
        )
    if done.returncode:
        raise HostError(
            f"mmdebstrap ended with {done.returncode}", hint=f"tail {system.parent}/install.log"
        )
    finish(new, system)


def finish(new: Path, layer: Path) -> None:
    """Rename a complete layer, once it is on the disk."""
    os.sync()
    new.rename(layer)


def boot(place: Place, verb: str, folder: Path, layers: list[Path], lock: int) -> None:
    """Start a cloud over these layers, and wait until its databases are made, or it is up.

    :param lock: the cloud holds it too, while it lives.
    """
    folder.mkdir()
    shutil.rmtree(place.logs, ignore_errors=True)
    place.logs.mkdir()
    reader, writer = os.pipe()
    command = [
        *("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"),
        *(sys.executable, "-I", str(PARTS / "inside.py"), verb, RELEASES[place.release].switch),
        *(str(folder), ":".join(map(str, layers)), str(writer)),
    ]
    with (place.logs / "inside.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(writer, lock),
            start_new_session=True,
        )
    os.close(writer)
    last = ""
    try:
        with os.fdopen(reader) as lines:
            place.pid.write_text(next(lines, ""))
            for last in map(str.strip, lines):
                if last == "ready" and verb == "run":
                    return
                say(last)
    except BaseException:
        process.kill()
        kill(place.cloud())
        process.wait()
        raise
    process.wait()
    if last != "ready":
        raise HostError(
            f'the cloud did not come up; the last that it said is "{last}"',
            hint=f"ls {place.logs}",
        )


def kill(pid: int) -> None:
    """End the first process of a cloud, and so all of its namespace, and wait for that.

    :param pid: 0 for none.
    """
    if not pid:
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
        os.close(descriptor)


def stop(place: Place) -> None:
    """End the cloud, and drop its layer."""
    if not place.folder.exists():
        say("does not run")
        return
    pid = place.cloud()
    kill(pid)
    with place.lock(seconds=LOCK_SECONDS):
        place.drop_run()
    say("stopped" if pid else "does not run")


def status(place: Place) -> int:
    """Say whether it runs; return the exit status."""
    pid = place.cloud()
    if not place.is_up():
        made = ", ".join(sorted(path.name for path in place.folder.glob("s*-*")))
        say("is being started" if pid else f"does not run; made: {made or 'nothing'}")
        return 1
    namespace = Path(f"/proc/{pid}/ns/pid").stat().st_ino
    processes = kilobytes = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if (process / "ns/pid").stat().st_ino == namespace:
                rollup = (process / "smaps_rollup").read_text()
                kilobytes += int(rollup.partition("\nPss:")[2].split()[0])
                processes += 1
    since = time.ctime(place.clouds.stat().st_mtime)
    say(f"{place.release} runs since {since}: {processes} processes, {kilobytes >> 10} MiB")
    # The services that have ended.
    print((place.logs / "inside.log").read_text(), end="")
    return 0


def run(place: Place, command: list[str]) -> NoReturn:
    """Become a command in the cloud's network."""
    pid = place.cloud()
    if not place.is_up():
        raise HostError(
            f"{place.release} does not run", hint=f"tools/openstack start --release {place.release}"
        )
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
    environment["OS_CLIENT_CONFIG_FILE"] = str(place.clouds)
    sys.stdout.flush()
    os.execvpe("nsenter", inside, environment)  # noqa: S606


def remove(place: Place) -> None:
    """Stop it, and delete everything."""
    stop(place)
    if place.folder.exists():
        with place.lock():
            shutil.rmtree(place.folder)


def main() -> int:
    """Run the verb."""
    parser = argparse.ArgumentParser(
        prog="tools/openstack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 done (status: it runs); 1 status: it does not run; 2 wrong usage; "
        "3 this host cannot; run: that of COMMAND",
    )
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--release", choices=RELEASES, default=next(iter(RELEASES)))
    where.add_argument("--cache", type=Path, default=cache_dir(), metavar="DIRECTORY")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in ("start", "run", "status", "stop", "remove"):
        words = verbs.add_parser(verb, parents=[where])
        if verb == "run":
            words.add_argument("command", nargs="+", metavar="COMMAND")
    args = parser.parse_args()
    place = Place(args.cache.resolve() / "openstack" / args.release, args.release)
    # What begins is ended on the way out, as by Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        match args.verb:
            case "start":
                start(place)
            case "run":
                run(place, args.command)
            case "status":
                return status(place)
            case "stop":
                stop(place)
            case "remove":
                remove(place)
    except HotplateError as error:
        print(f"tools/openstack: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
