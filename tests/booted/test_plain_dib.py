"""Images built with disk-image-create alone, without hotplate build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from built_images import package_source

from hotplate.image import mirrors
from hotplate.paths import elements_dir

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
]


ROOT = Path(__file__).parents[2]

CHROOT_SECONDS = 1500


def documented_lines(page: Path) -> str:
    """Return the commands of "With diskimage-builder alone"."""
    text = page.read_text()
    block = text[text.index("With diskimage-builder alone::") :].partition("::\n\n")[2]
    return "".join(re.findall(r"^    (.*\n)", block.partition("\n\n")[0] + "\n", re.MULTILINE))


def documented_packages(page: Path) -> list[str]:
    """Return the packages that a host needs for diskimage-builder alone."""
    section = page.read_text().partition("With disk-image-create alone\n")[2]
    (packages,) = re.findall(r"^    apt-get install (.*)", section, re.MULTILINE)
    return packages.split()


@pytest.fixture
def fresh_debian(tmp_path: Path, nothing_left: None) -> Path:
    """A minimal trixie, isolated from this host's Python."""
    root = tmp_path / "trixie"
    places = mirrors.of_this_host("trixie")
    packages = [*documented_packages(ROOT / "docs/building.rst"), "ca-certificates"]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [*(f"--aptopt={option}" for option in places.options), "trixie", str(root)]
    subprocess.run([*command, *([places.main] if places.main else [])], check=True, timeout=900)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    shutil.copy("/etc/hosts", root / "etc/hosts")
    return root


#: In a mount namespace: a mount in pytest's directory, which the next pytest deletes, would have
#: this host's /dev deleted if this one is killed.  dib asks findmnt(8) for the options of /dev/pts,
#: so it must be a mount point.
IN_ROOT = """
mount --bind "$0" "$0"
for place in dev dev/pts proc sys; do mount --bind "/$place" "$0/$place"; done
exec chroot "$0" "$@"
"""


@pytest.mark.long
def test_readme_command_needs_only_dib_and_the_elements(fresh_debian, tmp_path, test_image):
    """A fresh trixie with ``pip install diskimage-builder``: no hotplate, no plug-in."""
    shutil.copytree(elements_dir(), fresh_debian / "root/hotplate/elements")
    shutil.copytree(ROOT / "hooks", fresh_debian / "root/hotplate/hooks")
    bundle = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
    shutil.copy(bundle, fresh_debian / "root/ca.crt")
    script = f"""set -eu
export HOME=/root PIP_CERT=/root/ca.crt
cd /root/hotplate
python3 -m venv /root/dib && . /root/dib/bin/activate
pip install --quiet diskimage-builder
{documented_lines(ROOT / "README.rst")}"""
    log = tmp_path / "build.log"
    with log.open("w") as stream:
        status = subprocess.run(
            [*("unshare", "--mount", "sh", "-euc", IN_ROOT), fresh_debian, "bash", "-c", script],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **package_source("trixie")},
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=CHROOT_SECONDS,
        ).returncode
    assert status == 0, log.read_text()[-3000:]
    for suffix in (".qcow2", ".vmlinuz", ".initrd"):
        shutil.copy(fresh_debian / f"root/hotplate/web{suffix}", tmp_path)
    image = tmp_path / "web.qcow2"
    done = test_image(image)
    assert done.status == 0, done.stdout


@pytest.mark.long
@pytest.mark.both_machines
@pytest.mark.parametrize(
    "release, words",
    [
        # test_image_contents.py has the same images.
        pytest.param("unstable", (), marks=pytest.mark.xdist_group("image of unstable-slim")),
        pytest.param(
            "bullseye",
            ("--kernel", "generic"),
            marks=pytest.mark.xdist_group("image of bullseye-slim"),
        ),
    ],
)
def test_newest_and_oldest_release_build_and_boot(release, words, images, test_image):
    """bullseye's security suite lacks the cloud kernel at times, so use the generic one."""
    done = test_image(images.get(release, "disk", "script", *words))
    assert done.status == 0, done.stdout
