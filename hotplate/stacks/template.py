"""A template as it is sent to Heat: its text, the files it names, environments and parameters."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hotplate.errors import TemplateError, UsageError

BUILTIN = Path(__file__).parent / "templates" / "script.yaml"

CFN_VERSION = {"HeatTemplateFormatVersion": "2012-12-12"}
"""What Heat took a CloudFormation template for that names no version, when such were written; it
does not any more."""

Expectation = Callable[[Mapping[str, Any]], Sequence[str]]
"""Given the stack's outputs, the sentences that say what is wrong with them."""


@dataclass(frozen=True)
class Template:
    """What python-heatclient sends when a stack is made.

    :param source: the file it was read from, for people.
    :param files: the contents of the files it names, by the URL that Heat knows them by.
    :param expect: what the outputs have to be.
    :param expect_guest: what has to be true in each guest, asked of its testinfra host.
    :param expect_status: how the stack has to end.
    """

    source: str
    template: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    expect: Expectation | None = None
    expect_guest: Callable[[Any], Sequence[str]] | None = None
    expect_status: str = "CREATE_COMPLETE"

    def create_arguments(self) -> dict[str, Any]:
        """Return the arguments of heatclient's ``stacks.create`` and ``stacks.update``."""
        return {
            "template": dict(self.template),
            "files": dict(self.files),
            "environment": dict(self.environment),
            "parameters": dict(self.parameters),
        }

    def hidden_values(self) -> set[str]:
        """Return the values of the parameters that the template says are not to be shown."""
        declared = self.template.get("parameters") or self.template.get("Parameters") or {}
        given = {**(self.environment.get("parameters") or {}), **self.parameters}
        return {
            str(value)
            for name, each in declared.items()
            if isinstance(each, Mapping) and _is_hidden(each)
            if (value := given.get(name, each.get("default", each.get("Default")))) is not None
        }


def load(
    path: Path,
    *,
    parameters: Mapping[str, Any] | None = None,
    environments: Sequence[Path] = (),
    inline: Mapping[str, Any] | None = None,
) -> Template:
    """Read a template as ``openstack stack create`` does, with ``get_file`` and nested templates.

    :param inline: the template itself, when ``path`` only is the file that it stands in.
    :raises UsageError: when it is not there.
    :raises TemplateError: when it, or a file that it names, cannot be read.
    """
    # Loaded here: heatclient takes a second, and most of hotplate does without it.
    from heatclient import exc
    from heatclient.common import template_utils

    for each in (path, *environments):
        if not each.is_file():
            raise UsageError(f'the file "{each}" does not exist or is not a file')
    try:
        template = None if inline is not None else _without_version(path)
        if inline is not None:
            url = path.absolute().as_uri()
            files, template = template_utils.get_template_contents(
                template_object=url, object_request=_inline(url, inline)
            )
        elif template is not None:
            # heatclient looks for files in HOT only.
            files, template = {}, {**CFN_VERSION, **template}
        else:
            files, template = template_utils.get_template_contents(str(path.absolute()))
        env_files, environment = template_utils.process_multiple_environments_and_files(
            [str(each.absolute()) for each in environments]
        )
    except exc.CommandError as error:
        raise TemplateError(f'the template "{path}" cannot be used: {_one_line(error)}') from error
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise TemplateError(
            f'the template "{path}" cannot be read as YAML or JSON, '
            f"or a file that it names cannot be read: {_one_line(error)}"
        ) from error
    return Template(
        source=str(path),
        template=template,
        files={**files, **env_files},
        environment=environment or {},
        parameters=dict(parameters or {}),
    )


def _is_hidden(parameter: Mapping[str, Any]) -> bool:
    """HOT's ``hidden``, and ``NoEcho`` of CloudFormation."""
    return str(parameter.get("hidden", parameter.get("NoEcho", ""))).lower() == "true"


def _without_version(path: Path) -> dict[str, Any] | None:
    """Return a CloudFormation template that has no word of its version, or None."""
    try:
        template = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError:
        # What is wrong with it heatclient tells.
        return None
    versions = {*CFN_VERSION, "AWSTemplateFormatVersion", "heat_template_version"}
    if isinstance(template, dict) and "Resources" in template and not versions & set(template):
        return template
    return None


def _inline(template_url: str, template: Mapping[str, Any]) -> Callable[[str, str], str]:
    """How heatclient gets a template that stands in another file, and the files it names."""

    def get(_method: str, url: str) -> str:
        if url == template_url:
            return json.dumps(dict(template), default=str)
        with urllib.request.urlopen(url) as answer:  # noqa: S310
            return str(answer.read().decode())

    return get


def builtin() -> Template:
    """Return the template that tries the script hook: inputs go in, outputs come back."""
    word = f"hotplate-{secrets.token_hex(4)}"
    loaded = load(BUILTIN, parameters={"word": word})

    def expect(outputs: Mapping[str, Any]) -> list[str]:
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
    """``name=value`` words as a mapping.

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
