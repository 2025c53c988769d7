"""The manifest's schema: it accepts the output of a build and nothing else."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hotplate.errors import ImageError
from hotplate.image import manifest, output
from hotplate.image.build import Build
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import Image
from hotplate.image.plan import BuildRequest, Layout

SCHEMA = Draft202012Validator(manifest.schema())


def leave(staging: Path, image: Path) -> None:
    """Write the files that disk-image-create leaves."""
    shutil.copyfile(image, staging / "image.qcow2")
    for suffix in output.BESIDE:
        (staging / f"image.{suffix}").write_text(suffix)
    listing = staging / "image.d" / "dib-manifests" / "dib-manifest-dpkg-web"
    listing.parent.mkdir(parents=True)
    packages = [{"package": "adduser", "version": "3.134"}, {"package": "git", "version": "1:2-1"}]
    listing.write_text(json.dumps({"packages": packages}))


@pytest.fixture
def written(tmp_path: Path, make_image: Any) -> Any:
    """Return a function that publishes a finished build, and returns its manifest."""

    def write(layout: Layout) -> dict[str, Any]:
        (tmp_path / "out").mkdir()
        request = BuildRequest(
            output=tmp_path / "out" / "web.qcow2",
            cache=tmp_path,
            layout=layout,
            groups=("script", "puppet"),
        )
        build = Build(request, {})
        build.progress.feed("2026-11-23 10:00:00.000 | Running hooks from /tmp/x/root.d")
        build.progress.feed("2026-11-23 10:00:01.000 | Expanded element dependencies to: base vm")
        with output.staging(request) as staging:
            leave(staging, make_image("made.qcow2", {}))
            output.publish(request, staging, build._manifest(staging, datetime.now(UTC)))
        return manifest.read(request.image)

    return write


@pytest.mark.parametrize("layout", Layout)
def test_manifest_of_a_build_matches_the_schema(written: Any, layout: Layout):
    document = written(layout)
    assert list(SCHEMA.iter_errors(document)) == []
    assert document["elements"].keys() == {"base", "vm"}
    assert document["commits"].keys() == {"base", "vm"}
    assert document["packages"] == ["adduser=3.134", "git=1:2-1"]
    assert ("beside" in document) is (layout is Layout.PARTITION)
    # Conversely, each key written has its line in the schema.
    assert document.keys() <= manifest.schema()["properties"].keys()


SPOILED: dict[str, dict[str, Any]] = {
    "another format": {"format": 2},
    "no format": {"format": None},
    "a path": {"image": "../web.qcow2"},
    "no hash": {"sha256": "abc"},
    "no time": {"built": "yesterday"},
    "no kernel": {"beside": None},
    "another file beside it": {"beside": {"shadow": "0" * 64}},
    "an element without a hash": {"elements": {"vm": ""}},
    "a commit that is none": {"commits": {"vm": "main"}},
    "a package without a version": {"packages": ["adduser"]},
}


def test_invalid_manifest_does_not_match_the_schema(written: Any):
    good = written(Layout.PARTITION)
    for case, changes in SPOILED.items():
        spoiled = {key: each for key, each in (good | changes).items() if each is not None}
        assert not SCHEMA.is_valid(spoiled), case


@pytest.mark.parametrize(
    "document",
    [{"beside": ["vmlinuz"]}, {"elements": 3}, {"beside": {"vmlinuz": [1]}}, {"arch": []}],
)
def test_manifest_with_values_of_other_types_does_not_crash(
    tmp_path: Path, document: dict[str, Any]
):
    image, kernel = tmp_path / "web.raw", tmp_path / "web.vmlinuz"
    image.write_bytes(bytes(1080) + b"\x53\xef" + bytes(4096))
    for each in (kernel, tmp_path / "web.initrd"):
        each.write_bytes(b"it")
    about = {"sha256": sha256_of(image), **document}
    manifest.path_for(image).write_text(json.dumps(about))
    assert manifest.elements_of(image) is None
    if "vmlinuz" in about.get("beside", {}) and isinstance(about["beside"], dict):
        with pytest.raises(ImageError, match="is not the file that"):
            Image.open(image)
    else:
        assert Image.open(image).kernel == kernel


def test_older_manifest_is_readable_and_newer_is_not():
    assert manifest.is_readable({"image": "web.qcow2"})
    assert manifest.is_readable({"format": manifest.FORMAT})
    assert not manifest.is_readable({"format": manifest.FORMAT + 1})
