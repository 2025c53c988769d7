"""Many simultaneous users of one cloud."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
import yaml
from test_templates import hot

from hotplate.timing.deadline import GuestDeadline, retry

SECONDS = 1800
"""How long a user waits for an answer, on a host that has ten times as much to do as it can."""

PORT = hot(
    {
        "port": {
            "type": "OS::Neutron::Port",
            "properties": {"network": "hotplate", "security_groups": ["default"]},
        }
    }
)
REMOTE = hot(
    {"stack": {"type": "OS::Heat::Stack", "properties": {"template": yaml.safe_dump(hot({}))}}}
)


def token_of(cloud: Any) -> str:
    owner = cloud.credentials
    password = {"user": {"id": owner.user_id, "password": owner.password}}
    answer = requests.post(
        f"{cloud.endpoints['keystone']}/v3/auth/tokens",
        json={
            "auth": {
                "identity": {"methods": ["password"], "password": password},
                "scope": {"project": {"id": owner.project_id}},
            }
        },
        timeout=SECONDS,
    )
    return answer.headers["X-Subject-Token"]


# 70 are more than the threads that answer the host's requests to Heat (16), and more than the
# engine's own (64, ``executor_thread_pool_size`` of oslo.messaging).
@pytest.mark.parametrize(("template", "users"), [(PORT, 70), (REMOTE, 20)])
def test_heat_answers_simultaneous_requests_for_stacks(
    cloud: Any, template: dict[str, Any], users: int
) -> None:
    # Before Heat answers with 201, the engine looks up the network in Neutron, and has the template
    # of a remote stack validated by Heat.
    url = f"{cloud.endpoints['heat']}/v1/{cloud.credentials.project_id}/stacks"
    headers = {"X-Auth-Token": token_of(cloud)}

    names = [f"user-{users}-{number}" for number in range(users)]

    def create(name: str) -> int:
        body = {"stack_name": name, "template": template}
        return requests.post(url, json=body, headers=headers, timeout=SECONDS).status_code

    with ThreadPoolExecutor(users) as pool:
        statuses = list(pool.map(create, names))
    assert statuses == [201] * users

    def look(last: bool) -> bool | None:
        stacks = requests.get(url, headers=headers, timeout=SECONDS).json()["stacks"]
        shown = {each["stack_name"]: each["stack_status"] for each in stacks}
        done = [name for name in names if shown[name] == "CREATE_COMPLETE"]
        assert not last, f"{len(done)} of {users} are complete"
        return len(done) == users or None

    assert retry(look, GuestDeadline(300, f"{users} stacks"), every=0.5)
