"""Choose the built-in cases that test an image without a template: those of its groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotplate.cases.table import TemplateChoice
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.inspection.contents import Contents
from hotplate.inspection.inspection import Inspection, inspected
from hotplate.inspection.mounted import KINDS
from hotplate.settings import Settings
from hotplate.stacks import builtin
from hotplate.text import quoted

PLAIN = (
    "tried: boot, network, metadata, cloud-init, user data, host name, growth of the root file "
    "system, ssh by Nova's key; -t TEMPLATE tries more"
)


def builtin_cases(
    images: Sequence[Path],
    groups: Sequence[str],
    settings: Settings,
    *,
    cache: Path | None,
) -> dict[Path, TemplateChoice]:
    """Return the template choice for each image.

    :param groups: the wanted groups; none for all groups of an image.
    :param cache: see :func:`~hotplate.inspection.inspection.inspected`.
    :raises UsageError: for a group that an image does not have, or that has no built-in case.
    """
    choices = {}
    for image in images:
        why = ""
        try:
            with inspected(image, **settings.reading, cache=cache) as inspection:
                why = inspection.unread
                if inspection.contents is not None:
                    choices[image] = _choice(image, groups, inspection.contents)
                elif not groups and not inspection.built and _of_others(inspection):
                    note = f"{PLAIN}; --group tries hooks: it cannot be looked into: {why}"
                    choices[image] = TemplateChoice(builtin.PLAIN, note=note)
        except (ImageError, HostError) as error:
            why = error.message
        if image not in choices:
            # The image may boot although it cannot be read here: a script is tried on it.
            choices[image] = _unread_choice(groups, why)
    return choices


def _of_others(inspection: Inspection) -> bool:
    """Return whether the root file system is of a kind that hotplate's own images do not have."""
    return any(each.file_system in KINDS for each in inspection.partitions)


def _unread_choice(groups: Sequence[str], why: str) -> TemplateChoice:
    _check_there(groups)
    note = f"a script is all that is tried on the image: it cannot be looked into: {why}"
    return TemplateChoice(groups=tuple(groups), note="" if groups else note)


def _choice(image: Path, groups: Sequence[str], contents: Contents) -> TemplateChoice:
    there = list(contents.groups)
    for each in groups:
        if each not in there:
            raise UsageError(
                f'the image "{image.name}" has no hook for the group "{each}"',
                hint=f"its groups: {', '.join(sorted(there)) or 'none'}",
            )
    if not contents.runs_deployments:
        if groups:
            raise UsageError(
                f'the image "{image.name}" has no agent, so no hook of the group "{groups[0]}" is '
                "ever called",
                hint=f"hotplate inspect {quoted(image)}",
            )
        return TemplateChoice(builtin.PLAIN, note=PLAIN)
    check_cases(groups, f'"{image.name}"', there)
    able = builtin.testable(there)
    chosen = [each for each in able if each in groups or not groups]
    others = sorted({*there} - {*able}) if not groups else []
    note = f"no built-in case tries: {', '.join(others)} (-t TEMPLATE does)" if others else ""
    return TemplateChoice(groups=tuple(chosen), there=tuple(there), note=note)


def check_cases(groups: Sequence[str], image: str, there: Sequence[str] | None = None) -> None:
    """Refuse groups of an image that no built-in case tests.

    :param groups: the wanted groups.
    :param image: the name of the image in messages.
    :param there: all groups of the image; by default the wanted ones.
    :raises UsageError: names one.
    """
    _check_there(groups)
    able = builtin.testable(groups if there is None else there)
    if unable := [each for each in groups if each not in able]:
        raise UsageError(
            f'the built-in case of the group "{unable[0]}" needs the group "{builtin.SCRIPT}", '
            f"which the image {image} does not have",
            hint="hotplate test IMAGE -t TEMPLATE",
        )


def _check_there(groups: Sequence[str]) -> None:
    for each in groups:
        if each not in builtin.GROUPS:
            raise UsageError(
                f'there is no built-in case for the group "{each}"',
                hint=f"hotplate test IMAGE -t TEMPLATE; built in: {', '.join(builtin.GROUPS)}",
            )
