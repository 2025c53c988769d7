"""The image that a server boots: the only one, one by name, an upload; and changed files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_disk

from hotplate.errors import UsageError
from hotplate.image.inspect import Image
from hotplate.testbed.boot_images import BootImages


@pytest.fixture
def web(tmp_path: Path) -> Image:
    return Image.open(tiny_disk.make(tmp_path / "web.raw"))


@pytest.fixture
def db(tmp_path: Path) -> Image:
    return Image.open(tiny_disk.make(tmp_path / "second.raw"))


def test_one_image_stands_for_every_name(web: Image) -> None:
    images = BootImages(web)
    assert not images.by_name
    assert images.of("cirros") is images.of("") is web
    assert [each.name for each in images.shown()] == ["web"]


def test_several_images_are_chosen_by_name_or_id(web: Image, db: Image) -> None:
    images = BootImages(web, {"db": db})
    assert images.of("db") is images.of(images.shown()[1].id) is db
    assert images.of("web") is images.of("the image under test") is images.of("") is web
    with pytest.raises(UsageError, match='no image "second" to boot; there are "web", "db"'):
        images.of("second")


def test_images_with_one_name_or_two_processors_are_refused(web: Image, db: Image) -> None:
    with pytest.raises(UsageError, match='the image name "web" is given twice: it is that of "/'):
        BootImages(web, {"web": db})
    with pytest.raises(UsageError, match=r'"web" \(x86_64\) and "db" \(aarch64\) are for two'):
        BootImages(web, {"db": replace(db, arch="aarch64")})


def test_changed_image_is_neither_booted_nor_judged(web: Image, db: Image) -> None:
    images = BootImages(web, {"db": db})
    images.check()
    with db.path.open("ab") as stream:
        stream.write(b"more")
    assert images.of("web") is web
    with pytest.raises(UsageError, match=r'"/.*/second.raw" was changed while it is in use'):
        images.of("db")
    with pytest.raises(UsageError, match=r"second\.raw"):
        images.check()


def test_replaced_image_still_serves_running_servers(web: Image, tmp_path: Path) -> None:
    images = BootImages(web)
    tiny_disk.make(tmp_path / "new.raw").replace(web.path)
    images.check()
    with pytest.raises(UsageError, match="was changed"):
        images.of("any")


def test_uploaded_image_is_booted_by_its_id(web: Image, db: Image, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"no disk" * 1000)
    images = BootImages(web)
    files = {"id-1": ("mine", db.path), "id-2": ("junk", junk)}
    images.uploaded = files.get
    assert (images.of("other"), images.by_name) == (web, False)
    assert images.of("id-1") == db
    assert (images.name_of("id-1"), images.name_of("other")) == ("mine", "web")
    assert images.by_name
    assert images.refusal("id-1") == ""
    assert f'"{junk}" is not an image' in images.refusal("id-2")
    db.path.write_bytes(b"")
    assert "was changed" in images.refusal("id-1")
