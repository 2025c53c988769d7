"""The settings of a run: parsed once, frozen, and passed down.

Each comes from the command line, else from the environment (``HOTPLATE_<NAME>``), else from
``hotplate.toml`` in the current directory, else it has its default; its source is recorded.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from hotplate.errors import UsageError

FILE = "hotplate.toml"


class AcceleratorChoice(Enum):
    """The guest's accelerator; AUTO chooses KVM only after a probe has run on it."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class Arch(Enum):
    """The guest's processor; AUTO is that of the image's kernel or manifest."""

    AUTO = "auto"
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class WiringChoice(Enum):
    """The kind of connection between guest and harness; AUTO tries the kinds in this order."""

    AUTO = "auto"
    NAMESPACE = "namespace"
    GUESTFWD = "guestfwd"


class FirmwareChoice(Enum):
    """The guest's firmware; AUTO is UEFI only where BIOS cannot boot it."""

    AUTO = "auto"
    BIOS = "bios"
    UEFI = "uefi"


class Datasource(Enum):
    """The guest's source of metadata, by cloud-init's names."""

    OPENSTACK = "openstack"
    EC2 = "ec2"
    CONFIG_DRIVE = "config-drive"
    CONFIG_DRIVE_VFAT = "config-drive-vfat"
    NOCLOUD = "nocloud"


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory of a user.

    ``$HOTPLATE_CACHE``, else ``$XDG_CACHE_HOME/hotplate``, else ``~/.cache/hotplate``, by the XDG
    Base Directory Specification.
    """
    if chosen := environ.get("HOTPLATE_CACHE"):
        return Path(chosen)
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hotplate"
    return Path(environ.get("HOME") or "/root") / ".cache" / "hotplate"


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    :param artifacts: the directory in which each run gets a folder of its own.
    :param cache: the directory of everything that can be recreated; see :func:`cache_dir`.
    :param memory: MiB of memory of a guest.
    :param cpus: virtual processors of a guest; 0 for the accelerator's default number.
    :param patience: seconds without a line on the console, a request or a signal after which a
        guest is given up; multiplied by the slowness of the host, measured at that time.
    :param limit: seconds after which a run is given up despite progress, in the same way.
    :param display: give a guest a VGA adapter, whose picture is kept when it does not come up; the
        kernel's console on it costs boot time.
    :param append: more words for the kernel's command line, for images that have their kernel
        beside them.
    :param strict: count notices in a passed run as a failure.
    :param allow_backing: follow the names of backing files in an image out of its directory.
    :param lift_limits: accept requests that a real cloud refuses because they are too large.
    :param keep_runs: how many folders of earlier runs stay in ``artifacts``; 0 for all.
    :param keep: keep the stacks and disks of ``hotplate up`` when it ends.
    """

    artifacts: Path = Path("artifacts")
    cache: Path = field(default_factory=cache_dir)
    memory: int = 1024
    cpus: int = 0
    arch: Arch = Arch.AUTO
    accelerator: AcceleratorChoice = AcceleratorChoice.AUTO
    wiring: WiringChoice = WiringChoice.AUTO
    firmware: FirmwareChoice = FirmwareChoice.AUTO
    datasource: Datasource = Datasource.OPENSTACK
    patience: float = 180.0
    limit: float = 1800.0
    append: str = ""
    display: bool = False
    strict: bool = False
    allow_backing: bool = False
    lift_limits: bool = False
    keep_runs: int = 0
    keep: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def load(
        cls,
        given: Mapping[str, Any],
        *,
        environ: Mapping[str, str],
        directory: Path,
    ) -> Settings:
        """Combine the settings of a run.

        :param given: the command line's values, by field name; None means not given.
        :param environ: the environment.
        :param directory: the directory that may contain ``hotplate.toml``.
        :raises UsageError: for a value of the wrong kind; names its source.
        """
        file = directory / FILE
        in_file = _read(file)
        defaults = cls(cache=cache_dir(environ))
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for setting in fields(cls):
            if setting.name == "sources":
                continue
            variable = f"HOTPLATE_{setting.name.upper()}"
            for source, value in (
                ("the command line", given.get(setting.name)),
                (variable, environ.get(variable)),
                (str(file), in_file.pop(setting.name, None)),
            ):
                if value is not None:
                    values[setting.name] = _convert(
                        setting.name, getattr(defaults, setting.name), value, source
                    )
                    sources[setting.name] = source
                    break
            else:
                sources[setting.name] = "default"
            in_file.pop(setting.name, None)
        if in_file:
            unknown = '", "'.join(sorted(in_file))
            names = ", ".join(f.name for f in fields(cls) if f.name != "sources")
            raise UsageError(f'"{file}" has unknown settings: "{unknown}"', hint=f"known: {names}")
        return replace(defaults, **values, sources=sources)

    def with_words(self, words: Mapping[str, str]) -> Settings:
        """Return them with other values, as the command line has them, by field name.

        :raises UsageError: for a value of the wrong kind.
        """
        source = "the command line"
        values = {
            name: _convert(name, getattr(self, name), word, source) for name, word in words.items()
        }
        return replace(self, **values, sources={**self.sources, **dict.fromkeys(words, source)})


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f'"{file}" cannot be read as TOML: {error}') from error


def _convert(name: str, default: Any, value: Any, source: str) -> Any:
    """Return ``value`` as the type of ``default``, or raise an error with the expected type."""
    try:
        if isinstance(default, Enum):
            return value if isinstance(value, type(default)) else type(default)(str(value))
        if isinstance(default, bool):
            return _boolean(value)
        if isinstance(default, (int, float)):
            number = type(default)(value)
            # Neither nan nor inf: a wait has to end. 0 is valid where it is the default, and there
            # means "as many as suit" or "all".
            if not 0 <= number < float("inf") or (number == 0 and default != 0):
                raise ValueError
            return number
        return type(default)(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f'setting "{name}" from {source} is "{value}"; expected {_expected(default)}'
        ) from error


def _boolean(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise ValueError
    return words[str(value).lower()]


def _expected(default: object) -> str:
    if isinstance(default, Enum):
        return "one of " + ", ".join(member.value for member in type(default))
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, (int, float)):
        return "a number greater than zero" if default else "a number, or 0"
    return "a path" if isinstance(default, Path) else "text"
