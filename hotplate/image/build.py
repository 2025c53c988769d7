"""Build of an image with ``disk-image-create``, published whole or not at all."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hotplate import __version__, locks, paths
from hotplate.errors import HostError, HotplateError, ImageError
from hotplate.image import base_cache, output, supervise
from hotplate.image import manifest as manifests
from hotplate.image import mirrors as mirrors_module
from hotplate.image import plan as plan_module
from hotplate.image.base_cache import BaseCache
from hotplate.image.checksum import hash_directory
from hotplate.image.overlay import check_space
from hotplate.image.plan import BuildRequest, Plan
from hotplate.image.preflight import (
    CACHE_BYTES,
    OUTPUT_BYTES,
    SCRATCH_BYTES,
    check_root,
    find_program,
    tmpfs_mib,
    work_directory,
)
from hotplate.image.progress import TIMESTAMP, BuildProgress
from hotplate.text import quoted

#: Variables whose values ``--dry-run`` hides, such as ``DIB_DEV_USER_PASSWORD``.
SECRET_NAME = re.compile("PASSWORD|SECRET|TOKEN|KEY")

#: Variables of the plan that the caller's own replace.
CALLERS = (
    *("DIB_APT_MINIMAL_CREATE_INTERFACES", "DIB_BLOCK_DEVICE_CONFIG", "DIB_GRUB_TIMEOUT"),
    "DIB_LOCKFILES",
)

_APT = "the host's own apt configuration (/etc/apt)"

#: Variables that the plan sets whatever the caller has, and where their values come from.
SOURCES = {
    "DIB_APT_SOURCES_CONF": _APT,
    "DIB_DISTRIBUTION_MIRROR": _APT,
    "DIB_HEAT_LEAN_KERNEL": "--kernel",
    "DIB_IMAGE_CACHE": "--cache",
    "DIB_RELEASE": "--release",
    "ELEMENTS_PATH": "--element-path",
}

#: apt's warning of a list of packages that it could not fetch: a package may be missing for it.
NO_LIST = re.compile(r"(?:> )?W: Failed to fetch ")

#: apt's error for a package that is in no list.
NO_PACKAGE = (
    r"E: (?:Unable to locate package |Package '(?=\S+' has no installation candidate))([^'\s]+)"
)

#: A part of the fixes below, and its replacement for a build that is offline.
OFFLINE = "build with --offline from what is cached"
ONLINE = "build once without --offline"

#: Output of a failed build -> the class of the error, its sentence, and the fix.
CAUSES: tuple[tuple[str, type[HotplateError], str, str], ...] = (
    (
        r"No space left on device",
        HostError,
        "there was no space left on a disk while the image was being built",
        "free some space, or name another directory with TMPDIR=/somewhere; now: df -h",
    ),
    (
        rf"W: Failed to fetch (\S+)\s+(.+?):?\n(?s:.*){NO_PACKAGE}",
        HostError,
        'the mirror did not give "{}" ({}), so the package "{}" could not be found',
        f"try again, or {OFFLINE}",
    ),
    (
        NO_PACKAGE,
        ImageError,
        'the release has no package "{}"',
        "look for it with: apt-cache search",
    ),
    (
        r"Temporary failure resolving '([^']+)'",
        HostError,
        'the name "{}" could not be resolved, so its packages could not be fetched',
        f"look at /etc/resolv.conf, or {OFFLINE}",
    ),
    (
        r"E: Failed to fetch (\S+)\s+(.+)",
        HostError,
        'the package source did not give "{}": {}',
        f"try again, or {OFFLINE}",
    ),
    (
        r"Err:\d+ (\S+)",
        HostError,
        'the package source did not give "{}"',
        f"try again, or {OFFLINE}",
    ),
    (
        # debootstrap's, by its "functions".
        r"E: (?:Couldn't download (?:packages: )?|Failed getting release file )(.+)",
        HostError,
        'the mirror did not give "{}"',
        f"try again, or {OFFLINE}",
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


#: Limit of git for one answer.
GIT_SECONDS = 30.0

#: Suffix for the commit of an element with uncommitted changes, as in git-describe(1).
CHANGED = "-dirty"

#: Output that follows the reason of a failure, and carries no information.
CLEANING_UP = re.compile(r"Unmount /|INFO diskimage_builder\.block_device")


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
    """One build, after a :class:`~hotplate.image.preflight.Preflight` of its request.

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
        self.plan: Plan = plan_module.make(
            self.request,
            elements_dir=paths.elements_dir(),
            dib_elements=self.dib_elements,
            mirrors=self.mirrors,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of the plan, without those of which the caller's own stay."""
        own = {name for name in CALLERS if self.environ.get(name)}
        return {name: text for name, text in self.plan.environment.items() if name not in own}

    def overridden(self) -> list[str]:
        """Return a sentence for each of the caller's variables that takes no effect."""
        return [
            f"{name} of the environment has no effect: its value comes from "
            + SOURCES.get(name, "hotplate build itself")
            for name, text in sorted(self.environment.items())
            if name.startswith(("DIB_", "ELEMENTS_")) and self.environ.get(name, text) != text
        ]

    def shell(self) -> str:
        """Return the line to paste, preceded by each ``DIB_*`` variable that takes effect.

        Before it is a line that makes the directory of the image where there is none.
        """
        callers = {
            name: f'"${name}"' if SECRET_NAME.search(name) else shlex.quote(text)
            for name, text in sorted(self.environ.items())
            if name.startswith("DIB_") and name not in self.environment
        }
        settings = [f"{name}={text}" for name, text in callers.items()]
        line = replace(self.plan, environment=self.environment).shell(str(self.request.name))
        # disk-image-create fails with its last step where there is no such directory.
        parent = self.request.name.parent
        first = "" if parent.is_dir() else f"mkdir -p {quoted(parent)}\n"
        return first + " \\\n    ".join([*settings, line])

    def run(self) -> BuildResult:
        """Build the image.

        :raises HostError: the host lacks a tool, a right, or space.
        :raises BuildError: a hook failed; the text names it.
        """
        request = self.request
        program = find_program(self.environ)
        # Since the preflight, sudo may have come to ask for a password again.
        check_root()
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
        check_space(staging.parent, needed=OUTPUT_BYTES)
        if base.making:
            check_space(base.tarball.parent, needed=CACHE_BYTES)
        if not in_memory:
            check_space(tmp, needed=SCRATCH_BYTES)
        config = {
            "argv": self.plan.argv("image", program=program),
            "environment": plan_module.child_environment(self.environ)
            # It has its own directory already, in memory when there is enough.
            | {"DIB_NO_TMPFS": "1", "DIB_PYTHON_EXEC": sys.executable}
            | self.environment,
            "staging": str(staging),
            "work": str(tmp / f"{supervise.PREFIX}{secrets.token_hex(4)}"),
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
        if re.search(NO_PACKAGE, text):
            # It may be in a list that was missed at the beginning.
            lists = [line for line in shown[:-100] if NO_LIST.match(line)]
            text = "\n".join([*lists, text])
        for pattern, kind, sentence, hint in CAUSES:
            if match := re.search(pattern, text):
                message = sentence.format(*match.groups())
                if self.request.offline:
                    hint = hint.replace(OFFLINE, ONLINE)
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


def commits_of(
    elements: Mapping[str, Path], *, dib_elements: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the commits of elements by name, without those that have none.

    By their checkout (git-rev-parse(1), git-status(1)) or by ``pbr.json`` of their distribution,
    which pbr makes, as for diskimage-builder.

    :param elements: name -> directory.
    :param dib_elements: diskimage-builder's own elements, whose distribution records its commit.
    :param environment: environment of git, with ``PATH``.
    """
    packaged = _packaged("diskimage-builder")
    commits = {}
    for name, directory in elements.items():
        from_package = packaged if directory.parent == dib_elements else ""
        if commit := _checked_out(directory, environment) or from_package:
            commits[name] = commit
    return commits


def _packaged(distribution: str) -> str:
    """Return the commit recorded by pbr, "" when there is none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        text = importlib.metadata.distribution(distribution).read_text("pbr.json")
        document = json.loads(text or "{}")
        if isinstance(document, dict):
            return str(document.get("git_version", ""))
    return ""


def _checked_out(directory: Path, environment: Mapping[str, str]) -> str:
    """Return the commit of a directory in git, "" for an untracked one."""
    # The second revision fails for an untracked directory in a checkout, such as a virtual
    # environment.
    commit = _git(directory, environment, "rev-parse", "HEAD", "HEAD:./").partition("\n")[0]
    if commit and _git(directory, environment, "status", "--porcelain", "--", "."):
        return f"{commit}{CHANGED}"
    return commit


def _git(directory: Path, environment: Mapping[str, str], *words: str) -> str:
    """Return the output of git, "" when it fails or is missing."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            # Run no program of a stranger's checkout.
            ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *words],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_SECONDS,
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""
