"""A cloud for each test module, and the servers that a test boots in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.microversions import NEWEST
from hotplate.cloud.options import CloudOptions
from hotplate.events.log import EventLog

# Tests import the helpers beside them by name, also in processes without pytest (test_cloud).
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from openstack_command import OpenStack, in_directories
from recording_cloud import RecordingCompute, Stacks
from wire_guest import Guest, guest


@pytest.fixture(scope="module")
def recording_compute() -> RecordingCompute:
    return RecordingCompute()


@pytest.fixture(scope="module")
def compute(recording_compute: RecordingCompute) -> RecordingCompute:
    """Return the compute; a module that needs another one overrides this."""
    return recording_compute


@pytest.fixture(scope="module")
def cloud_options() -> CloudOptions:
    """Return the options of the cloud; a module that needs others overrides this."""
    return CloudOptions()


@pytest.fixture(scope="module")
def cloud(
    tmp_path_factory: pytest.TempPathFactory,
    compute: RecordingCompute,
    cloud_options: CloudOptions,
) -> Iterator[Cloud]:
    with Cloud(
        directory=tmp_path_factory.mktemp("cloud"),
        compute=compute,
        events=EventLog(),
        options=cloud_options,
    ) as running:
        yield running


@pytest.fixture
def stacks(cloud: Cloud) -> Iterator[Stacks]:
    made = Stacks(cloud)
    yield made
    made.clean()


@pytest.fixture
def vm(cloud: Cloud, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """Boot the module's SPEC and return its guest."""
    spec: ServerSpec = request.module.SPEC
    cloud.servers.boot(spec)
    with guest(cloud, spec.id) as running:
        yield running
    cloud.servers.delete(spec.id)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "agent"


@pytest.fixture(scope="session")
def openstack_commands() -> Iterator[Callable[..., OpenStack]]:
    with in_directories() as command:
        yield command


@pytest.fixture(scope="module")
def openstack(
    cloud: Cloud,
    openstack_commands: Callable[..., OpenStack],
    tmp_path_factory: pytest.TempPathFactory,
) -> OpenStack:
    """Return the real ``openstack`` command for the cloud, by its ``clouds.yaml``."""
    directory = tmp_path_factory.mktemp("openstack")
    (directory / "clouds.yaml").write_text(cloud.clouds_yaml())
    return openstack_commands(directory)


@pytest.fixture(scope="module")
def at(cloud: Cloud) -> Callable[[str], Any]:
    """Return a function for novaclient at a version."""
    from novaclient import client
    from test_clients import owner_session

    return lambda version: client.Client(version, session=owner_session(cloud))


@pytest.fixture(scope="module")
def nova(at: Callable[[str], Any]) -> Any:
    """Return novaclient at the newest version that it and the cloud support."""
    return at(f"2.{NEWEST}")


@pytest.fixture(scope="module")
def connection(cloud: Cloud) -> Any:
    """Return the SDK's connection."""
    import openstack as sdk
    from test_clients import owner_session

    return sdk.connection.Connection(session=owner_session(cloud))


@pytest.fixture(scope="module")
def neutron(cloud: Cloud) -> Any:
    """Return neutronclient."""
    from neutronclient.v2_0 import client
    from test_clients import owner_session

    return client.Client(session=owner_session(cloud))


@pytest.fixture(scope="module")
def swift(cloud: Cloud) -> Any:
    """Return swiftclient."""
    from swiftclient import client
    from test_clients import owner_session

    return client.Connection(session=owner_session(cloud), retries=0)


@pytest.fixture
def made(neutron: Any) -> Iterator[Callable[..., Any]]:
    """Create resources of Neutron, and delete the remaining ones afterwards, in reverse order."""
    from neutronclient.common import exceptions as failures

    left: list[tuple[str, str]] = []

    def make(single: str, **values: Any) -> Any:
        resource = getattr(neutron, f"create_{single}")({single: values})[single]
        left.append((single, resource["id"]))
        return resource

    yield make
    for single, resource_id in reversed(left):
        with suppress(failures.NotFound):
            getattr(neutron, f"delete_{single}")(resource_id)
