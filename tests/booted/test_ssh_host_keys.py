"""Images of ours with an SSH server: no keys in the image, one of its own in each machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.long]

CHECK = """\
#!/bin/sh
set -e
systemctl start ssh
cd /etc/ssh
test "$(echo ssh_host_*_key)" = ssh_host_ed25519_key
"""


def has_no_host_keys(image: Path, test_image, tmp_path: Path, *skip: str) -> None:
    words = [sys.executable, "-m", "hotplate", "inspect", "--strict", *skip, image]
    seen = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert seen.returncode == 0, seen.stdout
    check = tmp_path / "keys.sh"
    check.write_text(CHECK)
    check.chmod(0o755)
    done = test_image(image, "--check", check)
    assert (done.status, done.last_line) == (0, "PASSED"), done.stdout


def test_plain_image_with_an_ssh_server_has_no_host_keys(images, test_image, tmp_path):
    """It has no agent, a network, and a login by Nova's key."""
    image = images.get("trixie", "partition", "", "--package", "openssh-server")
    has_no_host_keys(image, test_image, tmp_path, "--skip", "no-agent")


def test_image_without_cloud_init_has_no_host_keys(signed, test_image, tmp_path):
    has_no_host_keys(signed, test_image, tmp_path)
