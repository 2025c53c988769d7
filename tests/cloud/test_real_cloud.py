"""The embedded cloud beside a real one: the same calls get answers of the same shape.

``real/zed.json`` has the answers of an OpenStack of Debian 12, with the versions of its packages,
as ``record_real_cloud.py`` wrote them.  A shape is the status, the names of the headers,
the content type, and the names and types of a body.  ``real/differences.yaml`` has the documented
differences, below the row of the table in ``docs/up.rst`` that has the reason.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from record_real_cloud import HEAT_REQUESTS
from recording_cloud import Stacks
from test_clients import owner_session
from test_software_config import metadata_of
from wire_guest import describe, guest

from hotplate.cloud.http.addresses import GUEST_ADDRESS
from hotplate.timing.deadline import Deadline, retry

HERE = Path(__file__).parent / "real"
#: Service of a recorded call -> the embedded one that is asked.
SERVICES = {
    "identity": "keystone",
    "image": "glance",
    "network": "neutron",
    "compute": "nova",
    "nova": "nova",
    "heat": "heat",
    "orchestration": "heat",
    "metadata": "",
    "cfn": "",
    "signal": "",
}
ANSWERS: dict[str, Any] = {
    name: each
    for name, each in json.loads((HERE / "zed.json").read_text())["answers"].items()
    # The recording has only the names of Neutron's extensions.
    if each["service"] in SERVICES and name != "extensions"
}
ROWS: dict[str, list[str]] = yaml.safe_load((HERE / "differences.yaml").read_text())
#: The names that a recording has for ids.
NAME = re.compile(r"\b(?:PROJECT|USER|[A-Z]{4,}|id-\d+)\b")
NOTHING = "00000000-0000-0000-0000-000000000000"
#: Bodies of requests that the recording lacks.
DATA = {
    "image upload": bytes(4096),
    "image again": bytes(4096),
    "image patch": b'[{"op": "add", "path": "/os_distro", "value": "debian"}]',
    "metadata password set": b"secret-word",
    "metadata password again": b"secret-word",
}
_CREATE = ANSWERS["server create"]["request"]["server"]
REQUESTS = {
    "server pinned": {"server": {**_CREATE, "availability_zone": "nova:cloud"}},
    **HEAT_REQUESTS,
}
#: Changes to the agent's signed poll.
POLLS: dict[str, dict[str, str]] = {
    "cfn poll": {},
    "cfn poll bad": {"Signature": "x"},
    "cfn poll unknown": {"AWSAccessKeyId": "0" * 32},
}
#: Calls that are made once a stack is so far.
AFTER = {
    "stack done": ("STACK", "CREATE_COMPLETE"),
    "stack deleted": ("STACK", "DELETE_COMPLETE"),
    "stack failed": ("BARESTACK", "CREATE_COMPLETE"),
    "server delete": ("BARESTACK", "DELETE_COMPLETE"),
}
#: Headers that depend on the time and the length, or on the HTTP server.
UNCOMPARED = {"content-length", "date", "server", "connection", "via"}


class Replay:
    """Makes the recorded calls in the embedded cloud.

    :ivar ids: the recording's name of an id -> the id here, as answers show them.
    """

    def __init__(self, cloud: Any) -> None:
        self._cloud = cloud
        self._token = owner_session(cloud).get_token()
        networking, owner = cloud.networking, cloud.credentials
        self.ids: dict[str, str] = {
            "PROJECT": owner.project_id,
            "USER": owner.user_id,
            "PRIVATE": networking.default_network,
            "PUBLIC": networking.external_network,
            "FLAVOR": "1",
        }

    def answers(self) -> Iterator[tuple[str, requests.Response]]:
        """Make all calls in their order."""
        for name, recorded in ANSWERS.items():
            self._wait(name)
            answer = self._asker(recorded["service"])(name, recorded)
            yield name, answer
            self._learn(recorded["body"], body_of(answer))
            if recorded["status"] >= 400 and answer.status_code == 202:
                # A server that the real cloud refused: the others are to be as there.
                self._cloud.servers.delete(answer.json()["server"]["id"])

    def _wait(self, name: str) -> None:
        stacks = Stacks(self._cloud)
        if name == "stack ":
            stacks.wait_for_resource(self.ids["STACK"], "server", "CREATE_COMPLETE")
            # The last that Heat stores before it waits for the agent's signal.
            metadata = functools.partial(stacks.client.resources.metadata, self.ids["STACK"])
            stored = Deadline(120, "the deployment in the server's metadata")
            retry(lambda _: metadata("server")["deployments"], stored, every=0.05)
        elif name in AFTER:
            stack, state = AFTER[name]
            stacks.wait(self.ids[stack], state)

    def _asker(self, service: str) -> Callable[[str, dict[str, Any]], requests.Response]:
        if service in ("cfn", "signal"):
            return self._as_agent
        return self._as_guest if service == "metadata" else self._ask

    def _ask(self, name: str, recorded: dict[str, Any]) -> requests.Response:
        method, _, path = recorded["call"].partition(" ")
        url = self._cloud.endpoints[SERVICES[recorded["service"]]] + self._named(path)
        headers = dict(recorded.get("request_headers", {}))
        if recorded["status"] != 401 and not re.fullmatch(r"\w+ versions?", name):
            headers["X-Auth-Token"] = self._token
        fields: dict[str, Any] = {"data": DATA.get(name)}
        if name.startswith("token"):
            fields = {"json": self._login(wrong=name == "token wrong")}
        elif request := REQUESTS.get(name) or recorded.get("request"):
            fields = {"json": json.loads(self._named(json.dumps(request)))}
        return requests.request(
            method, url, headers=headers, timeout=120, allow_redirects=False, **fields
        )

    def _login(self, *, wrong: bool) -> dict[str, Any]:
        owner = self._cloud.credentials
        password = "wrong" if wrong else owner.password
        user = {"name": owner.username, "domain": {"id": owner.domain}, "password": password}
        scope = {"project": {"name": owner.project_name, "domain": {"id": owner.domain}}}
        identity = {"methods": ["password"], "password": {"user": user}}
        return {"auth": {"identity": identity, "scope": scope}}

    def _as_guest(self, name: str, recorded: dict[str, Any]) -> requests.Response:
        method, _, path = recorded["call"].partition(" ")
        with guest(self._cloud, self.ids["SERVER"]) as vm:
            return vm.request(method, f"http://{GUEST_ADDRESS}{path}", data=DATA.get(name))

    def _as_agent(self, name: str, recorded: dict[str, Any]) -> requests.Response:
        """Poll and signal as the agent of the stack's server, by its user data."""
        with guest(self._cloud, self.ids["STACKSERVER"]) as vm:
            cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
            if name in POLLS:
                return describe(vm, cfn, **POLLS[name])
            if recorded["service"] == "cfn":
                query = "Action=ListStacks" if name == "cfn poll unsigned" else ""
                return vm.request("GET", cfn["metadata_url"], params=query)
            deployments = metadata_of(describe(vm, cfn))["deployments"]
            url = next(
                each["value"]
                for each in deployments[0]["inputs"]
                if each["name"] == "deploy_signal_id"
            )
            if name == "signal bad":
                url = url.replace("Signature=", "Signature=x")
            return vm.request("POST", url, json=recorded["request"])

    def _named(self, text: str) -> str:
        def known(found: re.Match[str]) -> str:
            return self.ids.get(found[0], NOTHING if found[0].startswith("id-") else found[0])

        return NAME.sub(known, text)

    def _learn(self, recorded: Any, ours: Any) -> None:
        """Take over ids that are at the same place of both bodies."""
        if isinstance(recorded, dict) and isinstance(ours, dict):
            for name in recorded.keys() & ours.keys():
                self._learn(recorded[name], ours[name])
        elif isinstance(recorded, str) and isinstance(ours, str) and NAME.fullmatch(recorded):
            self.ids.setdefault(recorded, ours)


def body_of(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return answer.text


def differences(recorded: dict[str, Any], answer: requests.Response) -> Iterator[str]:
    """Return the differences between the shapes of a recorded answer and of one of ours."""
    if answer.status_code != recorded["status"]:
        yield f"status {answer.status_code} instead of {recorded['status']}"
        # The body is then another one, too.
        return
    theirs = recorded["headers"].keys() - UNCOMPARED
    ours = {name.lower() for name in answer.headers} - UNCOMPARED - {"retry-after"}
    yield from _names("header", theirs, ours)
    kinds = recorded["headers"].get("content-type"), answer.headers.get("content-type")
    if kinds[0] != kinds[1] and None not in kinds:
        yield f"content type {kinds[1]} instead of {kinds[0]}"
    bodies = recorded["body"], body_of(answer)
    states = [_state(each) for each in bodies]
    if states[0] != states[1]:
        yield f"{states[1]} instead of {states[0]}"
    else:
        yield from _shape("", *bodies)


def _state(body: Any) -> str:
    """Return the state of Heat's stack or resource in a body, else ""."""
    if not isinstance(body, dict):
        return ""
    kinds = (("stack", "stack_status"), ("resource", "resource_status"))
    return next((body[kind].get(state, "") for kind, state in kinds if kind in body), "")


def _names(what: str, theirs: set[str], ours: set[str]) -> Iterator[str]:
    yield from (f"{what} {name} is missing" for name in sorted(theirs - ours))
    yield from (f"{what} {name} is additional" for name in sorted(ours - theirs))


def _shape(place: str, theirs: Any, ours: Any) -> Iterator[str]:
    # The network of the recording is called so.
    if isinstance(theirs, dict) and "private" in theirs and "hotplate" in ours:
        theirs = {**theirs, "hotplate": theirs["private"]}
        del theirs["private"]
    if isinstance(theirs, dict) and isinstance(ours, dict):
        yield from _names("key", {place + name for name in theirs}, {place + name for name in ours})
        for name in sorted(theirs.keys() & ours.keys()):
            yield from _shape(f"{place}{name}.", theirs[name], ours[name])
    elif isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours:
            yield from _shape(place, *_pair(theirs, ours))
    elif type(theirs) is not type(ours):
        yield f"{place[:-1]} is {_type(ours)} instead of {_type(theirs)}"


def _pair(theirs: list[Any], ours: list[Any]) -> tuple[Any, Any]:
    """Return the entries of two lists that have the most values in common."""

    def equal(pair: tuple[Any, Any]) -> int:
        one, other = pair
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return 0
        return sum(one[name] == other[name] for name in one.keys() & other.keys())

    return max(((one, other) for one in theirs for other in ours), key=equal)


def _type(value: object) -> str:
    return "null" if value is None else type(value).__name__


@pytest.fixture(scope="module")
def found(cloud: Any) -> set[str]:
    """Return all differences, each with the name of its call."""
    replay = Replay(cloud)
    return {
        f"{name}: {each}"
        for name, answer in replay.answers()
        for each in differences(ANSWERS[name], answer)
    }


def test_answers_have_the_shape_of_the_recorded_ones(found: set[str]) -> None:
    documented = {each for those in ROWS.values() for each in those}
    assert found - documented == set()


def test_documented_difference_exists(found: set[str]) -> None:
    documented = {each for those in ROWS.values() for each in those}
    assert documented - found == set()


def test_difference_has_its_row_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "up.rst").read_text()
    assert [row for row in ROWS if row not in " ".join(page.split())] == []
