"""What dib-lint cannot see in a collection of diskimage-builder elements.

diskimage-builder passes over in silence what it does not know: a misspelt file, a hook without
its execute bit, an unknown key, a flag that is switched on by ``false``.  Each check here is one
function that yields findings; ``CHECKS`` names them all.  The rules are those of diskimage-builder
3.43 (``lib/dib-run-parts``, ``lib/common-functions``, ``package-installs-squash``, ``pkg-map``).
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PHASES = (
    *("root.d", "extra-data.d", "pre-install.d", "install.d", "post-install.d", "post-root.d"),
    *("block-device.d", "pre-finalise.d", "finalise.d", "cleanup.d"),
)
"""The directories whose scripts diskimage-builder runs."""

INSTALL_PHASES = ("pre-install.d", "install.d", "post-install.d")
"""The phases in which packages are really installed; any other is never looked at."""

PACKAGE_KEYS = frozenset(
    (
        *("phase", "uninstall", "build-only", "installtype"),
        *("arch", "not-arch", "when", "dib_python_version"),
    )
)

KNOWN_FILES = (
    r"README\.rst|element-deps|element-provides|package-installs\.(yaml|json)|pkg-map|svc-map"
    r"|source-repository-[\w-]+|block-device-(default|[\w-]+)\.yaml|no-final-image\S*"
    r"|heat-config-hooks|__init__\.py"
)
"""Files at the top of an element that mean something, here or to diskimage-builder."""

MEANT = {
    "elements-deps": "element-deps",
    "element-dep": "element-deps",
    "element-provide": "element-provides",
    "elements-provides": "element-provides",
    "package-install.yaml": "package-installs.yaml",
    "packages-installs.yaml": "package-installs.yaml",
    "package-installs.yml": "package-installs.yaml",
    "pkg-maps": "pkg-map",
    "pkg_map": "pkg-map",
    "heat-config-hook": "heat-config-hooks",
}

KNOWN_DIRECTORIES = frozenset((*PHASES, "environment.d"))

HOOK_NAME = re.compile(r"[0-9A-Za-z_-]+")
"""What dib-run-parts runs; anything else it passes over."""

ENVIRONMENT_NAME = re.compile(r"[0-9A-Za-z_.-]+")

MERGED_DEEP = ("os-apply-config", "os-refresh-config")
"""Trees that are copied entry by entry: of two files with one path the hash order keeps one."""

ALWAYS_SET = frozenset(
    (
        *("ARCH", "DIB_RELEASE", "DISTRO_NAME", "DIB_INIT_SYSTEM", "DIB_PYTHON_VERSION"),
        *("DIB_OFFLINE", "DIB_DEFAULT_INSTALLTYPE", "IMAGE_NAME", "IMAGE_ELEMENT", "FS_TYPE"),
        *("DIB_ROOT_FSTYPE", "DIB_ROOT_LABEL", "DIB_BOOT_LABEL", "DIB_DEBUG_TRACE"),
    )
)
"""Variables that diskimage-builder or every operating-system element sets."""


@dataclass(frozen=True, order=True)
class LintFinding:
    """One thing that is wrong.

    :param path: the file, relative to where the elements lie.
    :param rule: the name of the check.
    :param message: a sentence.
    """

    path: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message} [{self.rule}]"


@dataclass
class Collection:
    """The elements under one directory, and the others that they may name."""

    directory: Path
    hooks: Path | None = None
    others: tuple[Path, ...] = ()
    elements: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        self.elements = sorted(
            path
            for path in self.directory.iterdir()
            if path.is_dir() and not path.name.startswith((".", "__"))
        )

    def finding(self, path: Path, rule: str, message: str) -> LintFinding:
        """Return a finding about a path under this collection."""
        return LintFinding(str(path.relative_to(self.directory)), rule, message)

    def names(self) -> set[str]:
        """Return the names of all elements that can be depended on, and what they provide."""
        names: set[str] = set()
        for directory in (self.directory, *self.others):
            for element in directory.iterdir():
                if element.is_dir():
                    names.add(element.name)
                    names.update(words(element / "element-provides"))
        return names


def words(file: Path) -> list[str]:
    """Return the words of a file such as element-deps, none if there is no file."""
    if not file.is_file():
        return []
    return [word for line in file.read_text().splitlines() for word in _uncommented(line).split()]


def _uncommented(line: str) -> str:
    return line.partition("#")[0]


class _Duplicate(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[object, object]]) -> dict[object, object]:
    result: dict[object, object] = {}
    for key, value in pairs:
        if key in result:
            raise _Duplicate(f'the key "{key}" appears twice, and the last one wins')
        result[key] = value
    return result


class _UniqueLoader(yaml.SafeLoader):
    """YAML, where a key that appears twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise _Duplicate(f'the key "{key}" appears twice, and the last one wins')
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(file: Path) -> Any:
    """Return a JSON or YAML file; pkg-map has JSON in it.

    :raises ValueError: it is neither, or has a key twice.
    """
    text = file.read_text()
    if file.suffix in (".yaml", ".yml"):
        try:
            return yaml.load(text, Loader=_UniqueLoader)  # noqa: S506  a SafeLoader
        except yaml.YAMLError as error:
            raise ValueError(f"this is not YAML: {' '.join(str(error).split())}") from error
    try:
        return json.loads(text, object_pairs_hook=_unique_pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"this is not JSON: {error}") from error


def _data_files(element: Path) -> Iterator[Path]:
    for name in ("package-installs.yaml", "package-installs.json", "pkg-map", "svc-map"):
        if (element / name).is_file():
            yield element / name
    yield from element.glob("block-device-*.yaml")


def check_data(collection: Collection) -> Iterator[LintFinding]:
    """JSON and YAML files can be read, and have no key twice."""
    for element in collection.elements:
        for file in _data_files(element):
            try:
                if file.name == "svc-map":
                    yaml.load(file.read_text(), Loader=_UniqueLoader)  # noqa: S506  a SafeLoader
                else:
                    load(file)
            except (ValueError, yaml.YAMLError) as error:
                yield collection.finding(file, "data", str(error))


def check_package_installs(collection: Collection) -> Iterator[LintFinding]:
    """package-installs has no key, phase or flag that does not do what it says."""
    for element in collection.elements:
        for name in ("package-installs.yaml", "package-installs.json"):
            file = element / name
            if not file.is_file():
                continue
            try:
                content = load(file)
            except ValueError:
                continue  # check_data has reported it
            if not isinstance(content, dict):
                yield collection.finding(
                    file, "package-installs", "this is not a map of package names"
                )
                continue
            for package, entries in content.items():
                for entry in entries if isinstance(entries, list) else [entries]:
                    for message in _package_entry(str(package), entry):
                        yield collection.finding(file, "package-installs", message)


def _package_entry(package: str, entry: object) -> Iterator[str]:
    if entry is None:
        return
    if not isinstance(entry, dict):
        yield f'"{package}" has {entry!r} where a map is expected'
        return
    for key in sorted(set(map(str, entry)) - PACKAGE_KEYS):
        yield f'"{package}" has the key "{key}", which package-installs does not know'
    phase = entry.get("phase", "install.d")
    if phase not in INSTALL_PHASES:
        yield (
            f'"{package}" is for the phase "{phase}", in which no package is ever installed; '
            f"expected one of {', '.join(INSTALL_PHASES)}"
        )
    for flag in ("uninstall", "build-only"):
        if flag in entry and entry[flag] not in (True, None):
            yield f'"{package}" has "{flag}: {entry[flag]}", which switches it on: it counts as set'
    for key in ("arch", "not-arch"):
        if re.search(r"\s", str(entry.get(key, "")).strip()):
            yield f'"{package}" has a space in "{key}", after which nothing matches'
    if "arch" in entry and "not-arch" in entry:
        yield f'"{package}" has both "arch" and "not-arch"'
    for condition in _conditions(entry):
        if not re.fullmatch(r"\w+\s*!?=.*", condition):
            yield f'"{package}" has the condition "{condition}"; expected "VARIABLE = value"'


def _conditions(entry: object) -> list[str]:
    given = entry.get("when") if isinstance(entry, dict) else None
    return [str(item) for item in (given if isinstance(given, list) else [given] if given else [])]


def check_when(collection: Collection) -> Iterator[LintFinding]:
    """Check that a variable in a condition has a default: one that is not set ends the build."""
    defaults = set(ALWAYS_SET)
    for directory in (collection.directory, *collection.others):
        for file in directory.glob("*/environment.d/*"):
            if file.is_file():
                defaults.update(re.findall(r"^\s*export\s+(\w+)=", file.read_text(), re.MULTILINE))
    for element in collection.elements:
        for name in ("package-installs.yaml", "package-installs.json"):
            file = element / name
            try:
                content = load(file) if file.is_file() else {}
            except ValueError:
                continue  # check_data has reported it
            entries = content.values() if isinstance(content, dict) else ()
            flat = [
                one for entry in entries for one in (entry if isinstance(entry, list) else [entry])
            ]
            for condition in (text for entry in flat for text in _conditions(entry)):
                variable = re.split(r"\s*!?=", condition.strip())[0]
                if variable not in defaults:
                    yield collection.finding(
                        file, "when", f'"{variable}" has no default in an environment.d'
                    )


def check_files(collection: Collection) -> Iterator[LintFinding]:
    """Nothing at the top of an element is misspelt."""
    for element in collection.elements:
        for path in sorted(element.iterdir()):
            if path.name in MEANT:
                message = f'diskimage-builder does not look at this; is it "{MEANT[path.name]}"?'
                yield collection.finding(path, "files", message)
            elif path.is_dir():
                if path.name.endswith(".d") and path.name not in KNOWN_DIRECTORIES:
                    message = f"no phase has this name; expected one of {', '.join(PHASES)}"
                    yield collection.finding(path, "files", message)
            elif path.name.startswith((".", "README")) or path.suffix == ".pyc":
                continue
            elif not re.fullmatch(KNOWN_FILES, path.name) and not path.name.startswith(
                f"{element.name}-"
            ):
                message = "nothing reads a file of this name; call one of the element's own"
                yield collection.finding(path, "files", f'{message} "{element.name}-..."')


def _scripts(element: Path) -> Iterator[Path]:
    for phase in PHASES:
        if (element / phase).is_dir():
            for path in sorted((element / phase).iterdir()):
                if path.is_file() and not path.is_symlink():
                    yield path
                elif path.is_dir() and path.name.endswith("-install"):
                    # install-types links these into the phase.
                    yield from (script for script in sorted(path.iterdir()) if script.is_file())


def check_hooks(collection: Collection) -> Iterator[LintFinding]:
    """Every script in a phase is one that dib-run-parts runs, in the place its number says."""
    for element in collection.elements:
        for script in _scripts(element):
            if not HOOK_NAME.fullmatch(script.name):
                message = "dib-run-parts runs only names of letters, digits, _ and -"
                yield collection.finding(script, "hooks", message)
            elif not re.match(r"\d\d-", script.name):
                message = "this has no number of two digits, so its place in the order is not fixed"
                yield collection.finding(script, "hooks", message)
            if not os.access(script, os.X_OK):
                yield collection.finding(
                    script, "hooks", "this is not executable, so it is not run"
                )
        environment = element / "environment.d"
        for file in sorted(environment.iterdir()) if environment.is_dir() else ():
            if not ENVIRONMENT_NAME.fullmatch(file.name) or not re.match(r"\d\d-", file.name):
                message = "expected two digits, a dash, and letters, digits, _ . and -"
                yield collection.finding(file, "hooks", message)
        for directory in ("bin", *(f"os-refresh-config/{phase}" for phase in _REFRESH)):
            for file in sorted((element / directory).glob("*")):
                if file.is_file() and not os.access(file, os.X_OK):
                    yield collection.finding(file, "hooks", "this is not executable")


_REFRESH = ("pre-configure.d", "configure.d", "post-configure.d", "migration.d", "error.d")


def check_duplicates(collection: Collection) -> Iterator[LintFinding]:
    """No two elements bring the same file: one ends the build, or the hash order picks one."""
    seen: dict[str, list[Path]] = defaultdict(list)
    alternatives = alternatives_of(collection)
    for element in collection.elements:
        for script in _scripts(element):
            seen[str(script.relative_to(element))].append(script)
        for file in sorted((element / "environment.d").glob("*")):
            seen[str(file.relative_to(element))].append(file)
        for tree in MERGED_DEEP:
            for file in sorted((element / tree).rglob("*")):
                if file.is_file():
                    seen[str(file.relative_to(element))].append(file)
    for name, files in seen.items():
        for file in files[1:]:
            first, second = (
                path.relative_to(collection.directory).parts[0] for path in (files[0], file)
            )
            if not alternatives.get(first, set()) & alternatives.get(second, set()):
                message = f'the element "{first}" brings "{name}" too'
                yield collection.finding(file, "duplicates", message)


def alternatives_of(collection: Collection) -> dict[str, set[str]]:
    """Return what each element provides: two that provide the same are never in one image."""
    return {
        element.name: set(words(element / "element-provides")) for element in collection.elements
    }


def check_dependencies(collection: Collection) -> Iterator[LintFinding]:
    """element-deps names elements that exist, each once."""
    names = collection.names()
    for element in collection.elements:
        file = element / "element-deps"
        listed = words(file)
        for name in sorted(set(listed)):
            if name not in names:
                yield collection.finding(file, "element-deps", f'there is no element "{name}"')
            if listed.count(name) > 1:
                yield collection.finding(file, "element-deps", f'"{name}" appears twice')
        provides = element / "element-provides"
        if provides.is_file() and "#" in provides.read_text():
            message = "a comment here becomes names, because diskimage-builder reads every word"
            yield collection.finding(provides, "element-deps", message)


def check_links(collection: Collection) -> Iterator[LintFinding]:
    """No symbolic link dangles, here or once the element has been copied."""
    for element in collection.elements:
        for path in sorted(element.rglob("*")):
            if not path.is_symlink():
                continue
            if not path.exists():
                yield collection.finding(
                    path, "links", f'this points to "{path.readlink()}", which is not there'
                )
            elif path.parent != element or not path.is_dir():
                message = "this is copied as a link and dangles; dib follows top-level directories"
                yield collection.finding(path, "links", message)


def check_heat_config_hooks(collection: Collection) -> Iterator[LintFinding]:
    """heat-config-hooks names programs that exist: ``<group> <file>``, ``bin`` or ``lib``."""
    groups: dict[str, Path] = {}
    for element in collection.elements:
        file = element / "heat-config-hooks"
        if not file.is_file():
            continue
        for line in file.read_text().splitlines():
            given = _uncommented(line).split()
            if not given:
                continue
            if len(given) != (3 if given[0] == "bin" else 2):
                message = (
                    f'"{line.strip()}": expected "<group> <file>", "lib <directory>" or '
                    '"bin <file> <path>"'
                )
                yield collection.finding(file, "heat-config-hooks", message)
                continue
            if given[0] == "bin" and not given[2].startswith("/"):
                message = f'"{given[2]}" is not an absolute path'
                yield collection.finding(file, "heat-config-hooks", message)
            if given[0] not in ("bin", "lib"):
                if given[0] in groups:
                    message = f'the group "{given[0]}" is in "{groups[given[0]].name}" too'
                    yield collection.finding(file, "heat-config-hooks", message)
                groups[given[0]] = element
            if collection.hooks is not None and not (collection.hooks / given[1]).exists():
                message = f'there is no program "{given[1]}" in "{collection.hooks.name}"'
                yield collection.finding(file, "heat-config-hooks", message)


CHECKS: tuple[Callable[[Collection], Iterable[LintFinding]], ...] = (
    check_data,
    check_package_installs,
    check_when,
    check_files,
    check_hooks,
    check_duplicates,
    check_dependencies,
    check_links,
    check_heat_config_hooks,
)


def lint(collection: Collection) -> list[LintFinding]:
    """Everything that is wrong with a collection, sorted by file."""
    return sorted({finding for check in CHECKS for finding in check(collection)})
