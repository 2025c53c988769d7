"""Bad input: a one-sentence error, the right exit status, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import tool_path

pytestmark = [pytest.mark.qemu, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def good(all_hooks_bookworm, tmp_path) -> Path:
    """A copy of an image that a test may damage."""
    path = tmp_path / "copy.qcow2"
    shutil.copyfile(all_hooks_bookworm, path)
    return path


OUTCOMES = {1: "FAILED: ", 3: "HOST ERROR: "}


def refused(done, status: int, *parts: str) -> None:
    """Return the error: the sentence on stderr for wrong usage, else the verdict's last line."""
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


def test_missing_image_file_is_refused(test_image, tmp_path):
    refused(test_image(tmp_path / "gone.qcow2"), 2, "gone.qcow2")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\0" * 1_000_000], ids=["0", "text", "zero"])
def test_file_that_is_no_image_is_refused(test_image, tmp_path, content):
    path = tmp_path / "thing.qcow2"
    path.write_bytes(content)
    refused(test_image(path), 1, "thing.qcow2")


def test_truncated_qcow2_is_refused(test_image, good):
    os.truncate(good, good.stat().st_size // 3)
    refused(test_image(good), 1, "copy.qcow2")


def test_partition_image_without_its_kernel_is_refused(test_image, without_cloud_init, tmp_path):
    path = tmp_path / "alone.qcow2"
    path.symlink_to(without_cloud_init)
    # Copy, not link: an image's kernel is looked up beside the link's target.
    path.unlink()
    shutil.copyfile(without_cloud_init, path)
    refused(test_image(path), 1, "alone.qcow2", "kernel")


def disk(path: Path, boot_code: bytes = b"") -> Path:
    """Write a disk with this BIOS boot code and one partition marked active."""
    subprocess.run(["truncate", "-s", "64M", path], check=True)
    subprocess.run(["sfdisk", "-q", path], input="label: dos\n2048,,L,*\n", text=True, check=True)
    with path.open("r+b") as stream:
        stream.write(boot_code)
    return path


def test_whole_disk_without_boot_loader_is_refused(test_image, tmp_path):
    refused(test_image(disk(tmp_path / "empty.raw")), 1, "empty.raw", "nothing that boots")


@pytest.mark.boots
def test_disk_that_hangs_in_boot_code_fails(test_image, tmp_path):
    # Wait for ever without using the processor: "hlt; jmp" back to it.
    endless = disk(tmp_path / "endless.raw", b"\xf4\xeb\xfd")
    done = test_image(endless, "--patience", "3")
    assert done.status == 1
    assert "Traceback" not in done.stderr
    # The seconds are scaled up on a slow host.
    assert "nothing new was seen for " in done.stdout
    assert (done.folder / "screen.png").exists()


class TestTemplates:
    """Bad templates, refused before a guest boots."""

    def test_unreadable_template_is_refused(self, test_image, all_hooks_bookworm, tmp_path):
        refused(test_image(all_hooks_bookworm, "-t", tmp_path / "gone.yaml"), 2, "gone.yaml")

    def test_missing_file_of_get_file_is_refused(
        self, test_image, all_hooks_bookworm, seeds, tmp_path
    ):
        shutil.copy(seeds / "one-template-sample" / "template.yaml", tmp_path)
        done = test_image(all_hooks_bookworm, "-t", tmp_path / "template.yaml")
        refused(done, 1, "scripts/web.sh")

    @pytest.mark.parametrize(
        ("lines", "named"),
        [
            ("resources:\n  thing:\n    type: OS::No::Such\n", "OS::No::Such"),
            ("parameters:\n  of_the_day:\n    type: string\n", "of_the_day"),
        ],
        ids=["unknown type", "missing parameter"],
    )
    def test_template_is_refused(self, test_image, all_hooks_bookworm, tmp_path, lines, named):
        path = tmp_path / "t.yaml"
        path.write_text(f"heat_template_version: 2018-08-31\n{lines}")
        refused(test_image(all_hooks_bookworm, "-t", path), 1, named)


def test_wrong_usage_is_refused(test_image, tmp_path):
    path = tmp_path / "x"
    assert test_image(path, "--memory", "none").status == 2
    assert test_image(path, "-P", "a=b").status == 2


@pytest.mark.boots
def test_full_disk_is_reported(all_hooks_bookworm, tmp_path, hotplate):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "small", mount], check=True)
    try:
        done = hotplate(
            "test", all_hooks_bookworm, "--artifacts", mount / "artifacts", "--patience", "60"
        )
    finally:
        subprocess.run(["umount", mount], check=True)
    assert done.status in (1, 3), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "full" in done.stderr + done.stdout or "space" in done.stderr + done.stdout


def test_unwritable_artifacts_directory_is_refused(all_hooks_bookworm, tmp_path, hotplate):
    done = hotplate("test", all_hooks_bookworm, "--artifacts", "/proc/artifacts")
    refused(done, 3, "/proc/artifacts")


def test_host_without_qemu_is_told_which_package_to_install(all_hooks_bookworm, tmp_path, hotplate):
    """With only Python on the PATH, the first missing tool is named."""
    tools = tmp_path / "bin"
    tools.mkdir()
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    words = ("test", all_hooks_bookworm, "--artifacts", tmp_path / "a")
    refused(hotplate(*words, environment=environment), 3, "qemu-img", "apt-get install")


def test_host_without_swtpm_is_told_which_package_to_install(
    without_cloud_init, tmp_path, monkeypatch, hotplate
):
    monkeypatch.setenv("HOTPLATE_MACHINE", "qemu")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "qemu-system-x86_64", "qemu-img", "qemu-nbd", "ip", "dnsmasq", "socat"):
        if path := tool_path(name):
            (tools / name).symlink_to(path)
    words = ("test", without_cloud_init, "--tpm", "--artifacts", tmp_path / "a")
    done = hotplate(*words, environment={"PATH": str(tools), "HOME": str(tmp_path)})
    refused(done, 3, '"swtpm"', "apt-get install")
