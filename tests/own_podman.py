"""A real podman with its own storage, beside the host's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import programs
import pytest

IMAGE = "localhost/hotplate-busybox:test"
APPLETS = ("cat", "echo", "env", "false", "id", "sh", "sleep", "test", "touch", "true")


@dataclass(frozen=True)
class Podman:
    """Calls podman without touching the host's own containers."""

    program: str
    environment: dict[str, str]
    image: str = IMAGE

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman with the arguments."""
        return subprocess.run(
            [self.program, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def names(self) -> list[str]:
        """Return the names of all containers, sorted."""
        return sorted(self.run("ps", "-a", "--format", "{{.Names}}").stdout.split())

    def inspect(self, name: str) -> dict:
        """Return podman's description of a container."""
        return json.loads(self.run("inspect", "--type", "container", name).stdout)[0]


def _busybox_image(directory: Path) -> Path:
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("no busybox to make an image of (package busybox-static)")
    if subprocess.run(["ldd", program], capture_output=True, check=False).returncode == 0:
        pytest.skip("the busybox here is not a static one (package busybox-static)")
    path = directory / "image.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(program, "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
    return path


@contextlib.contextmanager
def own_podman() -> Iterator[Podman]:
    """Provide a podman that can run a container; else skip the test with its error."""
    program = shutil.which("podman")
    if program is None:
        pytest.skip("podman is not installed")
    if os.geteuid() != 0:
        pytest.skip("podman's own storage is made as root")
    # Not in pytest's directory: podman's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="hotplate-podman-") as name:
        directory = Path(name)
        (directory / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{name}/root"\nrunroot = "{name}/run"\n'
        )
        # The limits are lowered because a host without CAP_SYS_RESOURCE cannot raise them.
        (directory / "containers.conf").write_text(
            '[containers]\nnetns = "none"\ncgroupns = "host"\nlog_driver = "k8s-file"\n'
            'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
            f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'tmp_dir = "{name}/tmp"\nvolume_path = "{name}/volumes"\n'
        )
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "CONTAINERS_CONF": str(directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
        }
        made = Podman(program, environment)
        made.run("import", str(_busybox_image(directory)), IMAGE)
        problems = []
        for runtime in ("crun", "runc"):
            path = shutil.which(runtime)
            if path is None:
                continue
            text = f'exec {program} --runtime {path} "$@"'
            wrapper = programs.program(directory / "podman", text)
            made = Podman(str(wrapper), environment)
            tried = made.run("run", "--rm", IMAGE, "echo", "it runs", check=False)
            if tried.returncode == 0:
                break
            made.run("rm", "--all", "--force", check=False)
            problems.append(f"{runtime}: {tried.stderr.strip()}")
        else:
            pytest.skip("podman cannot run a container here: " + "; ".join(problems))
        yield made
        made.run("rm", "--all", "--force", "--time", "0", check=False)
        _end_processes_of(name)


def _end_processes_of(directory: str) -> None:
    """Wait up to a limit for podman's background processes that still use the directory."""
    for _ in range(600):
        left = False
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = each.read_bytes()
                if directory.encode() in words:
                    left = True
                    # The engine keeps that of an exec for five minutes.
                    if b"--exit-delay" in words:
                        os.kill(int(each.parent.name), signal.SIGKILL)
        if not left:
            return
        time.sleep(0.1)
