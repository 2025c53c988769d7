"""Check of all needs of a build, before anything is fetched or made."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from hotplate import paths, yaml_text
from hotplate.errors import HostError, HotplateError, Outcome, UsageError
from hotplate.host_tools import package_of
from hotplate.image import mirrors as mirrors_module
from hotplate.image import plan
from hotplate.image.base_cache import BaseCache
from hotplate.image.overlay import check_space, last_words
from hotplate.image.plan import BuildRequest

OUTPUT_BYTES = 512 * 1024 * 1024
SCRATCH_BYTES = 3 * 1024 * 1024 * 1024
#: Free bytes needed beside the image, where it is assembled, and in the cache for a base system
#: and its packages.
CACHE_BYTES = 512 * 1024 * 1024

#: MiB of free memory needed for a build in memory.
TMPFS_MIB = 6144

#: The programs that a build needs.
TOOLS = ("qemu-img", "qemu-nbd", "sudo", "unshare", "losetup", "fstrim", "mkfs.ext4", "sfdisk")

#: The programs that one element needs.
ELEMENT_TOOLS: dict[str, tuple[str, ...]] = {
    "debian-minimal": ("debootstrap",),
    "block-device-offset-gpt": ("sgdisk",),
    "block-device-offset-efi": ("sgdisk", "mcopy", "mkfs.vfat"),
}

#: Nodes of a block device configuration that need device-mapper, and the programs they call
#: (``diskimage_builder/block_device/level1``).
DEVICE_MAPPER_NODES = {
    "partitioning": ("kpartx", "dmsetup"),
    "lvm": ("lvm",),
    "luks": ("cryptsetup",),
}


class Preflight:
    """Checks for all obstacles to a build.

    :param environ: the caller's environment.
    """

    def __init__(self, request: BuildRequest, environ: Mapping[str, str]) -> None:
        self.request = request
        self.environ = environ
        release = plan.ALIASES.get(request.release, request.release)
        self.mirrors = mirrors_module.of_this_host(release)
        self._wrong_snapshot: list[HotplateError] = []
        try:
            self.mirrors = mirrors_module.for_build(release, request.snapshot)
        except UsageError as error:
            self._wrong_snapshot.append(error)
        self.release = release
        self._dib: Path | None = None

    def check_request(self) -> None:
        """Check the request, and that its line can be pasted; report all errors in one.

        :raises UsageError: when there is one.
        """
        refuse([*self.request_problems(), *self._line_problems()])

    def check(self) -> None:
        """Check the request and the host; report all problems in one error.

        :raises UsageError: the request is invalid.
        :raises HostError: something is missing on this host.
        """
        refuse([*self.problems()])

    def problems(self) -> Iterator[HotplateError]:
        """Yield all problems, those of the request first."""
        wrong = [*self.request_problems()]
        yield from wrong
        yield from self._tools()
        yield from _of(check_root)
        yield from _of(lambda: check_arch(self.request.arch, self.environ))
        yield from self._directories()
        yield from self._space()
        if not any(isinstance(each, UsageError) for each in wrong):
            yield from self._base()

    def request_problems(self) -> Iterator[HotplateError]:
        """Yield the problems of the request."""
        try:
            self._dib = plan.dib_elements_dir()
        except HostError as error:
            # Without its elements, nothing can be checked about the requested ones.
            yield error
        else:
            yield from plan.problems(
                self.request, elements_dir=paths.elements_dir(), dib_elements=self._dib
            )
        yield from self._wrong_snapshot
        if re.search(r"\s", str(self._tmp)):
            yield UsageError(
                f'TMPDIR is "{self._tmp}", which has a space in it, and disk-image-create cannot '
                "take that",
                hint="unset TMPDIR, or name another directory",
            )
        yield from _of(lambda: check_chef(self.request, self.environ))

    def _line_problems(self) -> Iterator[HotplateError]:
        # A build by hotplate gives it another name.
        if re.search(r"\s", str(self.request.name)):
            yield UsageError(
                f'"{self.request.name}" has a space in it, and disk-image-create would fail with '
                "that as its last step",
                hint="name another file with -o, or leave out --dry-run",
            )

    def _tools(self) -> Iterator[HotplateError]:
        if self._dib is None:
            elements: Sequence[str] = ()
        else:
            elements = self._elements(self._dib)
            yield from _of(lambda: find_program(self.environ))
        yield from _of(lambda: check_tools(elements, self.environ))
        if self.request.image_type == "qcow2":
            yield from _of(lambda: check_compression(self.environ))
        yield from _of(lambda: check_block_device(self.environ))
        yield from _of(lambda: check_loop_devices(self.environ))

    def _elements(self, dib: Path) -> list[str]:
        """Return the elements of the build, as far as they exist."""
        path = (*self.request.element_path, paths.elements_dir(), dib)
        try:
            made = plan.make(
                self.request,
                elements_dir=paths.elements_dir(),
                dib_elements=dib,
                mirrors=self.mirrors,
            )
            elements = made.elements
        except UsageError:
            debian = plan.is_debian(self.request, path)
            groups = (f"heat-config-{group}" for group in self.request.groups)
            system = (plan.OPERATING_SYSTEM,) if debian else ()
            elements = (*system, *self.request.elements, *groups)
        return [*plan.with_dependencies(elements, path)]

    # -- output directories ----------------------------------------------------------------------

    @property
    def _output(self) -> Path:
        return self.request.image.absolute().parent

    @property
    def _tmp(self) -> Path:
        return work_directory(self.environ)

    @property
    def _cache(self) -> Path:
        return plan.image_cache(self.request, self.mirrors)

    def _directories(self) -> Iterator[HotplateError]:
        if self.request.image.is_dir():
            yield UsageError(f'"{self.request.image}" is a directory; name the image file to write')
        for directory, hint in (
            (self._output, "name another file with -o"),
            (self._cache, "name another one with --cache"),
        ):
            there = _nearest(directory)
            if why := _not_writable(there):
                yield HostError(f'"{there}" cannot be written to: {why}', hint=hint)
        if not self._tmp.is_dir():
            yield HostError(f'there is no directory "{self._tmp}"', hint="mkdir, or unset TMPDIR")

    def _space(self) -> Iterator[HotplateError]:
        needs = [(self._output, OUTPUT_BYTES)]
        if not self._has_base:
            needs.append((self._cache, CACHE_BYTES))
        if not tmpfs_mib():
            needs.append((self._tmp, SCRATCH_BYTES))
        disks: dict[int, list[tuple[Path, int]]] = {}
        for directory, needed in needs:
            there = _nearest(directory)
            with contextlib.suppress(OSError):
                disks.setdefault(there.stat().st_dev, []).append((there, needed))
        for parts in disks.values():
            directories = dict.fromkeys(directory for directory, _ in parts)
            needed = sum(each for _, each in parts)
            yield from _of(partial(check_space, *directories, needed=needed))

    # -- the base system -------------------------------------------------------------------------

    @property
    def _has_base(self) -> bool:
        tarball = plan.base_tarball(self.request, self.mirrors)
        return BaseCache(tarball, refresh=not self.request.offline).is_good

    def _base(self) -> Iterator[HotplateError]:
        assert self._dib is not None or self.request.elements
        path = (*self.request.element_path, paths.elements_dir(), self._dib or Path())
        if self._has_base or not plan.is_debian(self.request, path):
            return
        if self.request.offline:
            yield HostError(
                f'no base system of "{self.release}" for "{self.request.arch}" is cached in '
                f'"{self._cache}", and --offline keeps it from being fetched',
                hint="build once without --offline",
            )
        else:
            yield from _of(lambda: mirrors_module.check_mirror(self.mirrors, self.release))


def refuse(problems: Sequence[HotplateError], *, what: str = "this build") -> None:
    """Raise one error for all problems, if there are any.

    :param what: the thing that they prevent.
    :raises HotplateError: the first one, when it is the only one; else a :class:`UsageError` if
        one of them is, or a :class:`HostError`.
    """
    if len(problems) == 1:
        raise problems[0]
    if problems:
        kind = UsageError if any(each.outcome is Outcome.USAGE for each in problems) else HostError
        listed = "\n".join(f"  * {each.message}{_hint_of(each)}" for each in problems)
        raise kind(f"{len(problems)} things are in the way of {what}:\n{listed}")


def _hint_of(problem: HotplateError) -> str:
    return f"\n    hint: {problem.hint}" if problem.hint else ""


def _of(check: Callable[[], object]) -> Iterator[HotplateError]:
    """Yield the error that a check raises."""
    try:
        check()
    except HotplateError as error:
        yield error


def _nearest(directory: Path) -> Path:
    """Return a directory to be made, or its nearest existing parent."""
    return next(each for each in (directory, *directory.parents) if each.exists())


def _not_writable(directory: Path) -> str:
    """Return why no file can be made in a directory, "" when one can."""
    try:
        with tempfile.TemporaryFile(dir=directory):
            return ""
    except OSError as error:
        return os.strerror(error.errno or 0)


def find_program(environ: Mapping[str, str]) -> str:
    """Return the path of ``disk-image-create``.

    :raises HostError: when it is not installed.
    """
    search = plan.child_environment(environ)["PATH"]
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
    tools = [*TOOLS, *(tool for each in elements for tool in ELEMENT_TOOLS.get(each, ()))]
    if missing := _missing(tools, environ):
        raise HostError(
            f"building needs {', '.join(missing)}, which this host does not have",
            hint=_install(missing),
        )


def _missing(tools: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    search = plan.child_environment(environ)["PATH"]
    return [tool for tool in dict.fromkeys(tools) if shutil.which(tool, path=search) is None]


def _install(tools: Iterable[str]) -> str:
    return f"apt-get install {' '.join(dict.fromkeys(map(package_of, tools)))}"


def check_compression(environ: Mapping[str, str]) -> None:
    """Check that qemu-img compresses an image as the build will tell it to.

    :raises HostError: when it does not; before QEMU 5.1, and where it was built without zstd.
    """
    program = shutil.which("qemu-img", path=plan.child_environment(environ)["PATH"])
    if program is None:
        # The check of programs names it.
        return
    with tempfile.TemporaryDirectory(prefix="hotplate-") as directory:
        done = subprocess.run(
            [
                *(program, "create", "-q", "-f", "qcow2", "-o", plan.COMPRESSION),
                *(f"{directory}/image", "64K"),
            ],
            capture_output=True,
        )
    if done.returncode != 0:
        raise HostError(
            f'"{program}" cannot make an image with "{plan.COMPRESSION}": {last_words(done)}',
            hint="install QEMU 5.1 or later with zstd, or build with --type raw",
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
        config = yaml_text.load(text)
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
    tools = [tool for name in needing for tool in DEVICE_MAPPER_NODES[name]]
    if missing := _missing(tools, environ):
        raise HostError(
            f'DIB_BLOCK_DEVICE_CONFIG has "{needing[0]}", which needs {", ".join(missing)}, and '
            "this host has no such program",
            hint=f"{_install(missing)}; or {ours}",
        )


def _keys(config: object) -> set[str]:
    """Return every key of a YAML document, at any depth, as nodes are nested."""
    if isinstance(config, dict):
        return {str(key) for key in config}.union(*map(_keys, config.values()))
    return set().union(*map(_keys, config)) if isinstance(config, list) else set()


def check_root() -> None:
    """Check that programs can be run as root, and that root may mount file systems.

    :raises HostError: when they cannot.
    """
    if shutil.which("sudo") is None or shutil.which("unshare") is None:
        # The check of programs names them.
        return
    if os.geteuid() != 0 and (why := _sudo_refuses()):
        if "password is required" in why:
            raise HostError(
                "building needs root, and sudo asks for a password",
                hint="run this as root, or let sudo work without a password: sudo -v",
            )
        raise HostError(f"building needs root, and sudo refuses: {why}", hint="run this as root")
    as_root = () if os.geteuid() == 0 else ("sudo", "-n", "--")
    # The first step of a build; in a container, root may lack the right to.
    namespace = ("unshare", "--mount", "--propagation", "unchanged", "--", "true")
    done = subprocess.run([*as_root, *namespace], capture_output=True)
    if done.returncode != 0:
        raise HostError(
            f"building needs to mount file systems, and root may not here: {last_words(done)}",
            hint="start a container with --privileged -v /dev:/dev",
        )


def _sudo_refuses() -> str:
    """Return why sudo runs nothing without asking, "" when it does."""
    # In English, whatever the caller's language.
    done = subprocess.run(["env", "LC_ALL=C", "sudo", "-n", "true"], capture_output=True)
    return last_words(done) if done.returncode != 0 else ""


def check_loop_devices(environ: Mapping[str, str]) -> None:
    """Check that this host has a free loop device; without root, another check says so.

    :raises HostError: when it has none.
    """
    search = plan.child_environment(environ)["PATH"]
    command = ["losetup", "--find"] if os.geteuid() == 0 else ["sudo", "-n", "losetup", "--find"]
    program = shutil.which(command[0], path=search)
    if program is None or (os.geteuid() != 0 and _sudo_refuses()):
        return
    found = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    if found.returncode != 0 or not Path(found.stdout.strip()).is_block_device():
        why = found.stderr.strip() or f'there is no "{found.stdout.strip()}"'
        raise HostError(
            f"building needs a loop device, and this host gives none: {why}",
            hint="start a container with --privileged -v /dev:/dev; elsewhere look at what is in "
            "use: losetup --list",
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
    if arch == plan.MACHINES.get(platform.machine()):
        return
    tester = shutil.which("arch-test", path=plan.child_environment(environ)["PATH"])
    # mmdebstrap uses it too (mmdebstrap(1)).
    if tester is None:
        raise HostError(
            f'building for "{arch}" on this host needs arch-test, which it does not have',
            hint="apt-get install arch-test qemu-user-static binfmt-support",
        )
    if subprocess.run([tester, arch], capture_output=True).returncode != 0:
        raise HostError(
            f'programs for "{arch}" do not run on this host',
            hint="apt-get install qemu-user-static binfmt-support; without an init system also: "
            "mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && update-binfmts --enable",
        )


def work_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory for images that are not assembled in memory."""
    return Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108  as mktemp(1) does


def tmpfs_mib(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the MiB of memory to build in, 0 for the disk; based on free, not total, memory."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    free = int(match.group(1)) // 1024 if match else 0
    return free * 3 // 4 if free >= TMPFS_MIB else 0
