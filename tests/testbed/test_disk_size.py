"""The disk of a server has the image's size, or that of its metadata, as of Nova's flavor."""

from __future__ import annotations

import json
import subprocess

import pytest

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import UsageError
from hotplate.image.inspect import Image, Layout
from hotplate.testbed.qemu_maker import disk_gib

GIB = 1 << 30


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "web.raw"
    with path.open("wb") as file:
        file.truncate(GIB + 512)
    return Image(path, "raw", GIB + 512, Layout.PARTITION)


def spec(**metadata: str) -> ServerSpec:
    return ServerSpec("1", "web", metadata=metadata)


@pytest.mark.parametrize(("metadata", "size"), [({}, GIB + 512), ({"hotplate_disk": "3"}, 3 * GIB)])
def test_disk_has_the_size_of_its_image_or_of_its_metadata(image, tmp_path, metadata, size):
    disk = image.overlay(tmp_path / "server", gib=disk_gib(spec(**metadata), image))
    told = subprocess.run(
        ["qemu-img", "info", "--output=json", disk], capture_output=True, check=True
    )
    assert json.loads(told.stdout)["virtual-size"] == size


@pytest.mark.parametrize("named", ["1", "large", "-4", "2.5", "\u0663", "9" * 5000])
def test_disk_that_is_smaller_than_its_image_is_refused(image, named):
    """Nova refuses such a flavor, too (FlavorDiskSmallerThanImage)."""
    expected = (
        f'"hotplate_disk" of the server "web" is "{named}"; expected GiB, at least the 1.0 of'
    )
    with pytest.raises(UsageError, match=expected):
        disk_gib(spec(hotplate_disk=named), image)
