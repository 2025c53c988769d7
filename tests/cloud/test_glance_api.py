"""Glance's API, asked by unmodified clients: glanceclient, the SDK, the ``openstack`` command."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import tiny_disk
from glanceclient import client as glance_client
from glanceclient import exc
from novaclient.exceptions import BadRequest
from recording_cloud import hot, resource
from test_clients import ask, owner_session

from hotplate.cloud.database.store import Store
from hotplate.cloud.glance.images import Images, SessionImage
from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import HttpError
from hotplate.cloud.options import CloudOptions
from hotplate.image.inspect import Image
from hotplate.testbed.boot_images import BootImages

NUMBERS = itertools.count(1)
DATA = b"what a disk holds" * 1000
PATCH = "application/openstack-images-v2.1-json-patch"


@pytest.fixture(scope="module")
def boot_images(tmp_path_factory: pytest.TempPathFactory) -> BootImages:
    """Return the images of a compute that boots the session's."""
    path = tmp_path_factory.mktemp("boot") / "web.raw"
    return BootImages(Image.open(tiny_disk.make(path)))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "web.qcow2"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def cloud_options(disk: Path, boot_images: BootImages) -> CloudOptions:
    session = SessionImage("web", disk, "qcow2", 1 << 30)
    return CloudOptions(images=(session,), upload_refusal=boot_images.refusal)


@pytest.fixture(scope="module")
def glance(cloud: Any) -> Any:
    return glance_client.Client("2", session=owner_session(cloud))


@pytest.fixture
def made(glance: Any) -> Iterator[Callable[..., Any]]:
    """Create images, and delete the remaining ones afterwards."""
    left: list[str] = []

    def make(**values: Any) -> Any:
        image = glance.images.create(
            **{"name": f"image-{next(NUMBERS)}", "disk_format": "raw",
               "container_format": "bare", **values}
        )  # fmt: skip
        left.append(image.id)
        return image

    yield make
    for image in glance.images.list():
        if image.id in left:
            glance.images.update(image.id, protected=False)
            glance.images.delete(image.id)


raw = partial(ask, service="glance")


def test_session_image_is_listed(glance: Any, disk: Path) -> None:
    (image,) = glance.images.list()
    assert (image.name, image.status, image.visibility) == ("web", "active", "public")
    assert (image.size, image.virtual_size) == (len(DATA), 1 << 30)
    assert (image.disk_format, image.container_format) == ("qcow2", "bare")
    assert glance.images.get(image.id).id == image.id == SessionImage("web", disk, "qcow2").id
    assert b"".join(glance.images.data(image.id)) == DATA


def test_session_image_cannot_be_changed_or_deleted(cloud: Any, glance: Any, disk: Path) -> None:
    (image,) = glance.images.list()
    with pytest.raises(exc.HTTPForbidden, match="is protected and cannot be deleted"):
        glance.images.delete(image.id)
    # Clients show the text of the error page as it is.
    with pytest.raises(exc.HTTPForbidden, match="is the session's and cannot be changed"):
        glance.images.update(image.id, name="mine")
    with pytest.raises(exc.HTTPForbidden, match="cannot be changed"):
        glance.images.upload(image.id, io.BytesIO(b"x"))
    assert disk.read_bytes() == DATA


def test_image_is_created_uploaded_read_and_deleted(cloud: Any, glance: Any, made: Any) -> None:
    image = made(name="mine", min_disk=3, tags=["b", "a", "b"], colour="blue")
    assert (image.status, image.size, image.visibility) == ("queued", None, "shared")
    assert (image.tags, image.colour, image.min_disk) == (["a", "b"], "blue", 3)
    glance.images.upload(image.id, io.BytesIO(DATA))
    image = glance.images.get(image.id)
    assert (image.status, image.size) == ("active", len(DATA))
    assert image.os_hash_value == hashlib.sha512(DATA).hexdigest()
    assert image.checksum == hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    # The client checks the hash itself.
    assert b"".join(glance.images.data(image.id)) == DATA
    with pytest.raises(exc.HTTPConflict):
        glance.images.upload(image.id, io.BytesIO(b"other"))
    (kept,) = (cloud.directory / "images").iterdir()
    glance.images.delete(image.id)
    assert not kept.exists()
    with pytest.raises(exc.HTTPNotFound, match=f"No image found with ID {image.id}"):
        glance.images.get(image.id)


def test_server_boots_an_uploaded_image(
    cloud: Any, compute: Any, nova: Any, glance: Any, made: Any, boot_images: BootImages,
    tmp_path: Path,
) -> None:  # fmt: skip
    boot_images.uploaded = cloud.parts.images.uploaded
    image = made(name="mine")
    with pytest.raises(BadRequest, match="is not active"):
        nova.servers.create("early", image.id, "m1.small", nics="auto")
    file = tiny_disk.make(tmp_path / "mine.raw")
    with file.open("rb") as data:
        glance.images.upload(image.id, data)
    server = nova.servers.create("booted", image.id, "m1.small", nics="auto")
    booted = boot_images.of(compute.specs[server.id].image)
    assert booted.path.read_bytes() == file.read_bytes()
    with pytest.raises(exc.HTTPConflict, match="in use by a server"):
        glance.images.delete(image.id)
    server.delete()
    junk = made(name="junk")
    glance.images.upload(junk.id, io.BytesIO(DATA))
    with pytest.raises(BadRequest, match="is not an image"):
        nova.servers.create("refused", junk.id, "m1.small", nics="auto")


def test_image_properties_and_tags_are_changed(glance: Any, made: Any) -> None:
    image = made(colour="blue", shape="round")
    changed = glance.images.update(
        image.id, remove_props=["shape"], name="renamed", colour="red", size_class="big"
    )
    assert (changed.name, changed.colour, changed.size_class) == ("renamed", "red", "big")
    assert "shape" not in changed
    glance.image_tags.update(image.id, "new")
    assert glance.images.get(image.id).tags == ["new"]
    glance.image_tags.delete(image.id, "new")
    with pytest.raises(exc.HTTPNotFound):
        glance.image_tags.delete(image.id, "new")
    glance.images.update(image.id, protected=True)
    with pytest.raises(exc.HTTPForbidden, match="protected"):
        glance.images.delete(image.id)


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"disk_format": "floppy"}, 400, "floppy"),
        ({"min_ram": -1}, 400, "Invalid value '-1' for parameter 'min_ram': Cannot be a negative"),
        ({"min_ram": 2**31}, 400, "'min_ram' value out of range, must not exceed 2147483647."),
        ({"name": "x" * 256}, 400, "too long"),
        ({"id": "no"}, 400, "does not match"),
        ({"id": SessionImage("web", Path(), "qcow2").id}, 409, "already exists"),
        ({"status": "active"}, 403, "read-only"),
        ({"visibility": "hidden"}, 400, "hidden"),
        ({"tags": ["x" * 256]}, 400, "too long"),
        ({"depth": 5}, 400, "not of type"),
        ({"x" * 256: ""}, 400, "Custom property should not be greater than 255 characters."),
        ({"depth": "x" * 65536}, 400, "at most 65535 bytes"),
        ({"os_glance_mine": "x"}, 403, "Attribute 'os_glance_mine' is reserved."),
        ({"locations": [{}]}, 403, "Attribute 'locations' is reserved."),
        ({"owner": "else"}, 403, "You are not permitted to create images owned by 'else'"),
        (
            {f"p{number}": "" for number in range(129)},
            413,
            "The limit has been exceeded on the number of allowed image properties. Attempted: "
            "129, Maximum: 128",
        ),
        (
            {"tags": [f"t{number}" for number in range(129)]},
            413,
            "The limit has been exceeded on the number of allowed image tags. Attempted: 129, "
            "Maximum: 128",
        ),
    ],
)
def test_bad_images_are_refused(cloud: Any, values: Any, status: int, words: str) -> None:
    answer = raw(cloud, method="POST", path="/v2/images", json=values)
    assert (answer.status_code, answer.headers["Content-Type"]) == (
        status, "text/html; charset=UTF-8",
    )  # fmt: skip
    assert words in answer.text


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({}, 400),
        (["x"], 400),
        ([{"op": "copy", "path": "/name", "from": "/id"}], 400),
        ([{"op": "add", "path": "name", "value": "x"}], 400),
        ([{"op": "add", "path": "/a/b", "value": "x"}], 400),
        ([{"op": "add", "path": "/name"}], 400),
        ([{"op": "replace", "path": "/colour", "value": "x"}], 409),
        ([{"op": "remove", "path": "/name"}], 403),
        ([{"op": "replace", "path": "/status", "value": "active"}], 403),
        ([{"op": "add", "path": "/colour", "value": 5}], 400),
        ([{"op": "add", "path": f"/p{n}", "value": ""} for n in range(129)], 413),
        ([{"op": "add", "path": "/tags", "value": [f"t{n}" for n in range(129)]}], 413),
        ([{"op": "add", "path": "/deleted", "value": "x"}], 403),
        ([{"op": "add", "path": "/locations/-", "value": {}}], 403),
        ([{"op": "replace", "path": "/owner", "value": "else"}], 403),
    ],
)
def test_bad_changes_are_refused(cloud: Any, made: Any, patch: Any, status: int) -> None:
    image = made()
    path = f"/v2/images/{image.id}"
    headers = {"Content-Type": PATCH}
    assert (
        raw(cloud, method="PATCH", path=path, data=json.dumps(patch), headers=headers).status_code
        == status
    )
    assert raw(cloud, method="PATCH", path=path, json=[]).status_code == 415


def test_image_has_glances_quotas(cloud: Any, glance: Any, made: Any) -> None:
    """``image_property_quota``, ``image_tag_quota`` and ``image_member_quota`` are 128 each.

    Of ``glance/common/config.py``; the words are those of its ``api/v2/image_tags.py``,
    ``api/v2/image_members.py`` and ``common/exception.py`` (Glance 33.0.0).
    """
    image = made(**{f"p{number}": "x" * 65535 for number in range(128)})
    with pytest.raises(exc.HTTPOverLimit, match=r"image properties\. Attempted: 129"):
        glance.images.update(image.id, one_more="")
    glance.images.update(image.id, tags=[f"t{number}" for number in range(128)])
    words = rf"Image tag limit exceeded for image {image.id}: .*Attempted: 129, Maximum: 128:"
    with pytest.raises(exc.HTTPOverLimit, match=words):
        glance.image_tags.update(image.id, "one-more")
    assert len(glance.images.get(image.id).tags) == 128
    cloud.parts.store.write(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION SELECT n + 1 FROM n WHERE n < 128)"
        " INSERT INTO hotplate_image_member SELECT ?, 'project-' || n, '' FROM n",
        image.id,
    )
    words = rf"Image member limit exceeded for image {image.id}: .*Attempted: 129, Maximum: 128:"
    with pytest.raises(exc.HTTPOverLimit, match=words):
        glance.image_members.create(image.id, "one-more")


def test_image_is_changed_by_the_older_kind_of_patch(cloud: Any, made: Any) -> None:
    """``openstack-images-v2.0-json-patch``, which tempest and old programs send."""
    image = made(colour="blue")
    send = partial(
        raw, cloud, method="PATCH", path=f"/v2/images/{image.id}",
        headers={"Content-Type": PATCH.replace("v2.1", "v2.0")},
    )  # fmt: skip
    changes = [{"replace": "/name", "value": "old"}, {"add": "/shape", "value": "round"},
               {"remove": "/colour"}]  # fmt: skip
    changed = send(data=json.dumps(changes)).json()
    assert (changed["name"], changed["shape"], "colour" in changed) == ("old", "round", False)
    again = send(data=json.dumps([{"add": "/shape", "value": "flat"}]))
    assert (again.status_code, "Property shape already present." in again.text) == (409, True)
    assert send(data=json.dumps([{"op": "add", "path": "/x", "value": ""}])).status_code == 400


def test_image_is_deactivated_and_reactivated(
    nova: Any, glance: Any, made: Any, openstack: Any
) -> None:
    """As tempest's ``test_deactivate_reactivate_image``; the words are those of Glance."""
    image = made()
    with pytest.raises(exc.HTTPForbidden, match="Not allowed to deactivate image in status 'que"):
        glance.images.deactivate(image.id)
    glance.images.upload(image.id, io.BytesIO(DATA))
    openstack("image", "set", "--deactivate", image.id)
    assert glance.images.get(image.id).status == "deactivated"
    with pytest.raises(exc.HTTPForbidden, match="The requested image has been deactivated"):
        glance.images.data(image.id)
    with pytest.raises(BadRequest, match="is not active"):
        nova.servers.create("early", image.id, "m1.small", nics="auto")
    openstack("image", "set", "--activate", image.id)
    assert b"".join(glance.images.data(image.id)) == DATA


def test_formats_of_an_image_with_data_are_kept(glance: Any, made: Any) -> None:
    """As Glance's ``domain/__init__.py``."""
    image = made()
    glance.images.update(image.id, disk_format="iso")
    glance.images.upload(image.id, io.BytesIO(DATA))
    for name in ("disk_format", "container_format"):
        words = f"Attribute {name} can be only replaced for a queued image."
        with pytest.raises(exc.HTTPForbidden, match=words):
            glance.images.update(image.id, **{name: "ami"})


def test_image_is_shared_with_members(glance: Any, made: Any, openstack: Any) -> None:
    """As tempest's ImagesMemberTest and ImagesMemberNegativeTest, as far as one project can."""
    image, other = made(name="shared"), "5f1c5f3c0f6f4d1f9b1c0e6f4d1f9b1c"
    member = glance.image_members.create(image.id, other)
    assert (member.member_id, member.image_id, member.status) == (other, image.id, "pending")
    assert [each.member_id for each in glance.image_members.list(image.id)] == [other]
    with pytest.raises(exc.HTTPConflict, match="is duplicated"):
        glance.image_members.create(image.id, other)
    with pytest.raises(exc.HTTPForbidden, match="Not allowed to update members"):
        glance.image_members.update(image.id, other, "accepted")
    glance.image_members.delete(image.id, other)
    with pytest.raises(exc.HTTPNotFound, match="not found in the member list"):
        glance.image_members.delete(image.id, other)
    openstack("image", "add", "project", image.id, other)
    glance.images.update(image.id, visibility="private")
    with pytest.raises(exc.HTTPForbidden, match="Only shared images have members"):
        list(glance.image_members.list(image.id))
    glance.images.update(image.id, visibility="shared")
    (listed,) = openstack("image", "member", "list", image.id, "-f", "json")
    assert listed["Member ID"] == other
    openstack("image", "remove", "project", image.id, other)


def test_image_lists_are_filtered_and_sorted(glance: Any, made: Any) -> None:
    first = made(name="first", tags=["t"], colour="blue")
    second = made(name="second", visibility="private", disk_format="qcow2")
    glance.images.upload(second.id, io.BytesIO(b"12345"))

    def names(**filters: Any) -> list[str]:
        return [image.name for image in glance.images.list(filters=filters)]

    assert names(name="first") == names(tag=["t"]) == names(colour="blue") == ["first"]
    assert names(visibility="private") == ["second"]
    assert names(status="active", disk_format="qcow2", size_max=10) == ["second"]
    assert names(name="in:first,second") == ["second", "first"]
    assert names(size_min=len(DATA)) == ["web"]
    ordered = glance.images.list(sort_key=["name"], sort_dir=["asc"], page_size=1)
    assert [image.name for image in ordered] == ["first", "second", "web"]
    by_size = glance.images.list(sort="size:desc,name:asc")
    assert [image.name for image in by_size] == ["web", "second", "first"]
    with pytest.raises(exc.HTTPBadRequest):
        list(glance.images.list(marker=str(uuid.uuid4())))
    glance.images.update(first.id, os_hidden=True)
    assert names(name="first") == []
    assert names(os_hidden=True) == ["first"]


def test_uploads_and_downloads_are_limited_in_size(
    glance: Any, made: Any, cloud: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IMAGES_STORED", 100)
    image = made()
    with pytest.raises(exc.HTTPOverLimit, match="100 bytes"):
        glance.images.upload(image.id, io.BytesIO(b"x" * 101))
    assert glance.images.get(image.id).status == "queued"
    assert list((cloud.directory / "images").iterdir()) == []
    glance.images.upload(image.id, io.BytesIO(b"x" * 100))
    monkeypatch.setattr(limits, "IMAGE_DOWNLOAD", 99)
    with pytest.raises(exc.HTTPOverLimit, match="at most"):
        b"".join(glance.images.data(image.id))


def test_upload_needs_formats_and_content_type(cloud: Any, glance: Any) -> None:
    image = glance.images.create(name="bare")
    with pytest.raises(exc.HTTPBadRequest, match="must be set prior to saving data"):
        glance.images.upload(image.id, io.BytesIO(b"x"))
    path = f"/v2/images/{image.id}/file"
    assert raw(cloud, method="PUT", path=path, json={}).status_code == 415
    assert raw(cloud, method="GET", path=path).status_code == 204
    glance.images.delete(image.id)


def test_image_without_its_file_is_queued_again(tmp_path: Path) -> None:
    """A database is copied without the files."""
    store = Store(tmp_path / "n.db")

    def opened(directory: Path) -> Images:
        return Images(store, directory, session=(), owner="p")

    images = opened(tmp_path / "a")
    made = images.create({"disk_format": "raw", "container_format": "bare"}, "p")
    images.upload(made, io.BytesIO(b"x"))
    assert opened(tmp_path / "a").get(made["id"])["status"] == "active"
    assert opened(tmp_path / "b").get(made["id"])["status"] == "queued"
    with pytest.raises(HttpError, match="No image"):
        images.get("none")
    store.close()


def test_upload_keeps_concurrent_changes(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path / "neighbours.db")) as store:
        images = Images(store, tmp_path / "images", session=(), owner="me")
        made = images.create({"disk_format": "raw", "container_format": "bare"}, "me")

        class Slow(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                images.change(images.get(made["id"]), {"name": "renamed"})
                return super().read(size)

        uploaded = images.upload(made, Slow(b"x"))
        assert (uploaded["name"], uploaded["status"]) == ("renamed", "active")
        assert images.get(made["id"]) == uploaded


def test_image_without_an_id_is_not_found(cloud: Any) -> None:
    """As tempest's ``test_get_image_null_id`` and ``test_delete_image_null_id``."""
    for method in ("GET", "DELETE"):
        assert raw(cloud, method=method, path="/v2/images/").status_code == 404


def test_versions_and_schemas(cloud: Any, glance: Any) -> None:
    answer = requests.get(cloud.endpoints["glance"] + "/", timeout=120)
    assert answer.status_code == 300
    assert answer.json()["versions"][0]["status"] == "CURRENT"
    for name in ("image", "images"):
        assert raw(cloud, method="GET", path=f"/v2/schemas/{name}").json()["name"] == name
    assert raw(cloud, method="GET", path="/v2/schemas/cloud").status_code == 404
    assert glance.images.get_import_info()["import-methods"]["value"] == []


def test_sdk_manages_images(connection: Any) -> None:
    image_sdk = connection.image
    made = image_sdk.create_image(
        "by-sdk", data=DATA, disk_format="raw", container_format="bare", wait=True, colour="blue"
    )
    again = image_sdk.find_image("by-sdk")
    assert (again.status, again.properties["colour"]) == ("active", "blue")
    assert image_sdk.download_image(made).content == DATA
    image_sdk.update_image(made, name="changed")
    image_sdk.add_tag(made, "t")
    assert image_sdk.get_image(made.id).tags == ["t"]
    image_sdk.delete_image(made)
    assert image_sdk.find_image("changed", ignore_missing=True) is None


@pytest.mark.parametrize("name", ["web", "another"])
def test_template_image_names_are_accepted(cloud: Any, stacks: Any, disk: Path, name: str) -> None:
    """The session's image exists; another name stands for the image under test."""
    server = resource("Nova::Server", image=name, flavor="m1.small")
    stack_id = stacks.complete(hot(server=server))
    image = cloud.servers.all()[-1].spec.image
    stood_in = [each.name for each in cloud.stand_ins(stack_id) if each.kind == "image"]
    if name == "web":
        assert (image, stood_in) == (SessionImage("web", disk, "qcow2").id, [])
    else:
        assert (image, stood_in) == (name, [name])


@pytest.mark.slow
def test_openstack_command_changes_and_saves_an_image(
    openstack: Any, glance: Any, made: Any
) -> None:
    image = made(name="cli")
    glance.images.upload(image.id, io.BytesIO(DATA))
    openstack("image", "set", "--name", "other", "--tag", "t", "--property", "colour=blue", "cli")
    shown = glance.images.get(image.id)
    assert (shown.name, shown.tags, shown.colour) == ("other", ["t"], "blue")
    openstack("image", "save", "--file", str(openstack.directory / "saved"), "other")
    assert (openstack.directory / "saved").read_bytes() == DATA
