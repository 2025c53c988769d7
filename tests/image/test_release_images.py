"""Images of releases: built once, cached by their inputs, and shared; builds are stubs."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hotplate import locks, paths
from hotplate.cli import cache
from hotplate.errors import HostError, HotplateError, UsageError
from hotplate.image import release_images
from hotplate.image.plan import BuildRequest, Layout
from hotplate.image.preflight import Preflight
from hotplate.image.release_images import ReleaseImages, fingerprint


class Builds:
    """Stub builds: an image is its release's name."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, request: BuildRequest) -> None:
        self.done.append(request.release)
        request.image.parent.mkdir(parents=True, exist_ok=True)
        request.image.write_text(request.release)


hash_once = functools.cache(release_images.hash_directory)


@pytest.fixture(autouse=True)
def own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash hotplate's elements and hooks, which these tests do not change, once for all."""
    own, hashed = (paths.elements_dir(), paths.hooks_dir()), release_images.hash_directory
    monkeypatch.setattr(
        release_images,
        "hash_directory",
        lambda each: hash_once(each) if each in own else hashed(each),
    )


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    # Limits of this host are tested with hotplate build.
    monkeypatch.setattr(Preflight, "problems", Preflight.request_problems)
    return Builds()


@pytest.fixture
def asked(tmp_path: Path) -> BuildRequest:
    return BuildRequest(output=Path("image"), cache=tmp_path / "cache", release="trixie")


def kept(images: ReleaseImages, *requests: BuildRequest) -> list[Path]:
    """Return the files of the images, after using each."""
    files = []
    for each in images.placed(requests):
        with images.use(each) as file:
            assert file.read_text() == each.release
            files.append(file)
    return files


def test_image_is_built_once(builds, asked):
    images = ReleaseImages({}, build=builds)
    (first,) = kept(images, asked)
    assert first.name == "trixie.qcow2"
    assert first.is_relative_to(asked.cache / "releases")
    assert kept(images, asked) == [first]
    kept(images, replace(asked, release="bookworm"), replace(asked, groups=("puppet",)))
    assert builds.done == ["trixie", "bookworm", "trixie"]
    # With a cached image, neither build tools nor a network are needed.
    assert kept(images, replace(asked, offline=True)) == [first]


def test_changed_input_makes_another_image(asked, tmp_path):
    element = tmp_path / "elements" / "mine"
    element.mkdir(parents=True)
    package = tmp_path / "cinc.deb"
    package.write_text("1")
    environ = {"DIB_HEAT_CHEF_PACKAGE": str(package), "HOME": "/root"}
    asked = replace(asked, elements=("mine",), element_path=(element.parent,))
    seen = {fingerprint(asked, environ)}

    def is_another(request: BuildRequest = asked, given: dict[str, str] = environ) -> bool:
        before = len(seen)
        seen.add(fingerprint(request, given))
        return len(seen) > before

    assert not is_another()
    assert is_another(replace(asked, groups=("script", "puppet")))
    assert is_another(replace(asked, layout=Layout.PARTITION))
    assert is_another(replace(asked, packages=("jq",)))
    assert is_another(replace(asked, cloud_init=False))
    assert is_another(replace(asked, install_type="package"))
    assert is_another(given={**environ, "DIB_MINE": "1"})
    assert is_another(given={**environ, "PIP_INDEX_URL": "https://example.org/"})
    assert not is_another(given={**environ, "HOME": "/elsewhere"})
    package.write_text("2")
    assert is_another()
    (element / "install.d").mkdir()
    (element / "install.d" / "50-mine").write_text("#!/bin/sh\n")
    assert is_another()
    # Its location is not an input.
    assert not is_another(replace(asked, cache=tmp_path / "other", output=Path("other")))


def test_all_problems_are_reported_before_any_build(builds, asked, monkeypatch):
    images = ReleaseImages({}, build=builds)
    wrong = [replace(asked, release=each, groups=("cobol",)) for each in ("trixy", "bookwurm")]
    with pytest.raises(UsageError) as caught:
        images.placed([asked, *wrong])
    lines = [each for each in caught.value.message.splitlines() if each.startswith("  * ")]
    assert caught.value.message.startswith("3 things are in the way of the builds:")
    assert lines == [
        '  * there is no element "heat-config-cobol" for the group "cobol"',
        '  * there is no Debian release "trixy"',
        '  * there is no Debian release "bookwurm"',
    ]
    assert builds.done == []


def test_problems_of_builds_do_not_affect_a_cached_image(builds, asked, monkeypatch):
    images = ReleaseImages({}, build=builds)
    kept(images, asked)

    def lacks(self: Preflight) -> Iterator[HotplateError]:
        yield HostError("this host has no root")

    monkeypatch.setattr(Preflight, "problems", lacks)
    kept(images, asked)
    with pytest.raises(HostError, match=r"^this host has no root$"):
        images.placed([asked, *(replace(asked, release=each) for each in ("forky", "bookworm"))])


def test_concurrent_requests_for_one_image_build_it_once(builds, asked):
    begun, go_on = threading.Event(), threading.Event()
    sentences: list[str] = []
    waits = threading.Event()

    def slow(request: BuildRequest) -> None:
        begun.set()
        assert go_on.wait(300)
        builds(request)

    def say(text: str) -> None:
        sentences.append(text)
        waits.set()

    images = ReleaseImages({}, build=slow, say=say)
    threads = [threading.Thread(target=kept, args=(images, asked)) for _ in range(2)]
    for each in threads:
        each.start()
    assert begun.wait(300) and waits.wait(300)
    go_on.set()
    for each in threads:
        each.join(300)
    assert builds.done == ["trixie"]
    assert 'another command builds the image of "trixie"; waiting' in sentences


def test_failed_build_leaves_no_image(builds, asked):
    def fails(request: BuildRequest) -> None:
        raise HostError("there was no space left")

    with pytest.raises(HostError, match="no space"):
        kept(ReleaseImages({}, build=fails), asked)
    kept(ReleaseImages({}, build=builds), asked)
    assert builds.done == ["trixie"]


def test_image_in_use_stays_in_the_cache(builds, asked):
    images = ReleaseImages({}, build=builds)
    (wanted,) = images.placed([asked])
    with images.use(wanted) as file:
        (stayed,) = cache.clean(asked.cache, everything=True, now=0)
        assert "is in use" in stayed
        assert file.exists()
    (entry,) = cache.entries(asked.cache)
    assert (entry.kind.folder, entry.what) == ("releases", file.parent.parent.name)
    assert cache.clean(asked.cache, everything=True, now=0) == []
    assert not file.exists()
    kept(images, asked)
    assert builds.done == ["trixie", "trixie"]


def test_image_removed_before_its_use_is_built_again(builds, asked, monkeypatch):
    images = ReleaseImages({}, build=builds)
    (wanted,) = images.placed([asked])
    shared = locks.shared
    removals = [1]

    def removed_before(folder: Path) -> object:
        if removals:
            removals.pop()
            shutil.rmtree(folder)
        return shared(folder)

    monkeypatch.setattr(release_images.locks, "shared", removed_before)
    with images.use(wanted) as file:
        assert file.exists()
    assert builds.done == ["trixie", "trixie"]
    removals.extend([1] * 10)
    file.unlink()
    with pytest.raises(HostError, match="again and again"), images.use(wanted):
        pass
