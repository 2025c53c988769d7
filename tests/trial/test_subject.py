"""The subject of a verdict: the image of each server, where a template picks them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_disk
from openstack import connection
from openstack.exceptions import BadRequestException

from hotplate.errors import TemplateError, UsageError
from hotplate.events.log import EventLog
from hotplate.image import qcow2
from hotplate.image.inspect import Image
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.maker import DISK
from hotplate.testbed.testbed import Testbed
from hotplate.trial.subject import subject_of

pytestmark = [pytest.mark.slow, pytest.mark.tool("qemu-system-x86_64")]


def server(image: str) -> dict[str, Any]:
    properties = {"image": image, "flavor": "any", "user_data_format": "RAW"}
    return {"type": "OS::Nova::Server", "properties": properties}


def template(**servers: str) -> dict[str, Any]:
    made = {name: server(image) for name, image in servers.items()}
    for name, each in made.items():
        each["properties"]["name"] = name
    return {"heat_template_version": "2018-08-31", "resources": made}


def connected(**servers: str) -> dict[str, Any]:
    """Return the template, with a network for each server."""
    made = template(**servers)
    for each in made["resources"].values():
        each["properties"]["networks"] = [{"allocate_network": "auto"}]
    return made


@pytest.fixture
def db(tmp_path: Path) -> Image:
    return Image.open(tiny_disk.make(tmp_path / "second.raw"))


def test_verdict_has_the_image_that_each_server_booted(play: Any, db: Image) -> None:
    done = play(template(front="played", back="db"), others={"db": db})
    assert done.verdict.passed, done.verdict
    facts = done.verdict.subject.facts
    assert sorted(facts["images"].split("; ")) == ['back ran "db"', 'front ran "played"']
    behind = {
        name: qcow2.chain(done.folder / "servers" / name / DISK, allow_backing=True)[1].path
        for name in ("front", "back")
    }
    assert behind == {"front": play.image.path, "back": db.path}


@pytest.mark.parametrize(
    ("image", "stood_in_for"),
    [("trusty", ('flavor "any"', 'image "trusty"')), ("the image under test", ('flavor "any"',))],
)
def test_image_under_test_replaces_every_other(
    play: Any, image: str, stood_in_for: tuple[str, ...]
) -> None:
    assert play(connected(web=image)).verdict.subject.stand_ins == stood_in_for


def test_server_without_networks_is_made_by_a_stand_in(play: Any) -> None:
    """A real Heat (19) fails: "nics are required after microversion 2.36"."""
    assert play(template(web="the image under test")).verdict.subject.stand_ins == (
        'flavor "any"',
        'network (the template names none) of the server "web"',
    )


def test_changed_image_ends_the_run(play: Any) -> None:
    def spoil(_wire: object) -> None:
        with play.image.path.open("ab") as stream:
            stream.write(b"more")

    from played_guest import Guest

    with_agent = template(web="any")
    with_agent["resources"]["web"]["properties"]["user_data_format"] = "SOFTWARE_CONFIG"
    with pytest.raises(UsageError, match="was changed while it is in use"):
        # A poll is waited for, which the guest begins when it is through with its user data.
        play(with_agent, Guest(on_user_data=spoil))


@pytest.fixture
def testbed(play: Any, db: Image, tmp_path: Path) -> Any:
    settings = Settings.load(
        {"accelerator": "tcg", "cache": tmp_path / "cache", "memory": 128},
        environ={},
        directory=tmp_path,
    )
    with Testbed(
        play.image, settings=settings, directory=tmp_path, events=EventLog(), others={"db": db}
    ) as running:
        yield running


def test_unknown_image_is_refused(testbed: Testbed) -> None:
    given = Template(source="a test", template=template(web="played", front="db-2"))
    with pytest.raises(TemplateError, match='no image "db-2" to boot; there are "played", "db"'):
        Stack.create(testbed.cloud, given)
    assert testbed.servers == []
    owner = testbed.cloud.identity.owner
    sdk = connection.Connection(
        auth={
            "auth_url": f"{testbed.cloud.endpoints['keystone']}/v3",
            "username": owner.username,
            "password": owner.password,
            "project_id": owner.project_id,
            "user_domain_id": owner.domain,
        }
    )
    assert [each.name for each in sdk.image.images()] == ["played", "db"]
    uploaded = sdk.image.create_image(
        "uploaded", disk_format="raw", container_format="bare", data=b"disk"
    )
    ask = {"name": "web", "flavor_id": "m1.small", "networks": "auto"}
    with pytest.raises(BadRequestException, match="is not an image: it has neither"):
        sdk.compute.create_server(image_id=uploaded.id, **ask)
    facts = subject_of(testbed, None, template="").facts
    assert "images" not in facts
