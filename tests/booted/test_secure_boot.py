"""Secure Boot and a TPM: a signed image boots, and each unsigned part of an image is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]

#: The partition of the boot loader, as mtools names it in a raw image.
ESP = "@@1M"
GRUB = "::/EFI/BOOT/grubx64.efi"

SCRIPT = """\
#!/bin/sh
mokutil --sb-state
cat /sys/class/tpm/tpm0/tpm_version_major
"""

TEMPLATE = {
    "heat_template_version": "2018-08-31",
    "resources": {
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "image": "the image under test",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
            },
        },
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "config": SCRIPT,
            },
        },
        "deployment": {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "server": {"get_resource": "server"},
                "config": {"get_resource": "config"},
            },
        },
    },
    "outputs": {"said": {"value": {"get_attr": ["deployment", "deploy_stdout"]}}},
}


@pytest.mark.tool("swtpm")
def test_signed_image_boots_and_has_a_tpm(signed, test_image, tmp_path, nothing_left):
    template = tmp_path / "stack.yaml"
    template.write_text(yaml.safe_dump(TEMPLATE))
    done = test_image(signed, "--firmware", "secure-boot", "--tpm", "-t", template)
    assert done.status == 0, done.stdout
    assert done.verdict["facts"]["firmware"] == "secure-boot"
    said = done.verdict["outputs"]["said"].splitlines()
    assert said == ["SecureBoot enabled", "2"]


def refused(done, fault: str, sentence: str) -> None:
    assert done.status == 1, done.stdout
    diagnosis = done.verdict["diagnosis"]
    assert (diagnosis["fault"], diagnosis["stage"]) == (fault, "booted")
    assert sentence in done.last_line


def test_unsigned_loader_is_named(uefi_disk, test_image, nothing_left):
    """The image has systemd-boot, and no shim."""
    done = test_image(uefi_disk, "--firmware", "secure-boot")
    refused(done, "unsigned-loader", "Secure Boot refused the boot loader")


@pytest.fixture
def spoiled(signed, tmp_path) -> Path:
    """A raw copy of the signed image, to change."""
    path = tmp_path / "spoiled.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", signed, path], check=True)
    return path


def spoil(disk: Path, name: str) -> None:
    """Change one byte of a file in the partition of the boot loader, and so its signature."""
    file = disk.with_suffix(".file")
    subprocess.run(["mcopy", "-n", "-i", f"{disk}{ESP}", name, file], check=True)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    subprocess.run(["mcopy", "-D", "o", "-i", f"{disk}{ESP}", file, name], check=True)


def test_changed_grub_is_named(spoiled, test_image, nothing_left):
    spoil(spoiled, GRUB)
    done = test_image(spoiled, "--firmware", "secure-boot")
    refused(done, "unsigned-grub", "Secure Boot's shim refused the boot loader beside it")


def test_changed_kernel_is_named(spoiled, test_image, nothing_left):
    listed = subprocess.run(
        ["mdir", "-b", "-i", f"{spoiled}{ESP}", "::"], check=True, capture_output=True, text=True
    )
    (kernel,) = [line for line in listed.stdout.splitlines() if "vmlinuz" in line]
    spoil(spoiled, kernel)
    done = test_image(spoiled, "--firmware", "secure-boot")
    refused(done, "unsigned-kernel", "GRUB refused the kernel")
