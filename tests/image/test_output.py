"""The files of a build: one build of a name at a time, and never a mix of two builds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hotplate import locks, paths
from hotplate.errors import ImageError, UsageError
from hotplate.image import manifest, output
from hotplate.image.inspect import Image
from hotplate.image.plan import BuildRequest, Layout, dib_elements_dir

EXT = {1024 + 56: b"\x53\xef"}


@pytest.fixture
def request_(tmp_path) -> BuildRequest:
    (tmp_path / "out").mkdir()
    return BuildRequest(
        output=tmp_path / "out" / "web.qcow2", cache=tmp_path, layout=Layout.PARTITION
    )


@pytest.fixture
def built(request_, make_image):
    """Return a function that publishes a finished build of diskimage-builder."""

    def build(what: str) -> None:
        source = make_image(f"{what}.qcow2", EXT | {4096: what.encode()})
        with output.staging(request_) as directory:
            shutil.copyfile(source, directory / "image.qcow2")
            (directory / "image.qcow2").chmod(0o644)
            for suffix in output.BESIDE:
                (directory / f"image.{suffix}").write_text(f"{suffix} of {what}")
            output.publish(request_, directory, {"image": "web.qcow2", "elements": {"vm": "0"}})

    return build


def test_build_leaves_only_its_files(request_, built):
    built("one")
    names = {path.name for path in request_.image.parent.iterdir()}
    assert names == {"web.qcow2", "web.vmlinuz", "web.initrd", "web.manifest.json"}
    image = Image.open(request_.image)
    document = json.loads(manifest.path_for(image.path).read_text())
    assert document["sha256"] == image.sha256()
    assert set(document["beside"]) == {"vmlinuz", "initrd"}


def test_image_has_the_mode_of_the_callers_files(request_, built):
    before = os.umask(0o077)
    try:
        built("one")
    finally:
        os.umask(before)
    assert request_.image.stat().st_mode & 0o777 == 0o600


def test_second_build_of_a_name_is_refused(request_, tmp_path):
    other = BuildRequest(output=tmp_path / "out" / "db.qcow2", cache=tmp_path)
    with output.staging(request_):
        with pytest.raises(UsageError, match="another build is making"), output.staging(request_):
            pass
        with output.staging(other):
            pass
    with output.staging(request_):
        pass


def test_files_of_a_killed_build_block_no_other(request_):
    left = request_.image.parent / ".web.hotplate-0a1b2c3d"
    left.mkdir()
    with output.staging(request_) as directory:
        assert directory != left


@pytest.mark.parametrize("moved", [1, 2, 3])
def test_build_killed_while_publishing_is_detected(request_, built, monkeypatch, moved):
    """After each of the renames."""
    built("one")
    done = []
    replace = Path.replace

    def killed(self, target):
        if self.parent.name.startswith("."):
            if len(done) == moved:
                raise KeyboardInterrupt
            done.append(target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        built("two")
    monkeypatch.undo()
    with pytest.raises(ImageError, match="the files of two builds are mixed") as refused:
        Image.open(request_.image)
    assert "web.manifest.json" in refused.value.hint
    built("two")
    assert Image.open(request_.image).layout is Layout.PARTITION


def test_kernel_of_another_build_beside_an_image_is_detected(request_, built):
    built("one")
    request_.beside(".initrd").write_text("initrd of another")
    with pytest.raises(ImageError, match=r'web\.initrd" is not the file'):
        Image.open(request_.image)
    # A user who wants this mix removes the manifest that contradicts it.
    manifest.path_for(request_.image).unlink()
    assert Image.open(request_.image).initrd is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"beside": null}', '{"beside": {}}'])
def test_manifest_without_files_is_accepted(request_, built, text):
    built("one")
    manifest.path_for(request_.image).write_text(text)
    assert Image.open(request_.image).kernel is not None


def test_elements_of_an_image_are_those_of_its_own_manifest(request_, built):
    built("one")
    assert manifest.elements_of(request_.image) == ("vm",)
    with request_.image.open("ab") as file:
        file.write(b"changed")
    assert manifest.elements_of(request_.image) is None


@pytest.mark.parametrize(
    ("elements", "missing"),
    [
        (["heat-config-puppet", "vm"], ["salt", "chef-solo"]),
        # One element brings the hook of two groups.
        (["heat-config-chef", "vm"], ["puppet", "salt"]),
        # A custom element may bring any hook.
        (["heat-config-puppet", "mine"], []),
    ],
)
def test_manifest_tells_groups_without_a_hook(request_, built, elements, missing):
    built("one")
    path = manifest.path_for(request_.image)
    document = json.loads(path.read_text()) | {"elements": dict.fromkeys(elements, "0")}
    path.write_text(json.dumps(document))
    groups = ["puppet", "salt", "chef-solo", "cobol"]
    others = (dib_elements_dir(),)
    lacking = manifest.groups_without_hook(
        request_.image, groups, ours=paths.elements_dir(), others=others
    )
    assert lacking == missing


def test_build_locks_its_own_directory(request_):
    with (
        output.staging(request_) as directory,
        pytest.raises(locks.InUse),
        locks.exclusive(directory, wait=False),
    ):
        pass
    assert not directory.exists()
