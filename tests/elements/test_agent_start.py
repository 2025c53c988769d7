"""What precedes the agent at each start, and heat-agent-forget, on a directory in place of /."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ELEMENT = Path(__file__).resolve().parents[2] / "elements/os-collect-config"
FILES = ELEMENT / "os-collect-config-files"
BOOT = {
    "deployments": [],
    "os-collect-config": {
        "collectors": ["ec2", "cfn", "local"],
        "cfn": {"metadata_url": "http://192.0.2.1:8000/v1/", "secret_access_key": "SECRET"},
    },
}


class Guest:
    """A tree that looks like the image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "etc/os-collect-config.conf"
        self.cache = root / "var/lib/os-collect-config"
        self.boot_metadata = root / "var/lib/heat-cfntools/cfn-init-data"
        templates = root / "usr/libexec/os-apply-config/templates/etc"
        programs = root / "usr/local/sbin"
        for folder in (
            *(templates, programs, self.cache, self.boot_metadata.parent, root / "etc"),
            *(root / "run", root / "bin", root / "var/lib/cloud/data", root / "var/log"),
        ):
            folder.mkdir(parents=True)
        (templates / "os-collect-config.conf").symlink_to(
            ELEMENT / "os-apply-config/etc/os-collect-config.conf"
        )
        (programs / "heat-agent-forget").symlink_to(FILES / "heat-agent-forget")
        self.program("systemctl", 'echo "$@" >> $HEAT_AGENT_ROOT/systemctl')

    def program(self, name: str, body: str) -> None:
        """Put a shell program of this name first on the path."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def run(self, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [FILES / name, *arguments],
            env={
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "HEAT_AGENT_ROOT": str(self.root),
                "LC_ALL": "C",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self) -> str:
        result = self.run("prepare")
        assert result.returncode == 0, result.stderr
        return result.stderr

    def boot(self, instance: str, metadata: object = BOOT) -> None:
        """What cloud-init leaves before the agent starts, on a fresh /run."""
        subprocess.run(["rm", "-rf", self.root / "run"], check=True)
        (self.root / "run").mkdir()
        (self.root / "var/lib/cloud/data/instance-id").write_text(instance + "\n")
        self.boot_metadata.write_text(json.dumps(metadata))


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


@pytest.mark.defect("A2")
def test_first_boot_polls_heat_at_once(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    assert "collectors = cfn\n" in guest.conf.read_text()
    assert stat.S_IMODE(guest.conf.stat().st_mode) == 0o600


def test_without_boot_metadata_the_agent_starts_all_the_same(guest: Guest) -> None:
    guest.start()
    assert "command = os-refresh-config\n" in guest.conf.read_text()


@pytest.mark.parametrize(
    "metadata", ["not an object", {"os-collect-config": {"command": "a\nb"}}], ids=["text", "evil"]
)
def test_unusable_boot_metadata_leave_the_minimal_configuration(
    guest: Guest, metadata: object
) -> None:
    guest.boot("i-1", metadata)
    guest.start()
    assert "collectors" not in guest.conf.read_text()
    assert "command = os-refresh-config\n" in guest.conf.read_text()
    assert [path.name for path in guest.conf.parent.iterdir()] == ["os-collect-config.conf"]


@pytest.mark.defect("A1")
@pytest.mark.parametrize("left", [b"", b"[DEFAULT]\n", b"\0\0\0\0"], ids=repr)
def test_a_configuration_broken_by_a_power_cut_is_mended(guest: Guest, left: bytes) -> None:
    guest.boot("i-1")
    guest.conf.write_bytes(left)
    guest.start()
    assert "command = os-refresh-config\ncollectors = ec2\n" in guest.conf.read_text()


def test_a_configuration_that_was_rendered_later_is_kept(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    later = guest.conf.read_text().replace("cfn", "heat")
    guest.conf.write_text(later)
    guest.boot("i-1")
    guest.start()
    assert guest.conf.read_text() == later


@pytest.mark.defect("A1")
def test_each_boot_runs_the_command_once_and_a_restart_does_not(guest: Guest) -> None:
    last = guest.cache / "cfn.json.last"
    guest.boot("i-1")
    guest.start()
    last.write_text("{}")
    guest.start()
    assert last.exists(), "a mere restart of the agent must not run everything again"
    guest.boot("i-1")
    guest.start()
    assert not last.exists(), "after a reboot the agent must see its sources as changed"


def test_a_captured_disk_forgets_the_other_instance(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    deployed = guest.root / "var/lib/heat-config/deployed"
    deployed.mkdir(parents=True)
    (deployed / "1.json").write_text("{}")
    (guest.cache / "ec2.json").write_text('{"instance-id": "i-1"}')
    local = guest.cache / "local-data"
    local.mkdir()
    (local / "mine").write_text("{}")
    other = json.loads(json.dumps(BOOT).replace("SECRET", "OTHER"))
    guest.boot("i-2", other)
    assert "captured from another instance" in guest.start()
    assert not (guest.cache / "ec2.json").exists()
    assert not deployed.exists()
    assert (local / "mine").exists()
    assert "secret_access_key = OTHER\n" in guest.conf.read_text()
    assert "captured" not in guest.start()


@pytest.mark.parametrize("instance", ["iid-datasource-none", "i-00000001"])
def test_a_boot_that_finds_no_or_another_source_forgets_nothing(
    guest: Guest, instance: str
) -> None:
    """Forgetting would run every deployment a second time."""
    uuid = "c3a1b1ce-0000-4000-8000-00000000beef"
    dmi = guest.root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_uuid").write_text(uuid.upper() + "\n")
    deployed = guest.root / "var/lib/heat-config/deployed/1.json"
    deployed.parent.mkdir(parents=True)
    for name in (uuid, instance, uuid):
        guest.boot(name)
        assert "forgetting" not in guest.start()
        deployed.touch()
    guest.boot("c3a1b1ce-0000-4000-8000-00000000cafe")
    (dmi / "product_uuid").write_text("c3a1b1ce-0000-4000-8000-00000000cafe\n")
    assert "captured from another instance" in guest.start()
    assert not deployed.exists()


def test_forget_for_a_capture_leaves_no_credential(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    (guest.root / "var/log/os-apply-config.log").write_text("SECRET")
    (guest.cache / "cfn.json").write_text("SECRET")
    result = guest.run("heat-agent-forget", "--capture")
    assert result.returncode == 0, result.stderr
    found = subprocess.run(
        ["grep", "-r", "SECRET", guest.root], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""
    assert "command = os-refresh-config\n" in guest.conf.read_text()


def test_splay_waits_before_the_agent(guest: Guest) -> None:
    guest.boot("i-1", {"os-collect-config": {**BOOT["os-collect-config"], "splay": 7}})
    guest.program("sleep", 'echo "$1" > $HEAT_AGENT_ROOT/slept')
    guest.start()
    assert 0 <= int((guest.root / "slept").read_text()) < 7


@pytest.mark.parametrize(
    "unit", ["cloud-init.service", "cloud-init-network.service", "heat-config-bootstrap.service"]
)
def test_waits_for_what_this_boot_has_queued_and_for_nothing_else(guest: Guest, unit: str) -> None:
    guest.boot("i-1")
    guest.program(
        "systemctl",
        'echo "$@" >> $HEAT_AGENT_ROOT/systemctl\n'
        f'case "$*" in "list-jobs "*" {unit}") echo "7 $3 start running";; esac',
    )
    guest.start()
    calls = (guest.root / "systemctl").read_text().splitlines()
    assert [call for call in calls if call.startswith("start")] == [f"start {unit}"]


@pytest.mark.parametrize("conf", ["", "[DEFAULT]\ncommand = true\n"])
def test_start_runs_prepare_and_then_the_real_agent(conf: str, tmp_path: Path) -> None:
    """The agent must read its configuration after `prepare` has written it."""
    path = tmp_path / "os-collect-config.conf"
    path.write_text(conf)
    prepare = tmp_path / "prepare"
    prepare.write_text(f"#!/bin/sh\nprintf '[DEFAULT]\\ncachedir = /prepared\\n' > {path}\n")
    prepare.chmod(0o755)
    start = tmp_path / "start"
    start.write_text((FILES / "start.py").read_text())
    (tmp_path / "run_phases.py").symlink_to(FILES / "run_phases.py")
    result = subprocess.run(
        [sys.executable, start, "--config-file", path, "--print-cachedir"],
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.stdout == "/prepared\n", result.stderr
