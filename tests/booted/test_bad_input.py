"""What cannot be tested: one sentence, the right exit status, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def good(bookworm, tmp_path) -> Path:
    """A copy that a test may spoil."""
    path = tmp_path / "copy.qcow2"
    shutil.copyfile(bookworm, path)
    return path


OUTCOMES = {1: "FAILED: ", 3: "HOST ERROR: "}


def refused(done, status: int, *parts: str) -> None:
    """Wrong usage is one sentence on stderr; all else is a verdict, and so the last line."""
    assert done.status == status, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    sentence = done.last_line
    if status == 2:
        sentence = done.stderr.strip()
        assert len(sentence.splitlines()) <= 2
        assert not done.stdout
    else:
        assert sentence.startswith(OUTCOMES[status]), done.stdout
        assert not done.stderr
    for part in parts:
        assert part in sentence


def test_no_such_file(test_image, tmp_path):
    refused(test_image(tmp_path / "gone.qcow2"), 2, "gone.qcow2")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 1_000_000], ids=["0", "text", "zero"])
def test_not_an_image(test_image, tmp_path, content):
    path = tmp_path / "thing.qcow2"
    path.write_bytes(content)
    refused(test_image(path), 1, "thing.qcow2")


@pytest.mark.builds
def test_a_truncated_qcow2(test_image, good):
    os.truncate(good, good.stat().st_size // 3)
    refused(test_image(good), 1, "copy.qcow2")


@pytest.mark.builds
def test_a_partition_image_without_its_kernel(test_image, trixie, tmp_path):
    path = tmp_path / "alone.qcow2"
    path.symlink_to(trixie)
    # The link leads to an image whose kernel lies beside it; a copy has nothing beside it.
    path.unlink()
    shutil.copyfile(trixie, path)
    refused(test_image(path), 1, "alone.qcow2", "kernel")


def disk(path: Path, boot_code: bytes = b"") -> Path:
    """A disk with one partition that is marked active, and that code for the BIOS."""
    subprocess.run(["truncate", "-s", "64M", path], check=True)
    subprocess.run(["sfdisk", "-q", path], input="label: dos\n2048,,L,*\n", text=True, check=True)
    with path.open("r+b") as stream:
        stream.write(boot_code)
    return path


def test_a_whole_disk_with_nothing_to_boot(test_image, tmp_path):
    refused(test_image(disk(tmp_path / "empty.raw")), 1, "empty.raw", "nothing that boots")


@pytest.mark.boots
def test_disks_that_hang_when_they_boot(hotplate, tmp_path):
    """And several images in one command, with one report of all."""
    # It waits for ever, and leaves the processors to others meanwhile: hlt, and back to it.
    endless = b"\xf4\xeb\xfd"
    disks = [disk(tmp_path / f"endless{number}.raw", endless) for number in (1, 2)]
    base, verdicts = tmp_path / "artifacts", tmp_path / "verdict.json"
    done = hotplate("test", *disks, "--artifacts", base, "--json", verdicts, "--patience", "5")
    assert done.status == 1
    assert "Traceback" not in done.stderr
    # On a host that is slow at the moment it is more than five.
    assert done.stdout.count("nothing new was seen for ") >= 2
    assert len(list(base.glob("*endless*/screen.png"))) == 2
    assert done.last_line == f"0 of 2 images passed; all of them: {base}/matrix.html"
    page = (base / "matrix.html").read_text()
    assert all(each.name in page for each in disks)
    assert [each["passed"] for each in json.loads(verdicts.read_text())] == [False, False]


@pytest.mark.builds
class TestTemplates:
    """Refused before anything boots."""

    def test_unreadable(self, test_image, bookworm, tmp_path):
        refused(test_image(bookworm, "-t", tmp_path / "gone.yaml"), 2, "gone.yaml")

    def test_missing_get_file(self, test_image, bookworm, seeds, tmp_path):
        shutil.copy(seeds / "one-template-sample" / "template.yaml", tmp_path)
        done = test_image(bookworm, "-t", tmp_path / "template.yaml")
        refused(done, 1, "scripts/web.sh")

    def test_unknown_resource_type(self, test_image, bookworm, tmp_path):
        path = tmp_path / "t.yaml"
        path.write_text(
            "heat_template_version: 2018-08-31\nresources:\n  thing:\n    type: OS::No::Such\n"
        )
        refused(test_image(bookworm, "-t", path), 1, "OS::No::Such")

    def test_missing_parameter(self, test_image, bookworm, tmp_path):
        path = tmp_path / "t.yaml"
        path.write_text(
            "heat_template_version: 2018-08-31\n"
            "parameters:\n  flavour_of_the_day:\n    type: string\n"
        )
        refused(test_image(bookworm, "-t", path), 1, "flavour_of_the_day")


def test_wrong_usage(test_image, tmp_path):
    path = tmp_path / "x"
    assert test_image(path, "--memory", "none").status == 2
    assert test_image(path, "-P", "a=b").status == 2


@pytest.mark.root
@pytest.mark.boots
def test_a_full_disk(bookworm, tmp_path, hotplate):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "small", mount], check=True)
    try:
        done = hotplate("test", bookworm, "--artifacts", mount / "artifacts", "--patience", "60")
    finally:
        subprocess.run(["umount", mount], check=True)
    assert done.status in (1, 3), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "full" in done.stderr + done.stdout or "space" in done.stderr + done.stdout


@pytest.mark.root
def test_artifacts_that_cannot_be_written(bookworm, tmp_path, hotplate):
    done = hotplate("test", bookworm, "--artifacts", "/proc/artifacts")
    refused(done, 3, "/proc/artifacts")


def test_a_host_without_qemu_hears_what_to_install(bookworm, tmp_path, hotplate):
    """With nothing but Python on the PATH, the first tool that is missing is named."""
    tools = tmp_path / "bin"
    tools.mkdir()
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    words = ("test", bookworm, "--artifacts", tmp_path / "a")
    refused(hotplate(*words, environment=environment), 3, "qemu-img", "apt-get install")
