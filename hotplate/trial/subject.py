"""What a verdict is on: an image, a server of it, and what the two ran on."""

from __future__ import annotations

from collections.abc import Sequence

from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.verdict.verdict import Subject

NO_LIMITS = "no limits on the size of requests"


def subject_of(
    testbed: Testbed, server: Server | None, *, template: str, stand_ins: Sequence[str] = ()
) -> Subject:
    """Return the subject of a verdict on one server of a testbed.

    :param server: None when none was started.
    :param template: what was asked of it: a template's name, or a test's.
    :param stand_ins: what stood in for a part of a real cloud, one sentence each.
    """
    accelerator = testbed.accelerator
    facts = {
        "accelerator": f"{accelerator.name} ({accelerator.reason})",
        "datasource": testbed.settings.datasource.value,
    }
    if server is not None:
        machine = server.machine
        facts["network"] = f"{machine.wiring.name} ({machine.wiring.reason})"
        facts["firmware"] = machine.config.firmware.value
        facts["memory"] = f"{machine.config.memory_mib} MiB"
        facts["start"] = "restored from its warm state" if server.restored else "booted"
    return Subject(
        image=str(testbed.image.path),
        template=template,
        server=server.spec.name if server else "",
        stand_ins=(*stand_ins, *([NO_LIMITS] if testbed.cloud.options.lift_limits else ())),
        facts=facts,
    )
