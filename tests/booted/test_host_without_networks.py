"""A host on which no network between servers can be made: a chroot, as in many CI systems."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]

#: In a chroot the kernel refuses to make user namespaces (user_namespaces(7), EPERM).
CHROOT = 'mount --rbind / "$0"; exec chroot "$0" "$@"'


def test_server_with_a_link_of_its_own_passes(all_hooks_bookworm, seeds, tmp_path):
    """cloud-init fails on a network_data.json with a MAC address that the machine does not have."""
    root, document = tmp_path / "root", tmp_path / "verdict.json"
    root.mkdir()
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-euc", CHROOT, root),
            *(sys.executable, "-m", "hotplate", "test", all_hooks_bookworm, "--machine", "qemu"),
            *("-t", seeds / "one-template-sample" / "template.yaml"),
            *("--artifacts", tmp_path / "artifacts", "--json", document),
        ],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no networks between servers" in json.loads(document.read_text())["facts"]["network"]
