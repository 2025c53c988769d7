"""tools/newer-qemu: a QEMU beside the host's own, or a sentence why there is none."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def newer_qemu(tmp_path: Path):
    """Run it on a host with a QEMU of that version, and programs of a line of shell for others."""

    def run(version: str, **programs: str) -> subprocess.CompletedProcess[str]:
        programs["qemu-system-x86_64"] = f"echo 'QEMU emulator version {version}'"
        for name, body in programs.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        return subprocess.run(
            [ROOT / "tools" / "newer-qemu", tmp_path / "newer"],
            env={**os.environ, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.mark.parametrize("version", ["8.1.0", "10.0.2 (Debian 1:10.0.2+ds-2)"])
def test_a_host_with_a_new_one_needs_none(newer_qemu, version):
    done = newer_qemu(version, **{"apt-get": "exit 1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("apt", "why"),
    [
        ("exit 0", "this host has no Debian mirror"),
        (
            '[ "$1" = indextargets ] || { echo "E: no such host" >&2; exit 100; }\n'
            ". /etc/os-release; echo $VERSION_CODENAME main http://mirror.example/debian/",
            "E: no such host; this host's own QEMU it is|this host has no Debian mirror",
        ),
    ],
    ids=["no mirror", "no backports"],
)
def test_where_none_can_be_had_it_is_the_hosts_own_and_a_sentence_says_so(
    newer_qemu, tmp_path, apt, why
):
    done = newer_qemu("7.2.22 (Debian 1:7.2+dfsg-7)", **{"apt-get": apt})
    assert (done.returncode, done.stdout) == (0, "")
    assert re.search(why, done.stderr)
    assert not [each for each in tmp_path.iterdir() if each.name not in ("bin", "newer")]


def test_wrong_usage():
    done = subprocess.run([ROOT / "tools" / "newer-qemu"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
