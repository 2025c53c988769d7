"""Checks of a collection of diskimage-builder elements.

diskimage-builder silently ignores many mistakes: a misspelt file, a hook without its execute bit,
an unknown key, a flag that is switched on by ``false``. Each check here is one function that
yields findings; ``CHECKS`` names them all. The rules are those of diskimage-builder 3.43
(``lib/dib-run-parts``, ``lib/common-functions``, ``package-installs-squash``, ``pkg-map``).
"""

from __future__ import annotations

import difflib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hotplate.lint.collection import (
    KNOWN_DIRECTORIES,
    KNOWN_FILES,
    PHASES,
    Collection,
    finding,
    line_with,
    names_in,
    uncommented,
)
from hotplate.lint.finding import LintFinding
from hotplate.lint.packages import check_data, check_package_installs, check_when

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

#: Names that dib-run-parts runs; it ignores all others.
HOOK_NAME = re.compile(r"[0-9A-Za-z_-]+")

ENVIRONMENT_NAME = re.compile(r"[0-9A-Za-z_.-]+")

#: Trees that are copied entry by entry: of two files with one path the hash order keeps one.
MERGED_DEEP = ("os-apply-config", "os-refresh-config")

#: Similarity (difflib) from which on a name counts as misspelt.
ALIKE = 0.88

#: Provided by each element that sets ``DISTRO_NAME``; an image has one of them.
OS = "operating-system"


def check_files(collection: Collection) -> Iterator[LintFinding]:
    """Check for misspelt files at the top of an element."""
    for element in collection.elements:
        for path in sorted(element.iterdir()):
            if path.name in MEANT:
                meant = MEANT[path.name]
                reason = f'diskimage-builder does not look at this; is it "{meant}"?'
                yield finding(path, "files", reason, f'call it "{meant}"')
            elif collection.names_file(element, path.name, besides=path):
                continue
            elif path.is_dir():
                yield from _misspelt_directory(path)
            elif not _is_file_of(element, path.name):
                mend = f'call one of the element\'s own "{element.name}-...", or remove it'
                yield finding(path, "files", "nothing reads a file of this name", mend)


def _misspelt_directory(path: Path) -> Iterator[LintFinding]:
    if path.name in KNOWN_DIRECTORIES:
        return
    meant = difflib.get_close_matches(path.name, sorted(KNOWN_DIRECTORIES), 1, ALIKE)
    if meant:
        reason = f'no phase has this name; is it "{meant[0]}"?'
        yield finding(path, "files", reason, f'call it "{meant[0]}"')


def _is_file_of(element: Path, name: str) -> bool:
    return (
        name.startswith((".", "README", f"{element.name}-"))
        or name.endswith(".pyc")
        or bool(re.fullmatch(KNOWN_FILES, name))
    )


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
    """Check that dib-run-parts runs every script of a phase, in the order of its number."""
    for element in collection.elements:
        for script in _scripts(element):
            yield from _script_faults(collection, element, script)
        for file in sorted((element / "environment.d").glob("*")):
            yield from _environment_faults(file)
        for directory in ("bin", *(f"os-refresh-config/{phase}" for phase in _REFRESH)):
            for file in sorted((element / directory).glob("*")):
                # Files without an interpreter line are data beside the programs.
                if file.is_file() and _has_interpreter(file) and not os.access(file, os.X_OK):
                    yield finding(
                        file, "hooks", "this is not executable", f"chmod 0755 {file.name}"
                    )


_REFRESH = ("pre-configure.d", "configure.d", "post-configure.d", "migration.d", "error.d")
_FIRST = "a name without a number counts as 0, so this runs before 01 and what follows"


def _script_faults(collection: Collection, element: Path, script: Path) -> Iterator[LintFinding]:
    """Yield the faults of a file in a phase; a file that another one names is its data."""
    runs = os.access(script, os.X_OK)
    program = runs or _has_interpreter(script)
    named = collection.names_file(element, script.name, besides=script)
    if not HOOK_NAME.fullmatch(script.name):
        if program and not named:
            reason = "dib-run-parts runs only names of letters, digits, _ and -"
            mend = f'call it "{re.sub("[^0-9A-Za-z_-]", "-", script.stem)}"'
            yield finding(script, "hooks", reason, mend)
    elif runs and not script.name[0].isdigit():
        yield finding(script, "hooks", _FIRST, "put two digits and a dash in front of the name")
    elif not runs and not named and (program or script.name[0].isdigit()):
        reason = "this is not executable, so it is not run"
        yield finding(script, "hooks", reason, f"chmod 0755 {script.name}")


def _environment_faults(file: Path) -> Iterator[LintFinding]:
    if file.is_dir():
        return
    if not ENVIRONMENT_NAME.fullmatch(file.name):
        reason = "dib-run-parts reads only names of letters, digits, _ . and -"
        yield finding(file, "hooks", reason, "take other characters out of the name")
    elif not file.name[0].isdigit():
        reason = _FIRST.replace("runs", "is read")
        yield finding(file, "hooks", reason, "put two digits and a dash in front of the name")


def _has_interpreter(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"#!"


def check_duplicates(collection: Collection) -> Iterator[LintFinding]:
    """Check for a file in two elements: it ends the build, or the hash order picks one."""
    seen: dict[str, list[Path]] = defaultdict(list)
    for element in collection.elements:
        for file in _copied(element):
            seen[str(file.relative_to(element))].append(element)
    # Of what several elements provide, an image has one provider.
    alternatives = {each.name: set(_provided(each)) for each in collection.elements}
    for name, elements in seen.items():
        # The first element may keep the name; each other one has a finding.
        for element in elements[1:]:
            first = elements[0].name
            # Elements that provide the same are never in one image.
            if not alternatives[first] & alternatives[element.name]:
                reason = f'the element "{first}" brings "{name}" too'
                mend = (
                    "give one another name, or let both provide the same, if one replaces the other"
                )
                yield finding(element / name, "duplicates", reason, mend)


def _copied(element: Path) -> Iterator[Path]:
    """Yield the files of an element that share a directory with those of others in a build."""
    yield from _scripts(element)
    yield from sorted((element / "environment.d").glob("*"))
    for tree in MERGED_DEEP:
        yield from (file for file in sorted((element / tree).rglob("*")) if file.is_file())


def _provided(element: Path) -> Iterator[str]:
    yield from (name for _, name in names_in(element / "element-provides"))
    for file in (element / "environment.d").glob("*"):
        if file.is_file() and line_with(file, r"^\s*export\s+DISTRO_NAME="):
            yield OS


def check_dependencies(collection: Collection) -> Iterator[LintFinding]:
    """Check that element-deps names elements that exist, each once."""
    names = collection.names()
    for element in collection.elements:
        file = element / "element-deps"
        first: dict[str, int] = {}
        for line, name in names_in(file):
            if reason := _misread(name):
                yield finding(file, "element-deps", reason, _ONE_NAME, line=line)
            elif name in first:
                reason = f'"{name}" appears twice'
                yield finding(file, "element-deps", reason, "remove one", line=line)
            elif name not in names:
                reason = f'there is no element "{name}"'
                mend = "mend the name, or name the directory that it is in by ELEMENTS_PATH"
                yield finding(file, "element-deps", reason, mend, line=line)
            first.setdefault(name, line)
        provides = element / "element-provides"
        for line, name in names_in(provides):
            if reason := _misread(name):
                yield finding(provides, "element-deps", reason, _ONE_NAME, line=line)


_ONE_NAME = "put each name on a line of its own, and comments into the README"


def _misread(line: str) -> str:
    """Return why diskimage-builder takes a line for another name than is meant, "" if it does not.

    It takes the whole line (``diskimage_builder/element_dependencies.py``).
    """
    if "#" in line:
        return f'a comment here is part of a name: diskimage-builder reads "{line}"'
    if len(line.split()) > 1:
        return f'diskimage-builder reads one name from a line, here "{line}"'
    return ""


def check_links(collection: Collection) -> Iterator[LintFinding]:
    """Check for dangling symbolic links, in place or once the element has been copied."""
    for element in collection.elements:
        for path in sorted(element.rglob("*")):
            if not path.is_symlink():
                continue
            if not path.exists():
                reason = f'this points to "{path.readlink()}", which is not there'
                yield finding(path, "links", reason, "mend it, or remove it")
            elif path.parent != element or not path.is_dir():
                reason = "this is copied as a link and dangles; dib follows top-level directories"
                yield finding(path, "links", reason, "put the file itself here")


def check_heat_config_hooks(collection: Collection) -> Iterator[LintFinding]:
    """Check that the programs in heat-config-hooks exist: ``<group> <file>``, ``bin``, ``lib``."""
    groups: dict[str, Path] = {}
    for element in collection.elements:
        file = element / "heat-config-hooks"
        if file.is_file():
            for number, line in enumerate(_lines(file), 1):
                for reason, mend in _hook_line_faults(collection, element, line, groups):
                    yield finding(file, "heat-config-hooks", reason, mend, line=number)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


_KINDS = '"<group> <file>", "lib <directory>" or "bin <file> <path>"'


def _hook_line_faults(
    collection: Collection, element: Path, line: str, groups: dict[str, Path]
) -> Iterator[tuple[str, str]]:
    """Yield the faults of a line, each with its fix.

    :param groups: the element of each group before it; this one's is added.
    """
    given = uncommented(line).split()
    if not given:
        return
    if len(given) != (3 if given[0] == "bin" else 2):
        yield f'"{line.strip()}": expected {_KINDS}', f"write it as {_KINDS}"
        return
    if given[0] == "bin" and not given[2].startswith("/"):
        yield f'"{given[2]}" is not an absolute path', f'write "/{given[2]}"'
    if given[0] not in ("bin", "lib"):
        if given[0] in groups:
            reason = f'the group "{given[0]}" is in "{groups[given[0]].name}" too'
            yield reason, "take another group, or remove the line"
        groups[given[0]] = element
    if collection.hooks is not None and not (collection.hooks / given[1]).exists():
        reason = f'there is no program "{given[1]}" in "{collection.hooks.name}"'
        yield reason, "mend the name, or name its directory by DIB_HEAT_HOOKS_DIR"


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


def element_findings(collection: Collection) -> list[LintFinding]:
    """Return all findings in a collection, sorted by file."""
    # A set, because two checks may find the same.
    listed = {finding for check in CHECKS for finding in check(collection)}
    return sorted(listed, key=lambda each: each.place)
