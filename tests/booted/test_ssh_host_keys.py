"""Images of ours with an SSH server: no keys in the image, one of its own in each machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.long]

CHECK = """\
#!/bin/sh
set -e
systemctl start ssh
cd /etc/ssh
test "$(echo ssh_host_*_key)" = ssh_host_ed25519_key
"""


@pytest.mark.parametrize(
    ("groups", "options", "skip"),
    [
        # A plain image: no agent, a network, and a login by Nova's key.
        pytest.param("", (), ("--skip", "no-agent"), id="plain"),
        pytest.param("script", ("--no-cloud-init",), (), id="without-cloud-init"),
    ],
)
def test_image_with_an_ssh_server_has_no_host_keys(
    images, test_image, tmp_path, groups, options, skip
):
    image = images.get("bookworm", "disk", groups, "--package", "openssh-server", *options)
    words = [sys.executable, "-m", "hotplate", "inspect", "--strict", *skip, image]
    seen = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert seen.returncode == 0, seen.stdout
    check = tmp_path / "keys.sh"
    check.write_text(CHECK)
    check.chmod(0o755)
    done = test_image(image, "--check", check)
    assert (done.status, done.last_line) == (0, "PASSED"), done.stdout
