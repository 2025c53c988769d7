"""Inspect whole images without booting them, as built and with faults.

A whole image gets a selection of the faults at once; ``tests/inspection/test_findings.py`` plants
each of them alone in a small tree.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotplate.settings import cache_dir
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import BUILTIN, load
from tests.booted import debian_cloud_image
from tests.booted.conftest import ALL_HOOKS
from tests.booted.disks import planted

pytestmark = [pytest.mark.qemu, pytest.mark.builds, pytest.mark.root, pytest.mark.network]

REPOSITORY = Path(__file__).resolve().parents[2]
CHEF = REPOSITORY / "hooks" / "chef.py"
WANTS = "etc/systemd/system/multi-user.target.wants"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----"

#: Kind of finding -> shell commands, run in the root directory of the image.
SPOILED = {
    "agent-not-started": f"rm {WANTS}/os-collect-config.service",
    "no-dhcp-client": "rm -f usr/sbin/dhcpcd usr/sbin/dhclient",
    "hook-without-tool": f"install {CHEF} usr/libexec/heat-config/hooks/chef",
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


def inspect(image: Path, *options: str, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the document of ``hotplate inspect`` for an image.

    :param below: a program that runs it, with its options.
    """
    done = subprocess.run(
        [*below, sys.executable, "-m", "hotplate", "inspect", "--json", *options, image],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def kinds(document: dict[str, Any]) -> list[str]:
    return sorted(each["kind"] for each in document["findings"])


@pytest.fixture
def spoil(tmp_path: Path) -> Iterator[Callable[[Path, str], Path]]:
    """Copy an image, run commands in it, and return the copy, deleted after the test."""
    copy = tmp_path / "web.raw"

    yield lambda image, plant: planted(image, copy, f"set -eu; {plant}")
    copy.unlink(missing_ok=True)


def test_image_as_built_has_no_finding(all_hooks_trixie: Path):
    document = inspect(all_hooks_trixie)
    assert document["findings"] == []
    assert document["manifest"] == "fits"
    assert document["distribution"]["codename"] == "trixie"
    assert (document["table"], document["firmware"]) == (None, [])
    assert [each["file_system"] for each in document["partitions"]] == ["ext4"]
    assert document["agent"]["install_type"] == "slim"
    assert {each["group"] for each in document["hooks"]} == {*ALL_HOOKS.split(",")}
    assert document["cloud_init"]["sources"][0] == "OpenStack"
    assert document["renderers"] == ["systemd-networkd"]
    assert document["dhcp_client"] == "/usr/sbin/dhcpcd"


def test_all_faults_are_found_in_a_disk_of_another_release(all_hooks_bookworm: Path, spoil):
    document = inspect(all_hooks_bookworm)
    assert document["findings"] == []
    assert document["distribution"]["codename"] == "bookworm"
    assert (document["table"], document["firmware"]) == ("mbr", ["BIOS"])
    assert document["boot_loaders"] == ["GRUB"]
    assert kinds(inspect(spoil(all_hooks_bookworm, "\n".join(SPOILED.values())))) == sorted(SPOILED)


def test_unprivileged_user_sees_the_same(all_hooks_bookworm: Path):
    """Run in a user namespace without root and without rights outside it."""
    unshare = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if subprocess.run([*unshare, "true"]).returncode != 0:
        pytest.skip("this host has no user namespaces")
    asked = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"])
    assert asked.returncode != 0
    assert inspect(all_hooks_bookworm, below=unshare) == inspect(all_hooks_bookworm)


def diff(*words: object) -> dict[str, Any]:
    """Return the document of ``hotplate diff`` for two images."""
    done = subprocess.run(
        [sys.executable, "-m", "hotplate", "diff", "--json", *map(str, words)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def named(differences: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(each["how"], each["name"]) for each in differences]


#: Changes since yesterday: shell commands, run in the root directory of the image.
TODAY = f"""
sed -i '/^Package: adduser$/,/^$/s/^Version: .*/Version: 99/' var/lib/dpkg/status
echo changed >> usr/sbin/adduser
echo 'ops:x:1500:1500:Operations:/home/ops:/bin/bash' >> etc/passwd
rm {WANTS}/os-collect-config.service
install {CHEF} usr/libexec/heat-config/hooks/chef
"""


def test_diff_names_the_changes_since_yesterday(all_hooks_trixie: Path, spoil):
    document = diff(all_hooks_trixie, spoil(all_hooks_trixie, TODAY))
    assert document["packages"][0]["after"] == "99"
    assert named(document["packages"]) == [("changed", "adduser")]
    assert named(document["users"]) == [("added", "ops")]
    assert named(document["services"]) == [("removed", "os-collect-config.service")]
    assert named(document["hooks"]) == [("added", "chef")]
    (faults,) = [each for each in document["facts"] if each["name"] == "faults"]
    assert faults["after"] == "agent-not-started, hook-without-tool"
    owners = {each["owner"]: named(each["files"]) for each in document["owners"]}
    assert owners == {
        "adduser": [("changed", "/usr/sbin/adduser")],
        "no package": [
            ("changed", "/etc/passwd"),
            ("removed", f"/{WANTS}/os-collect-config.service"),
            ("added", "/usr/libexec/heat-config/hooks/chef"),
            ("changed", "/var/lib/dpkg/status"),
        ],
    }


def test_diff_of_two_releases_draws_the_sizes(
    all_hooks_bookworm: Path, all_hooks_trixie: Path, tmp_path: Path
):
    page = tmp_path / "diff.html"
    document = diff("--html", page, all_hooks_bookworm, all_hooks_trixie)
    changed = {each["name"]: each for each in document["packages"]}
    assert changed["base-files"]["before"].startswith("12")
    assert changed["base-files"]["after"].startswith("13")
    assert changed["python3.13-minimal"]["how"] == "added"
    assert changed["python3.11-minimal"]["how"] == "removed"
    facts = {each["name"]: (each["before"], each["after"]) for each in document["facts"]}
    assert facts["firmware"] == ("BIOS", "none")
    first, second = document["images"]
    assert first["sizes"]["grub-common"] > 1 << 20
    assert "grub-common" not in second["sizes"]
    text = page.read_text()
    assert "python3.13-minimal" in text


@pytest.mark.long
def test_debian_cloud_image_lacks_only_the_agent(tmp_path: Path):
    try:
        disk = debian_cloud_image.make(tmp_path / "debian.raw", "trixie")
        document = inspect(disk)
    finally:
        shutil.rmtree(tmp_path / "debian.root", ignore_errors=True)
        (tmp_path / "debian.raw").unlink(missing_ok=True)
    assert kinds(document) == ["no-agent"]
    assert document["manifest"] == "none"
    assert (document["table"], document["firmware"]) == ("gpt", ["BIOS", "UEFI"])
    purposes = {each["number"]: each["purpose"] for each in document["partitions"]}
    assert purposes == {1: "data", 14: "bios boot", 15: "efi system"}
    assert document["distribution"]["codename"] == "trixie"
    assert document["boot_loaders"] == ["GRUB"]
    assert "OpenStack" in document["cloud_init"]["sources"]
    assert document["renderers"][0] == "netplan"
    assert document["hooks"] == []


@pytest.mark.long
def test_image_of_heat_agents_is_inspected():
    """The image that ours is compared with; built when it is missing."""
    bench = [REPOSITORY / "tools" / "bench-incumbents", "--only", "image"]
    subprocess.run(bench, check=True, timeout=1500)
    *_, image = sorted((cache_dir() / "incumbents").glob("*.qcow2"))
    document = inspect(image)
    # Ours has growpart, a clock that is synchronised, and a link for its name servers.
    assert {*kinds(document)} <= {"no-time-sync", "resolv-conf", "root-does-not-grow"}
    assert document["agent"]["install_type"] == "package"
    assert document["agent"]["version"].startswith("12.")
    (hook,) = document["hooks"]
    assert hook["path"] == "/var/lib/heat-config/hooks/script"
    assert {"heat-config-script", "svc-map", "pip-manifest"} <= set(document["elements"])


@pytest.mark.long
def test_image_without_cloud_init_has_no_finding(without_cloud_init: Path):
    document = inspect(without_cloud_init)
    assert (document["findings"], document["manifest"]) == ([], "fits")
    assert document["cloud_init"] is None
    assert document["bootstrap"] is True


@pytest.mark.long
def test_image_with_upstreams_package_has_no_finding(images):
    document = inspect(images.get("trixie", "partition", "script", "--install-type", "package"))
    assert (document["findings"], document["manifest"]) == ([], "fits")
    assert document["agent"]["install_type"] == "package"
    assert document["agent"]["version"]
    assert {*document["agent"]["programs"].values()} == {"package"}


@pytest.mark.long
def test_uefi_disk_has_no_finding(uefi_disk: Path):
    document = inspect(uefi_disk)
    assert (document["findings"], document["manifest"]) == ([], "fits")
    assert (document["table"], document["firmware"]) == ("gpt", ["UEFI"])
    assert document["boot_loaders"] == ["systemd-boot"]


#: systemd-random-seed.service(8) saves a seed at each boot, and cloud-init writes a network for its
#: MAC addresses; a DHCP client may leave its lease.
LEFT = ["agent-state", "cloud-init-state", "logs", "machine-id", "network-by-mac", "random-seed"]

READ_ONLY = (
    "sync; echo u > /proc/sysrq-trigger; "
    "timeout 300 sh -c 'until grep -q \" / ext4 ro\" /proc/mounts; do sleep 0.1; done'"
)
#: After these commands nothing writes a log, cloud-init and journald included. The last commands
#: are the fixes that the other findings name.
FORGET = (
    "mount -o remount,rw /; cloud-init status --wait; systemctl stop os-collect-config; "
    "heat-agent-forget --capture; truncate -s 0 /etc/machine-id; "
    "systemctl stop 'systemd-journald*'; find /var/log -type f -delete; "
    "rm -f /var/lib/systemd/random-seed /var/lib/dhcp*/*.lease*"
)


@pytest.mark.long
@pytest.mark.boots
def test_disk_of_a_used_server_passes_after_the_named_fixes(trixie: Path, testbed_of):
    testbed = testbed_of(trixie)
    stack = Stack.create(testbed.cloud, load(BUILTIN, parameters={"word": "captured"}))
    assert stack.wait(seconds=600.0).status == "CREATE_COMPLETE", stack
    (server,) = testbed.servers
    disk = server.directory / "disk.qcow2"
    for suffix in (".vmlinuz", ".initrd"):
        disk.with_suffix(suffix).symlink_to(trixie.with_suffix(suffix))
    shell = server.shell()
    # Remount read-only, so that the disk has all that the guest holds in memory.
    shell.run(READ_ONLY, timeout=600).check()
    found = kinds(inspect(disk, "--allow-backing"))
    assert [kind for kind in found if kind != "dhcp-leases"] == LEFT
    shell.run(f"{FORGET}; {READ_ONLY}", timeout=600).check()
    assert kinds(inspect(disk, "--allow-backing")) == []
