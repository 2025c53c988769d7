"""Build docs/recipes/Containerfile with podman and use hotplate in a container of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_podman import Podman, own_podman

from hotplate.image import mirrors

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.builds,
    pytest.mark.long,
    pytest.mark.xdist_group("container_file"),
]

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/base:bookworm"
HERE = "localhost/hotplate:test"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with own_podman() as made:
        yield made


@pytest.fixture(scope="module")
def image(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The container image, on a base that is made here, so that no registry is needed."""
    directory = tmp_path_factory.mktemp("container")
    dist = directory / "dist"
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", dist)
    subprocess.run([*build, ROOT], check=True, timeout=900)
    base = directory / "base.tar"
    mirror = mirrors.of_this_host("bookworm").main
    command = ("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", base, mirror)
    subprocess.run(command, check=True, timeout=900)
    podman.run("import", str(base), BASE)
    # As a site would: its certificates, and a pip.conf that names them.
    (directory / "pip.conf").write_text("[global]\ncert = /etc/site.crt\n")
    mounts = [f"{CERTIFICATES}:/etc/site.crt:ro", f"{directory}/pip.conf:/etc/pip.conf:ro"]
    options = [f"--volume={each}" for each in mounts]
    # Some hosts allow neither a container per build step nor a network for it.
    options += ["--isolation=chroot", "--network=host", "--layers=false"]
    options += [f"--build-arg=BASE={BASE}", f"--tag={HERE}"]
    file = ROOT / "docs" / "recipes" / "Containerfile"
    subprocess.run(
        [podman.program, "build", *options, "--file", file, dist],
        env=podman.environment,
        check=True,
        timeout=1800,
    )
    return HERE


def in_container(podman: Podman, *words: str, image: str, seconds: int = 300) -> str:
    """Return a command's output in a container without privileges and network."""
    done = subprocess.run(
        [podman.program, "run", "--rm", *words[:-1], image, "sh", "-ec", words[-1]],
        env=podman.environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_container_has_the_command_the_elements_and_the_tools(podman: Podman, image: str):
    script = (
        "hotplate --version; ls $(hotplate elements-path)/heat-config/element-deps;"
        "hotplate build --group script --dry-run -o web.qcow2; hotplate doctor"
    )
    printed = in_container(podman, script, image=image)
    assert printed.startswith("hotplate ")
    assert "disk-image-create" in printed
    assert "hotplate test can run here" in printed
    # No tool is missing.
    assert "to install what is missing" not in printed


@pytest.mark.boots
def test_container_tests_an_image_without_privileges(
    podman: Podman, image: str, without_cloud_init: Path
):
    path = without_cloud_init
    mount = f"--volume={path.parent}:/images:ro"
    words = f"hotplate inspect /images/{path.name}; hotplate test /images/{path.name}"
    printed = in_container(podman, mount, words, image=image, seconds=1500)
    assert "PASSED" in printed
