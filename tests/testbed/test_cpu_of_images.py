"""Each image's guests get the CPU that it needs, and a better one when that falls short."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import tiny_guest

from hotplate.errors import ImageError, UsageError
from hotplate.events.kinds import PowerOn
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine.accelerator import Accelerator, emulation
from hotplate.machine.cpu_models import LEVELS
from hotplate.settings import MachineChoice, Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed import warm_state
from hotplate.testbed.first_boot import CpuError
from hotplate.testbed.qemu_maker import cpu_of
from hotplate.testbed.testbed import Testbed
from hotplate.testbed.warm_state import WarmState

pytestmark = [
    # The kernel of the images is fetched.
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("mke2fs"),
]

V1, V2, V3 = LEVELS["x86_64"].values()
KVM = Accelerator("kvm", "host", 2, ("-accel", "kvm"), "a small program did its work")
OLD_KVM = replace(KVM, cpu="qemu64")

#: Seconds of silence, which end some of the runs; a kernel is silent from the BIOS to its init, and
#: takes many times longer for that beside three others.
PATIENCE = 12.0

#: An init for x86-64-v2, with no more than the instruction that older CPUs lack.
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    __asm__ volatile("popcnt %%rax, %%rax" ::: "rax");
    puts("the program ran");
    fflush(stdout);
    for (;;) pause();
}
"""


def image_of(directory: Path, release: str, initrd: bytes = b"") -> Image:
    """Return a partition image with a kernel that boots, by its os-release(5)."""
    directory.mkdir()
    root, disk = directory / "root", directory / f"{directory.name}.raw"
    (root / "etc").mkdir(parents=True)
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/os-release").write_text(release)
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, disk, "8M"], check=True)
    guest = tiny_guest.make()
    shutil.copy(guest.kernel, disk.with_suffix(".vmlinuz"))
    disk.with_suffix(".initrd").write_bytes(guest.initrd.read_bytes() + initrd)
    return Image.open(disk)


def with_init(directory: Path, name: str) -> Image:
    """Return an image whose init needs x86-64-v2, of which its release says nothing."""
    root = directory / "initramfs"
    root.mkdir()
    (directory / "init.c").write_text(PROGRAM)
    command = ["gcc", "-static", "-o", root / "init", directory / "init.c"]
    subprocess.run(command, check=True)
    return image_of(directory / name, "ID=debian\n", gzip.compress(tiny_guest.cpio(root)))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> dict[str, Image]:
    directory = tmp_path_factory.mktemp("images")
    return {
        "trixie": image_of(directory / "trixie", "ID=debian\nVERSION_ID=13\n"),
        "el9": image_of(directory / "el9", "ID=rocky\nVERSION_ID=9.6\n"),
        "el10": image_of(directory / "el10", "ID=rocky\nVERSION_ID=10.1\n"),
    }


@pytest.mark.parametrize(
    ("name", "setting", "cpu", "because"),
    [
        ("trixie", "auto", V1, "nothing in it says that it needs more"),
        ("el9", "auto", V2, "Enterprise Linux 9 is compiled for x86-64-v2"),
        ("el10", "auto", V3, "Enterprise Linux 10 is compiled for x86-64-v3"),
        ("trixie", "x86-64-v3", V3, "it has x86-64-v3"),
        # A level is the least.
        ("el10", "x86-64-v2", V3, "Enterprise Linux 10 is compiled for x86-64-v3"),
        ("el10", "Nehalem,-popcnt", "Nehalem,-popcnt", "the settings name it"),
    ],
)
def test_cpu_is_that_of_the_settings_or_of_the_image(images, tmp_path, name, setting, cpu, because):
    settings = replace(tiny.settings(tmp_path), cpu=setting)
    assert cpu_of(images[name], settings, emulation("a test")) == (cpu, because)


@pytest.mark.parametrize("setting", ["auto", "x86-64-v2"])
@pytest.mark.parametrize(("kvm", "cpu"), [(KVM, "host"), (OLD_KVM, V3)])
def test_kvm_keeps_the_cpu_of_the_host(images, tmp_path, setting, kvm, cpu):
    settings = replace(tiny.settings(tmp_path), cpu=setting)
    assert cpu_of(images["el10"], settings, kvm)[0] == cpu


@pytest.mark.parametrize("setting", ["haswell", "armv9-a"])
def test_unknown_cpu_is_refused_before_anything_starts(images, tmp_path, setting):
    settings = replace(tiny.settings(tmp_path), cpu=setting)
    with (
        pytest.raises(UsageError, match=f'the CPU model "{setting}" is not known'),
        Testbed(images["trixie"], settings=settings, directory=tmp_path, events=EventLog()),
    ):
        pass


@pytest.mark.root
@pytest.mark.tool("systemd-nspawn")
def test_container_refuses_a_model(images, tmp_path):
    settings = replace(Settings(), cache=tmp_path, machine=MachineChoice.CONTAINER, cpu="Nehalem")
    with (
        pytest.raises(UsageError, match=r"a container has the host's own CPU.*Nehalem"),
        Testbed(images["trixie"], settings=settings, directory=tmp_path, events=EventLog()),
    ):
        pass


def test_state_is_restored_on_the_cpu_of_its_boot(images, tmp_path):
    settings = tiny.settings(tmp_path)
    about = {name: warm_state.identity(image, settings) for name, image in images.items()}
    assert [each["cpu"] for each in about.values()] == [V1, V2, V3]
    (tmp_path / "about.json").write_text(json.dumps(about["el9"]))
    assert WarmState(tmp_path).settings_from(settings) == replace(settings, cpu=V2)
    (tmp_path / "about.json").write_text(json.dumps({"machine": "container"}))
    assert WarmState(tmp_path).settings_from(settings) == settings


def test_state_on_a_better_cpu_serves(images, tmp_path):
    settings = tiny.settings(tmp_path)
    better = warm_state.identity(images["trixie"], replace(settings, cpu="x86-64-v3"))
    folder = warm_state.store(settings.cache) / f"{warm_state.key(better)}-1"
    folder.mkdir(parents=True)
    (folder / "about.json").write_text(json.dumps(better))

    def found(cpu: str) -> Path:
        chosen = replace(settings, cpu=cpu)
        return warm_state.find_or_make(
            images["trixie"], chosen, directory=tmp_path / "boot", say=print
        ).directory

    assert found("auto") == found("x86-64-v2") == found(V3) == folder


@pytest.mark.boots
@pytest.mark.tool("dnsmasq")
def test_each_server_has_the_cpu_of_its_image(images, tmp_path):
    def server(image: str) -> dict[str, object]:
        properties = {"name": image, "image": image, "flavor": "tiny", "user_data_format": "RAW"}
        return {"type": "OS::Nova::Server", "properties": properties}

    resources = {name: server(name) for name in images}
    body = {"heat_template_version": "2018-08-31", "resources": resources}
    others = {name: image for name, image in images.items() if name != "trixie"}
    events = EventLog()
    with Testbed(
        images["trixie"],
        settings=tiny.settings(tmp_path),
        directory=tmp_path,
        events=events,
        others=others,
    ) as testbed:
        stack = Stack.create(testbed.cloud, Template(source="a test", template=body), name="three")
        assert stack.wait().status == "CREATE_COMPLETE", stack.reason
        names = testbed.names()
    started = {names[event.server]: on.cpu for event in events if (on := PowerOn.of(event))}
    assert started == {"trixie": V1, "el9": V2, "el10": V3}


@pytest.mark.long
@pytest.mark.boots
@pytest.mark.tool("gcc")
def test_first_boot_is_repeated_on_a_better_cpu(tmp_path):
    image = with_init(tmp_path, "wide")
    settings = replace(tiny.settings(tmp_path), patience=PATIENCE)
    said: list[str] = []
    # The program has run: there is no agent in it, which is another fault.
    with pytest.raises(ImageError, match="its agent never polled"):
        warm_state.find_or_make(image, settings, directory=tmp_path / "boot", say=said.append)
    again = [each for each in said if "once more" in each]
    assert len(again) == 1
    assert again[0].endswith("once more with x86-64-v2, as --cpu x86-64-v2 begins")
    consoles = {path.parents[2].name: path.read_text() for path in tmp_path.rglob("console.log")}
    assert ["the program ran" in consoles[name] for name in ("boot", "boot-x86-64-v2")] == [
        False,
        True,
    ]


@pytest.mark.boots
@pytest.mark.tool("gcc")
def test_first_boot_on_a_named_model_is_not_repeated(tmp_path):
    image = with_init(tmp_path, "wide")
    settings = replace(tiny.settings(tmp_path), cpu="qemu64")
    with pytest.raises(CpuError, match="CPU with more features") as caught:
        warm_state.find_or_make(image, settings, directory=tmp_path / "boot", say=print)
    assert "--cpu" in caught.value.hint
    assert caught.value.exit_status == 3


TEMPLATE = """
heat_template_version: 2018-08-31
resources:
  server:
    type: OS::Nova::Server
    properties: {name: wide, image: any, flavor: any, user_data_format: RAW}
"""


def run_of(image: Image, directory: Path, *words: str) -> tuple[int, str, dict[str, object]]:
    """Run ``hotplate test`` on an image; return its status, its output and its verdict."""
    (directory / "template.yaml").write_text(TEMPLATE)
    command = [sys.executable, "-m", "hotplate", "test", image.path, "-t", "template.yaml"]
    command += ["--json", "verdict.json", "--patience", f"{PATIENCE}"]
    more = ["--memory", "192", "--accelerator", "tcg"]
    done = subprocess.run(
        [*command, *more, "--append", "panic=-1 quiet", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads((directory / "verdict.json").read_text()),
    )


@pytest.mark.long
@pytest.mark.boots
@pytest.mark.tool("gcc")
def test_run_is_repeated_on_a_better_cpu_and_says_so(tmp_path):
    image = with_init(tmp_path, "wide")
    _, output, verdict = run_of(image, tmp_path)
    assert "the image needs a better CPU:" in output
    assert "trying once more with x86-64-v2" in output
    assert "--cpu x86-64-v2 begins with a CPU that has it" in verdict["reasons"][0]
    assert verdict["facts"]["cpu"] == f"{V2} (it has x86-64-v2)"
    assert "exitcode=0x00000004" in verdict["facts"]["lesser CPUs"]
    first = json.loads((tmp_path / "artifacts/last/first-try.json").read_text())
    assert first["diagnosis"]["fault"] == "bad-cpu"
    assert verdict["diagnosis"]["fault"] != "bad-cpu"
    # The second has a folder of its own.
    folder = (tmp_path / "artifacts/last").resolve()
    consoles = [
        next(each.glob("servers/*/console.log")) for each in (folder, folder / "second-try")
    ]
    assert ["the program ran" in each.read_text() for each in consoles] == [False, True]


@pytest.mark.long
@pytest.mark.boots
@pytest.mark.tool("gcc")
def test_run_that_begins_with_the_level_is_not_repeated(tmp_path):
    image = with_init(tmp_path, "wide")
    _, output, verdict = run_of(image, tmp_path, "--cpu", "x86-64-v2")
    assert "better CPU" not in output
    assert "lesser CPUs" not in verdict["facts"]


@pytest.mark.boots
@pytest.mark.tool("gcc")
def test_run_on_a_named_model_blames_the_cpu(tmp_path):
    image = with_init(tmp_path, "wide")
    status, output, verdict = run_of(image, tmp_path, "--cpu", "qemu64")
    assert (status, verdict["diagnosis"]["fault"]) == (3, "bad-cpu")
    assert "once more" not in output


def test_unknown_model_is_a_usage_error_of_the_command(images, tmp_path):
    status, output, verdict = run_of(images["trixie"], tmp_path, "--cpu", "haswell")
    assert status == 2
    assert 'the CPU model "haswell" is not known; did you mean Haswell' in output
    assert verdict["outcome"] == "usage error"
