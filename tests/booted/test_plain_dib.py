"""Images made by disk-image-create alone, as somebody does who never heard of hotplate build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.image import mirrors
from hotplate.paths import elements_dir
from hotplate.settings import cache_dir

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root, pytest.mark.network]

ELEMENTS = ["debian-minimal", "baremetal", "cloud-init", "heat-config-script"]


@pytest.mark.long
@pytest.mark.parametrize("release", ["trixie", "bookworm"])
def test_nothing_needs_to_be_mended(release, tmp_path, test_image, nothing_left):
    places = mirrors.of_this_host(release)
    options = " ".join(f"--aptopt='{option}'" for option in places.options)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ELEMENTS_PATH": str(elements_dir()),
        "DIB_RELEASE": release,
        "DIB_IMAGE_CACHE": str(cache_dir() / "plain-dib" / release),
        "DIB_MMDEBSTRAP_EXTRA_ARGS": options,
    }
    if places.main:
        environment["DIB_DISTRIBUTION_MIRROR"] = places.main
        environment["DIB_APT_SOURCES_CONF"] = places.sources_conf(release)
    image = tmp_path / "plain.qcow2"
    log = tmp_path / "build.log"
    with log.open("w") as stream:
        status = subprocess.run(
            ["disk-image-create", "-o", image, *ELEMENTS],
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=1500,
        ).returncode
    assert status == 0, log.read_text()[-3000:]
    done = test_image(image)
    assert done.status == 0, done.stdout
    assert done.verdict["status"] == "CREATE_COMPLETE"


@pytest.mark.long
@pytest.mark.parametrize(
    "release, words", [("unstable", ()), ("bullseye", ("--kernel", "generic"))]
)
def test_the_newest_and_the_oldest_build_and_boot(release, words, images, test_image):
    """The cloud kernel of bullseye's security suite comes and goes; the generic one stays."""
    done = test_image(images.get(release, "disk", "script", *words))
    assert done.status == 0, done.stdout
