"""A third party's image: Alpine, with OpenRC, apk and musl, for QEMU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotplate.image.inspect import Image
from hotplate.inspection.inspection import inspected
from hotplate.inspection.sbom import as_cyclonedx
from tests.alpine import fetch

# One worker downloads the image.
pytestmark = [pytest.mark.network, pytest.mark.xdist_group("alpine")]

NOT_READ = "the packages are apk's, whose database is not read here"


@pytest.fixture(scope="module")
def alpine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch(tmp_path_factory.mktemp("alpine"))


def test_alpine_is_judged_by_its_own_tools(alpine):
    """Its boot says "networking | * eth0 ... [ ok ]": no unit of systemd is missing."""
    with inspected(alpine) as inspection:
        contents = inspection.contents
        assert contents is not None
        assert (contents.init, contents.renderers) == ("OpenRC", ["ifupdown"])
        assert contents.packages.not_read == NOT_READ
        kinds = [each.kind for each in inspection.findings if each.level == "fails"]
        assert kinds == ["no-agent", "no-metadata"]
        properties = json.loads(as_cyclonedx(inspection, contents))["metadata"]["properties"]
    assert properties == [{"name": "hotplate:packages-not-read", "value": NOT_READ}]


def test_kernel_and_initrd_of_other_names_are_found(alpine):
    image = Image.open(alpine)
    assert image.kernel == alpine.with_suffix(".kernel")
    assert image.initrd == alpine.with_suffix(".initrd")
