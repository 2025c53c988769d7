"""Whole images, looked into without booting them: as they were built, and each spoiled in one way.

What is planted in a whole image is what the issue of an image that explains itself names; all that
is looked for is planted in small trees, in ``tests/inspection/test_findings.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.booted.disks import mounted, root_offset

pytestmark = [pytest.mark.builds, pytest.mark.root, pytest.mark.network]

REPOSITORY = Path(__file__).resolve().parents[2]
PUPPET = REPOSITORY / "hooks" / "puppet.py"
WANTS = "etc/systemd/system/multi-user.target.wants"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"

SPOILED = {
    "agent-not-started": f"rm {WANTS}/os-collect-config.service",
    "no-dhcp-client": "rm -f usr/sbin/dhcpcd usr/sbin/dhclient",
    "hook-without-tool": f"install {PUPPET} usr/libexec/heat-config/hooks/puppet",
    "machine-id": "echo 0123456789abcdef0123456789abcdef > etc/machine-id",
    "ssh-host-keys": f"mkdir -p etc/ssh; echo '{KEY}' > etc/ssh/ssh_host_ed25519_key",
    "cloud-init-state": (
        "mkdir -p var/lib/cloud/instances/i-1; echo '#!/bin/sh' > "
        "var/lib/cloud/instances/i-1/user-data.txt; "
        "ln -s /var/lib/cloud/instances/i-1 var/lib/cloud/instance"
    ),
    "agent-state": "echo '{}' > var/lib/os-collect-config/cfn.json",
    "credentials": f"mkdir -p root/.ssh; echo '{KEY}' > root/.ssh/id_ed25519",
    "logs": "echo 'of another server' > var/log/cloud-init.log",
}
"""The kind of a finding -> commands of a shell, in the root directory of the image."""


def inspect(image: Path, *words: str) -> dict[str, Any]:
    """What ``hotplate inspect`` says of an image."""
    done = subprocess.run(
        [*words, sys.executable, "-m", "hotplate", "inspect", "--json", image],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def kinds(document: dict[str, Any]) -> list[str]:
    return sorted(each["kind"] for each in document["findings"])


@pytest.fixture
def spoil(tmp_path: Path) -> Iterator[Callable[[Path, str], Path]]:
    """Copy an image, run commands in it, and return the copy, which goes with the test."""
    copy = tmp_path / "web.raw"

    def spoiled(image: Path, plant: str) -> Path:
        subprocess.run(["qemu-img", "convert", "-O", "raw", image, copy], check=True)
        for suffix in (".vmlinuz", ".initrd"):
            if (beside := image.with_suffix(suffix)).exists():
                copy.with_suffix(suffix).symlink_to(beside)
        offset = 0 if image.with_suffix(".vmlinuz").exists() else root_offset(copy)
        with mounted(copy, offset, tmp_path / "root") as root:
            subprocess.run(["sh", "-euc", plant], cwd=root, check=True)
        return copy

    yield spoiled
    copy.unlink(missing_ok=True)


def test_an_image_as_it_was_built(trixie: Path):
    document = inspect(trixie)
    assert document["findings"] == []
    assert document["manifest"] == "fits"
    assert document["distribution"]["codename"] == "trixie"
    assert (document["table"], document["firmware"]) == (None, [])
    assert [each["file_system"] for each in document["partitions"]] == ["ext4"]
    assert document["agent"]["install_type"] == "slim"
    assert [each["group"] for each in document["hooks"]] == ["script"]
    assert document["cloud_init"]["sources"][0] == "OpenStack"
    assert document["renderers"] == ["systemd-networkd"]
    assert document["dhcp_client"] == "/usr/sbin/dhcpcd"


@pytest.mark.parametrize("kind", SPOILED)
def test_what_is_spoiled_is_named_and_nothing_else(trixie: Path, spoil, kind: str):
    assert kinds(inspect(spoil(trixie, SPOILED[kind]))) == [kind]


def test_all_of_it_in_another_release_with_a_partition_table(bookworm: Path, spoil):
    document = inspect(bookworm)
    assert document["findings"] == []
    assert document["distribution"]["codename"] == "bookworm"
    assert (document["table"], document["firmware"]) == ("mbr", ["BIOS"])
    assert document["boot_loaders"] == ["GRUB"]
    assert kinds(inspect(spoil(bookworm, "\n".join(SPOILED.values())))) == sorted(SPOILED)


def test_a_user_without_rights_sees_the_same(bookworm: Path):
    """In a namespace in which we are not root, and have no right on what is outside of it."""
    unshare = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*unshare, "true"], check=False).returncode != 0:
        pytest.skip("this host has no user namespaces")
    asked = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    assert asked.returncode != 0
    assert inspect(bookworm, *unshare) == inspect(bookworm)
