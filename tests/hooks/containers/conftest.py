"""Fixtures of containers: podman's engine, docker's command line, its compose plug-in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_podman import Podman, own_podman
from programs import completed

from hotplate.image import mirrors


@pytest.fixture(scope="session")
def podman_storage() -> Iterator[Podman]:
    """A podman that has run a container, else a skip with its error."""
    with own_podman() as made:
        yield made


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
            for _ in range(600):
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
def compose_plugin(kept) -> Path:
    """The compose plug-in (v2): the host's, else Debian trixie's from the host's own mirror."""
    for path in (
        "/usr/libexec/docker/cli-plugins/docker-compose",
        "/usr/lib/docker/cli-plugins/docker-compose",
        "/usr/local/lib/docker/cli-plugins/docker-compose",
    ):
        if os.access(path, os.X_OK):
            return Path(path)
    try:
        directory = kept("docker-compose", "trixie", _download_compose_from_trixie)
    except (OSError, subprocess.CalledProcessError) as error:
        problem = getattr(error, "stderr", "") or str(error)
        pytest.skip(f"no compose plug-in here, and none to be had: {problem.strip()[-300:]}")
    return directory / "usr/libexec/docker/cli-plugins/docker-compose"


def _download_compose_from_trixie(directory: Path) -> None:
    """Unpack the package of trixie, with apt's own client, state kept apart from the host's."""
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
    for command in (["apt-get", "update"], ["apt-get", "download", "docker-compose"]):
        completed(command, cwd=directory, env=environment, check=True, timeout=300)
    (archive,) = directory.glob("*.deb")
    subprocess.run(["dpkg", "-x", str(archive), str(directory)], check=True, capture_output=True)
    archive.unlink()
    shutil.rmtree(apt)


@pytest.fixture
def base_system(tmp_path: Path) -> Path:
    """A folder with the host's programs, except those of containers."""
    base = tmp_path / "base"
    base.mkdir()
    for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith(("docker", "podman")):
                link = base / program.name
                if not link.is_symlink():
                    link.symlink_to(program)
    return base


@pytest.fixture
def clean_up_of(hooks_dir: Path, tmp_path: Path):
    """Make a function that runs a hook's step of os-refresh-config, and returns its log.

    Its arguments are the deployments of the list and those from Heat, None where Heat was not
    asked.
    """

    def make(group: str, environment: dict[str, str]):
        def run(listed, from_heat, *, source="cfn"):
            (tmp_path / "heat-config").write_text(json.dumps(listed))
            files = [str(tmp_path / "ec2.json")]
            if from_heat is not None:
                path = tmp_path / f"{source}.json"
                path.write_text(json.dumps({"deployments": from_heat}))
                files.append(str(path))
            done = completed(
                [sys.executable, "-I", str(hooks_dir / f"50-heat-config-{group}")],
                env={
                    "PATH": os.environ["PATH"],
                    **environment,
                    "HEAT_CONFIG_LIB": str(hooks_dir),
                    "HEAT_SHELL_CONFIG": str(tmp_path / "heat-config"),
                    "OS_CONFIG_FILES": ":".join(files),
                },
            )
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            return done.stderr

        return run

    return make
