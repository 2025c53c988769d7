"""Fit a template for one run: its servers boot the image under test, with a key pair and a network.

In the embedded cloud IMAGE stands for every image that a template names, every key pair exists, and
a server needs no network; in another cloud the template has to name those of the run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.stacks.template import VERSIONS, Template

EC2 = "AWS::EC2::Instance"

#: A type of server -> the names of its properties, its image and its key pair.
PROPERTIES = {
    "OS::Nova::Server": ("properties", "image", "key_name"),
    EC2: ("Properties", "ImageId", "KeyName"),
}

#: The networks of a server that Nova chooses. Those that it makes for a project without any would
#: stay after the run.
AUTO = [{"allocate_network": "auto"}]


@dataclass(frozen=True)
class Fit:
    """The resources of a run, for the servers of its template.

    :param image: the id of the image that they boot.
    :param key_pair: the name of the key pair of those that name none.
    :param network: the id of the network of those that name none; "" leaves them without.
    :param subnet: the id of a subnet of it, by which ``AWS::EC2::Instance`` names a network.
    """

    image: str = ""
    key_pair: str = ""
    network: str = ""
    subnet: str = ""


def needs_network(template: Template) -> bool:
    """Return True when a server of the template, or of one that it names, names no network.

    Heat asks Nova with a microversion in which a request without networks is refused (2.37), so
    that no such server can be made.
    """
    bodies = filter(None, [template.template, *map(_nested, template.files.values())])
    return any(_is_open(server) for body in bodies for server in _servers_of(body))


def fitted(template: Template, fit: Fit) -> Template:
    """Return a template whose servers boot an image, with a key pair and a network.

    A parameter that only names the image or the key pair, and has no value, gets one: it may have
    a constraint of Heat's. Templates that it names are fitted in the same way.
    """
    # A copy: the template may be deployed again, in another cloud or try.
    body: dict[str, Any] = copy.deepcopy(dict(template.template))
    added = _fit(body, fit, given=template.given_parameters())
    files = {name: _fit_text(text, fit) for name, text in template.files.items()}
    return replace(
        template, template=body, files=files, parameters={**template.parameters, **added}
    )


def _fit(body: dict[str, Any], fit: Fit, *, given: Mapping[str, object]) -> dict[str, object]:
    """Change the servers of a template; return the parameters that get a value."""
    added: dict[str, object] = {}
    for server in _servers_of(body):
        where, of_image, of_key = PROPERTIES[_type(server)]
        if not isinstance(server.get(where), dict):
            server[where] = {}
        properties = server[where]
        if fit.network and _is_open(server):
            properties |= _connected(server, fit)
        if (name := _parameter(properties.get(of_image))) is not None:
            added[name] = fit.image
        # A server that boots from a volume needs no image.
        if "block_device_mapping_v2" not in properties or of_image in properties:
            properties[of_image] = fit.image
        if not properties.get(of_key):
            properties[of_key] = fit.key_pair
        elif (name := _parameter(properties[of_key])) is not None and name not in given:
            added[name] = fit.key_pair
    declared = body.get("parameters") or body.get("Parameters")
    if not isinstance(declared, Mapping):
        return {}
    # Heat refuses the value of a parameter that a template does not declare.
    return {name: value for name, value in added.items() if name in declared}


def _is_open(server: Mapping[str, Any]) -> bool:
    """Return True when a server leaves its network to the cloud."""
    properties = server.get(PROPERTIES[_type(server)][0])
    if not isinstance(properties, dict):
        return True
    if _type(server) == EC2:
        return not (properties.get("SubnetId") or properties.get("NetworkInterfaces"))
    return not properties.get("networks") or properties["networks"] == AUTO


def _connected(server: Mapping[str, Any], fit: Fit) -> dict[str, object]:
    """Return the properties that put a server on the network of the run."""
    if _type(server) == EC2:
        return {"SubnetId": fit.subnet}
    return {"networks": [{"network": fit.network}]}


def _servers_of(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each server of a template."""
    return _servers(body.get("resources") or body.get("Resources") or {})


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


def _fit_text(text: str, fit: Fit) -> str:
    """Return a file that a template names; a nested template is fitted."""
    body = _nested(text)
    if body is None:
        return text
    # The values of its parameters are in the template that names it.
    _fit(body, fit, given={})
    dumped: str = yaml.safe_dump(body, sort_keys=False)
    return dumped


def _nested(text: str) -> dict[str, Any] | None:
    """Return the nested template with servers that a file is, None for any other file."""
    # Before the text is parsed, because most files are no templates.
    if not any(each in text for each in VERSIONS):
        return None
    try:
        body = yaml_text.load(text)
    # No YAML, such as a script that contains one of these words.
    except yaml.YAMLError:
        return None
    if not isinstance(body, dict) or not set(VERSIONS) & set(body):
        return None
    return body if any(_servers_of(body)) else None
