"""A real podman with its own storage, and an image made of a static busybox."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotplate.image import mirrors

IMAGE = "localhost/hotplate-busybox:test"
APPLETS = ("cat", "echo", "env", "false", "id", "sh", "sleep", "test", "touch", "true")


@dataclass(frozen=True)
class Podman:
    """How to call a podman that leaves the host's own containers alone."""

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
        """Return what podman knows of a container."""
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


@pytest.fixture(scope="session")
def podman_storage() -> Iterator[Podman]:
    """A podman that was seen to run a container, else a skip with what it said instead."""
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
            wrapper = directory / "podman"
            wrapper.write_text(f'#!/bin/sh\nexec {program} --runtime {path} "$@"\n')
            wrapper.chmod(0o755)
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


@pytest.fixture
def podman(podman_storage: Podman) -> Iterator[Podman]:
    """The podman, without containers before and after."""
    yield podman_storage
    podman_storage.run("rm", "--all", "--force", "--time", "0", check=False)


@pytest.fixture(scope="session")
def engine_socket(podman_storage: Podman) -> Iterator[str]:
    """The address of podman's engine, which speaks docker's protocol."""
    path = Path(podman_storage.environment["HOME"]) / "engine.sock"
    with subprocess.Popen(
        [podman_storage.program, "system", "service", "--time=0", f"unix://{path}"],
        env=podman_storage.environment,
        stderr=subprocess.DEVNULL,
    ) as service:
        try:
            for _ in range(100):
                if path.exists():
                    break
                assert service.poll() is None, "podman's service ended"
                time.sleep(0.1)
            yield f"unix://{path}"
        finally:
            service.terminate()


@pytest.fixture
def docker_environment(podman: Podman, engine_socket: str, tmp_path: Path) -> dict[str, str]:
    """The environment for docker's command line, with podman's engine behind it."""
    if shutil.which("docker") is None:
        pytest.skip("docker's command line is not installed (docker-cli, or docker.io)")
    return {
        **podman.environment,
        "DOCKER_HOST": engine_socket,
        "DOCKER_CONFIG": str(tmp_path / "docker-config"),
    }


@pytest.fixture(scope="session")
def compose_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compose plug-in (v2): the host's, else Debian trixie's from the host's own mirror."""
    for path in (
        "/usr/libexec/docker/cli-plugins/docker-compose",
        "/usr/lib/docker/cli-plugins/docker-compose",
        "/usr/local/lib/docker/cli-plugins/docker-compose",
    ):
        if os.access(path, os.X_OK):
            return Path(path)
    directory = tmp_path_factory.mktemp("compose")
    try:
        _download_from_trixie("docker-compose", directory)
    except (OSError, subprocess.CalledProcessError) as error:
        problem = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"no compose plug-in here, and none to be had: {problem.strip()[-300:]}")
    return directory / "usr/libexec/docker/cli-plugins/docker-compose"


def _download_from_trixie(package: str, directory: Path) -> None:
    """Unpack a package of trixie, with apt's own client, state kept apart from the host's."""
    mirror = mirrors.of_this_host("trixie").main
    if not mirror:
        raise OSError("the host's apt sources name no mirror")
    apt = directory / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} trixie main\n")
    (apt / "apt.conf").write_text(
        f'Dir::State::Lists "{apt}/lists";\nDir::Cache "{apt}/cache";\n'
        f'Dir::Etc::SourceList "{apt}/sources.list";\nDir::Etc::SourceParts "/dev/null";\n'
        'Acquire::Languages "none";\nAPT::Sandbox::User "root";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    for command in (["apt-get", "update"], ["apt-get", "download", package]):
        subprocess.run(
            command,
            cwd=directory,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
    (archive,) = directory.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(archive), str(directory)], check=True, capture_output=True)


@pytest.fixture
def clean_up_of(hooks_dir: Path, tmp_path: Path):
    """Make a function that runs a hook's step of os-refresh-config, and returns what it logged.

    It is given the deployments of the list and those from Heat, None where Heat was not asked.
    """

    def make(group: str, environment: dict[str, str]):
        def run(listed, from_heat, *, source="cfn"):
            (tmp_path / "heat-config").write_text(json.dumps(listed))
            files = [str(tmp_path / "ec2.json")]
            if from_heat is not None:
                path = tmp_path / f"{source}.json"
                path.write_text(json.dumps({"deployments": from_heat}))
                files.append(str(path))
            done = subprocess.run(
                [sys.executable, "-I", str(hooks_dir / f"50-heat-config-{group}")],
                env={
                    "PATH": os.environ["PATH"],
                    **environment,
                    "HEAT_CONFIG_LIB": str(hooks_dir),
                    "HEAT_SHELL_CONFIG": str(tmp_path / "heat-config"),
                    "OS_CONFIG_FILES": ":".join(files),
                },
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            return done.stderr

        return run

    return make
