"""Heat's own database: a new stack inherits nothing from a deleted one."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from recording_cloud import attribute, hot, ref, resource
from test_software_config import TEMPLATE
from test_templates import SERVER


def rows(cloud: Any, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(cloud.directory / "heat.db")) as database:
        return database.execute(sql).fetchall()


def software_servers(*names: str, **properties: Any) -> dict[str, Any]:
    always = {"image": "any", "flavor": "any", "user_data_format": "SOFTWARE_CONFIG"}
    return hot(**{name: resource("Nova::Server", **always, **properties) for name in names})


def test_server_has_no_access_key_of_a_deleted_stack(stacks: Any) -> None:
    # Heat leaves a resource's data to ON DELETE CASCADE (heat/db/models.py), and SQLite reuses ids
    # of deleted rows.
    key = {"type": "AWS::IAM::AccessKey", "properties": {"UserName": ref("user")}}
    iam = hot(user={"type": "AWS::IAM::User"}, key=key)
    before = stacks.complete(iam)
    stacks.delete(before)

    names = ("one", "two")
    stack = stacks.complete(software_servers(*names))
    served = [stacks.client.resources.metadata(stack, name) for name in names]
    keys = [each["os-collect-config"]["cfn"]["access_key_id"] for each in served]
    assert None not in keys
    assert len(set(keys)) == 2
    stacks.delete(stack)


def test_deployment_reaches_no_queue_of_a_deleted_stack(stacks: Any) -> None:
    handle = hot(
        {"signal": attribute("handle", "signal")},
        handle=resource("Heat::WaitConditionHandle", signal_transport="ZAQAR_SIGNAL"),
    )
    before = stacks.complete(handle)
    assert "queue_id" in stacks.outputs(before)["signal"]
    stacks.delete(before)

    # Enough of them for one to get the row of the handle.
    names = ("one", "two", "three")
    stack = stacks.complete(software_servers(*names, software_config_transport="ZAQAR_MESSAGE"))
    config = stacks.client.software_configs.create(name="c", group="script", config="true")
    for name in names:
        server = stacks.client.resources.get(stack, name).physical_resource_id
        # Heat posts the server's new metadata to its queue, and answers 500 when it cannot.
        made = stacks.client.software_deployments.create(
            config_id=config.id, server_id=server, action="CREATE", status="COMPLETE"
        )
        stacks.client.software_deployments.delete(made.id)
    stacks.client.software_configs.delete(config.id)


def test_deleted_stack_leaves_no_dangling_foreign_key(cloud: Any, stacks: Any) -> None:
    stack = stacks.create({**TEMPLATE, "resources": {**TEMPLATE["resources"], "plain": SERVER}})
    stacks.wait_for_resource(stack, "server", "CREATE_COMPLETE")
    assert rows(cloud, "SELECT count(*) FROM resource_data")[0][0] > 0
    stacks.delete(stack)
    assert rows(cloud, "PRAGMA foreign_key_check") == []
