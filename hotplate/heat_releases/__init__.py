"""The releases of OpenStack Heat, and an environment for each that is not installed.

Heat runs in the process of the command.  So a command that is to have another release than the
installed one becomes the same command in a virtual environment with that release and all that it
needs, at the versions of the lock beside this file (``26.txt``), by their hashes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from hotplate import locks
from hotplate.errors import HostError, UsageError
from hotplate.interrupts import Interrupts
from hotplate.settings import HeatChoice

#: The first release that patches are for; the engine of those before runs on eventlet.
OLDEST = 26

#: The folder of the environments in the cache.
FOLDER = "heat"

#: The file that is written last to an environment.
WHOLE = ".whole"

#: The folder of the locks.
LOCKS = Path(__file__).parent

#: Run by the Python of an environment; a lock has all that its packages need.
_PIP = (
    *("-I", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-deps", "--require-hashes", "--no-build-isolation", "--use-pep517"),
)

#: The packages in a lock by which others are built, with their hashes.
_BUILDERS = re.compile(r"^(?:pbr|setuptools)==(?:.*\\\n)*.*", re.MULTILINE)

_PACKAGE = Path(__file__).resolve().parents[1]


def installed_version() -> str:
    """Return the version of the installed Heat, "" when there is none.

    >>> installed_version().count(".")
    2
    """
    try:
        return importlib.metadata.version("openstack-heat")
    except importlib.metadata.PackageNotFoundError:
        return ""


def installed_release() -> int:
    """Return the release of the installed Heat: the first number of its version; 0 for none."""
    return int(installed_version().partition(".")[0] or 0)


def is_installed(choice: HeatChoice) -> bool:
    """Return True when this process can run the chosen release."""
    return choice is HeatChoice.INSTALLED or choice.value == str(installed_release())


def check(choice: HeatChoice, cache: Path) -> None:
    """Check that this process has the chosen release.

    :raises UsageError: when it has another one, which no command has changed.
    """
    if not is_installed(choice):
        raise UsageError(
            f'this process has Heat {installed_version()}, and the setting "heat" is '
            f"{choice.value}",
            hint=f"hotplate doctor --heat {choice.value} makes its environment, then: "
            f"{_python(environment(choice, cache))} -m pytest",
        )


@contextlib.contextmanager
def chosen(choice: HeatChoice, *, cache: Path, words: Sequence[str]) -> Iterator[None]:
    """Run a block with the chosen release of Heat.

    If that is not installed, the block does not run: this process becomes ``hotplate`` in the
    environment of that release, which is made when the cache has none.

    :param words: of the command line, after ``hotplate``.
    :raises HostError: when the environment cannot be made.
    """
    if not is_installed(choice):
        _become(choice, cache, words)
    here = Path(sys.prefix)
    with contextlib.ExitStack() as held:
        if (here / WHOLE).is_file():
            # In use, so that hotplate cache clean leaves it; its time is that of its last use.
            held.enter_context(locks.shared(here))
            with contextlib.suppress(OSError):
                os.utime(here)
        yield


def environment(choice: HeatChoice, cache: Path) -> Path:
    """Return the folder of the environment of a release, which need not exist.

    It depends on the lock, on the Python and on the hotplate that it is for.
    """
    parts = (_lock(choice).read_bytes(), sys.version.encode(), os.fsencode(_PACKAGE))
    digest = hashlib.sha256(b"\0".join((*parts, os.fsencode(sys.base_prefix)))).hexdigest()
    return cache.absolute() / FOLDER / f"{choice.value}-{digest[:12]}"


def _lock(choice: HeatChoice) -> Path:
    return LOCKS / f"{choice.value}.txt"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _become(choice: HeatChoice, cache: Path, words: Sequence[str]) -> NoReturn:
    folder = environment(choice, cache)
    if Path(sys.prefix) == folder:
        raise HostError(
            f'"{folder}" has Heat {installed_version()} and not {choice.value}',
            hint="leave PYTHONPATH out, or: hotplate cache clean --all",
        )
    try:
        _have(choice, folder)
        _link(folder)
    except OSError as error:
        raise HostError(
            f'the cache "{cache}" cannot be written to: {error.strerror}',
            hint="name another one with HOTPLATE_CACHE",
        ) from error
    sys.stdout.flush()
    python = str(_python(folder))
    os.execv(python, [python, "-P", "-m", "hotplate", *words])  # noqa: S606


def _have(choice: HeatChoice, folder: Path) -> None:
    """Make the environment unless it exists; one command does, and others wait for it."""
    whole = folder / WHOLE
    if whole.is_file():
        return
    with Interrupts() as interrupts, interrupts.allowed(), locks.exclusive(folder, make=True):
        if whole.is_file():
            return
        print(
            f'hotplate: making the environment of Heat {choice.value} in "{folder}"; this is done '
            "once, and takes some minutes",
            file=sys.stderr,
        )
        try:
            # Clears the rest of an attempt that was killed.
            _run(choice, sys.executable, "-I", "-m", "venv", "--clear", folder)
            lock = _lock(choice).read_text()
            # First the locked builders of the packages without a wheel.
            for requirements in ("\n".join(_BUILDERS.findall(lock)), lock):
                _run(
                    choice,
                    *(_python(folder), *_PIP, "--requirement", "/dev/stdin"),
                    text=requirements,
                )
            whole.touch()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _run(choice: HeatChoice, *command: str | Path, text: str = "") -> None:
    """Run one step of making an environment.

    :param text: its standard input.
    :raises HostError: when it fails, with its last error.
    """
    done = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        program = command[command.index("-m") + 1]
        raise HostError(
            f"the environment of Heat {choice.value} cannot be made: {program}: "
            f"{(errors or lines or ['no output'])[-1]}",
            hint="it needs the package index of pip, which python3 -m pip config list names"
            if program == "pip"
            else "apt-get install --no-install-recommends python3-venv",
        )


def _link(folder: Path) -> None:
    """Put this hotplate into an environment, by links to its files, with its entry points."""
    base = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", base))
    _point(packages / _PACKAGE.name, _PACKAGE)
    if not (_PACKAGE.parent / "pyproject.toml").is_file():
        _point(folder / "share" / "hotplate", Path(sys.prefix) / "share" / "hotplate")
    # Without a list of files, so that pip cannot remove what the links point to.
    about = packages / "hotplate-0.dist-info"
    about.mkdir(exist_ok=True)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution("hotplate")
        for name in ("METADATA", "entry_points.txt"):
            (about / name).write_text(installed.read_text(name) or "")


def _point(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        # Another command may have made it meanwhile, to the same target.
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
