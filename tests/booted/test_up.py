"""``hotplate up`` with a guest: use it, end it, and resume it from its disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.timing.deadline import Deadline, retry

pytestmark = pytest.mark.boots

BOOT_SECONDS = 1500
SERVER = "Web-Server"
#: The server's name in Nova; ssh takes no spaces.
NAME = "Web Server"
LOGIN = ("-l", "root")


class Session:
    """A running ``hotplate up``, and the commands that a user types beside it."""

    def __init__(self, image: Path, directory: Path, *words: object) -> None:
        self.directory = directory
        self.log = directory.with_suffix(".log")
        self._before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "hotplate", "up", image, "--directory", directory),
                    *map(str, words),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        sys.stdout.write(self.log.read_text())

    def hotplate(self, verb: str, *words: str, timeout: int = 600) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "hotplate", verb, "--directory", self.directory, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def openstack(self, *words: str):
        """Return the parsed answer of the openstack command."""
        return json.loads(self.typed(*words, "-f", "json"))

    def typed(self, *words: str) -> str:
        """Return the output of the openstack command."""
        done = subprocess.run(
            [str(Path(sys.executable).with_name("openstack")), *words],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.directory.parent),
                "PYTHONWARNINGS": "ignore",
                "OS_CLIENT_CONFIG_FILE": str(self.directory / "clouds.yaml"),
                "OS_CLOUD": "hotplate",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def output(self) -> str:
        """Return the session's output so far; it must be running."""
        # The last character may be written in part.
        output = self.log.read_bytes()[self._before :].decode(errors="replace")
        assert self.process.poll() is None, output
        return output

    def wait_for(self, text: str) -> None:
        """Wait for a text in the output of ``up``."""

        def printed(_: bool) -> bool:
            return text in self.output()

        retry(printed, Deadline(BOOT_SECONDS, f'"{text}"'), every=0.5)

    def in_guest(self, command: str) -> str:
        """Return the output of a command in the guest, once it has a shell."""

        def ran(last: bool) -> str | None:
            self.output()
            done = self.hotplate("shell", SERVER, command)
            assert not last or done.returncode == 0, done.stderr
            return done.stdout if done.returncode == 0 else None

        return retry(ran, Deadline(BOOT_SECONDS, "the shell"), every=2)


def assert_suite_passes(artifacts: Path, assertion: str) -> None:
    """Run one assertion in a suite of testinfra's, on the only server of the session."""
    suite = artifacts / "test_suite.py"
    suite.write_text(f"def test_it(host):\n    assert {assertion}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--hosts=hotplate://", suite.name],
        cwd=artifacts,
        env={**os.environ, "HOTPLATE_ARTIFACTS": str(artifacts)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_guest_is_resumed_by_the_next_session(without_cloud_init, seeds, tmp_path, nothing_left):
    directory = tmp_path / "up"
    template = seeds / "one-template-sample" / "template.yaml"
    with Session(without_cloud_init, directory, "-t", template, "--keep") as session:
        session.wait_for('stack "hotplate": CREATE_COMPLETE')
        shown = session.openstack("stack", "output", "show", "hotplate", "stdout")
        assert shown["output_value"] == "web server ready\n"
        assert f"ssh -F {directory}/ssh-config {SERVER}" in session.log.read_text()
        assert f"hotplate shell --directory {directory} {SERVER}" in session.log.read_text()
        first = session.in_guest("cat /proc/sys/kernel/random/boot_id; echo kept >/root/note")
        done = session.hotplate("down", timeout=900)
        assert done.returncode == 0, done.stderr
        assert session.process.wait(300) == 0
    with Session(without_cloud_init, directory) as session:
        session.wait_for(f'server "{SERVER}" is on')
        assert session.in_guest("cat /root/note") == "kept\n"
        assert_suite_passes(tmp_path, "host.file('/root/note').content_string == 'kept\\n'")
        assert session.in_guest("cat /proc/sys/kernel/random/boot_id") != first
        # The guest still belongs to its stack and runs new deployments.
        script = tmp_path / "script.sh"
        script.write_text("#!/bin/sh\necho again >/root/new; mv /root/new /root/again\n")
        config = session.openstack(
            *("software", "config", "create", "again", "--group", "script"),
            *("--config-file", str(script)),
        )
        server = session.openstack("stack", "resource", "show", "hotplate", "web_server")
        session.openstack(
            *("software", "deployment", "create", "again", "--config", config["id"]),
            *("--server", server["physical_resource_id"], "--signal-transport", "NO_SIGNAL"),
        )
        assert session.in_guest("cat /root/again") == "again\n"
        assert session.hotplate("down", timeout=900).stdout == "ended; nothing was kept\n"
        assert session.process.wait(300) == 0
    assert not directory.exists()


def outside(session: Session) -> set[str]:
    """Return the external networks."""
    return {each["ID"] for each in session.openstack("network", "list", "--external")}


@pytest.mark.long
@pytest.mark.tool("ssh")
def test_ssh_command_reaches_the_guest(images, seeds, tmp_path, nothing_left):
    image = images.get("bookworm", "disk", "script", "--package", "openssh-server")
    template = seeds / "one-template-sample" / "template.yaml"
    with Session(image, tmp_path / "up", "-t", template) as session:
        session.wait_for('stack "hotplate": CREATE_COMPLETE')
        inside = session.in_guest("cat /proc/sys/kernel/random/boot_id")
        by_verb = session.hotplate("ssh", SERVER, "cat /proc/sys/kernel/random/boot_id")
        assert (by_verb.returncode, by_verb.stdout) == (0, inside), by_verb.stderr
        by_line = subprocess.run(
            ["ssh", "-F", tmp_path / "up" / "ssh-config", SERVER, "id -un; exit 3"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (by_line.returncode, by_line.stdout) == (3, "root\n"), by_line.stderr
        # A floating address needs a route from its network to the server's, as in Neutron.
        (subnet,) = {
            each["ID"]
            for each in session.openstack("subnet", "list", "--ip-version", "4")
            if each["Network"] not in outside(session)
        }
        session.typed("router", "create", "way-in", "--external-gateway", "public")
        session.typed("router", "add", "subnet", "way-in", subnet)
        floating = session.openstack("floating", "ip", "create", "public")
        session.typed("server", "add", "floating", "ip", NAME, floating["floating_ip_address"])
        for words in (["--private", NAME], [NAME]):
            config = str(tmp_path / "up" / "ssh-config")
            typed = session.typed("server", "ssh", *words, "--", "-F", config, *LOGIN, "id", "-un")
            assert typed == "root\n"
        assert session.hotplate("down", timeout=900).returncode == 0
