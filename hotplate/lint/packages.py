"""Checks of an element's data files, package-installs among them.

The rules are those of diskimage-builder 3.43 (``package-installs-squash``, ``pkg-map``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotplate.lint.collection import Collection, DataError, finding, line_with, load
from hotplate.lint.finding import LintFinding

#: The phases in which packages are installed; others are ignored.
INSTALL_PHASES = ("pre-install.d", "install.d", "post-install.d")

PACKAGE_KEYS = frozenset(
    (
        *("phase", "uninstall", "build-only", "installtype"),
        *("arch", "not-arch", "when", "dib_python_version"),
    )
)

#: Variables that diskimage-builder or every operating-system element sets.
ALWAYS_SET = frozenset(
    (
        *("ARCH", "DIB_RELEASE", "DISTRO_NAME", "DIB_INIT_SYSTEM", "DIB_PYTHON_VERSION"),
        *("DIB_OFFLINE", "DIB_DEFAULT_INSTALLTYPE", "IMAGE_NAME", "IMAGE_ELEMENT", "FS_TYPE"),
        *("DIB_ROOT_FSTYPE", "DIB_ROOT_LABEL", "DIB_BOOT_LABEL", "DIB_DEBUG_TRACE"),
    )
)

_INSTALLS = ("package-installs.yaml", "package-installs.json")


def check_data(collection: Collection) -> Iterator[LintFinding]:
    """Check that JSON and YAML files can be read and have no duplicate key."""
    for element in collection.elements:
        for file in _data_files(element):
            try:
                load(file)
            except DataError as error:
                yield finding(file, "data", str(error), error.mend, line=error.line)
        for name in ("element-deps", "element-provides", "heat-config-hooks"):
            try:
                if (element / name).is_file():
                    (element / name).read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                reason = f"this is no text in UTF-8: {error.reason}"
                yield finding(element / name, "data", reason, "write it in UTF-8")


def _data_files(element: Path) -> Iterator[Path]:
    for name in (*_INSTALLS, "pkg-map", "svc-map"):
        if (element / name).is_file():
            yield element / name
    yield from sorted(element.glob("block-device-*.yaml"))


def _package_lists(element: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the readable files that name packages, with their content."""
    for name in _INSTALLS:
        try:
            if (element / name).is_file():
                yield element / name, load(element / name)
        except DataError:
            continue  # check_data has a finding for it


def check_package_installs(collection: Collection) -> Iterator[LintFinding]:
    """Check package-installs for keys, phases and flags without the intended effect."""
    for element in collection.elements:
        for file, content in _package_lists(element):
            if content is not None and not isinstance(content, dict):
                reason = "this is not a map of package names"
                yield finding(file, "package-installs", reason, 'write "NAME:" for each package')
                continue
            for package, entry in _entries(content):
                line = line_with(file, rf"^\W*{re.escape(package)}\W*:")
                for reason, mend in _entry_faults(package, entry):
                    yield finding(file, "package-installs", reason, mend, line=line)


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield each package with each of its entries, which may be a list."""
    for package, entries in (content or {}).items():
        for entry in entries if isinstance(entries, list) else [entries]:
            yield str(package), entry


def _entry_faults(package: str, entry: object) -> Iterator[tuple[str, str]]:
    """Yield the faults of one entry, each with its fix."""
    # "NAME:" alone installs the package with the defaults.
    if entry is None:
        return
    if not isinstance(entry, dict):
        yield f'"{package}" has {entry!r} where a map is expected', f'write "{package}:" alone'
        return
    for key in sorted(set(map(str, entry)) - PACKAGE_KEYS):
        reason = f'"{package}" has the key "{key}", which package-installs does not know'
        yield reason, f"expected one of {', '.join(sorted(PACKAGE_KEYS))}"
    yield from _phase_faults(package, entry)
    yield from _arch_faults(package, entry)
    for condition in _conditions(entry):
        if not re.fullmatch(r"\w+\s*!?=.*", condition):
            reason = f'"{package}" has the condition "{condition}"; expected "VARIABLE = value"'
            yield reason, 'write "VARIABLE = value" or "VARIABLE != value"'


def _phase_faults(package: str, entry: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    phase = entry.get("phase", "install.d")
    if phase not in INSTALL_PHASES:
        reason = f'"{package}" is for the phase "{phase}", in which no package is ever installed'
        yield reason, f"expected one of {', '.join(INSTALL_PHASES)}"
    for flag in ("uninstall", "build-only"):
        if flag in entry and entry[flag] not in (True, None):
            reason = f'"{package}" has "{flag}: {entry[flag]}", which switches it on'
            yield f"{reason}: it counts as set", f'remove "{flag}"'


def _arch_faults(package: str, entry: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for key in ("arch", "not-arch"):
        if re.search(r"\s", str(entry.get(key, "")).strip()):
            reason = f'"{package}" has a space in "{key}", after which nothing matches'
            yield reason, "separate them by commas alone"
    if "arch" in entry and "not-arch" in entry:
        yield f'"{package}" has both "arch" and "not-arch"', "remove one"


def _conditions(entry: object) -> list[str]:
    given = entry.get("when") if isinstance(entry, dict) else None
    return [str(item) for item in (given if isinstance(given, list) else [given] if given else [])]


def check_when(collection: Collection) -> Iterator[LintFinding]:
    """Check that variables in conditions have a default, as an unset one ends the build."""
    defaults = ALWAYS_SET | exported_in(collection.directory, *collection.others)
    for element in collection.elements:
        for file, content in _package_lists(element):
            listed = _entries(content) if isinstance(content, dict) else ()
            for condition in (each for _, entry in listed for each in _conditions(entry)):
                # The condition is "VARIABLE = value" or "VARIABLE != value".
                variable = re.split(r"\s*!?=", condition.strip())[0]
                if variable not in defaults:
                    reason = f'"{variable}" has no default in an environment.d'
                    mend = f'put "export {variable}=${{{variable}:-}}" into the element\'s own'
                    line = line_with(file, rf"\b{re.escape(variable)}\b")
                    yield finding(file, "when", reason, mend, line=line)


def exported_in(*directories: Path) -> set[str]:
    """Return the variables that the elements in some directories export."""
    names: set[str] = set()
    for directory in directories:
        for file in directory.glob("*/environment.d/*"):
            if file.is_file():
                text = file.read_text(encoding="utf-8", errors="replace")
                names.update(re.findall(r"^\s*export\s+(\w+)=", text, re.MULTILINE))
    return names
