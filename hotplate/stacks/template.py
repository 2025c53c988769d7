"""A template as sent to Heat: its text, the files it names, environments and parameters."""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import os
import secrets
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import TemplateError, UsageError
from hotplate.stacks import document as documents

BUILTIN = Path(__file__).parent / "templates" / "script.yaml"

#: The version that old Heat assumed for a CloudFormation template without one; today's Heat
#: refuses such a template.
CFN_VERSION = {"HeatTemplateFormatVersion": "2012-12-12"}

VERSIONS = ("heat_template_version", "HeatTemplateFormatVersion", "AWSTemplateFormatVersion")

#: Maximum size of a file that a template names: that of a request with lifted limits.
MAX_FILE = 64 << 20

#: Seconds that a server may be silent from which a template fetches a file.
FETCH_TIMEOUT = 60

#: Replaces the value of a hidden parameter.
MASK = "***"

#: Takes the stack's outputs, and returns the problems as sentences.
Expectation = Callable[[Mapping[str, object]], Sequence[str]]


@dataclass(frozen=True)
class Template:
    """The arguments with which python-heatclient creates a stack.

    :param source: the file it was read from, for people.
    :param files: the contents of the files it names, by the URL that Heat knows them by.
    :param expect: checks the outputs.
    :param expect_guest: checks each guest, given its testinfra host.
    :param expect_status: the expected status of the stack.
    """

    source: str
    template: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, object] = field(default_factory=dict)
    expect: Expectation | None = None
    expect_guest: Callable[[object], Sequence[str]] | None = None
    expect_status: str = "CREATE_COMPLETE"

    def create_arguments(self) -> dict[str, object]:
        """Return the arguments of heatclient's ``stacks.create`` and ``stacks.update``."""
        return {
            "template": dict(self.template),
            "files": dict(self.files),
            "environment": dict(self.environment),
            "parameters": dict(self.parameters),
        }

    def hidden_values(self) -> set[str]:
        """Return the values of the parameters that the template declares hidden, and their parts.

        The parts are the values in a ``json`` and the items of a ``comma_delimited_list``.
        """
        given = self.given_parameters()
        return {
            text
            for name, each in self._hidden().items()
            for text in _texts(given.get(name, _default(each)), each)
        }

    def given_parameters(self) -> dict[str, object]:
        """Return the values that parameters get from the request or from the environment."""
        given: dict[str, object] = {}
        # As in Heat, which refuses any other kind: those of the request go first.
        for section in ("parameter_defaults", "parameters"):
            if isinstance(named := self.environment.get(section), Mapping):
                given |= named
        return given | dict(self.parameters)

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters with the values of hidden ones masked."""
        masked = dict.fromkeys(self._hidden(), MASK)
        return {name: masked.get(name, value) for name, value in self.parameters.items()}

    def check_json(self) -> None:
        """Check the parameters with JSON as text: Heat's engine fails on deep nesting.

        :raises TemplateError: names a parameter that is nested too deeply.
        """
        given = self.given_parameters()
        for name, each in self._declared().items():
            value = given.get(name, _default(each))
            if _kind(each) != "json" or not isinstance(value, str):
                continue
            try:
                # Heat reports what is not JSON.
                with contextlib.suppress(ValueError):
                    yaml_text.check(json.loads(value))
            except (RecursionError, yaml_text.ExpansionError) as error:
                raise TemplateError(
                    f'the template "{self.source}" cannot be used: its parameter "{name}" is '
                    f"nested too deeply; expected at most {yaml_text.MAX_DEPTH} levels"
                ) from error

    def _hidden(self) -> dict[str, Mapping[str, object]]:
        """Return the declarations of the hidden parameters."""
        return {name: each for name, each in self._declared().items() if _is_hidden(each)}

    def _declared(self) -> dict[str, Mapping[str, object]]:
        """Return the declarations of the parameters."""
        declared = self.template.get("parameters") or self.template.get("Parameters")
        if not isinstance(declared, Mapping):
            # Heat refuses any other kind.
            return {}
        return {str(name): each for name, each in declared.items() if isinstance(each, Mapping)}


def load(
    path: Path,
    *,
    parameters: Mapping[str, object] | None = None,
    environments: Sequence[Path] = (),
) -> Template:
    """Read a template as ``openstack stack create`` does, with ``get_file`` and nested templates.

    :raises UsageError: when it does not exist.
    :raises TemplateError: when it, or a file that it names, cannot be read.
    """
    document = documents.read(path)
    return make(path, document.content, parameters=parameters, environments=environments)


def make(
    path: Path,
    content: object,
    *,
    parameters: Mapping[str, object] | None = None,
    environments: Sequence[Path] = (),
) -> Template:
    """Make a template of parsed content; see :func:`load`.

    :param path: the template's file; the files that it names are looked up beside it.
    """
    # Imported here: heatclient takes a second to load, and most of hotplate does not need it.
    from heatclient import exc
    from heatclient.common import template_utils, utils

    for each in environments:
        if not each.is_file():
            raise UsageError(f'the file "{each}" does not exist or is not a file')
    template = _with_version(path, content)
    files: dict[str, str | bytes] = {}
    environment_urls = [each.resolve().as_uri() for each in environments]

    def read(_method: str, url: str) -> bytes:
        return _read(path, url, is_environment=url in environment_urls)

    try:
        # "object": read by a function of ours, and not by heatclient without a limit.
        template_utils.resolve_template_get_files(
            template,
            files,
            utils.base_url_for_url(path.absolute().as_uri()),
            is_object=True,
            object_request=read,
        )
        env_files, environment = template_utils.process_multiple_environments_and_files(
            environment_urls, env_path_is_object=lambda _: True, object_request=read
        )
    except RecursionError as error:
        raise TemplateError(
            f'the template "{path}" cannot be used: it names itself, directly or through another '
            "file, or is nested too deeply"
        ) from error
    except exc.CommandError as error:
        raise TemplateError(f'the template "{path}" cannot be used: {_one_line(error)}') from error
    # heatclient passes on the errors of reading and parsing.
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        raise TemplateError(
            f'a file that the template "{path}" names cannot be read: {_one_line(error)}'
        ) from error
    made = Template(
        source=str(path),
        template=template,
        files={url: _text(each) for url, each in {**files, **env_files}.items()},
        environment=environment or {},
        parameters=dict(parameters or {}),
    )
    made.check_json()
    return made


def _read(template: Path, url: str, *, is_environment: bool) -> bytes:
    """Return the content of a file that a template or an environment names.

    :return: as heatclient's ``read_url_content``: in base64 when it is not UTF-8.
    :raises TemplateError: when it has no end, is too large, or cannot be read or expanded.
    """
    from heatclient.common import template_format

    name = url
    try:
        request = urllib.request.Request(url)  # noqa: S310  as heatclient
        if request.type == "file":
            name = urllib.request.url2pathname(request.selector)
            # A device has no end, and a FIFO waits for its writer.
            if Path(name).exists() and not Path(name).is_file():
                raise _unusable(template, name, "it is not a regular file")
        with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT) as stream:  # noqa: S310
            if request.type == "file":
                # /proc/kmsg and trace_pipe pass for regular files, and wait for more at their end.
                os.set_blocking(stream.fileno(), False)
            data: bytes = stream.read(MAX_FILE + 1)
            # None: a read would wait.
            if data is None or stream.read(1) is None:
                raise _unusable(template, name, "it has no end")
    # ValueError: not a URL.
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unusable(template, name, _one_line(error)) from error
    if len(data) > MAX_FILE:
        raise _unusable(template, name, f"it is larger than {MAX_FILE >> 20} MiB")
    try:
        text = data.decode()
    except ValueError as error:
        if is_environment:
            raise _unusable(template, name, _one_line(error)) from error
        return base64.encodebytes(data)
    # heatclient parses every file, to see whether it is a template, and resolves its merges ("<<");
    # environments and templates are expanded by their readers, too.
    if is_environment or any(each in text for each in ("<<", *VERSIONS)):
        try:
            content = yaml_text.construct(template_format.yaml_loader(text))
        except yaml_text.ExpansionError as error:
            raise _unusable(template, name, _one_line(error)) from error
        except yaml.YAMLError as error:
            if is_environment:
                raise _unusable(template, name, _one_line(error)) from error
            # No YAML, such as a script; heatclient reports it in a file that has to be.
            return data
        if is_environment and (why := _misshapen(content)):
            raise _unusable(template, name, why)
    return data


def _misshapen(environment: object) -> str:
    """Return what heatclient could not take in an environment, "" for nothing; Heat checks more."""
    if environment is None:
        return ""
    if not isinstance(environment, Mapping):
        return "expected a map at its top"
    registry = environment.get("resource_registry")
    if registry is None:
        return ""
    if not isinstance(registry, Mapping):
        return "resource_registry: expected a map"
    resources = registry.get("resources", {})
    if not isinstance(resources, Mapping) or not all(
        isinstance(each, Mapping) for each in resources.values()
    ):
        return "resource_registry: resources: expected a map of maps"
    wrong = [each for each, value in registry.items() if not isinstance(value, (str, Mapping))]
    return f'resource_registry: "{wrong[0]}": expected a type or a file' if wrong else ""


def _unusable(template: Path, name: str, why: str) -> TemplateError:
    return TemplateError(
        f'the template "{template}" cannot be used: the file "{name}" cannot be read: {why}'
    )


def _is_hidden(parameter: Mapping[str, object]) -> bool:
    """Return True when HOT's ``hidden`` or CloudFormation's ``NoEcho`` is set."""
    # CloudFormation's templates have it as text too.
    return str(parameter.get("hidden", parameter.get("NoEcho", ""))).lower() == "true"


def _default(parameter: Mapping[str, object]) -> object:
    return parameter.get("default", parameter.get("Default"))


def _kind(parameter: Mapping[str, object]) -> str:
    return str(parameter.get("type", parameter.get("Type", ""))).lower()


def _texts(value: object, declared: Mapping[str, object] | None = None) -> Iterator[str]:
    """Yield the value of a parameter and all values in it as texts.

    :param declared: its declaration; a list or JSON may be given as one text.
    """
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None:
        yield str(value)
        kind = _kind(declared or {})
        with contextlib.suppress(ValueError):
            if kind == "json":
                yield from _texts(json.loads(str(value)))
            elif kind in ("comma_delimited_list", "commadelimitedlist"):
                yield from (each.strip() for each in str(value).split(","))


def _text(content: str | bytes) -> str:
    """Return a file's text; heatclient gives bytes, those of binary content in base64."""
    return content if isinstance(content, str) else content.decode()


def _with_version(path: Path, content: object) -> dict[str, object]:
    """Return a copy of a template; one of CloudFormation may lack its version."""
    if not isinstance(content, Mapping):
        raise TemplateError(f'the template "{path}" cannot be used: expected a map at its top')
    template: dict[str, object] = copy.deepcopy(dict(content))
    if set(VERSIONS) & set(template):
        return template
    if "Resources" in template:
        return {**CFN_VERSION, **template}
    raise TemplateError(
        f'the template "{path}" cannot be used: it has no version',
        hint="heat_template_version: 2018-08-31",
    )


def builtin() -> Template:
    """Return the template that tries the script hook: inputs go in, outputs come back."""
    # New in each run: no output of an earlier one passes for its output.
    word = f"hotplate-{secrets.token_hex(4)}"
    loaded = load(BUILTIN, parameters={"word": word})

    def expect(outputs: Mapping[str, object]) -> list[str]:
        wanted = {"word": word, "status_code": 0, "stderr": "script warned\n"}
        problems = [
            f'output "{name}" is {json.dumps(outputs.get(name))}, expected {json.dumps(value)}'
            for name, value in wanted.items()
            if outputs.get(name) != value
        ]
        stdout = str(outputs.get("stdout"))
        problems += [
            f'output "stdout" does not contain {part!r}'
            for part in ("script started\n", "number=42 ", '"fruit": ["apple", "pear"]')
            if part not in stdout
        ]
        return problems

    return Template(
        source="the built-in template",
        template=loaded.template,
        files=loaded.files,
        parameters=loaded.parameters,
        expect=expect,
    )


def parse_parameters(words: Sequence[str]) -> dict[str, str]:
    """Return ``name=value`` words as a mapping.

    :raises UsageError: for a word without ``=`` or a name.
    """
    result = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(
                f'the parameter "{word}" is not of the form name=value', hint="-P name=value"
            )
        result[name] = value
    return result


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
