"""The messages with which a cloud refuses a request, sorted by who has to act."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotplate.errors import HotplateError, Outcome, error_of


@dataclass(frozen=True)
class Refusal:
    """One kind of refusal by Heat, Nova, Neutron, Glance or Cinder.

    :param pattern: of the service's message; its groups fill the sentence and the hint.
    :param outcome: the outcome that it means.
    :param sentence: with ``{cloud}`` for the cloud's name.
    :param hint: the remedy, filled in the same way.
    """

    pattern: str
    outcome: Outcome
    sentence: str
    hint: str = ""


NO_SUCH = 'the template names the {kind} "{name}", and the cloud "{cloud}" has none of that name'
LIST = "openstack --os-cloud {cloud} {kind} list; a parameter of the template: -P NAME=VALUE"

_NOT_FOUND = (
    # Heat's EntityNotFound, by the constraint of a property or a parameter.
    r"The (?P<kind>[A-Za-z]+) \((?P<name>[^)]*)\) could not be found",
    # novaclient 18, by which Heat 19 finds a flavor.
    r"No (?P<kind>Flavor) matching \{'name': '(?P<name>[^']*)'\}",
    # Neutron's client, which Heat uses to find a network, a subnet or a port by name.
    r"Unable to find (?P<kind>\w+) with name or id '(?P<name>[^']*)'",
    # openstacksdk, which newer versions of Heat use.
    r"No (?P<kind>\w+) found for (?P<name>[^\s,;]+)",
)

REFUSALS = (
    *(Refusal(pattern, Outcome.FAILED, NO_SUCH, LIST) for pattern in _NOT_FOUND),
    Refusal(
        r"Multiple possible networks found",
        Outcome.FAILED,
        'a server of the template names no network, and the cloud "{cloud}" has several',
        "openstack --os-cloud {cloud} network list; give the server networks: in the template",
    ),
    Refusal(
        r"(?P<words>Flavor's (?:disk|memory) is too small for requested image[^()\n]*?)"
        r"(?:, Code: \d+| ?\(|$)",
        Outcome.FAILED,
        'the flavor that the template names is too small for the image in "{cloud}": {words}',
        "openstack --os-cloud {cloud} flavor list",
    ),
    # Nova and Cinder ("Quota exceeded for cores: Requested 4, but ..."), Neutron ("Quota exceeded
    # for resources: ['port']"), Heat ("maximum stacks per tenant"), Glance ("image_size_total is
    # over limit", "denied due to exceeded storage quota").
    Refusal(
        r"(?P<words>(?:Quota exceeded|You have reached the maximum stacks per tenant|"
        r"\w+ is over limit of|[^.:\n]*exceed\w* (?:\w+ )?quota|Maximum number of \w+ exceeded|"
        r"[Vv]olume\w*ExceedsAvailableQuota|VolumeLimitExceeded|The limit of \d+ images has been)"
        r"[^\n]{0,200})",
        Outcome.HOST,
        'the quota of the project in the cloud "{cloud}" is used up: {words}',
        "openstack --os-cloud {cloud} quota show --usage",
    ),
    Refusal(
        r"(?P<words>No valid host was found[^\n]{0,120}|No more IP addresses available[^\n]{0,120}|"
        r"Exceeded maximum number of retries[^\n]{0,120})",
        Outcome.HOST,
        'the cloud "{cloud}" has no room for a server: {words}',
        "try again later, or a smaller flavor; this says nothing about the image",
    ),
)


def refusal(cloud: str, words: str) -> HotplateError | None:
    """Return the error that a cloud's message means, None for an unknown message.

    :param cloud: its name in ``clouds.yaml``.

    >>> str(refusal("ours", "Quota exceeded for cores: Requested 4").outcome)
    'host error'
    """
    line = " ".join(words.split())
    for each in REFUSALS:
        if match := re.search(each.pattern, line):
            groups = {**match.groupdict(), "cloud": cloud}
            if "kind" in groups:
                groups["kind"] = _kind(groups["kind"])
            return error_of(
                each.outcome, each.sentence.format(**groups), hint=each.hint.format(**groups)
            )
    return None


def _kind(word: str) -> str:
    """Return a kind by the ``openstack`` command's name."""
    return {"key": "keypair", "securitygroup": "security group"}.get(word.lower(), word.lower())
