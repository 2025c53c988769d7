"""The pytest plug-in with ``--os-cloud``: supported methods, and skipped ones."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ssh_server import ssh_config, ssh_server

from hotplate.machine.machine import Capability

pytestmark = pytest.mark.slow

TESTS = """
import pytest
from hotplate.timing.deadline import Deadline


def test_what_works(booted_server):
    server = booted_server
    assert server.host.file("/etc/passwd").exists
    assert server.run("echo hello").text == "hello"
    done = server.deploy(group="script", config="true").wait()
    assert done.status == "COMPLETE", server.diagnosis()
    assert server.console.wait_for("heat-config: finished", Deadline(60, "the hook")).group()
    assert server.wait_for_console_text("heat-config: signalled")
    server.reboot()
    assert b"root:" in server.copy_out("/etc/passwd")


@pytest.mark.parametrize("what", ["crash", "start", "block", "unblock", "shape", "part", "join"])
def test_what_a_cloud_cannot_do(booted_server, what):
    getattr(booted_server, what)()
    raise AssertionError("it did not skip")


def test_addresses(booted_server):
    assert booted_server.address()
    booted_server.address("private")
    raise AssertionError("it did not skip")


@pytest.mark.hotplate_needs("kernel", "links")
def test_that_says_it_beforehand(booted_server):
    raise AssertionError("it did not skip")


def test_a_planted_fault(booted_server, cloud):
    raise AssertionError("it did not skip")


def test_a_hook_that_fails(booted_server):
    done = booted_server.deploy(group="script", config="true").wait()
    assert done.status == "FAILED", booted_server.diagnosis()
"""


def test_plugin_runs_tests_of_a_cloud_server(cloud, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)

    def instead(command: str) -> str:
        return f"echo boot-{cloud.boots}" if "boot_id" in command else command

    before = cloud.what_there_is()
    with ssh_server(cloud.keys, root=True, instead=instead) as port:
        config = ssh_config(tmp_path / "config", port)
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "pytest", "-rs", "-p", "no:cacheprovider", "."),
                *(f"--image={cloud.folder}/played.raw", "--os-cloud", "hotplate"),
                *("--ssh-config", str(config), "--artifacts", str(tmp_path / "artifacts")),
            ],
            cwd=tmp_path,
            env=cloud.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
    print(done.stdout, done.stderr)
    assert "1 failed, 1 passed, 10 skipped" in done.stdout
    for needy, ability in (
        ("crash", Capability.POWER),
        ("block", Capability.LINKS),
        ("address of a network", Capability.LINKS),
        ("the test", Capability.LINKS),
    ):
        reason = f"{needy} needs {ability.value}; this server is in the cloud hotplate"
        assert reason in done.stdout
    assert "it asks for the embedded cloud, and its servers are in another" in done.stdout
    assert "RemovedInSDK" not in done.stdout
    assert cloud.boots == 1
    assert cloud.what_there_is() == before
    reports = [*(tmp_path / "artifacts" / "last").glob("*/*/report.html")]
    assert len(reports) == 1
