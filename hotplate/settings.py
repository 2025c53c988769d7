"""The settings of a run: one table, from which come the options, the variables and the page.

Each comes from the command line, else from the environment (``HOTPLATE_<NAME>``), else from
``hotplate.toml`` in the current directory, else it has its default. They are read once, frozen, and
passed down.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict

from hotplate.errors import UsageError
from hotplate.text import shortened

FILE = "hotplate.toml"
COMMAND_LINE = "the command line"


class AcceleratorChoice(Enum):
    """The guest's accelerator."""

    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class HeatChoice(Enum):
    """The release of OpenStack Heat; each number has a lock in ``hotplate/heat_releases``."""

    INSTALLED = "installed"
    HEAT_26 = "26"
    HEAT_27 = "27"


class MachineChoice(Enum):
    """The kind of machine that a guest is."""

    QEMU = "qemu"
    CONTAINER = "container"

    @property
    def has_firmware(self) -> bool:
        """True when a boot loader or a kernel of the image is what starts it."""
        return self is MachineChoice.QEMU


class Arch(Enum):
    """The guest's processor."""

    AUTO = "auto"
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class WiringChoice(Enum):
    """The kind of connection between guest and harness; AUTO tries the kinds in this order."""

    AUTO = "auto"
    NAMESPACE = "namespace"
    GUESTFWD = "guestfwd"


class FirmwareChoice(Enum):
    """The guest's firmware."""

    AUTO = "auto"
    BIOS = "bios"
    UEFI = "uefi"
    SECURE_BOOT = "secure-boot"


class Datasource(Enum):
    """The guest's source of metadata."""

    OPENSTACK = "openstack"
    EC2 = "ec2"
    CONFIG_DRIVE = "config-drive"
    CONFIG_DRIVE_VFAT = "config-drive-vfat"
    NOCLOUD = "nocloud"


class Reading(TypedDict):
    """Keywords that say how images are read.

    :param allow_backing: follow names of other files out of an image's directory.
    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    """

    allow_backing: bool
    checksums: Path


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory of a user.

    ``$HOTPLATE_CACHE``, else ``$XDG_CACHE_HOME/hotplate``, else ``~/.cache/hotplate``, by the XDG
    Base Directory Specification.
    """
    if chosen := environ.get("HOTPLATE_CACHE"):
        return Path(chosen)
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hotplate"
    # A system service without User= has no HOME (systemd.exec(5)).
    return Path(environ.get("HOME") or "/root") / ".cache" / "hotplate"


def _row(default: Any, meaning: str, *, metavar: str = "", zero: str = "") -> Any:
    """Return a setting; its field has the name.

    :param default: of the type of the setting; a function makes it for this user.
    :param meaning: for ``--help`` and docs/settings.rst.
    :param metavar: of the option's value.
    :param zero: the meaning of 0; without one, a number has to be greater than zero.
    """
    about = {"meaning": meaning, "metavar": metavar, "zero": zero}
    if callable(default):
        return field(default_factory=default, metadata=about)
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    artifacts: Path = _row(
        Path("artifacts"), "where each run leaves a folder with everything it saw", metavar="DIR"
    )
    cache: Path = _row(
        cache_dir,
        "where everything is kept that can be made again: downloads, base systems, saved states",
        metavar="DIR",
    )
    heat: HeatChoice = _row(
        HeatChoice.INSTALLED,
        "the release of OpenStack Heat; one that is not installed runs in an environment of its "
        "own, which is made once and kept in the cache; the engines of older releases run on "
        "eventlet, and cannot run here",
    )
    machine: MachineChoice = _row(
        MachineChoice.QEMU,
        "the kind of machine of each guest: a virtual machine, or a container of systemd-nspawn, "
        "which starts in a second and shares the host's kernel (needs root)",
    )
    memory: int = _row(1024, "MiB of memory of each guest", metavar="MIB")
    cpus: int = _row(
        0,
        "processors of each virtual machine",
        metavar="N",
        zero="2, or 1 where QEMU before 8.1 emulates them",
    )
    cpu: str = _row(
        "auto",
        "QEMU's CPU model of each guest, or a level such as x86-64-v2, which an emulated CPU then "
        "has at least; auto: the host's own CPU with KVM, else the cheapest that the image runs on",
        metavar="MODEL",
    )
    arch: Arch = _row(
        Arch.AUTO, "the guests' processor; auto: that of the image's kernel or manifest"
    )
    accelerator: AcceleratorChoice = _row(
        AcceleratorChoice.AUTO,
        "what runs the guests' code; auto: KVM where a probe has run on it, otherwise TCG",
    )
    wiring: WiringChoice = _row(
        WiringChoice.AUTO, "how guests reach Heat; auto: a network namespace if possible"
    )
    firmware: FirmwareChoice = _row(
        FirmwareChoice.AUTO,
        "the guests' firmware; auto: UEFI only for an image without a BIOS boot loader; "
        "secure-boot: UEFI that starts only what Microsoft's keys have signed",
    )
    tpm: bool = _row(False, "give each guest a TPM 2.0, which swtpm emulates")
    datasource: Datasource = _row(
        Datasource.OPENSTACK, "where guests find their metadata, by cloud-init's names"
    )
    patience: float = _row(
        180.0,
        "give up after this long without a line on the console, a request or a signal; multiplied "
        "by the slowness of the host, measured at that time",
        metavar="SECONDS",
    )
    limit: float = _row(
        1800.0,
        "give up after this long despite progress, multiplied in the same way",
        metavar="SECONDS",
    )
    goss_program: str = _row(
        "",
        "the goss program that runs the goss file in the guest, built for the guest's processor; "
        "without it GOSS_PATH names one, as for dgoss",
        metavar="PATH",
    )
    known_failures: str = _row(
        "",
        "a YAML file with the checks that are known to fail: pattern, tracker, and the date snooze "
        "until which their failure does not fail the run",
        metavar="FILE",
    )
    append: str = _row(
        "",
        "words to append to the kernel's command line (for images with a kernel beside them)",
        metavar="WORDS",
    )
    display: bool = _row(
        False,
        "give each guest a VGA adapter from the start, which costs boot time; without it a guest "
        "that does not boot is started once more, for a picture",
    )
    strict: bool = _row(
        False,
        "fail a run in which anything was noticed: failed units, tracebacks, refused or repeated "
        "signals, outputs that were not sent",
    )
    skip: tuple[str, ...] = _row(
        (),
        "leave out these standard checks of an image and of its guest, by their ids",
        metavar="ID[,ID...]",
    )
    allow_backing: bool = _row(
        False,
        "follow an image's backing files, and links to its kernel and initrd, out of its "
        "directory: the guest can then read those files",
    )
    lift_limits: bool = _row(
        False,
        "take requests that are too large for Heat, Keystone, Zaqar and Swift by their defaults, "
        "and more servers than Nova's quotas allow; the verdict says so",
    )
    keep_runs: int = _row(
        0,
        "before anything runs, remove the folders of earlier runs but for the newest N; those of "
        "runs that still go on stay",
        metavar="N",
        zero="all stay",
    )
    keep: bool = _row(
        False, "keep stacks and disks when the session ends, for the next hotplate up"
    )

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
        if unknown := sorted({*in_file} - {*TABLE}):
            names = shortened('", "'.join(unknown), 200)
            raise UsageError(
                f'"{file}" has unknown settings: "{names}"',
                hint=f"known: {', '.join(TABLE)}",
            )
        values: dict[str, Any] = {"cache": cache_dir(environ)}
        for name in TABLE:
            variable = variable_of(name)
            exported = environ.get(variable)
            if exported == "" and kind_of(name) is Path:
                # It names no directory, and Path("") is the current one.
                exported = None
            # The first source with a value wins.
            for source, value in (
                (COMMAND_LINE, given.get(name)),
                (variable, exported),
                (str(file), in_file.get(name)),
            ):
                if value is not None:
                    values[name] = _converted(name, value, source)
                    break
        return cls(**values)

    @property
    def reading(self) -> Reading:
        """Return how images are read, as keywords of ``Image.open`` and functions like it."""
        return {"allow_backing": self.allow_backing, "checksums": self.cache / "checksums"}

    def with_words(self, words: Mapping[str, str]) -> Settings:
        """Return them with other values, as the command line has them, by field name.

        :raises UsageError: for a value of the wrong kind.
        """
        values = {name: _converted(name, words[name], COMMAND_LINE) for name in words}
        return replace(self, **values)


#: The rows by name.
TABLE: Mapping[str, Field[Any]] = {each.name: each for each in fields(Settings)}


PREFIX = "HOTPLATE_"

#: Variables that are no settings.
OTHER_VARIABLES = ("HOTPLATE_SIGN_PASSPHRASE",)


def variable_of(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that nothing reads, each with the one that is probably meant.

    Without those that resemble none: they may be of somebody's own scripts.
    """
    known = {variable_of(name): name.upper() for name in TABLE}
    known |= {name: name.removeprefix(PREFIX) for name in OTHER_VARIABLES}
    ends = {end: name for name, end in known.items()}
    meant: dict[str, str] = {}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name.removeprefix(PREFIX), ends, n=1, cutoff=0.75)
            if near:
                meant[name] = ends[near[0]]
    return meant


def help_of(name: str) -> str:
    """Return the meaning of a setting, with the meaning of 0."""
    about = TABLE[name].metadata
    return f"{about['meaning']}; 0: {about['zero']}" if about["zero"] else str(about["meaning"])


def default_of(name: str) -> str:
    """Return the default of a setting, as it is written; "" when it is nothing."""
    default = TABLE[name].default
    if default is MISSING:
        return "~/.cache/hotplate"
    if isinstance(default, Enum):
        return str(default.value)
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default).lower() if isinstance(default, bool) else str(default)


def kind_of(name: str) -> type[Any]:
    """Return the type of a setting: that of its default."""
    default = TABLE[name].default
    # A path's own type is that of the system's paths.
    return Path if default is MISSING or isinstance(default, Path) else type(default)


def choices_of(name: str) -> list[str]:
    """Return the values of a setting with choices; none for another."""
    kind = kind_of(name)
    return [each.value for each in kind] if issubclass(kind, Enum) else []


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    # ValueError: of TOML, of UTF-8, or a number with thousands of digits.
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f'"{file}" cannot be read as TOML: {error}') from error


def _converted(name: str, value: Any, source: str) -> Any:
    """Return a value as the type of its setting.

    :raises UsageError: names the source, and the expected type.
    """
    kind = kind_of(name)
    try:
        if issubclass(kind, Enum):
            return value if isinstance(value, kind) else kind(str(value))
        if kind is bool:
            return _boolean(value)
        if kind is tuple:
            return _words(value)
        if isinstance(value, (list, dict)):
            raise TypeError
        converted = kind(value)
        if kind in (int, float):
            # int() drops a fraction, and takes TOML's true for 1.
            if isinstance(value, bool) or (isinstance(value, float) and converted != value):
                raise ValueError
            zero = converted == 0 and TABLE[name].metadata["zero"]
            # Neither nan nor inf: a wait has to end.
            if not (zero or 0 < converted < float("inf")):
                raise ValueError
        return converted
    # int() of TOML's inf raises OverflowError.
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(
            f'setting "{name}" from {source} is "{shortened(str(value), 200)}"; expected '
            f"{_expected(name)}"
        ) from error


def _boolean(value: object) -> bool:
    word = str(value).lower()
    if word in ("1", "true", "yes"):
        return True
    if word in ("0", "false", "no"):
        return False
    raise ValueError


def _words(value: object) -> tuple[str, ...]:
    """Return the words of a text with commas, or of several, each once."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise ValueError
    words = [word.strip() for text in texts for word in text.split(",")]
    return tuple(dict.fromkeys(filter(None, words)))


def _expected(name: str) -> str:
    if choices := choices_of(name):
        return f"one of {', '.join(choices)}"
    number = "a number, or 0" if TABLE[name].metadata["zero"] else "a number greater than zero"
    words = {
        bool: "true or false",
        int: number,
        float: number,
        Path: "a path",
        str: "text",
        tuple: "words, with commas between them or as a list",
    }
    return words[kind_of(name)]
