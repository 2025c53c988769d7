"""Convert AWS::CloudFormation::Init metadata to the list of steps, all checked before the first."""

from collections.abc import Sequence
from typing import Any

from heat_cfn import accounts, commands, files, packages, services, sources
from heat_cfn.problems import CfnError
from heat_cfn.step import Step, as_map, kind

INIT = "AWS::CloudFormation::Init"

# Heat's order since 2012, which its templates rely on. CloudFormation's own cfn-init makes groups
# and users before it unpacks sources.
SECTIONS = {
    "packages": packages.steps,
    "sources": sources.steps,
    "groups": accounts.group_steps,
    "users": accounts.user_steps,
    "files": files.steps,
    "commands": commands.steps,
    "services": services.steps,
}


def initial(metadata: Any) -> dict[str, Any]:
    """Return the Init part of a resource's metadata.

    :raises CfnError: when there is none, or it is not a map.
    """
    if not isinstance(metadata, dict):
        raise CfnError(f"the metadata must be a map, not {kind(metadata)}")
    if INIT not in metadata:
        raise CfnError(f'the metadata has no "{INIT}"')
    value = metadata[INIT]
    if not isinstance(value, dict):
        raise CfnError(f'"{INIT}" must be a map, not {kind(value)}')
    return value


def steps(init: dict[str, Any], selected: Sequence[str] = ()) -> list[Step]:
    """Return all steps, in order.

    :param init: the Init part: configurations by name, and maybe ``configSets``.
    :param selected: names of config sets; none means ``default``, or the configuration ``config``
        where there are no config sets.
    :raises CfnError: with one sentence, for the first malformed part.
    """
    result = []
    for name in configurations(init, selected):
        if name not in init or name == "configSets":
            raise CfnError(f'"{INIT}" has no configuration "{name}"')
        configuration = as_map(init[name], name)
        for section, build in SECTIONS.items():
            result += build(configuration.get(section), f"{name}/{section}")
    return result


def unknown_sections(init: dict[str, Any], selected: Sequence[str] = ()) -> list[str]:
    """Return the names in a section's place that are no section, such as "config/packges"."""
    return [
        f"{name}/{section}"
        for name in configurations(init, selected)
        for section in as_map(init.get(name), name)
        if section not in SECTIONS
    ]


def configurations(init: dict[str, Any], selected: Sequence[str] = ()) -> list[str]:
    """Return the names of the configurations to apply, in order."""
    sets = as_map(init.get("configSets"), "configSets")
    if not sets:
        if selected:
            raise CfnError(f'"{INIT}" has no configSets to select from')
        return ["config"]
    if not selected:
        if "default" not in sets:
            valid = ", ".join(sorted(sets))
            raise CfnError(f'configSets has no "default"; select one of them with -c: {valid}')
        selected = ["default"]
    names: list[str] = []
    for name in selected:
        _expand(sets, name, names, ())
    if not names:
        named = ",".join(selected)
        raise CfnError(f'the config set "{named}" is empty')
    return names


def _expand(sets: dict[str, Any], name: Any, names: list[str], inside: Sequence[str]) -> None:
    if not isinstance(name, str) or name not in sets:
        valid = ", ".join(sorted(sets))
        raise CfnError(f'configSets has no "{name}"; it has: {valid}')
    if name in inside:
        raise CfnError(f"the config sets refer to each other: {' -> '.join([*inside, name])}")
    members = sets[name]
    for member in members if isinstance(members, list) else [members]:
        if isinstance(member, str):
            names.append(member)
        # Another set, whose members come in this place.
        elif isinstance(member, dict) and set(member) == {"ConfigSet"}:
            _expand(sets, member["ConfigSet"], names, [*inside, name])
        else:
            raise CfnError(
                f'the config set "{name}" must list names of configurations and {{"ConfigSet": '
                "name}"
            )
