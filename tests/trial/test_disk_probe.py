"""hotplate.trial.disk_probe: the state of a guest, read from its disk."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.image.overlay import make_overlay
from hotplate.trial.disk_probe import look_at_disk
from hotplate.verdict.health import AGENT, Health

pytestmark = pytest.mark.skipif(
    not (shutil.which("mke2fs") or Path("/usr/sbin/mke2fs").exists()),
    reason="mke2fs of e2fsprogs is not installed",
)

UNITS = "etc/systemd/system"
OFFSET = 1 << 20


def write(root: Path, path: str, text: str = "", mode: int = 0o644) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)
    return file


def link(root: Path, path: str, target: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


@pytest.fixture
def root(tmp_path) -> Path:
    """The files of a good image, as far as they are read."""
    root = tmp_path / "root"
    start = "/usr/libexec/os-collect-config/start"
    write(root, f"{UNITS}/{AGENT}", f"[Service]\nExecStart={start}\n[Install]\n")
    link(root, f"{UNITS}/multi-user.target.wants/{AGENT}", f"/etc/systemd/system/{AGENT}")
    write(root, start[1:], "#!/opt/heat-agent/bin/python -I\n", 0o755)
    write(root, "usr/bin/python3.13", "\x7fELF", 0o755)
    link(root, "usr/bin/python3", "python3.13")
    link(root, "bin", "usr/bin")
    link(root, "opt/heat-agent/bin/python", "/bin/python3")
    write(root, "usr/bin/cloud-init", "#!/usr/bin/python3\n", 0o755)
    phase = "usr/libexec/os-refresh-config/configure.d"
    write(root, f"{phase}/55-heat-config", "#!/usr/bin/env python3\n", 0o755)
    write(root, "usr/libexec/heat-config/hooks/script", "#!/usr/bin/python3 -IS\n", 0o755)
    write(root, "usr/lib/systemd/system/systemd-networkd.service", "[Service]\n[Install]\n")
    write(root, "etc/cloud/cloud.cfg", "datasource_list: [ None ]\n")
    write(root, "etc/cloud/cloud.cfg.d/90.cfg", "datasource_list: [ OpenStack ]\n")
    write(root, "etc/fstab", "# static\nLABEL=img-rootfs / ext4 defaults 0 1\n")
    write(root, "var/lib/dpkg/status", "Package: dash\nStatus: install ok installed\n\n")
    return root


@pytest.fixture
def look(root, tmp_path):
    """Make an image of the files, and read a machine's disk over it."""

    def run(*, partition: bool = False) -> Health:
        raw, disk = tmp_path / "fs.raw", tmp_path / "run/disk.qcow2"
        offset = OFFSET if partition else 0
        with raw.open("wb") as stream:
            stream.truncate(offset + (8 << 20))
            if partition:
                stream.seek(446)
                sectors = (OFFSET // 512).to_bytes(4, "little") + (16384).to_bytes(4, "little")
                stream.write(b"\x80\0\0\0\x83\0\0\0" + sectors)
                stream.seek(510)
                stream.write(b"\x55\xaa")
        subprocess.run(
            [
                shutil.which("mke2fs") or "/usr/sbin/mke2fs",
                *("-q", "-F", "-t", "ext4", "-d", root, "-E", f"offset={offset}", raw, "8M"),
            ],
            check=True,
        )
        make_overlay(raw, "raw", disk)
        return Health.read(look_at_disk(disk))

    return run


def test_fixed_addresses_are_shown_for_each_renderer(root, look):
    write(root, "etc/systemd/network/10-lan.network", "[Network]\nAddress=192.0.2.7/24\n")
    write(root, "etc/network/interfaces", "auto lo\niface e inet static\n  address 192.0.2.8\n")
    write(
        root,
        "etc/netplan/50.yaml",
        "network:\n  ethernets:\n    e:\n      addresses: [192.0.2.9/24]\n"
        "      routes: [{to: default, via: 192.0.2.1/24}]\n",
    )
    nm = "etc/NetworkManager/system-connections/e.nmconnection"
    write(root, nm, "[ipv4]\naddress1=192.0.2.10/24\n")
    assert look().lines("fixed-addresses") == [
        "/etc/systemd/network/10-lan.network 192.0.2.7",
        "/etc/network/interfaces 192.0.2.8",
        "/etc/netplan/50.yaml 192.0.2.9",
        f"/{nm} 192.0.2.10",
    ]


def test_script_with_carriage_return_is_shown(root, look):
    hook = write(root, "usr/libexec/heat-config/hooks/script", "", 0o755)
    hook.write_text("#!/usr/bin/python3\r\n", newline="")
    assert look().lines("programs") == ["carriage-return /usr/libexec/heat-config/hooks/script"]


@pytest.mark.parametrize("partition", [False, True])
def test_good_image_shows_no_fault(look, partition):
    state = look(partition=partition)
    assert list(state.sections)[-1] == "end"
    assert state.unit(AGENT, "UnitFileState") == "enabled"
    assert state.unit("systemd-networkd.service", "UnitFileState") == "disabled"
    assert state.unit("cloud-init.service", "LoadState") == "not-found"
    assert state.lines("programs") == []
    assert state.lines("hooks") == ["script"]
    assert state.lines("datasource-list") == ["/etc/cloud/cloud.cfg.d/90.cfg [ OpenStack ]"]
    assert state.lines("packages") == []
    assert state.mount("/")[1] == {"defaults"}
    inodes, free_inodes, free, available, blocks = map(int, state.lines("space")[0].split()[1:])
    assert 0 < free_inodes < inodes
    assert 0 < available <= free < blocks


def test_disk_that_a_machine_writes_is_read(look, tmp_path):
    look()
    command = ["qemu-io", "-f", "qcow2", tmp_path / "run/disk.qcow2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as machine:
        machine.stdin.write(b"length\n")
        machine.stdin.flush()
        machine.stdout.readline()
        state = Health.read(look_at_disk(tmp_path / "run/disk.qcow2"))
        machine.stdin.close()
    assert state.unit(AGENT, "UnitFileState") == "enabled"


def test_masked_units_are_shown(look, root):
    link(root, f"{UNITS}/{AGENT}", "/dev/null")
    write(root, f"{UNITS}/cloud-init-local.service")
    state = look()
    assert state.unit(AGENT, "LoadState") == "masked"
    assert state.unit("cloud-init-local.service", "LoadState") == "masked"


def test_missing_interpreter_is_shown_behind_links(look, root):
    (root / "usr/bin/python3.13").unlink()
    lines = look().lines("programs")
    assert "no-interpreter /usr/bin/cloud-init /usr/bin/python3 /usr/bin/python3.13" in lines
    start = "/usr/libexec/os-collect-config/start"
    assert f"no-interpreter {start} /opt/heat-agent/bin/python /bin/python3.13" in lines


def test_deleted_and_not_executable_programs_are_shown(look, root):
    phase = "usr/libexec/os-refresh-config/configure.d"
    (root / f"{phase}/55-heat-config").unlink()
    write(root, f"{phase}/40-site", "#!/bin/sh\n", 0o644)
    (root / "usr/libexec/os-collect-config/start").unlink()
    lines = look().lines("programs")
    assert "gone /usr/libexec/os-refresh-config/configure.d/55-heat-config" in lines
    assert "not-executable /usr/libexec/os-refresh-config/configure.d/40-site" in lines
    path = "/usr/libexec/os-collect-config/start"
    assert f"gone {path} {path}" in lines


def test_configuration_is_shown(look, root):
    write(root, "etc/cloud/cloud-init.disabled")
    write(root, "etc/cloud/cloud.cfg.d/99-site.cfg", "a: b\n  c: [\n")
    link(root, f"{UNITS}/default.target", "/usr/lib/systemd/system/rescue.target")
    write(root, "etc/fstab", "LABEL=x / ext4 ro 0 1\n/dev/vdb /data ext4 defaults 0 2\n")
    write(root, "etc/systemd/network/90.network", "[Match]\nName=ens192\n[Network]\nDHCP=yes\n")
    write(
        root,
        "etc/os-collect-config.conf",
        "[cfn]\nmetadata_url = http://me:secret@192.0.2.7:8000/v1/?key=secret\n",
    )
    write(
        root,
        "var/lib/dpkg/status",
        "Package: dash\nStatus: install ok installed\n\nPackage: libexpat1\nPriority: x\n"
        "Status: install ok half-configured\n",
    )
    state = look()
    assert state.lines("cloud-init") == ["/etc/cloud/cloud-init.disabled"]
    assert state.rows("broken-yaml", 2)[0][0] == "/etc/cloud/cloud.cfg.d/99-site.cfg"
    assert state.lines("default-target") == ["rescue.target"]
    assert state.mount("/")[1] == {"ro"}
    assert "/dev/vdb /data" in state.lines("fstab")
    assert state.lines("networks") == ["/etc/systemd/network/90.network Name=ens192"]
    assert state.lines("collect-conf") == ["metadata_url 192.0.2.7:8000"]
    assert state.lines("packages") == ["libexpat1 install ok half-configured"]


def test_file_of_any_size_is_read_in_part(look, root):
    """A malicious guest may make any file as large as it likes: a sparse file takes no blocks."""
    with (root / "etc/fstab").open("wb") as stream:
        stream.truncate(200 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list(look().sections)[-1] == "end"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_circular_links_end(look, root):
    link(root, "opt/heat-agent/bin/python", "python")
    assert "end" in look().sections


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_disk_without_file_system_shows_nothing(tmp_path, content):
    raw, disk = tmp_path / "x.raw", tmp_path / "disk.qcow2"
    raw.write_bytes(content or b"\x55" * 70000)
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk], check=True)
    assert look_at_disk(disk) == ""
    assert {each.name for each in tmp_path.iterdir()} == {"x.raw", "disk.qcow2"}


def test_missing_disk_shows_nothing(tmp_path):
    assert look_at_disk(tmp_path / "none.qcow2") == ""
