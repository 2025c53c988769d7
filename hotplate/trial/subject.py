"""The subject of a verdict: an image, a server of it, and the environment of the two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from hotplate.cloud.cloud import StoodIn
from hotplate.heat_releases import installed_version
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.verdict.verdict import Subject

GRANTED = "{kind}s that the template takes for granted were made: {names}"
NO_LIMITS = "no limits on the size of requests"


def subject_of(
    testbed: Testbed, server: Server | None, *, template: str, stand_ins: Sequence[str] = ()
) -> Subject:
    """Return the subject of a verdict on one server of a testbed.

    :param server: None when none was started.
    :param template: the name of a template, or of a test.
    :param stand_ins: the stubs for parts of a real cloud, one sentence each.
    """
    maker = testbed.compute.maker(server.spec if server is not None else None)
    facts = {
        "heat": installed_version(),
        **maker.facts,
        "datasource": testbed.settings.datasource.value,
    }
    images = testbed.compute.images
    if images.by_name and testbed.servers:
        facts["images"] = "; ".join(
            f'{each.spec.name} ran "{images.name_of(each.spec.image)}"' for each in testbed.servers
        )
    if server is not None:
        machine = server.machine
        facts["network"] = f"{machine.wiring.name} ({machine.wiring.reason})"
        facts |= machine.facts()
        facts["start"] = "restored from its warm state" if server.restored else "booted"
    return Subject(
        image=str(testbed.image.path),
        template=template,
        server=server.spec.name if server else "",
        stand_ins=(*stand_ins, *([NO_LIMITS] if testbed.cloud.options.lift_limits else ())),
        facts=facts,
    )


def taken_for_granted(made: Iterable[StoodIn]) -> list[str]:
    """Return a sentence for each kind of resource that a template assumes and that was made here.

    >>> taken_for_granted([StoodIn("network", "ext"), StoodIn("network", "lan")])
    ['networks that the template takes for granted were made: ext, lan']
    """
    return [
        GRANTED.format(kind=kind, names=", ".join(each.name for each in those))
        for kind, those in groupby(sorted(made), key=lambda each: each.kind)
    ]
