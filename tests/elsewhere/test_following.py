"""Heat's events in a cloud, as changes of the stack."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hotplate.elsewhere.following import StackTree

#: Of Zed (Heat 19): the event of a server, of whose reason Heat keeps 255 characters, and that of
#: its stack, which has the first of five tries.
TRY = (
    'ResourceInError: resources.server: Went to status ERROR due to "Message: Build of instance '
    "{instance} aborted: Flavor's disk is too small for requested image. Flavor disk is 1073741824 "
    "bytes, image is 3221225472 bytes., Code: 500"
)
FIRST = TRY.format(instance="2910351f-38fe-4c4f-b114-6874e8513712")
LAST = TRY.format(instance="4393647c-33ac-4481-aa25-bdd94b313696")
BEGIN = "Resource CREATE failed: "


def seen(reason: str, **values: Any) -> Any:
    """Return an event, or a resource as Heat lists it."""
    links = [{"rel": "stack", "href": "http://heat/v1/project/stacks/web/1234"}]
    given = {
        "resource_name": "server",
        "resource_type": "OS::Nova::Server",
        "physical_resource_id": "5678",
        "resource_status": "CREATE_FAILED",
    }
    return SimpleNamespace(links=links, resource_status_reason=reason, **{**given, **values})


def of_stack(reason: str) -> Any:
    return seen(reason, resource_name="web", physical_resource_id="1234")


def tree() -> StackTree:
    made = StackTree("web", "1234")
    made.learn([seen(LAST)])
    for each in (FIRST, LAST):
        made.change(seen(each))
    return made


def test_cut_reason_of_a_stack_is_completed_by_its_resource():
    assert len(cut := (BEGIN + FIRST)[:255]) == 255
    assert tree().change(of_stack(cut)).reason == BEGIN + FIRST


def test_whole_reason_of_a_stack_stays():
    """Nothing of a resource is appended, though its reason begins like it."""
    for reason in ("", "Stack CREATE completed successfully", BEGIN + FIRST):
        assert tree().change(of_stack(reason)).reason == reason


def test_reason_of_two_lines_is_one():
    """Of Zed's Neutron, of a floating address without a router."""
    reason = "with a Floating IP.\nNeutron server returns request_ids: ['req-162b96f4']"
    assert tree().change(seen(reason)).reason == reason.replace("\n", " ")


def test_cut_reason_of_a_resource_is_completed():
    """By the list of resources, where it is whole."""
    assert tree().change(seen(LAST[:100])).reason == LAST
