"""Write a new hook with its element and tests into a repository."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hotplate.errors import HostError, UsageError, exhaustion, remedy
from hotplate.hookkit.contract_file import SUFFIX
from hotplate.paths import elements_dir

#: The default tool of a hook.
SHELL = "sh"

#: Names with another meaning: lines of ``heat-config-hooks``, and Heat's own group.
RESERVED = {"bin", "lib", "component"}

_SKELETON = Path(__file__).with_name("skeleton")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PROGRAM = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.+-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")


class HookLanguage(StrEnum):
    """The language of a new hook; the value is the suffix of its file."""

    PYTHON = "py"
    SHELL = "sh"


@dataclass(frozen=True)
class NewHook:
    """A hook to write.

    :param name: of the group: ``a-z``, digits and ``-``, 40 characters at most.
    :param tool: the program that it runs; empty for a shell that runs the config.
    :param package: the distribution's package of the tool; empty when none is needed.
    """

    name: str
    tool: str = ""
    package: str = ""
    language: HookLanguage = HookLanguage.PYTHON

    @property
    def stem(self) -> str:
        """Return the name for files, in a form that Python can import."""
        return self.name.replace("-", "_")

    @property
    def file(self) -> str:
        """Return the file of the hook, below ``hooks``."""
        return f"{self.stem}.{self.language.value}"


def check_new(hook: NewHook) -> None:
    """Check the hook's names.

    :raises UsageError: names the bad one.
    """
    if not _NAME.fullmatch(hook.name) or len(hook.name) > 40:
        raise UsageError(
            f'"{hook.name}" cannot be a group; expected a letter, then letters, digits and single '
            "dashes, all in lower case, 40 at most",
        )
    if hook.name in RESERVED:
        raise UsageError(f'"{hook.name}" cannot be a group: the name means something else to Heat')
    if (elements_dir() / f"heat-config-{hook.name}").exists():
        raise UsageError(f'hotplate has an element "heat-config-{hook.name}" already; take another')
    if hook.tool and not _PROGRAM.fullmatch(hook.tool):
        raise UsageError(f'"{hook.tool}" is not the name of a program; expected one without a path')
    if hook.package and not _PACKAGE.fullmatch(hook.package):
        raise UsageError(f'"{hook.package}" is not the name of a package')


def write_new(hook: NewHook, directory: Path) -> list[Path]:
    """Write all files below a directory; return their paths, relative to it.

    :raises UsageError: when one of them exists or cannot be written, or a name is bad.
    :raises HostError: when the disk is full; no file is left.
    """
    check_new(hook)
    files = dict(_files(hook))
    element = Path("elements", f"heat-config-{hook.name}")
    for path in (*files, element):
        # A dangling link does not exist() either, but open("x") would fail at it in the middle.
        if (directory / path).exists() or (directory / path).is_symlink():
            raise UsageError(f'"{path}" is there already; nothing was written')
    with contextlib.ExitStack() as undo:
        for path, text in files.items():
            target = directory / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                # Exclusive: a file that appeared meanwhile is not overwritten.
                with target.open("x", encoding="utf-8") as stream:
                    undo.callback(target.unlink, missing_ok=True)
                    stream.write(text)
                # Whatever the umask is: a hook has to be executable.
                target.chmod(0o755 if path.name == hook.file else 0o644)
            except OSError as error:
                kind = HostError if exhaustion(error) else UsageError
                raise kind(
                    f'"{path}" cannot be written: {error.strerror}; nothing was written',
                    hint=remedy(error),
                ) from error
        undo.pop_all()
    return list(files)


def _files(hook: NewHook) -> Iterator[tuple[Path, str]]:
    """Yield each file and its text."""
    hooks, tests = Path("hooks"), Path("tests")
    element = Path("elements", f"heat-config-{hook.name}")
    yield hooks / hook.file, _filled(hook, f"hook.{hook.language.value}.in")
    kind = "tool" if hook.tool else "shell"
    yield hooks / f"{hook.stem}{SUFFIX}", _filled(hook, f"check-{kind}.yaml.in")
    yield element / "element-deps", "heat-config\n" + "package-installs\n" * bool(hook.package)
    yield element / "heat-config-hooks", f"{hook.name} {hook.file}\n"
    yield element / "README.rst", _filled(hook, "README.rst.in")
    if hook.package:
        yield element / "package-installs.yaml", f"{hook.package}:\n"
    yield tests / f"test_{hook.stem}_contract.py", _filled(hook, "contract.py.in")
    yield tests / f"test_{hook.stem}_boot.py", _filled(hook, "boot.py.in")


def _filled(hook: NewHook, skeleton: str) -> str:
    """Return the text of a skeleton for a hook; placeholders of a contract file stay."""
    values = {
        "name": hook.name,
        "SETTING": "HEAT_" + hook.stem.upper(),
        "tool": hook.tool or SHELL,
        "file": hook.file,
        "line": "=" * len(f"heat-config-{hook.name}"),
        "python_argument": '"--version"' if hook.tool else "file",
        "shell_argument": "--version" if hook.tool else '"${heat_config_file:?}"',
        "config": "" if hook.tool else r"echo hello\n",
    }
    text = (_SKELETON / skeleton).read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: values.get(match[1], match[0]), text)
