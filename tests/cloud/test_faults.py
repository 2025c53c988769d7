"""Planted faults, as a client meets them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import requests
from wire_guest import Guest

from hotplate.cloud.http.faults import KINDS as FAULT_KINDS
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import UsageError

SPEC = ServerSpec(id="22222222-58e5-4a8c-9a15-0d2a6e1c7c11", name="faulty")


def hostname(vm: Guest) -> requests.Response:
    return vm.get("/latest/meta-data/hostname")


def test_status_fault_ends_after_its_count(cloud: Any, vm: Guest) -> None:
    with cloud.fault(endpoint="metadata", kind="status", status=503, count=2):
        assert [hostname(vm).status_code for _ in range(3)] == [503, 503, 200]


def test_status_fault_ends_after_its_duration(cloud: Any, vm: Guest) -> None:
    # An answer may take longer than any time that could be waited for.
    with cloud.fault(endpoint="metadata", kind="status", seconds=600):
        assert hostname(vm).status_code == 500
    with cloud.fault(endpoint="metadata", kind="status", seconds=0.01):
        time.sleep(0.02)
        assert hostname(vm).status_code == 200


def test_refuse_fault_resets_connections(cloud: Any, vm: Guest) -> None:
    with (
        cloud.fault(endpoint="metadata", kind="refuse"),
        pytest.raises(requests.ConnectionError),
    ):
        hostname(vm)
    assert hostname(vm).status_code == 200


def test_refuse_fault_resets_a_kept_connection(cloud: Any, vm: Guest) -> None:
    """The agent keeps its connection to Heat; a server that is down does not answer on it."""
    url = vm.url("http://169.254.169.254/latest/meta-data/hostname")
    with requests.Session() as session:
        assert session.get(url, timeout=120).status_code == 200
        with (
            cloud.fault(endpoint="metadata", kind="refuse"),
            pytest.raises(requests.ConnectionError),
        ):
            session.get(url, timeout=120)
        assert session.get(url, timeout=120).status_code == 200


def test_delay_fault_is_late_and_hang_fault_never_answers(cloud: Any, vm: Guest) -> None:
    begun = time.monotonic()
    with cloud.fault(endpoint="metadata", kind="delay", delay=0.3):
        assert hostname(vm).status_code == 200
    assert time.monotonic() - begun >= 0.3
    with (
        cloud.fault(endpoint="metadata", kind="hang"),
        pytest.raises(requests.exceptions.ReadTimeout),
    ):
        requests.get(vm.url("http://169.254.169.254/latest/"), timeout=0.5)
    assert hostname(vm).status_code == 200


def test_truncate_fault_cuts_and_html_fault_replaces_the_body(cloud: Any, vm: Guest) -> None:
    with (
        cloud.fault(endpoint="metadata", kind="truncate"),
        pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)),
    ):
        hostname(vm)
    with cloud.fault(endpoint="metadata", kind="html200"):
        answer = hostname(vm)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/html")


def test_fault_hits_only_its_server_path_and_service(cloud: Any, vm: Guest) -> None:
    with cloud.fault(endpoint="metadata", kind="status", server="another"):
        assert hostname(vm).status_code == 200
    with cloud.fault(endpoint="metadata", kind="status", path="user-data"):
        assert hostname(vm).status_code == 200
    with cloud.fault(endpoint="cfn", kind="status"):
        assert hostname(vm).status_code == 200


def test_fault_is_in_the_events(cloud: Any, vm: Guest) -> None:
    position = len(cloud.events)
    with cloud.fault(endpoint="metadata", kind="status", status=418):
        hostname(vm)
    event = cloud.events.wait(
        lambda event: event.detail.get("fault") == "status", seconds=60, since=position
    )
    assert event is not None
    assert (event.server, event.detail["status"]) == (SPEC.id, 418)


def test_unknown_kind_and_endpoint_are_refused(cloud: Any) -> None:
    with pytest.raises(UsageError, match="no fault of the kind"):
        cloud.fault(endpoint="cfn", kind="typo")
    with pytest.raises(UsageError, match="no endpoint"):
        cloud.fault(endpoint="typo", kind="status")
    assert all(text for text in FAULT_KINDS.values())
