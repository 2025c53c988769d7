"""Images by their content in the cache: once, complete, verified, and within their limit."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hotplate import locks
from hotplate.errors import HostError, UsageError
from hotplate.image import image_set
from hotplate.image.image_set import ImageSet, SetFile
from hotplate.image.image_store import ImageStore, size_of

CONTENT = b"0123456789"


class Host:
    """A host with an image, which returns missing parts of it."""

    def __init__(self, folder: Path, name: str = "web.raw", content: bytes = CONTENT) -> None:
        self.path = folder / name
        self.path.write_bytes(content)
        self.image = image_set.of_file(self.path, allow_backing=False)
        self.given: list[int] = []
        self.spoils = 0

    def fetch(self, file: SetFile, target: Path) -> None:
        offset = target.stat().st_size
        self.given.append(offset)
        data = self.path.read_bytes()[offset:]
        if self.spoils:
            self.spoils -= 1
            data = b"x" * len(data)
        with target.open("ab") as stream:
            stream.write(data)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    (tmp_path / "host").mkdir()
    return Host(tmp_path / "host")


def test_image_is_fetched_once(tmp_path, host):
    store = ImageStore(tmp_path / "cache")
    for _ in range(2):
        with store.use(host.image, host.fetch) as file:
            assert (file.name, file.read_bytes()) == ("web.raw", CONTENT)
            assert file.stat().st_mode & 0o077 == 0
    assert host.given == [0]


def test_concurrent_users_wait_for_one_fetch(tmp_path, host):
    store = ImageStore(tmp_path / "cache")
    began, goes_on = threading.Event(), threading.Event()

    def slow(file: SetFile, target: Path) -> None:
        began.set()
        goes_on.wait(60)
        host.fetch(file, target)

    seen: list[bytes] = []

    def use() -> None:
        with store.use(host.image, slow) as file:
            seen.append(file.read_bytes())

    threads = [threading.Thread(target=use) for _ in range(3)]
    for each in threads:
        each.start()
    began.wait(60)
    goes_on.set()
    for each in threads:
        each.join(60)
    assert seen == [CONTENT] * 3
    assert host.given == [0]


def test_many_concurrent_users_all_get_the_image(tmp_path):
    """Each waiter makes the folder anew, just to find the image complete, and another may see that
    folder.
    """
    store, together = ImageStore(tmp_path / "cache"), threading.Barrier(8)
    images = [ImageSet((SetFile("web.raw", -1, ""),), f"https://host/{n}") for n in range(100)]
    problems: list[Exception] = []

    def use_all() -> None:
        for image in images:
            together.wait(600)
            try:
                with store.use(image, lambda _, target: target.touch()):
                    pass
            except Exception as error:
                problems.append(error)

    threads = [threading.Thread(target=use_all) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []


def test_interrupted_fetch_is_resumed(tmp_path, host):
    store = ImageStore(tmp_path / "cache")

    def breaks_off(file: SetFile, target: Path) -> None:
        target.write_bytes(CONTENT[:4])
        raise HostError("the line is cut")

    with pytest.raises(HostError, match="the line is cut"), store.use(host.image, breaks_off):
        pass
    with store.use(host.image, host.fetch) as file:
        assert file.read_bytes() == CONTENT
    assert host.given == [4]


def test_damaged_image_is_fetched_again(tmp_path, host):
    host.spoils = 1
    with ImageStore(tmp_path / "cache").use(host.image, host.fetch) as file:
        assert file.read_bytes() == CONTENT
    assert host.given == [0, 0]


def test_image_damaged_twice_is_refused(tmp_path, host):
    host.spoils = 2
    store = ImageStore(tmp_path / "cache")
    wrong = pytest.raises(HostError, match="is not what was asked for")
    with wrong, store.use(host.image, host.fetch):
        pass
    assert not [each for each in (tmp_path / "cache" / "images").glob("*/*") if each.is_file()]


def test_least_recently_used_image_is_removed(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir()
    block = 64 * 1024
    hosts = [Host(folder, f"{name}.raw", name.encode() * block) for name in "abcd"]
    store = ImageStore(tmp_path / "cache", limit=int(2.5 * block))
    there = tmp_path / "cache" / "images"
    with store.use(hosts[0].image, hosts[0].fetch):
        pass
    with store.use(hosts[1].image, hosts[1].fetch):
        pass
    os.utime(there / hosts[0].image.key, (1, 1))
    with store.use(hosts[2].image, hosts[2].fetch):
        pass
    assert {each.name for each in there.iterdir()} == {each.image.key for each in hosts[1:3]}
    # An image in use stays, in spite of the limit.
    os.utime(there / hosts[1].image.key, (1, 1))
    with locks.shared(there / hosts[1].image.key), store.use(hosts[3].image, hosts[3].fetch):
        names = {each.name for each in there.iterdir()}
    assert names == {hosts[1].image.key, hosts[3].image.key}


def test_files_of_an_image_go_with_it(tmp_path):
    (tmp_path / "part.raw").write_bytes(bytes(1080) + b"\x53\xef" + bytes(40_000))
    for suffix in ("vmlinuz", "initrd", "raw.manifest.json"):
        (tmp_path / f"part.{suffix}").write_text("{}")
    names = [
        each.name for each in image_set.of_file(tmp_path / "part.raw", allow_backing=False).files
    ]
    assert names[0] == "part.raw"
    assert {"part.vmlinuz", "part.initrd"} <= {*names}


def test_backing_file_in_another_folder_is_refused(tmp_path):
    import subprocess

    for name in ("base", "top"):
        (tmp_path / name).mkdir()
    base, top = tmp_path / "base" / "base.qcow2", tmp_path / "top" / "top.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", base, "1M"], check=True)
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", top], check=True
    )
    with pytest.raises(UsageError, match="lies in another folder"):
        image_set.of_file(top, allow_backing=True)


def test_equal_contents_have_equal_keys(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "web.raw").write_bytes(CONTENT)
    keys = {
        image_set.of_file(tmp_path / name / "web.raw", allow_backing=False).key
        for name in ("here", "there")
    }
    assert len(keys) == 1
    (tmp_path / "there" / "web.raw").write_bytes(b"another")
    other = image_set.of_file(tmp_path / "there" / "web.raw", allow_backing=False)
    assert other.key not in keys
    assert (
        ImageSet((SetFile("web.raw", -1, other.sha256),), "https://host/web.raw").key == other.key
    )


def test_folder_that_vanishes_while_it_is_measured_counts_nothing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    (tmp_path / "kept" / "inner").mkdir(parents=True)
    (tmp_path / "kept" / "inner" / "file").write_bytes(bytes(100_000))
    scan = os.scandir

    def scandir(folder):
        if Path(folder).name == "gone":
            Path(folder).rmdir()
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert size_of(tmp_path) >= 100_000
    assert not (tmp_path / "gone").exists()
