"""The cases of ``hotplate test``: the product of the named images, templates and data sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from hotplate.checks.check import NO_CHECKS, UserChecks
from hotplate.settings import Settings
from hotplate.stacks import builtin, expect, template
from hotplate.stacks.expect import Expected
from hotplate.stacks.template import Template
from hotplate.verdict.verdict import Subject


@dataclass(frozen=True)
class TemplateChoice:
    """The template of one case.

    :param path: a template, or a file with one and its expectations; None for the built-in.
    :param name: its name in the names of cases; "" for the name of the file.
    :param expected: its expectations, in place of those in its file.
    :param groups: the groups of the built-in cases to deploy, when there is no path.
    :param there: all known groups of the image.
    :param note: a sentence on parts that are not tried, with the reason; "" when there are none.
    """

    path: Path | None = None
    environments: tuple[Path, ...] = ()
    parameters: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    expected: Expected | None = None
    groups: tuple[str, ...] = ()
    there: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_plain(self) -> bool:
        """Return whether it is the built-in test of an image without an agent."""
        return self.path == builtin.PLAIN

    @property
    def label(self) -> str:
        """Return its name."""
        return self.name or self.file.name

    @property
    def source(self) -> str:
        """Return the file it is read from, for people."""
        if self.is_plain:
            return builtin.PLAIN_SOURCE
        return str(self.path) if self.path else builtin.source(self.groups)

    @property
    def file(self) -> Path:
        """Return the file it is read from; for several built-in cases, the file of all."""
        return self.path or (template.BUILTIN if self.is_file else builtin.FILE)

    @property
    def is_file(self) -> bool:
        """Return whether a whole file is deployed."""
        return self.path is not None or builtin.is_script(self.groups)

    def load(self) -> Template:
        """Read it.

        :raises UsageError: and TemplateError, see :func:`hotplate.stacks.expect.load`.
        """
        if self.path is None:
            return builtin.of(self.groups, there=self.there)
        if self.is_plain:
            return builtin.plain()
        loaded = expect.load(self.path, parameters=self.parameters, environments=self.environments)
        return expect.with_expected(loaded, self.expected) if self.expected else loaded


@dataclass(frozen=True)
class Case:
    """One image with one template, as one row of the table.

    :param name: of the case, unique in the table.
    :param settings: the case's own settings, by name.
    :param checks: the user's own, with their files.
    :param url: of the image, for a worker of a cluster to fetch.
    """

    name: str
    image: Path
    template: TemplateChoice = TemplateChoice()
    settings: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    checks: UserChecks = NO_CHECKS

    @property
    def subject(self) -> Subject:
        """Return the initial subject of its verdict."""
        return Subject(
            image=self.url or str(self.image), template=self.template.source, case=self.name
        )

    def settings_from(self, common: Settings) -> Settings:
        """Return the settings of this case.

        :param common: the settings of all cases of the command.
        """
        return common.with_words(self.settings)


def table(
    images: Sequence[Path],
    templates: Sequence[TemplateChoice],
    settings: Mapping[str, Sequence[str]],
    *,
    checks: UserChecks = NO_CHECKS,
) -> list[Case]:
    """Return the cases, in the order in which they are named, the images first.

    A case's name lists its image, and its value of everything that has several values.

    :param settings: by the name of the setting, its values.
    :param checks: of each case.

    >>> web, db = Path("web.qcow2"), Path("db.qcow2")
    >>> sources = {"datasource": ["openstack", "ec2"]}
    >>> [each.name for each in table([web], [TemplateChoice()], {})]
    ['web.qcow2']
    >>> [each.name for each in table([web, db], [TemplateChoice()], sources)]
    ['web.qcow2 openstack', 'web.qcow2 ec2', 'db.qcow2 openstack', 'db.qcow2 ec2']
    """
    firsts = labels([each.name for each in images], [str(each) for each in images])
    seconds = labels([each.label for each in templates], [each.source for each in templates])
    several = len(templates) > 1
    cases = []
    for (image, first), (choice, second), values in product(
        zip(images, firsts, strict=True),
        zip(templates, seconds, strict=True),
        product(*settings.values()),
    ):
        chosen = dict(zip(settings, values, strict=True))
        words = [first, *([second] if several else [])]
        words += [value for name, value in chosen.items() if len(settings[name]) > 1]
        cases.append(Case(" ".join(words), image, choice, chosen, checks=checks))
    return cases


def labels(names: Sequence[str], longer: Sequence[str]) -> list[str]:
    """Return a unique label for each name.

    :param longer: replacements for names that occur more than once.

    >>> labels(["web", "db", "web"], ["a/web", "a/db", "b/web"])
    ['a/web', 'db', 'b/web']
    >>> labels(["web", "web"], ["a/web", "a/web"])
    ['a/web', 'a/web (2)']
    """
    often = Counter(names)
    result: list[str] = []
    times: Counter[str] = Counter()
    for name, long in zip(names, longer, strict=True):
        label = long if often[name] > 1 else name
        times[label] += 1
        result.append(label if times[label] == 1 else f"{label} ({times[label]})")
    return result
