"""tools/newer-qemu: a QEMU beside the host's own, or a sentence why there is none."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = "7.2.22 (Debian 1:7.2+dfsg-7)"
on_debian = pytest.mark.skipif(
    platform.freedesktop_os_release().get("ID") != "debian", reason="this host is no Debian"
)
# apt-get, as far as it says where the host's packages come from.
TARGETS = """case "$1" in indextargets)
    . /etc/os-release; echo "$VERSION_CODENAME main http://mirror.example/debian/"; exit ;;
esac
"""
DOWNLOAD = 'case " $* " in *" download "*) touch a.deb ;; esac'


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
            cwd=tmp_path,
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
        ("exit 0", "this host has no Debian mirror whose backports could have one"),
        ("exit 100", "this host has no Debian mirror whose backports could have one"),
        pytest.param(
            TARGETS + 'echo "E: no such host" >&2; exit 100',
            "E: no such host; this host's own QEMU it is",
            marks=on_debian,
        ),
        pytest.param(
            TARGETS + "exit 0",
            "have no newer one that runs here; its own QEMU it is",
            marks=on_debian,
        ),
    ],
    ids=["no mirror", "no lists", "no backports", "an old one"],
)
def test_where_none_can_be_had_it_is_the_hosts_own_and_a_sentence_says_so(
    newer_qemu, tmp_path, apt, why
):
    unpack = 'mkdir -p "$3/usr/bin"; ln -s /bin/false "$3/usr/bin/qemu-system-x86_64"'
    if why.startswith("have"):
        apt = apt.replace("exit 0", DOWNLOAD)
    done = newer_qemu(OURS, **{"apt-get": apt, "dpkg-deb": unpack})
    assert (done.returncode, done.stdout) == (0, "")
    assert why in done.stderr
    assert {each.name for each in tmp_path.iterdir()} == {"bin", "newer"}


@on_debian
def test_it_is_unpacked_once_with_its_firmware(newer_qemu, tmp_path):
    unpack = """echo "$@" >> "$0.log"
mkdir -p "$3/usr/bin"
printf '#!/bin/sh\necho QEMU emulator version 10.0.2\n' > "$3/usr/bin/qemu-system-x86_64"
chmod 755 "$3/usr/bin/qemu-system-x86_64"
"""
    programs = {"apt-get": TARGETS + 'echo "$@" >> "$0.log"\n' + DOWNLOAD, "dpkg-deb": unpack}
    for _ in range(2):
        done = newer_qemu(OURS, **programs)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{tmp_path}/newer/usr/bin\n"
    assert (tmp_path / "newer/usr/bin/qemu-bundle/usr/lib/ipxe/qemu").is_symlink()
    updated, downloaded = (tmp_path / "bin/apt-get.log").read_text().splitlines()
    assert updated.endswith(" update")
    assert downloaded.endswith(
        "-backports download qemu-system-x86 qemu-system-common qemu-system-data seabios"
    )
    assert {each.name for each in tmp_path.iterdir()} == {"bin", "newer"}


def test_wrong_usage():
    done = subprocess.run([ROOT / "tools" / "newer-qemu"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
