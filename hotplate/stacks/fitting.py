"""Fit a template for one run: its servers boot the image under test and get a key pair.

In the embedded cloud IMAGE stands for every image that a template names, and every key pair
exists; in another cloud the template has to name the image and key pair of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from hotplate.stacks.template import Template

#: A type of server -> the names of its properties, its image and its key pair.
PROPERTIES = {
    "OS::Nova::Server": ("properties", "image", "key_name"),
    "AWS::EC2::Instance": ("Properties", "ImageId", "KeyName"),
}

VERSIONS = ("heat_template_version", "HeatTemplateFormatVersion", "AWSTemplateFormatVersion")


def fitted(template: Template, *, image: str, key_pair: str) -> Template:
    """Return a template whose servers boot an image, and get a key pair where they name none.

    A parameter that only names the image or the key pair, and has no value, gets one: it may have
    a constraint of Heat's. Templates that it names are fitted in the same way.

    :param image: the id of the image.
    :param key_pair: the name of the key pair.
    """
    # A copy: the template may be deployed again, in another cloud or try.
    body: dict[str, Any] = copy.deepcopy(dict(template.template))
    given = {**(template.environment.get("parameters") or {}), **template.parameters}
    added = _fit(body, image=image, key_pair=key_pair, given=given)
    files = {
        name: _fit_text(text, image=image, key_pair=key_pair)
        for name, text in template.files.items()
    }
    return replace(
        template, template=body, files=files, parameters={**template.parameters, **added}
    )


def _fit(
    body: dict[str, Any], *, image: str, key_pair: str, given: Mapping[str, object]
) -> dict[str, object]:
    """Change the servers of a template; return the parameters that get a value."""
    added: dict[str, object] = {}
    for server in _servers(body.get("resources") or body.get("Resources") or {}):
        _, of_image, of_key = PROPERTIES[_type(server)]
        where = PROPERTIES[_type(server)][0]
        if not isinstance(server.get(where), dict):
            server[where] = {}
        properties = server[where]
        if (name := _parameter(properties.get(of_image))) is not None:
            added[name] = image
        # A server that boots from a volume needs no image.
        if "block_device_mapping_v2" not in properties or of_image in properties:
            properties[of_image] = image
        if not properties.get(of_key):
            properties[of_key] = key_pair
        elif (name := _parameter(properties[of_key])) is not None and name not in given:
            added[name] = key_pair
    declared = body.get("parameters") or body.get("Parameters") or {}
    # Heat refuses the value of a parameter that a template does not declare.
    return {name: value for name, value in added.items() if name in declared}


def _servers(value: object) -> Iterator[dict[str, Any]]:
    """Yield each server anywhere in the resources, also in the ``resource_def`` of a group."""
    if isinstance(value, dict):
        if _type(value) in PROPERTIES:
            yield value
        for each in value.values():
            yield from _servers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _servers(each)


def _type(value: Mapping[str, Any]) -> str:
    kind = value.get("type", value.get("Type"))
    return kind if isinstance(kind, str) else ""


def _parameter(value: object) -> str | None:
    """Return the name of the parameter that a property refers to, or None."""
    if isinstance(value, dict) and len(value) == 1:
        for function in ("get_param", "Ref"):
            if isinstance(name := value.get(function), str):
                return name
    return None


def _fit_text(text: str, *, image: str, key_pair: str) -> str:
    """Return a file that a template names; a nested template is fitted."""
    # Before the text is parsed, because most files are no templates.
    if not any(each in text for each in VERSIONS):
        return text
    try:
        body = yaml.safe_load(text)
    # No YAML, such as a script that contains one of these words.
    except yaml.YAMLError:
        return text
    if not isinstance(body, dict) or not set(VERSIONS) & set(body):
        return text
    # The values of its parameters are in the template that names it.
    if not any(_servers(body.get("resources") or body.get("Resources") or {})):
        return text
    _fit(body, image=image, key_pair=key_pair, given={})
    dumped: str = yaml.safe_dump(body, sort_keys=False)
    return dumped
