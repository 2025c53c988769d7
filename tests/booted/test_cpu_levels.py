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


def as_service(root: Path, level: str) -> None:
    compiled(root / "usr/local/bin/wide", level)
    units = root / "etc/systemd/system"
    (units / "wide.service").write_text(UNIT)
    (units / "multi-user.target.wants/wide.service").symlink_to("../wide.service")


def as_init(root: Path, level: str) -> None:
    (root / "sbin/init").unlink()
    compiled(root / "sbin/init", level, f'-DCOMMAND="{SYSTEMD}"')


@pytest.fixture
def planted(without_cloud_init, tmp_path):
    """Return a function that plants a program into a copy of the image, without its manifest."""

    def plant(how, *words: str) -> Path:
        disk = tmp_path / "wide.raw"
        convert = ["qemu-img", "convert", "-O", "raw", without_cloud_init, disk]
        subprocess.run(convert, check=True)
        for suffix in (".vmlinuz", ".initrd"):
            shutil.copy(without_cloud_init.with_suffix(suffix), disk.with_suffix(suffix))
        with mounted(disk, 0, tmp_path / "root") as root:
            how(root, *words)
        return disk

    return plant


def test_service_for_a_newer_cpu_is_run_on_it(test_image, planted, nothing_left):
    """The kernel and systemd name the program that was killed; the boot goes on without it."""
    done = test_image(planted(as_service, "x86-64-v2"))
    assert done.status == 0, done.stdout
    assert done.stdout.count("trying once more with") == 1
    assert "trying once more with x86-64-v2" in done.stdout
    (reason, *_) = done.verdict["reasons"]
    assert "wide" in reason
    assert reason.endswith("--cpu x86-64-v2 begins with a CPU that has it")
    assert done.verdict["facts"]["cpu"].startswith(LEVELS["x86_64"]["x86-64-v2"])
    assert done.verdict["noticed"] == []


def test_init_for_the_newest_cpu_is_run_on_it(test_image, planted, nothing_left):
    """Nothing says how much it needs: a CPU after the other is tried."""
    done = test_image(planted(as_init, "x86-64-v3"))
    assert done.status == 0, done.stdout
    levels = [word for word in LEVELS["x86_64"] if f"trying once more with {word}" in done.stdout]
    assert levels == ["x86-64-v2", "x86-64-v3"]
    assert [each.rpartition("--cpu ")[2].split()[0] for each in done.verdict["reasons"]] == levels
