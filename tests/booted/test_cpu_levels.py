"""Programs for newer CPUs in a Debian image: the run finds the CPU that they need, and says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hotplate.machine.cpu_models import LEVELS
from tests.booted.disks import mounted

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long, pytest.mark.tool("gcc")]

#: Runs the instructions of its level, and then the command in its place, if there is one.
PROGRAM = """
#include <unistd.h>
int main(int argc, char **argv) {
    volatile unsigned seed = argc;
    volatile unsigned bits = __builtin_popcount(seed);
#ifdef __AVX2__
    __asm__ volatile("vpaddd %%ymm0, %%ymm0, %%ymm0" ::: "xmm0");
#endif
    (void)bits;
#ifdef COMMAND
    argv[0] = COMMAND;
    execv(COMMAND, argv);
    return 1;
#endif
    return 0;
}
"""
#: Runs once, as a program of a site does at the boot.
UNIT = """\
[Service]
Type=oneshot
ExecStart=/usr/local/bin/wide
[Install]
WantedBy=multi-user.target
"""
SYSTEMD = "/usr/lib/systemd/systemd"


def compiled(path: Path, level: str, *options: str) -> None:
    command = ["gcc", "-static", "-O2", f"-march={level}", *options, "-x", "c", "-o", path, "-"]
    subprocess.run(command, input=PROGRAM, text=True, check=True)


def plant_service(root: Path, level: str) -> None:
    compiled(root / "usr/local/bin/wide", level)
    units = root / "etc/systemd/system"
    (units / "wide.service").write_text(UNIT)
    (units / "multi-user.target.wants/wide.service").symlink_to("../wide.service")


def plant_init(root: Path, level: str) -> None:
    (root / "sbin/init").unlink()
    compiled(root / "sbin/init", level, f'-DCOMMAND="{SYSTEMD}"')


@pytest.fixture
def planted(without_cloud_init, tmp_path) -> Path:
    """A copy of the image, without its manifest, whose init and service need a level each."""
    disk = tmp_path / "wide.raw"
    convert = ["qemu-img", "convert", "-O", "raw", without_cloud_init, disk]
    subprocess.run(convert, check=True)
    for suffix in (".vmlinuz", ".initrd"):
        shutil.copy(without_cloud_init.with_suffix(suffix), disk.with_suffix(suffix))
    with mounted(disk, 0, tmp_path / "root") as root:
        plant_init(root, "x86-64-v2")
        plant_service(root, "x86-64-v3")
    return disk


def test_init_and_service_for_newer_cpus_are_run_on_them(test_image, planted, nothing_left):
    """An init says nothing of what it needs; the kernel names the service that was killed.

    Without the service the boot goes on.
    """
    done = test_image(planted)
    assert done.status == 0, done.stdout
    levels = [word for word in LEVELS["x86_64"] if f"trying once more with {word}" in done.stdout]
    assert levels == ["x86-64-v2", "x86-64-v3"]
    assert done.stdout.count("trying once more with") == 2
    of_init, of_service = done.verdict["reasons"]
    assert "--cpu x86-64-v2 begins" in of_init
    assert "wide" in of_service
    assert of_service.endswith("--cpu x86-64-v3 begins with a CPU that has it")
    assert done.verdict["facts"]["cpu"].startswith(LEVELS["x86_64"]["x86-64-v3"])
    assert done.verdict["noticed"] == []
