"""The built-in case of each group of an image, deployed when no template is named.

All of them form one stack with one server, so that an image boots once.  ``templates/script.yaml``
has the case of ``script``, ``templates/groups.yaml`` those of the others, ``templates/plain.yaml``
the test of an image without an agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotplate.stacks import template as templates
from hotplate.stacks.template import Template

FILE = Path(__file__).parent / "templates" / "groups.yaml"
PLAIN = FILE.with_name("plain.yaml")
#: The name shown for the template of an image without an agent.
PLAIN_SOURCE = "the built-in test of an OpenStack image"

SCRIPT = "script"
SERVER = "server"
CONTAINER = "container"
FILES = "files"


@dataclass(frozen=True)
class BuiltinCase:
    """The deployments of one group.

    :param resources: the deployments, each of which has a config of its name.
    :param also: the group that some of the resources need as well -> these.
    :param leaves: the file that contains the word in the end, which the group ``script`` reads.
    :param answers: whether an output of the stack, called as the group, has the word.
    """

    resources: tuple[str, ...]
    also: Mapping[str, tuple[str, ...]]
    leaves: str = ""
    answers: bool = False

    def deployments(self, groups: Sequence[str]) -> list[str]:
        """Return the deployments that an image with these groups can take."""
        more = [name for group, names in self.also.items() if group in groups for name in names]
        return [*self.resources, *more]

    def waits_for_answer(self, groups: Sequence[str]) -> bool:
        """Return True when an image with these groups gives the word back."""
        return self.answers and all(group in groups for group in self.also)


#: Group -> its case, for each but ``script``.
CASES: Mapping[str, BuiltinCase] = {
    "hiera": BuiltinCase(("hiera",), {"puppet": ("hiera_read",)}, answers=True),
    "puppet": BuiltinCase(("puppet",), {}, answers=True),
    "salt": BuiltinCase(("salt",), {}, answers=True),
    "ansible": BuiltinCase(("ansible",), {}, answers=True),
    "cfn-init": BuiltinCase(("cfn_init",), {}, "/etc/hotplate-test-cfn-init"),
    "json-file": BuiltinCase(("json_file",), {}, "/etc/hotplate-test.json"),
    "apply-config": BuiltinCase(("apply_config",), {}),
    "chef": BuiltinCase(("chef",), {}),
    "chef-solo": BuiltinCase(("chef_solo",), {}),
    "docker-cmd": BuiltinCase((), {SCRIPT: (CONTAINER, "docker_cmd")}, answers=True),
    "docker-compose": BuiltinCase(
        (), {SCRIPT: (CONTAINER, "docker_compose")}, "/run/hotplate-test/docker-compose"
    ),
}

#: The groups that have a built-in case.
GROUPS = (SCRIPT, *CASES)


def testable(groups: Sequence[str]) -> list[str]:
    """Return those of an image's groups whose built-in case it can run.

    >>> testable(["docker-cmd", "hiera", "of-your-own"])
    ['hiera']

    :param groups: all groups of the image.
    """
    return [
        each
        for each in GROUPS
        if each in groups and (each == SCRIPT or CASES[each].deployments(groups))
    ]


def is_script(groups: Sequence[str]) -> bool:
    """Return True when a script is all that is deployed."""
    return list(groups) in ([], [SCRIPT])


def source(groups: Sequence[str]) -> str:
    """Return the name of these groups' template, for people.

    >>> source(["script"]), source(["script", "salt"])
    ('the built-in template', 'the built-in cases of script, salt')
    """
    if is_script(groups):
        return "the built-in template"
    return f"the built-in cases of {', '.join(groups)}"


def plain() -> Template:
    """Return the template that tries an image without an agent: one server, no deployments."""
    return replace(templates.load(PLAIN), source=PLAIN_SOURCE)


def of(groups: Sequence[str], *, there: Sequence[str] = ()) -> Template:
    """Return the template that tries these groups, with the expectations of its stack.

    :param groups: of :data:`GROUPS`; none is the same as ``script``.
    :param there: all groups of the image; some check the results of others.
    """
    script = templates.builtin()
    if is_script(groups):
        return script
    there = [*groups, *there]
    loaded = templates.load(FILE, parameters=script.parameters)
    chosen = {group: CASES[group] for group in groups if group != SCRIPT}
    part = _part(loaded.template, chosen, there)
    parts = [script.template, part] if SCRIPT in groups else [part]
    word = str(script.parameters["word"])
    answering = [group for group, each in chosen.items() if each.waits_for_answer(there)]

    def expect(outputs: Mapping[str, object]) -> list[str]:
        own = script.expect(outputs) if script.expect and SCRIPT in groups else []
        return [*own, *_without_answer(outputs, answering, word)]

    return replace(loaded, source=source(groups), template=_merged(parts), files={}, expect=expect)


def _without_answer(outputs: Mapping[str, object], groups: Sequence[str], word: str) -> list[str]:
    """Return a sentence for each group whose hook did not give the word back."""
    return [
        f'output "{group}" is {json.dumps(outputs.get(group))}, expected "{group} {word}"'
        for group in groups
        # A tool may end its output with a newline.
        if str(outputs.get(group)).strip() != f"{group} {word}"
    ]


def _part(
    whole: Mapping[str, Any], chosen: Mapping[str, BuiltinCase], there: Sequence[str]
) -> dict[str, Any]:
    """Return the part of the template with the chosen cases."""
    names = [name for each in chosen.values() for name in each.deployments(there)]
    left = {group: each.leaves for group, each in chosen.items() if each.leaves}
    if left and SCRIPT in there:
        names.append(FILES)
    wanted = {SERVER, *names, *(f"{name}_config" for name in names)}
    resources = {name: dict(each) for name, each in whole["resources"].items() if name in wanted}
    # Heat refuses a dependency on a resource that is not in the template.
    for each in resources.values():
        if "depends_on" in each:
            each["depends_on"] = [name for name in each["depends_on"] if name in wanted]
    if FILES in resources:
        properties = resources[FILES]["properties"]
        lines = "\n".join(f"{group} {path}" for group, path in left.items())
        values = {**properties["input_values"], "files": lines}
        resources[FILES]["properties"] = {**properties, "input_values": values}
    outputs = {
        group: whole["outputs"][group]
        for group, each in chosen.items()
        if each.waits_for_answer(there)
    }
    return {**whole, "resources": resources, "outputs": outputs}


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one template merged from several; of an entry in two of them the last one counts."""
    merged: dict[str, Any] = dict(parts[-1])
    for section in ("resources", "outputs"):
        merged[section] = {name: each for part in parts for name, each in part[section].items()}
    return merged
