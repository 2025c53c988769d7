"""Many simultaneous users of one cloud."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import yaml
from recording_cloud import hot, owner_headers, resource

from hotplate.timing.deadline import GuestDeadline, retry

#: How long a user waits for an answer, on a host that has ten times as much to do as it can.
SECONDS = 1800

PORT = hot(port=resource("Neutron::Port", network="hotplate", security_groups=["default"]))
EMPTY = yaml.safe_dump({"heat_template_version": "2018-08-31"})
REMOTE = hot(stack=resource("Heat::Stack", template=EMPTY))


# 70 are more than the threads that answer the host's requests to Heat (16), and more than the
# engine's own (64, ``executor_thread_pool_size`` of oslo.messaging).
@pytest.mark.parametrize(("template", "users"), [(PORT, 70), (REMOTE, 20)])
def test_heat_answers_simultaneous_requests_for_stacks(
    cloud: Any, template: dict[str, Any], users: int
) -> None:
    # Before Heat answers with 201, the engine looks up the network in Neutron, and has the template
    # of a remote stack validated by Heat.
    url = f"{cloud.endpoints['heat']}/v1/{cloud.credentials.project_id}/stacks"
    headers = owner_headers(cloud)

    names = [f"user-{users}-{number}" for number in range(users)]

    def create(name: str) -> int:
        body = {"stack_name": name, "template": template}
        return requests.post(url, json=body, headers=headers, timeout=SECONDS).status_code

    with ThreadPoolExecutor(users) as pool:
        statuses = list(pool.map(create, names))
    assert statuses == [201] * users

    def look(last: bool) -> bool:
        stacks = requests.get(url, headers=headers, timeout=SECONDS).json()["stacks"]
        shown = {each["stack_name"]: each["stack_status"] for each in stacks}
        done = [name for name in names if shown[name] == "CREATE_COMPLETE"]
        assert not last, f"{len(done)} of {users} are complete"
        return len(done) == users

    assert retry(look, GuestDeadline(300, f"{users} stacks"), every=0.5)
