"""``hotplate doctor`` on this host, and on hosts with something missing."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hotplate import host_tools
from hotplate.cli import doctor
from hotplate.network import segment
from hotplate.testbed import host_probes
from hotplate.testbed.host_probes import TOOLS, Finding, State, Tool, Use
from hotplate.timing.deadline import Deadline, retry


def doctor_with(path: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotplate", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, **environment},
        timeout=120,
    )


def check_loops(directory: Path) -> None:
    """Wait until no file below a directory has a loop device; the host may have others.

    The kernel keeps a detached one while another process has it open (LO_FLAGS_AUTOCLEAR).
    """

    def released(_last_try: bool) -> bool:
        done = subprocess.run(["losetup", "--all"], capture_output=True, text=True)
        return str(directory) not in done.stdout

    retry(released, Deadline(60, "the loop devices to be released"))


@pytest.mark.tool("qemu-system-x86_64")
def test_doctor_examines_this_host_and_leaves_no_trace(tmp_path):
    done = doctor_with(os.environ["PATH"], "--json", TMPDIR=str(tmp_path))
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["can_test"] else 3)
    assert done.stderr == ""
    names = {each["name"] for each in document["findings"]}
    assert {tool.name for tool in TOOLS} <= names
    assert {"accelerator", "network for guests", "memory", "disk for tests", "root"} <= names
    assert {"device-mapper", "namespaces", "loop devices", "network between servers"} <= names
    assert all(each["sentence"] and "\n" not in each["sentence"] for each in document["findings"])
    assert [each["name"] for each in document["findings"] if each["works"]]
    check_loops(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.tool("qemu-system-x86_64")
def test_text_ends_with_the_conclusions():
    done = doctor_with(os.environ["PATH"])
    assert done.stdout.splitlines()[-1].startswith("hotplate test can")
    assert done.stdout.splitlines()[-2].startswith("hotplate build can")


def test_host_without_qemu_gets_status_3_and_the_command(tmp_path):
    for name in ("python3", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = doctor_with(str(tmp_path))
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("hotplate test cannot run here; missing: qemu-system-x86_64")
    install = next(line for line in lines if line.startswith("to install what is missing: "))
    assert "apt-get install --no-install-recommends" in install
    assert "qemu-system-x86" in install.split()
    assert "qemu-utils" in install.split()


@pytest.mark.tool("dnsmasq")
def test_network_between_servers_is_made():
    (finding,) = host_probes.networks()
    assert finding.state is State.WORKS, finding


def test_package_of_a_missing_dnsmasq_is_named(monkeypatch, tmp_path):
    (tmp_path / "ip").symlink_to(shutil.which("ip") or "/sbin/ip")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(segment, "SYSTEM_PROGRAMS", str(tmp_path))
    monkeypatch.setattr(host_probes, "_search_path", lambda: str(tmp_path))
    (finding,) = host_probes.networks()
    assert finding.state is State.OTHERWISE
    assert finding.package == "dnsmasq-base"
    assert 'no server reaches another: the program "dnsmasq" was not found' in finding.sentence


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_installed_tool_reports_its_version(tool):
    if shutil.which(tool.name, path=host_probes._search_path()) is None:
        pytest.skip(f"{tool.name} is not installed")
    finding = host_probes.probe_tool(tool)
    assert finding.state is State.WORKS
    assert finding.sentence.startswith("version ")


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 127\n", "#!/bin/sh\necho nothing to say\n", "#!/no/interpreter\n"]
)
def test_program_that_does_not_run_fails_its_probe(tmp_path, monkeypatch, text):
    program = tmp_path / "broken"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = host_probes.probe_tool(Tool("broken", "--version", Use.TEST, "it matters"))
    assert (finding.state, finding.package) == (State.FAILS, "broken")
    assert "\n" not in finding.sentence


def test_hanging_program_does_not_hang_the_doctor():
    done = host_probes._run("sleep", "60", seconds=0.2)
    assert done.returncode == 124
    assert "no answer" in host_probes._reply(done)


def test_too_little_memory_is_reported(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000000 kB\nMemAvailable:  512000 kB\n")
    monkeypatch.setattr(host_tools, "MEMINFO", meminfo)
    (finding,) = host_probes.memory()
    assert finding.state is State.FAILS
    assert finding.sentence.startswith("500 MiB are available")


def test_failing_probe_is_a_finding_without_traceback(monkeypatch, tmp_path):
    def breaks():
        raise PermissionError(13, "Permission denied", "/dev/loop-control")
        yield

    monkeypatch.setattr(doctor, "probes", lambda _cache: {"breaks": breaks})
    (finding,) = doctor.examine(tmp_path)
    assert finding.state is State.FAILS
    assert "Permission denied" in finding.sentence


MISSING = [
    Finding("qemu-img", Use.TEST, State.FAILS, "is not installed", "qemu-utils"),
    Finding("qemu-nbd", Use.TEST, State.FAILS, "is not installed", "qemu-utils"),
    Finding("memory", Use.TEST, State.FAILS, "too little"),
    Finding("socat", Use.EXTRA, State.OTHERWISE, "is not installed", "socat"),
]


def test_install_command_names_each_package_once():
    assert doctor.command(MISSING, State.FAILS, root=False) == (
        "sudo apt-get install --no-install-recommends qemu-utils"
    )
    assert doctor.command(MISSING, State.OTHERWISE, root=True) == (
        "apt-get install --no-install-recommends socat"
    )
    assert doctor.command(MISSING[2:3], State.FAILS, root=True) == ""


def test_optional_finding_does_not_prevent_a_verb():
    assert not doctor.can(MISSING, Use.TEST)
    assert doctor.can(MISSING, Use.BUILD)
    assert doctor.can(MISSING[3:], Use.TEST)


def test_root_that_may_not_mount_is_missing(monkeypatch, tmp_path):
    (tmp_path / "unshare").write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setattr(host_probes.os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (finding,) = host_probes.privileges()
    assert (finding.state, finding.sentence) == (State.FAILS, "root may not mount: not permitted")


@pytest.mark.root
def test_loop_devices_are_released(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    probe = host_probes.loop_devices()
    assert list(probe)
    list(host_probes.vfat())
    check_loops(tmp_path)
    assert list(tmp_path.iterdir()) == []
