"""The network of servers whose template names none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openstack as sdk
import pytest
from cases import GOOD, ends

from hotplate.cloud.heat import client_plugins

pytestmark = pytest.mark.slow


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded Heat as a real one (Heat 19 with novaclient 18, Debian 12)."""

    def refuse(_server: str) -> None:
        raise ValueError("nics are required after microversion 2.36")

    refusing = replace(client_plugins._use, unconnected=refuse)
    monkeypatch.setattr(client_plugins, "_use", refusing)


@contextlib.contextmanager
def network(cloud: Any, name: str) -> Iterator[None]:
    """Another network of the project, with a subnet."""
    with sdk.connect(load_envvars=False, **cloud.login()) as openstack:
        made = openstack.network.create_network(name=name)
        openstack.network.create_subnet(network_id=made.id, ip_version=4, cidr="10.9.0.0/24")
        try:
            yield
        finally:
            openstack.network.delete_network(made)


def test_server_without_networks_is_put_on_the_only_one(cloud, strict):
    cloud.roles["web"] = GOOD
    ends(cloud.try_it(), 0)


def test_network_is_asked_for_where_there_are_several(cloud, strict):
    cloud.roles["web"] = GOOD
    with network(cloud, "lan"):
        several = 'the project in the cloud "hotplate" has several: hotplate, lan'
        ends(cloud.try_it(), 2, "names no network", several, "--os-network NAME")
        ends(cloud.try_it("--os-network", "lan"), 0)


def test_project_without_networks_is_a_usage_error(cloud):
    with sdk.connect(load_envvars=False, **cloud.login()) as openstack:
        (shared,) = openstack.network.networks(name="hotplate")
        openstack.network.update_network(shared, is_admin_state_up=False)
        try:
            done = ends(cloud.try_it(), 2, "network auto allocated topology create")
        finally:
            openstack.network.update_network(shared, is_admin_state_up=True)
    assert 'the project in the cloud "hotplate" has none that servers may use' in done.stderr


def test_missing_network_is_a_usage_error(cloud):
    done = cloud.try_it("--os-network", "nowhere")
    ends(done, 2, 'the cloud "hotplate" has no network "nowhere"')
