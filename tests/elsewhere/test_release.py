"""``hotplate test --release --os-cloud``: built here, uploaded, and tested there."""

from __future__ import annotations

import subprocess

import pytest
from cases import GOOD, ends, written

from hotplate.image import build, preflight

pytestmark = pytest.mark.slow


def test_release_image_is_built_and_uploaded(cloud, monkeypatch):
    built = []

    def played(self: build.Build) -> build.BuildResult:
        """Make the image from the played guests' image in this folder."""
        image = self.request.image
        built.append(self.request.release)
        image.parent.mkdir(parents=True)
        convert = ["qemu-img", "convert", "-O", "qcow2", cloud.folder / "played.raw", image]
        subprocess.run(convert, check=True)
        return build.BuildResult(image, image, image, 1.0, {})

    monkeypatch.setattr(build.Build, "run", played)
    # Checks of this host are tested elsewhere, and no mirror is asked.
    monkeypatch.setattr(preflight.Preflight, "problems", preflight.Preflight.request_problems)
    cloud.roles["web"] = GOOD
    words = ("--release", "trixie", "-t", written(cloud.folder), "--patience", "60")
    for _ in range(2):
        done = ends(cloud.run(*words), 0)
        verdict = cloud.verdict()
        assert (verdict["outcome"], verdict["case"]) == ("passed", "trixie.qcow2")
        assert verdict["facts"]["image"] == "uploaded for this run"
        assert f"uploading {verdict['image']} to the cloud hotplate" in done.stdout
    assert built == ["trixie"]
