"""``--os-cloud`` of the command and the plug-in, against ``hotplate up`` with booted guests."""

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

from hotplate.machine.machine import Capability
from hotplate.timing.deadline import Deadline, retry

pytestmark = [pytest.mark.boots, pytest.mark.long]

SECONDS = 3600
#: Seconds after which pytest prints the stacks of its threads.
STACK_SECONDS = 600

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "plugin" / "greeting.yaml"
EXPECT = {
    "outputs": {"greeting": "hello, cloud\n"},
    "files": {"/etc/hostname": "present", "/etc/shadow": {"owner": "root"}},
    "services": {"os-collect-config": {"running": True}},
    "packages": {"openssh-server": "installed"},
    "commands": {"id -u": {"stdout": "0"}},
}

#: Tests of a plug-in user; the third fails.
TESTS = """
import pytest

SCRIPT = "#!/bin/sh\\nprintf %s \\"$word\\" > $heat_outputs_path.back\\necho to the log >&2\\n"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def deploys(server, word):
    done = server.deploy(
        group="script", config=SCRIPT, inputs={"word": word}, outputs=["back"]
    ).wait()
    assert done.status == "COMPLETE", server.diagnosis()
    assert done.outputs["back"] == word
    assert done.outputs["deploy_stderr"] == "to the log\\n"


def test_what_works(booted_server):
    server = booted_server
    assert server.host.package("openssh-server").is_installed
    assert server.host.service("os-collect-config").is_running
    assert server.host.file("/etc/shadow").mode & 0o007 == 0
    deploys(server, "a word")
    assert server.wait_for_console_text("heat-config: signalled")
    server.copy_in(b"\\0\\xff bytes", "/root/copied", mode=0o600)
    assert server.copy_out("/root/copied") == b"\\0\\xff bytes"


def test_a_reboot(booted_server):
    server = booted_server
    boot = server.host.file(BOOT_ID).content_string
    server.reboot()
    assert server.host.file(BOOT_ID).content_string != boot
    server.wait_for_unit("os-collect-config.service")
    deploys(server, "another word")


def test_a_script_that_fails(booted_server):
    done = booted_server.deploy(group="script", config="#!/bin/sh\\necho no >&2\\nexit 3\\n").wait()
    assert done.outputs["deploy_status_code"] == 3
    assert done.status == "COMPLETE", booted_server.diagnosis()


@pytest.mark.parametrize("what", ["crash", "block"])
def test_what_a_cloud_cannot_do(booted_server, what):
    getattr(booted_server, what)()
    raise AssertionError("it did not skip")


def test_a_planted_fault(cloud):
    raise AssertionError("it did not skip")
"""

MORE_TESTS = """
def test_a_server_of_its_own(server):
    done = server.deploy(group="script", config="#!/bin/sh\\necho first\\n").wait()
    assert done.outputs["deploy_stdout"] == "first\\n", server.diagnosis()
    assert "heat-config" in server.journal()
"""


class Elsewhere:
    """A ``hotplate up``, and a user with its ``clouds.yaml`` and ssh config."""

    def __init__(self, image: Path, folder: Path) -> None:
        self.image = image
        self.folder = folder
        self.up = folder / "up"
        self.log = folder / "up.log"

    def __enter__(self) -> Elsewhere:
        with self.log.open("wb") as output:
            words = ["up", self.image, "--directory", self.up]
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "hotplate", *map(str, words)],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def is_up(_: bool) -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return "; Ctrl-C ends it" in self.log.read_text()

        retry(is_up, Deadline(300, "the cloud"), every=0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(300)
        finally:
            self.process.kill()
            self.process.wait()
            sys.stdout.write(self.log.read_text())

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "OS_CLIENT_CONFIG_FILE": str(self.up / "clouds.yaml")}

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start ``hotplate test --os-cloud``."""
        given = ["test", "--os-cloud", "hotplate", *words]
        return subprocess.Popen(
            [sys.executable, "-m", "hotplate", *map(str, given)],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: object) -> tuple[int, str]:
        """Run it to completion; return the exit status and the output."""
        with self.start(*words) as process:
            text, _ = process.communicate(timeout=SECONDS)
        print(text)
        return process.returncode, text

    def pytest(self, *words: object) -> tuple[int, str]:
        """Run pytest in the folder, with the image and ssh access to the guests."""
        log = self.folder / "pytest.log"
        try:
            with log.open("wb") as output:
                done = subprocess.run(
                    [
                        *(sys.executable, "-P", "-m", "pytest", "-rsf", "-p", "no:cacheprovider"),
                        *("-o", f"faulthandler_timeout={STACK_SECONDS}"),
                        *("--image", self.image, "--os-cloud", "hotplate"),
                        *("--ssh-config", self.up / "ssh-config", *words),
                    ],
                    cwd=self.folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=SECONDS,
                )
        except subprocess.TimeoutExpired:
            # Have the cloud print the stacks of its threads.
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(300)
            ends = [f"{each}:\n{each.read_text()[-3000:]}" for each in (log, self.log)]
            pytest.fail(f"pytest does not end in {SECONDS} s\n" + "\n".join(ends), pytrace=False)
        text = log.read_text()
        print(text)
        return done.returncode, text

    def test(self, template: Path, *words: object) -> tuple[int, str]:
        """Test the image, with ssh access to the guest."""
        return self.run(self.image, "-t", template, "--ssh-config", self.up / "ssh-config", *words)

    def until(self, template: Path, text: str) -> subprocess.Popen[str]:
        """Start a test and wait for a text in its output."""
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
        """Return all resources of the project, by kind."""
        login = yaml.safe_load((self.up / "clouds.yaml").read_text())["clouds"]["hotplate"]
        with sdk.connect(load_envvars=False, **login) as openstack:

            def ports() -> list[Any]:
                # The cloud's DHCP creates a port with a subnet's first use and keeps it.
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


def test_command_tests_the_image_in_a_cloud(images, tmp_path, nothing_left):
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
            text, _ = process.communicate(timeout=900)
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


def test_plug_in_runs_tests_in_a_cloud(images, tmp_path, nothing_left):
    image = images.get("bookworm", "disk", "script", "--package", "openssh-server")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_more.py").write_text(MORE_TESTS)
    with Elsewhere(image, tmp_path) as cloud:
        before = cloud.what_there_is()
        status, text = cloud.pytest("--artifacts", tmp_path / "artifacts", ".")
        assert status == 1, text
        assert "1 failed, 3 passed, 3 skipped" in text
        assert "FAILED test_it.py::test_a_script_that_fails" in text
        for word, needed in (("crash", Capability.POWER), ("block", Capability.LINKS)):
            assert f"{word} needs {needed.value}; this server is in the cloud" in text
        assert "it asks for the embedded cloud, and its servers are in another" in text
        assert cloud.what_there_is() == before
    reports = (tmp_path / "artifacts" / "last").glob("*/*/report.html")
    assert [each for each in reports if "ended with status 3" in each.read_text()]
