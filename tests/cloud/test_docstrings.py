"""The examples in docstrings of the public API that need Heat, but no guest.

Those of a server run in a booted one, in ``tests/booted/test_documented_examples.py``.
"""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from recording_cloud import hot, resource

from hotplate.cloud.cloud import Cloud
from hotplate.guest import base
from hotplate.stacks import deployment, stack
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load

WORD = {"get_param": "greeting"}
GREETING = {
    **hot({"greeting": WORD}, value=resource("Heat::Value", value=WORD)),
    "parameters": {"greeting": {"type": "string", "default": "hello"}},
}
ON = {"image": "any", "flavor": "any", "user_data_format": "SOFTWARE_CONFIG"}
SERVER = hot(server=resource("Nova::Server", **ON))
EXAMPLES = [
    example
    for module in (base, deployment, stack)
    for example in doctest.DocTestFinder().find(module)
    if any(not each.options.get(doctest.SKIP) for each in example.examples)
]


class Server:
    """A server in Heat on which nothing runs, so a deployment must not wait for a signal."""

    def __init__(self, cloud: Cloud, identity: str) -> None:
        self.cloud = cloud
        self.id = identity

    def deploy(self, **fields: Any) -> Deployment:
        return Deployment(self.cloud, self.id, DeploymentSpec(**fields))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("templates")
    (made / "greeting.yaml").write_text(yaml.safe_dump(GREETING))
    (made / "server.yaml").write_text(yaml.safe_dump(SERVER))
    return made


@pytest.fixture(scope="module")
def server(cloud: Cloud, folder: Path) -> Iterator[Server]:
    made = Stack.create(cloud, load(folder / "server.yaml")).wait()
    assert made.state == "COMPLETE", made
    yield Server(cloud, made.resource("server").physical_resource_id)
    made.forget()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_docstring_examples_pass(
    cloud: Cloud, folder: Path, server: Server, example: doctest.DocTest
) -> None:
    made = Stack.create(cloud, load(folder / "greeting.yaml")).wait()
    example.globs.update(cloud=cloud, folder=folder, load=load, stack=made, server=server)
    assert doctest.DocTestRunner().run(example).failed == 0
    made.forget()


def test_public_methods_have_an_example():
    """``resume`` of a deployment is shown with ``suspend``."""
    named = {example.name.rpartition(".")[2] for example in EXAMPLES}
    assert named >= {
        *("Stack", "create", "update", "suspend", "resume", "delete", "wait"),
        *("DeploymentSpec", "CommandResult", "check"),
    }
