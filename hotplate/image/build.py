"""Build of an image with ``disk-image-create``, published whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hotplate import __version__, locks, paths
from hotplate.errors import HostError, HotplateError, ImageError, UsageError
from hotplate.host_tools import package_of
from hotplate.image import base_cache, output, supervise
from hotplate.image import manifest as manifests
from hotplate.image import mirrors as mirrors_module
from hotplate.image import plan as plan_module
from hotplate.image.base_cache import BaseCache
from hotplate.image.checksum import hash_directory
from hotplate.image.commits import commits_of
from hotplate.image.overlay import check_space
from hotplate.image.plan import BuildRequest, Plan
from hotplate.image.progress import TIMESTAMP, BuildProgress

OUTPUT_BYTES = 512 * 1024 * 1024
SCRATCH_BYTES = 3 * 1024 * 1024 * 1024
CACHE_BYTES = 512 * 1024 * 1024
"""Free bytes needed beside the image, where it is assembled, and in the cache for a base system
and its packages.
"""

TMPFS_MIB = 6144
"""MiB of free memory needed for a build in memory."""

TOOLS = ("qemu-img", "qemu-nbd", "sudo", "unshare", "losetup", "fstrim", "mkfs.ext4", "sfdisk")
"""The programs that a build needs."""

ELEMENT_TOOLS: dict[str, tuple[str, ...]] = {
    "debian-minimal": ("debootstrap",),
    "block-device-offset-gpt": ("sgdisk",),
    "block-device-offset-efi": ("sgdisk", "mcopy", "mkfs.vfat"),
}
"""The programs that one element needs."""

DEVICE_MAPPER_NODES = {
    "partitioning": ("kpartx", "dmsetup"),
    "lvm": ("lvm",),
    "luks": ("cryptsetup",),
}
"""Nodes of a block device configuration that need device-mapper, and the programs they call
(``diskimage_builder/block_device/level1``).
"""

SECRET_NAME = re.compile("PASSWORD|SECRET|TOKEN|KEY")
"""Variables whose values ``--dry-run`` hides, such as ``DIB_DEV_USER_PASSWORD``."""

CAUSES: tuple[tuple[str, type[HotplateError], str, str], ...] = (
    (
        r"No space left on device",
        HostError,
        "there was no space left on a disk while the image was being built",
        "free some space, or name another directory with TMPDIR=/somewhere; now: df -h",
    ),
    (
        r"E: Unable to locate package (\S+)",
        ImageError,
        'the release has no package "{}"',
        "look for it with: apt-cache search",
    ),
    (
        r"Temporary failure resolving '([^']+)'",
        HostError,
        'the name "{}" could not be resolved, so its packages could not be fetched',
        "look at /etc/resolv.conf, or build with --offline from what is cached",
    ),
    (
        r"(?:E: Failed to fetch|Err:\d+) (\S+)",
        HostError,
        'the package source did not give "{}"',
        "try again, or build with --offline from what is cached",
    ),
    (
        r"There is a duplicated hook in your elements: (\S+)",
        ImageError,
        'two elements bring the same hook "{}"',
        "rename one of them",
    ),
    (
        r"losetup: .*(?:cannot find an unused loop device|failed to set up loop device)",
        HostError,
        "this host gave no loop device",
        "look at what is in use with: losetup --list",
    ),
)
"""Output of a failed build -> the class of the error, its sentence, and the fix."""


CLEANING_UP = re.compile(r"Unmount /|INFO diskimage_builder\.block_device")
"""Output that follows the reason of a failure, and carries no information."""


class BuildError(ImageError):
    """A build failed; ``lines`` are the last of its output."""

    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuildResult:
    """A finished build."""

    image: Path
    log: Path
    manifest: Path
    seconds: float
    steps: Mapping[str, float]


@dataclass
class Build:
    """One build.

    :param request: the image to build.
    :param environ: the caller's environment.
    :param progress: is fed the output of the build, and reports its meaning.
    """

    request: BuildRequest
    environ: Mapping[str, str]
    progress: BuildProgress = field(default_factory=BuildProgress)

    def __post_init__(self) -> None:
        release = plan_module.ALIASES.get(self.request.release, self.request.release)
        self.mirrors = mirrors_module.for_build(release, self.request.snapshot)
        self.dib_elements = plan_module.dib_elements_dir()
        check_chef(self.request, self.environ)
        self.plan: Plan = plan_module.make(
            self.request,
            elements_dir=paths.elements_dir(),
            dib_elements=self.dib_elements,
            mirrors=self.mirrors,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the plan; the caller's own block device configuration stays."""
        kept = dict(self.plan.environment)
        if self.environ.get("DIB_BLOCK_DEVICE_CONFIG"):
            kept.pop("DIB_BLOCK_DEVICE_CONFIG", None)
        return kept

    def shell(self) -> str:
        """Return the line to paste, preceded by each ``DIB_*`` variable that takes effect."""
        callers = {
            name: f'"${name}"' if SECRET_NAME.search(name) else shlex.quote(text)
            for name, text in sorted(self.environ.items())
            if name.startswith("DIB_") and name not in self.environment
        }
        settings = [f"{name}={text}" for name, text in callers.items()]
        line = replace(self.plan, environment=self.environment).shell(str(self.request.name))
        return " \\\n    ".join([*settings, line])

    def run(self) -> BuildResult:
        """Build the image.

        :raises HostError: the host lacks a tool, a right, or space.
        :raises BuildError: a hook failed; the text names it.
        """
        request = self.request
        program = check_host(self.plan.elements, self.environ)
        check_arch(request.arch, self.environ)
        log = request.beside(".log").absolute()
        started = datetime.now(UTC)
        with output.staging(request) as staging, self._cache():
            tarball = plan_module.base_tarball(request, self.mirrors)
            with BaseCache(tarball, refresh=not request.offline) as base:
                status, last = self._supervise(program, staging, log, base)
            if status != 0:
                raise self._failure(status, last, log)
            if not (staging / f"image.{request.image_type}").is_file():
                raise BuildError(
                    "disk-image-create reported success, but left no image",
                    hint=f'the full log is "{log}"',
                )
            output.publish(request, staging, self._manifest(staging, started))
        return BuildResult(
            request.image,
            log,
            request.beside(".manifest.json"),
            self.progress.elapsed,
            self.progress.durations(),
        )

    @contextlib.contextmanager
    def _cache(self) -> Iterator[None]:
        """Hold the cache of such builds, so that ``hotplate cache clean`` leaves it alone."""
        directory = plan_module.image_cache(self.request, self.mirrors)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locks.shared(directory, make=True))
                # Time of the last use; see base_cache.prune.
                os.utime(directory)
                base_cache.prune(directory.parent, now=time.time())
            except OSError as error:
                raise HostError(
                    f'the cache "{directory}" cannot be written to: {error.strerror}',
                    hint="name another one with --cache",
                ) from error
            yield

    def _supervise(
        self, program: str, staging: Path, log: Path, base: BaseCache
    ) -> tuple[int, deque[str]]:
        tmp = work_directory(self.environ)
        in_memory = tmpfs_mib()
        check_space(staging.parent, OUTPUT_BYTES)
        if base.making:
            check_space(base.tarball.parent, CACHE_BYTES)
        if not in_memory:
            check_space(tmp, SCRATCH_BYTES)
        config = {
            "argv": self.plan.argv("image", program=program),
            "environment": plan_module.child_environment(self.environ)
            # It has its own directory already, in memory when there is enough.
            | {"DIB_NO_TMPFS": "1", "DIB_PYTHON_EXEC": sys.executable}
            | self.environment,
            "staging": str(staging),
            "work": str(tmp / f"{supervise.PREFIX}{_token()}"),
            "tmpfs_mib": in_memory,
            "uid": os.geteuid(),
            "gid": os.getegid(),
        }
        command = ["unshare", "--mount", "--propagation", "unchanged", "--"]
        command += [sys.executable, "-I", supervise.__file__]
        if os.geteuid() != 0:
            command = ["sudo", "-n", "--", *command]
        last: deque[str] = deque(maxlen=4000)
        with (
            log.open("w") as logged,
            subprocess.Popen(
                command,
                env=plan_module.child_environment(self.environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            ) as child,
        ):
            assert child.stdin is not None and child.stdout is not None
            try:
                logged.write(self.plan.shell(str(self.request.name)) + "\n\n")
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(json.dumps(config) + "\n")
                    child.stdin.flush()
                for line in child.stdout:
                    logged.write(line)
                    logged.flush()
                    last.append(TIMESTAMP.sub("", line.rstrip()))
                    self.progress.feed(line)
                    if self.progress.step not in ("start", "base system"):
                        base.settle()
            except OSError as error:
                raise HostError(f'the log "{log}" cannot be written: {error.strerror}') from error
            finally:
                # Closing the lifeline ends the rest of the build, however this block is left.
                with contextlib.suppress(OSError):
                    child.stdin.close()
                child.stdout.close()
                status = child.wait()
        return status, last

    def _failure(self, status: int, last: deque[str], log: Path) -> HotplateError:
        shown = [line for line in last if line and not CLEANING_UP.match(line)]
        text = "\n".join(shown[-100:])
        for pattern, kind, sentence, hint in CAUSES:
            if match := re.search(pattern, text):
                message = sentence.format(*match.groups())
                error = kind(message, hint=f'{hint}; the full log is "{log}"')
                break
        else:
            script = self.progress.script
            where = f'in the hook "{script}"' if script else f'in the step "{self.progress.step}"'
            error = BuildError(
                f"disk-image-create failed {where} (exit status {status})",
                hint=f'the full log is "{log}"',
            )
        if isinstance(error, BuildError):
            error.lines = tuple(shown[-15:])
        return error

    def _manifest(self, staging: Path, started: datetime) -> dict[str, object]:
        """Return the contents of the image and the tools that made it."""
        path = (*self.request.element_path, paths.elements_dir(), self.dib_elements)
        elements = {
            name: element
            for name in sorted(self.progress.elements)
            if (element := plan_module.find_element(name, path))
        }
        environment = plan_module.child_environment(self.environ)
        if user := self.environ.get("SUDO_UID"):
            # User whose checkout git then reads as root (git-config(1), "safe.directory").
            environment["SUDO_UID"] = user
        packages = []
        for listing in staging.glob("image.d/dib-manifests/dib-manifest-dpkg-*"):
            with contextlib.suppress(OSError, ValueError):
                packages = [
                    f"{entry['package']}={entry['version']}"
                    for entry in json.loads(listing.read_text())["packages"]
                ]
        import importlib.metadata

        return {
            "format": manifests.FORMAT,
            "image": self.request.image.name,
            "release": self.plan.environment["DIB_RELEASE"],
            "arch": self.request.arch,
            "layout": self.request.layout.value,
            "groups": list(self.request.groups),
            "install_type": self.request.install_type,
            "built": started.isoformat(timespec="seconds"),
            "seconds": round(self.progress.elapsed, 1),
            "steps": self.progress.durations(),
            "hotplate": __version__,
            "diskimage-builder": importlib.metadata.version("diskimage-builder"),
            "elements": {name: hash_directory(element) for name, element in elements.items()},
            "commits": commits_of(
                elements, dib_elements=self.dib_elements, environment=environment
            ),
            "packages": sorted(packages),
        }


def check_host(elements: Iterable[str], environ: Mapping[str, str]) -> str:
    """Check the needs of a build before it starts; return the path of ``disk-image-create``.

    :param elements: the elements named on the line.
    :raises HostError: names the missing programs and the command that installs them.
    """
    program = find_program(environ)
    check_tools(elements, environ)
    check_root()
    return program


def find_program(environ: Mapping[str, str]) -> str:
    """Return the path of ``disk-image-create``.

    :raises HostError: when it is not installed.
    """
    search = plan_module.child_environment(environ)["PATH"]
    program = shutil.which("disk-image-create", path=search)
    if program is None:
        raise HostError(
            "disk-image-create was not found",
            hint=f"{sys.executable} -m pip install diskimage-builder",
        )
    return program


def check_tools(elements: Iterable[str], environ: Mapping[str, str]) -> None:
    """Check for the programs that a build calls.

    :param elements: those of the build, as far as they are known.
    :raises HostError: names the missing programs and the command that installs them.
    """
    search = plan_module.child_environment(environ)["PATH"]
    tools = [*TOOLS, *(tool for each in elements for tool in ELEMENT_TOOLS.get(each, ()))]
    missing = [tool for tool in dict.fromkeys(tools) if shutil.which(tool, path=search) is None]
    if missing:
        packages = " ".join(dict.fromkeys(map(package_of, missing)))
        raise HostError(
            f"building needs {', '.join(missing)}, which this host does not have",
            hint=f"apt-get install {packages}",
        )


def check_block_device(
    environ: Mapping[str, str], *, devices: Path = Path("/proc/devices")
) -> None:
    """Check that this host can make the layout in ``DIB_BLOCK_DEVICE_CONFIG``.

    Reads it as ``disk-image-create`` does: YAML, or ``file://`` and the path of a file of it.

    :param devices: the kernel's list of drivers (proc(5)).
    :raises UsageError: when it is no such configuration.
    :raises HostError: when this host lacks the device-mapper or a program that it needs.
    """
    given = environ.get("DIB_BLOCK_DEVICE_CONFIG", "")
    if not given:
        return
    import yaml

    try:
        text = Path(given[7:]).read_text("utf-8") if given.startswith("file://") else given
        config = yaml.safe_load(text)
        if not isinstance(config, list):
            raise ValueError(f"it is a {type(config).__name__}")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"DIB_BLOCK_DEVICE_CONFIG is no block device configuration: {error}",
            hint="expected a YAML list of nodes, or file:// and the path of a file with one",
        ) from error
    nodes = _keys(config)
    needing = [name for name in DEVICE_MAPPER_NODES if name in nodes]
    if not needing:
        return
    ours = 'use "offset_partitioning", which takes the same keys as "partitioning"'
    if not re.search(r"^ *\d+ device-mapper$", devices.read_text(), re.MULTILINE):
        raise HostError(
            f'DIB_BLOCK_DEVICE_CONFIG has "{needing[0]}", which needs device-mapper, and this '
            "kernel has none",
            hint=ours if needing == ["partitioning"] else "build on a host that has it",
        )
    search = plan_module.child_environment(environ)["PATH"]
    tools = [tool for name in needing for tool in DEVICE_MAPPER_NODES[name]]
    missing = [tool for tool in tools if shutil.which(tool, path=search) is None]
    if missing:
        raise HostError(
            f'DIB_BLOCK_DEVICE_CONFIG has "{needing[0]}", which needs {", ".join(missing)}, and '
            "this host has no such program",
            hint=f"apt-get install {' '.join(dict.fromkeys(map(package_of, missing)))}; or {ours}",
        )


def _keys(config: object) -> set[str]:
    """Return every key of a YAML document, at any depth, as nodes are nested."""
    if isinstance(config, dict):
        return {str(key) for key in config}.union(*map(_keys, config.values()))
    return set().union(*map(_keys, config)) if isinstance(config, list) else set()


def check_root() -> None:
    """Check that programs can be run as root.

    :raises HostError: when they cannot.
    """
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            # The check of programs names it.
            return
        asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
        if asked.returncode != 0:
            raise HostError(
                "building needs root, and sudo asks for a password",
                hint="run this as root, or let sudo work without a password: sudo -v",
            )


def check_chef(request: BuildRequest, environ: Mapping[str, str]) -> None:
    """Check that a build for the group chef has a Chef to install.

    No distribution has one; when the caller's elements or packages may bring it, the element
    itself checks.

    :raises UsageError: when no source for it is given.
    """
    wanted = {"chef", "chef-solo"} & set(request.groups)
    package = environ.get("DIB_HEAT_CHEF_PACKAGE", "none")
    if wanted and package == "none" and not request.elements and not request.packages:
        raise UsageError(
            f'the group "{min(wanted)}" needs Chef or Cinc, and no distribution has a package',
            hint="export DIB_HEAT_CHEF_PACKAGE=/path/to/cinc.deb (a file, a URL or a package; see "
            "the element heat-config-chef)",
        )


def check_arch(arch: str, environ: Mapping[str, str]) -> None:
    """Check that programs of the image's architecture run here, as a build needs.

    :param arch: Debian's name of the architecture.
    :raises HostError: when they do not.
    """
    if arch == plan_module.MACHINES.get(platform.machine()):
        return
    tester = shutil.which("arch-test", path=plan_module.child_environment(environ)["PATH"])
    # mmdebstrap uses it too (mmdebstrap(1)).
    if tester is None:
        raise HostError(
            f'building for "{arch}" on this host needs arch-test, which it does not have',
            hint="apt-get install arch-test qemu-user-static binfmt-support",
        )
    if subprocess.run([tester, arch], capture_output=True, check=False).returncode != 0:
        raise HostError(
            f'programs for "{arch}" do not run on this host',
            hint="apt-get install qemu-user-static binfmt-support; without an init system also: "
            "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && update-binfmts --enable",
        )


def work_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for images that are not assembled in memory."""
    return Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108  as mktemp(1) does


def _token() -> str:
    return secrets.token_hex(4)


def tmpfs_mib(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the MiB of memory to build in, 0 for the disk; based on free, not total, memory."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    free = int(match.group(1)) // 1024 if match else 0
    return free * 3 // 4 if free >= TMPFS_MIB else 0
