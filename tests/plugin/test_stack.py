"""The servers of a stack by name, as a test asks for them; Heat is real, and there is no guest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova.compute import GuestServices, ServerSpec
from hotplate.errors import UsageError
from hotplate.events.log import EventLog
from hotplate.plugin.stack import StackUnderTest

pytestmark = pytest.mark.slow

TEMPLATE = """\
heat_template_version: 2018-08-31
resources:
  web:
    type: OS::Nova::Server
    properties: &server {name: front, image: any, flavor: any}
  workers:
    type: OS::Heat::ResourceGroup
    properties:
      count: 2
      resource_def:
        type: OS::Nova::Server
        properties: {name: worker-%index%, image: any, flavor: any}
  named-twice:
    type: OS::Nova::Server
    properties: *server
"""


class Remembered:
    """Servers that are only recorded."""

    networked = False

    def __init__(self) -> None:
        self.servers: dict[str, SimpleNamespace] = {}

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        del services
        self.servers[spec.id] = SimpleNamespace(spec=spec, id=spec.id, name=spec.name)

    def delete(self, server_id: str) -> None:
        del self.servers[server_id]

    def status(self, server_id: str) -> tuple[str, str]:
        return "ACTIVE", ""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[StackUnderTest]:
    compute: Any = Remembered()
    (tmp_path / "servers.yaml").write_text(TEMPLATE)
    with Cloud(directory=tmp_path / "cloud", compute=compute, events=EventLog()) as cloud:
        testbed: Any = SimpleNamespace(cloud=cloud, events=cloud.events, server=compute.servers.get)
        yield StackUnderTest.begin(testbed, tmp_path / "servers.yaml", {}).wait(seconds=300)


def test_server_is_found_by_its_resource_or_its_name(made: StackUnderTest) -> None:
    assert made.status == "CREATE_COMPLETE"
    web = made.server("web")
    assert str(web) == "front"
    assert web.id == made.resource("web").physical_resource_id
    assert made.server("web") is web
    assert str(made.server("worker-1")) == "worker-1"
    assert made.server("1") is made.server("worker-1")
    with pytest.raises(UsageError, match=r'has several servers "front"; there are .*"web" '):
        made.server("front")
    with pytest.raises(UsageError, match=r'has no server "db"; there are .*"0" [(]"worker-0"[)]'):
        made.server("db")
