"""Tests in YAML: a template, and the expected state once its stack is complete.

::

    template: web.yaml              # beside this file, or a whole template in its place
    parameters:
      port: 80
    expect:
      status: CREATE_COMPLETE       # the default
      outputs:
        url: {matches: "^http://"}
      files:
        /etc/motd: {contains: hello, mode: "0644", owner: root}
        /tmp/left: absent
      packages:
        apache2: installed
      services:
        apache2: {running: true, enabled: true}
      commands:
        "curl -s localhost": {status: 0, stdout: {contains: hello}}

An expected text is compared without trailing newlines; ``contains``, ``matches`` (a regular
expression) and ``equals`` select another comparison.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate.errors import HotplateError, UsageError
from hotplate.stacks import document as documents
from hotplate.stacks import template as templates
from hotplate.stacks.template import Template
from hotplate.timing.deadline import DeadlineExceeded

if TYPE_CHECKING:
    from testinfra.host import Host

STATUSES = ("CREATE_COMPLETE", "CREATE_FAILED")
WAYS = ("equals", "contains", "matches")
TOP = ("template", "parameters", "environments", "expect")


@dataclass(frozen=True)
class Check:
    """One property to check of a file, package, service or command.

    :param name: the key in the YAML.
    :param kind: ``flag`` true or false, ``number``, ``text`` (a text, or a way to compare one).
    :param ask: gets it from testinfra's object.
    """

    name: str
    kind: str
    ask: Callable[[Any], Any]


@dataclass(frozen=True)
class Section:
    """One section below ``expect``.

    :param one: the noun for one entry.
    :param find: gets testinfra's object from the host by the entry's name.
    :param words: short forms, such as ``installed`` for ``{installed: true}``.
    """

    one: str
    find: Callable[[Host, str], Any]
    checks: tuple[Check, ...]
    words: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def check(self, name: str) -> Check:
        """Return the check of that name."""
        return next(each for each in self.checks if each.name == name)


SECTIONS: Mapping[str, Section] = {
    "files": Section(
        "the file",
        lambda host, name: host.file(name),
        (
            Check("exists", "flag", lambda file: file.exists),
            Check("directory", "flag", lambda file: file.is_directory),
            Check("mode", "text", lambda file: f"{file.mode:04o}"),
            Check("owner", "text", lambda file: file.user),
            Check("group", "text", lambda file: file.group),
            Check("size", "number", lambda file: file.size),
            Check("content", "text", lambda file: file.content_string),
            Check("link", "text", lambda file: file.linked_to),
        ),
        {"present": {"exists": True}, "absent": {"exists": False}},
    ),
    "packages": Section(
        "the package",
        lambda host, name: host.package(name),
        (
            Check("installed", "flag", lambda package: package.is_installed),
            Check("version", "text", lambda package: package.version),
        ),
        {"installed": {"installed": True}, "absent": {"installed": False}},
    ),
    "services": Section(
        "the service",
        lambda host, name: host.service(name),
        (
            Check("running", "flag", lambda service: service.is_running),
            Check("enabled", "flag", lambda service: service.is_enabled),
        ),
        {
            "running": {"running": True},
            "stopped": {"running": False},
            "enabled": {"enabled": True},
            "disabled": {"enabled": False},
        },
    ),
    "commands": Section(
        "the command",
        lambda host, name: host.run(name),
        (
            Check("status", "number", lambda result: result.rc),
            Check("stdout", "text", lambda result: result.stdout),
            Check("stderr", "text", lambda result: result.stderr),
        ),
        {"succeeds": {"status": 0}},
    ),
}


@dataclass(frozen=True)
class Expected:
    """The content of an ``expect:``.

    :param status: the expected status of the stack.
    :param outputs: by name, a value or a comparison.
    :param guest: section -> entry -> check -> the expected value.
    """

    status: str = STATUSES[0]
    outputs: Mapping[str, object] = field(default_factory=dict)
    guest: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)

    def of_outputs(self, outputs: Mapping[str, object]) -> list[str]:
        """Return the problems of the stack's outputs, in sentences."""
        problems = []
        for name, wanted in self.outputs.items():
            if name not in outputs:
                problems.append(f'there is no output "{name}"; expected {_wanted(wanted)}')
            elif not matches(outputs[name], wanted):
                actual = _shown(outputs[name])
                problems.append(f'output "{name}" is {actual}; expected {_wanted(wanted)}')
        return problems

    def of_guest(self, host: Host) -> list[str]:
        """Return the problems of a guest, in sentences.

        :param host: testinfra's.
        :raises HotplateError: when the guest cannot be asked at all.
        """
        problems = []
        for kind, entries in self.guest.items():
            for name, wanted in entries.items():
                problems += _look(SECTIONS[kind], name, wanted, host)
        return problems


def _look(section: Section, name: str, wanted: Mapping[str, object], host: Host) -> list[str]:
    what = f'{section.one} "{name}"'
    try:
        thing = section.find(host, name)
        if section.one == "the file" and wanted.get("exists", True) and not thing.exists:
            return [f"{what} does not exist"]
    except (HotplateError, DeadlineExceeded):
        raise
    except Exception as error:
        return [f"{what} cannot be checked: {_why(error)}"]
    checks = ((section.check(key), value) for key, value in wanted.items())
    return [
        f"{what}: its {check.name} {problem}"
        for check, value in checks
        if (problem := _compare(check, thing, value))
    ]


def _compare(check: Check, thing: object, wanted: object) -> str:
    """Return the problem of one property, "" when it is as expected."""
    try:
        actual = check.ask(thing)
    except (HotplateError, DeadlineExceeded):
        # When the guest cannot be asked, the remaining checks cannot be made either.
        raise
    except Exception as error:
        # testinfra raises any exception, NotImplementedError and ValueError among them.
        return f"cannot be checked: {_why(error)}"
    if matches(actual, wanted):
        return ""
    return f"is {_shown(actual)}; expected {_wanted(wanted)}"


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def matches(actual: object, wanted: object) -> bool:
    """Return True when a value is as wanted."""
    if isinstance(wanted, Mapping) and set(wanted) & set(WAYS) and set(wanted) <= set(WAYS):
        text = actual if isinstance(actual, str) else json.dumps(actual)
        return all(
            (how != "equals" or _same(actual, what))
            and (how != "contains" or str(what) in text)
            and (how != "matches" or re.search(str(what), text, re.MULTILINE) is not None)
            for how, what in wanted.items()
        )
    return _same(actual, wanted)


def _same(actual: object, wanted: object) -> bool:
    if isinstance(actual, str) and isinstance(wanted, str):
        return actual.rstrip("\n") == wanted.rstrip("\n")
    # Of one type as well: 1 is neither true nor 1.0.
    return type(actual) is type(wanted) and bool(actual == wanted)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 200 else f"{text[:200]} ..."


def _wanted(value: object) -> str:
    if isinstance(value, Mapping) and set(value) <= set(WAYS):
        return " and ".join(f"that it {how} {_shown(what)}" for how, what in value.items())
    return _shown(value)


# -- reading ---------------------------------------------------------------------------------


def load(
    path: Path, *, parameters: Mapping[str, object] | None = None, environments: Sequence[Path] = ()
) -> Template:
    """Read a template, or a file with a template and its expectations.

    :param parameters: those of the command line, which go before those of the file.
    :param environments: those of the command line, behind those of the file.
    :raises TemplateError: when it, or a file that it names, cannot be used; names the place.
    """
    document = documents.read(path)
    content = document.content
    # A plain template has no such key at its top.
    if not (isinstance(content, dict) and "expect" in content):
        return templates.make(path, content, parameters=parameters, environments=environments)
    if document.twice:
        raise UsageError(document.twice)
    _keys(path, "", content, TOP)
    expected = parse(path, content["expect"])
    named = content.get("parameters") or {}
    _mapping(path, "parameters", named)
    files = content.get("environments") or []
    if not isinstance(files, list) or not all(isinstance(each, str) for each in files):
        raise _wrong(path, "environments", files, "a list of file names")
    named = {**named, **(parameters or {})}
    files = [*(path.parent / each for each in files), *environments]
    inner = content.get("template")
    if isinstance(inner, str):
        loaded = templates.load(path.parent / inner, parameters=named, environments=files)
    elif isinstance(inner, dict):
        loaded = templates.make(path, inner, parameters=named, environments=files)
    else:
        raise _wrong(path, "template", inner, "the name of a file, or a template")
    return replace(with_expected(loaded, expected), source=str(path))


def with_expected(template: Template, expected: Expected) -> Template:
    """Return a template of which that is expected."""
    return replace(
        template,
        expect=expected.of_outputs,
        expect_guest=expected.of_guest if expected.guest else None,
        expect_status=expected.status,
    )


def parse(path: Path, document: Any) -> Expected:
    """Read the map below ``expect:``.

    :param path: for the sentences.
    :raises UsageError: for unknown keys and values of the wrong kind; names the place.
    """
    document = {} if document is None else document
    _keys(path, "expect", document, ("status", "outputs", *SECTIONS))
    status = document.get("status", STATUSES[0])
    if status not in STATUSES:
        raise _wrong(path, "expect.status", status, f"one of {', '.join(STATUSES)}")
    outputs = document.get("outputs") or {}
    _mapping(path, "expect.outputs", outputs)
    for name, value in outputs.items():
        _way(path, f"expect.outputs.{name}", value)
    guest = {}
    for kind, section in SECTIONS.items():
        entries = document.get(kind) or {}
        _mapping(path, f"expect.{kind}", entries)
        if entries:
            guest[kind] = {
                str(name): _entry(path, f"expect.{kind}.{name}", section, value)
                for name, value in entries.items()
            }
    return Expected(status=status, outputs=outputs, guest=guest)


def _entry(path: Path, where: str, section: Section, value: object) -> Mapping[str, object]:
    if isinstance(value, str) and value in section.words:
        return section.words[value]
    names = [each.name for each in section.checks]
    if not isinstance(value, dict):
        raise _wrong(
            path, where, value, f"one of {', '.join(section.words)}, or a map of {', '.join(names)}"
        )
    entry = dict(value)
    if section.one == "the file" and (ways := {k: entry.pop(k) for k in WAYS if k in entry}):
        # {contains: hello} is about the content of the file.
        entry["content"] = ways
    _keys(path, where, entry, (*names, *(WAYS if section.one == "the file" else ())))
    for key, wanted in entry.items():
        kind = section.check(key).kind
        if kind == "flag" and not isinstance(wanted, bool):
            raise _wrong(path, f"{where}.{key}", wanted, "true or false")
        # bool is a subclass of int.
        if kind == "number" and (not isinstance(wanted, int) or isinstance(wanted, bool)):
            raise _wrong(path, f"{where}.{key}", wanted, "a whole number")
        if kind == "text":
            if not isinstance(wanted, (str, dict)):
                raise _wrong(path, f"{where}.{key}", wanted, 'a text in quotes, such as "0644"')
            if isinstance(wanted, dict):
                _keys(path, f"{where}.{key}", wanted, WAYS)
            _way(path, f"{where}.{key}", wanted)
    return entry


def _way(path: Path, where: str, value: object) -> None:
    if isinstance(value, dict) and "matches" in value:
        # Now, and not when a guest has booted for it.
        try:
            re.compile(str(value["matches"]))
        except re.error as error:
            raise _wrong(
                path, f"{where}.matches", value["matches"], f"a regular expression ({error})"
            ) from error


def _mapping(path: Path, where: str, value: object) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, where, value, "a map")


def _keys(path: Path, where: str, value: Any, allowed: Sequence[str]) -> None:
    _mapping(path, where or "the file", value)
    for key in value:
        if key not in allowed:
            place = f'"{where}.{key}"' if where else f'"{key}"'
            raise UsageError(
                f'{place} in "{path}" is not known; expected one of {", ".join(allowed)}'
            )


def _wrong(path: Path, where: str, value: object, expected: str) -> UsageError:
    return UsageError(f'"{where}" in "{path}" is {_shown(value)}; expected {expected}')
