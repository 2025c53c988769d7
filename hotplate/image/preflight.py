"""Check of all needs of a build, before anything is fetched or made."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hotplate import paths
from hotplate.errors import HostError, HotplateError, Outcome, UsageError
from hotplate.image import build, plan
from hotplate.image import mirrors as mirrors_module
from hotplate.image.base_cache import BaseCache
from hotplate.image.mirrors import Mirrors
from hotplate.image.plan import BuildRequest

APT_HELPER = Path("/usr/lib/apt/apt-helper")
"""Fetches with the host's own configuration of apt, such as proxies and methods (package apt)."""

APT_OPTIONS = ("-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=0")
"""Run it as the caller, so that it may write into the caller's directory, and without retries."""

MIRROR_SECONDS = 30
"""Limit of a mirror for the release file."""


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
        """Check the request; report all errors in one.

        :raises UsageError: when there is one.
        """
        refuse([*self.request_problems()])

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
        yield from _of(build.check_root)
        yield from _of(lambda: build.check_arch(self.request.arch, self.environ))
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
        yield from _of(lambda: build.check_chef(self.request, self.environ))

    def _tools(self) -> Iterator[HotplateError]:
        if self._dib is None:
            elements: Sequence[str] = ()
        else:
            elements = self._elements(self._dib)
            yield from _of(lambda: build.find_program(self.environ))
        yield from _of(lambda: build.check_tools(elements, self.environ))
        yield from _of(lambda: build.check_block_device(self.environ))

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
            elements = [*made.elements]
        except UsageError:
            debian = plan.is_debian(self.request, path)
            groups = (f"heat-config-{group}" for group in self.request.groups)
            elements = [plan.OPERATING_SYSTEM] * debian + [*self.request.elements, *groups]
        for name in elements:
            at = plan.find_element(name, path)
            # The list grows while it is read, by dependencies that are not in it yet.
            more = plan.dependencies(at) if at else []
            elements += [each for each in dict.fromkeys(more) if each not in elements]
        return elements

    # -- output directories ----------------------------------------------------------------------

    @property
    def _output(self) -> Path:
        return self.request.image.absolute().parent

    @property
    def _tmp(self) -> Path:
        return build.work_directory(self.environ)

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
        needs = [(self._output, build.OUTPUT_BYTES)]
        if not self._has_base:
            needs.append((self._cache, build.CACHE_BYTES))
        if not build.tmpfs_mib():
            needs.append((self._tmp, build.SCRATCH_BYTES))
        disks: dict[int, list[tuple[Path, int]]] = {}
        for directory, needed in needs:
            there = _nearest(directory)
            with contextlib.suppress(OSError):
                disks.setdefault(there.stat().st_dev, []).append((there, needed))
        for parts in disks.values():
            yield from _room(parts)

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
            yield from _of(lambda: check_mirror(self.mirrors, self.release))


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
        listed = "\n".join(f"  * {each.message}{_mend(each)}" for each in problems)
        raise kind(f"{len(problems)} things are in the way of {what}:\n{listed}")


def _mend(problem: HotplateError) -> str:
    return f"\n    hint: {problem.hint}" if problem.hint else ""


def check_mirror(mirrors: Mirrors, release: str, *, helper: Path = APT_HELPER) -> None:
    """Ask a mirror for a release, with the host's own apt.

    :param helper: apt's program; when it is missing, no mirror is asked.
    :raises UsageError: the mirror does not have the release.
    :raises HostError: the mirror cannot be reached.
    """
    if not mirrors.main or not helper.is_file():
        return
    url = f"{mirrors.main}/dists/{release}/InRelease"
    with tempfile.TemporaryDirectory(prefix="hotplate-") as directory:
        command = [str(helper), *APT_OPTIONS, "download-file", url, f"{directory}/file"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MIRROR_SECONDS, check=False
            )
            status, text = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            status, text = 1, f"no answer within {MIRROR_SECONDS} s"
    if status == 0:
        return
    if " 404 " in text:
        raise UsageError(
            f'the mirror "{mirrors.main}" has no release "{release}"',
            hint="name another --release, or a mirror that has it in /etc/apt/sources.list",
        )
    raise HostError(
        f'the mirror "{mirrors.main}" cannot be asked for the release "{release}": '
        f"{_last_line(text)}",
        hint="look at /etc/apt, or build with --offline from what is cached",
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("E: ") if lines else "it did not say why"


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


def _room(parts: Sequence[tuple[Path, int]]) -> Iterator[HostError]:
    """Yield an error when a disk is too small for the files of these directories."""
    directories = [*dict.fromkeys(directory for directory, _ in parts)]
    needed = sum(each for _, each in parts)
    free = shutil.disk_usage(directories[0]).free
    if free < needed:
        named = " and ".join(f'"{each}"' for each in directories)
        yield HostError(
            f"there are only {free // 1_000_000} MB free in {named}; "
            f"at least {needed // 1_000_000} MB are needed",
            hint=f"free some space, or choose another directory: df -h {directories[0]}",
        )
