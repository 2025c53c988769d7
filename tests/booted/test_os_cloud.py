"""``hotplate test --os-cloud`` against ``hotplate up``, with guests that are booted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openstack as sdk
import pytest
import yaml

from hotplate.timing.deadline import Deadline, retry

pytestmark = [
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
]

SECONDS = 900
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "plugin" / "greeting.yaml"
EXPECT = {
    "outputs": {"greeting": "hello, cloud\n"},
    "files": {"/etc/hostname": "present", "/etc/shadow": {"owner": "root"}},
    "services": {"os-collect-config": {"running": True}},
    "packages": {"openssh-server": "installed"},
    "commands": {"id -u": {"stdout": "0"}},
}


class Elsewhere:
    """A ``hotplate up``, and a person who has its ``clouds.yaml`` and its ssh config."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image = image
        self.folder = folder
        self.up = folder / "up"
        self.log = folder / "up.log"

    def __enter__(self) -> Elsewhere:
        with self.log.open("wb") as output:
            words = ["up", self.image, "--directory", self.up]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hotplate", *map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def is_up(_: bool) -> bool | None:
            assert self.process.poll() is None, self.log.read_text()
            return "up; Ctrl-C ends it" in self.log.read_text() or None

        retry(is_up, Deadline(120, "the cloud"), every=0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            sys.stdout.write(self.log.read_text())

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Begin ``hotplate test --os-cloud``."""
        given = ["test", "--os-cloud", "hotplate", *words]
        return subprocess.Popen(
            [sys.executable, "-m", "hotplate", *map(str, given)],
            cwd=self.folder,
            env={**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.up / "clouds.yaml")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: object) -> tuple[int, str]:
        """Run it to its end; returns the exit status, and what it wrote."""
        with self.start(*words) as process:
            text, _ = process.communicate(timeout=SECONDS)
        print(text)
        return process.returncode, text

    def test(self, template: Path, *words: object) -> tuple[int, str]:
        """Test the image, with ways into the guest."""
        return self.run(self.image, "-t", template, "--ssh-config", self.up / "ssh-config", *words)

    def until(self, template: Path, text: str) -> subprocess.Popen[str]:
        """Begin a test, and wait until it has said something."""
        process = self.start(self.image, "-t", template)
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if text in line:
                return process
        raise AssertionError("".join(seen))

    def verdict(self) -> dict[str, Any]:
        return json.loads((self.folder / "artifacts" / "last" / "verdict.json").read_text())

    def what_there_is(self) -> dict[str, list[str]]:
        """All that is in the project, by its kind."""
        login = yaml.safe_load((self.up / "clouds.yaml").read_text())["clouds"]["hotplate"]
        with sdk.connect(load_envvars=False, **login) as openstack:

            def ports() -> list[Any]:
                # The cloud's own DHCP has a port as soon as a subnet is used, and keeps it.
                listed = openstack.network.ports()
                return [each for each in listed if each.device_owner != "network:dhcp"]

            kinds: dict[str, Callable[[], Any]] = {
                "stacks": openstack.orchestration.stacks,
                "servers": openstack.compute.servers,
                "key pairs": openstack.compute.keypairs,
                "images": openstack.image.images,
                "networks": openstack.network.networks,
                "ports": ports,
            }
            return {kind: sorted(each.id for each in listed()) for kind, listed in kinds.items()}


def test_the_same_test_in_a_cloud(images, tmp_path, nothing_left):
    image = images.get("bookworm", "disk", "script", "--package", "openssh-server")
    good = tmp_path / "good.yaml"
    good.write_text(
        yaml.safe_dump(
            {"template": str(EXAMPLE), "parameters": {"name": "cloud"}, "expect": EXPECT}
        )
    )
    bad = tmp_path / "bad.yaml"
    expect = {
        "commands": {"hostname": {"stdout": "somebody else"}},
        "files": {"/nowhere": "present"},
    }
    bad.write_text(
        yaml.safe_dump(
            {"template": str(EXAMPLE), "parameters": {"name": "cloud"}, "expect": expect}
        )
    )
    with Elsewhere(image, tmp_path) as cloud:
        before = cloud.what_there_is()

        status, text = cloud.test(good, "--junit", "junit.xml")
        assert status == 0, text
        verdict = cloud.verdict()
        assert verdict["outputs"] == {"greeting": "hello, cloud\n"}
        stages = {each["stage"]: each for each in verdict["stages"]}
        assert "Welcome to " in stages["booted"]["evidence"]
        for stage in ("hook started", "hook finished"):
            assert stages[stage]["evidence"].startswith("console: "), stages[stage]
        assert all(each["seconds"] is not None for each in stages.values())
        last = tmp_path / "artifacts" / "last"
        (journal,) = last.glob("guest/*/journal.txt")
        assert "os-collect-config" in journal.read_text()
        assert cloud.what_there_is() == before

        status, text = cloud.test(bad)
        assert status == 1, text
        assert 'the file "/nowhere" does not exist' in text
        assert 'its stdout is "' in text
        assert cloud.what_there_is() == before

        with cloud.until(good, " booted") as process:
            process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=300)
        assert process.returncode == 130, text
        assert cloud.verdict()["outcome"] == "interrupted"
        assert cloud.what_there_is() == before

        with cloud.until(good, " booted") as process:
            process.kill()
        left = cloud.what_there_is()
        for kind in ("stacks", "servers", "key pairs", "images"):
            assert len(left[kind]) == len(before[kind]) + 1, kind
        status, text = cloud.run("--clean")
        assert status == 0, text
        assert cloud.what_there_is() == before
