"""Conversion of a request to the disk-image-create line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hotplate import paths
from hotplate.errors import UsageError
from hotplate.image import plan
from hotplate.image.mirrors import Mirrors
from hotplate.image.plan import BuildRequest, Kernel, Layout, Starts
from hotplate.image.preflight import check_chef

MIRRORS = Mirrors("http://m.example/debian", "http://m.example/debian", "http://s.example/sec")


def made(tmp_path: Path, *, mirrors: Mirrors = MIRRORS, **changes: object) -> plan.Plan:
    request = replace(BuildRequest(tmp_path / "out", tmp_path / "cache"), **changes)
    return plan.make(
        request,
        elements_dir=paths.elements_dir(),
        dib_elements=plan.dib_elements_dir(),
        mirrors=mirrors,
    )


DISK = {"debian-minimal", "cloud-init", "vm", "block-device-offset-mbr", "grub-pc"}
BOOTSTRAP = {"heat-config-bootstrap"}
FAKE = {"elements": ("fake-os",), "groups": ()}


@pytest.mark.parametrize(
    ("changes", "has", "lacks"),
    [
        ({}, DISK, {"baremetal"}),
        ({"layout": Layout.PARTITION}, {"baremetal"}, {"vm", "grub-pc"}),
        (
            {"firmware": Starts.UEFI},
            {"block-device-offset-efi"},
            {"vm", "block-device-offset-mbr", "grub-pc"},
        ),
        ({"cloud_init": False}, BOOTSTRAP, {"cloud-init"}),
        # Another operating system replaces Debian, and has releases of its own.
        ({"release": "9", **FAKE}, {"fake-os", "vm"}, {"debian-minimal", "cloud-init"}),
        # By a dependency.
        ({"release": "9", "elements": ("rocky-container",)}, {"vm"}, {"debian-minimal"}),
        ({"elements": ("debian-systemd",)}, {"debian-minimal"}, set()),
    ],
)
def test_line_has_the_elements_of_its_request(tmp_path, fake_elements, changes, has, lacks):
    line = made(tmp_path, element_path=(fake_elements,), **changes).argv("out")
    assert line[0] == "disk-image-create"
    assert line[-1] == "heat-config-script" or not changes.get("groups", "script")
    assert has <= {*line}
    assert not lacks & {*line}


@pytest.mark.parametrize(
    ("changes", "has"),
    [
        ({}, {"DIB_HEAT_LEAN_KERNEL": None, "DIB_OFFSET_EFI_SECURE_BOOT": None}),
        ({"firmware": Starts.UEFI}, {"DIB_OFFSET_EFI_SECURE_BOOT": None}),
        ({"firmware": Starts.SECURE_BOOT}, {"DIB_OFFSET_EFI_SECURE_BOOT": "1"}),
        ({"kernel": Kernel.GENERIC}, {"DIB_HEAT_LEAN_KERNEL": "linux-image"}),
        ({"release": "sid"}, {"DIB_RELEASE": "unstable"}),
        # Where the host is no Debian, diskimage-builder's own defaults hold.
        ({"mirrors": Mirrors()}, {"DIB_DISTRIBUTION_MIRROR": None, "DIB_APT_SOURCES_CONF": None}),
        (FAKE, {"DIB_APT_SOURCES_CONF": None}),
        ({"epoch": 1, "layout": Layout.PARTITION}, {"DIB_BLOCK_DEVICE_CONFIG": None}),
    ],
)
def test_line_has_the_variables_of_its_request(tmp_path, fake_elements, changes, has):
    environment = made(tmp_path, element_path=(fake_elements,), **changes).environment
    assert {name: environment.get(name) for name in has} == has
    assert "unstable-updates" not in environment.get("DIB_APT_SOURCES_CONF", "")


@pytest.mark.parametrize(
    ("release", "sentence"),
    [
        ("lenny", "too old: hooks and agent need Python 3.9"),
        ("bookwrom", 'there is no Debian release "bookwrom"'),
        ("../sid", "there is no Debian release"),
        ("", "there is no Debian release"),
    ],
)
def test_unknown_release_is_refused_before_the_build(tmp_path: Path, release: str, sentence: str):
    with pytest.raises(UsageError, match=sentence) as refused:
        made(tmp_path, release=release)
    assert "bookworm, trixie" in refused.value.hint


def test_release_known_to_debootstrap_is_accepted(tmp_path: Path):
    (tmp_path / "later").touch()
    plan.check_release("later", scripts=tmp_path)
    plan.check_release("trixie", scripts=tmp_path / "not-installed")


@pytest.mark.parametrize("group", ["chef", "chef-solo"])
def test_build_for_chef_is_refused_at_once(tmp_path: Path, group: str):
    """The element stops the build too, but only after the base system has been made."""
    request = BuildRequest(tmp_path / "out", tmp_path / "cache", groups=("script", group))
    with pytest.raises(UsageError, match=f'the group "{group}" needs Chef') as refused:
        check_chef(request, {})
    assert "DIB_HEAT_CHEF_PACKAGE" in refused.value.hint
    for change in ({"elements": ("vm",)}, {"packages": ("cinc",)}):
        check_chef(replace(request, **change), {})
    check_chef(request, {"DIB_HEAT_CHEF_PACKAGE": "/srv/cinc.deb"})


@pytest.mark.parametrize(
    ("changes", "sentence", "hint"),
    [
        (
            {"groups": ("cobol",)},
            '"heat-config-cobol"',
            # Every element with this prefix is a group, except the agent's own parts.
            "groups with an element: ansible, apply-config, cfn-init, chef, chef-solo, "
            "docker-cmd, docker-compose, hiera, json-file, puppet, salt, script",
        ),
        ({"groups": ("kubelet",)}, "kubelet", "heat-agents had it; use "),
        ({"groups": ("atomic",)}, "atomic", "heat-agents had it; use "),
        ({"element_path": (Path("/gone"),)}, 'there is no directory "/gone"', ""),
        ({"elements": ("gone",)}, 'no element "gone"', "--element-path"),
        (
            {"elements": ("block-device-offset-gpt",)},
            '"block-device-offset-mbr" and "block-device-offset-gpt" both provide "block-device"',
            "leave out the second",
        ),
        ({"elements": ("fedora", "centos")}, 'both provide "operating-system"', "leave one of"),
    ],
)
def test_missing_part_error_says_what_there_is(tmp_path: Path, changes, sentence, hint):
    with pytest.raises(UsageError, match=sentence) as raised:
        made(tmp_path, **changes)
    assert hint in raised.value.hint


@pytest.mark.parametrize("name", ["with space", "with:colon"])
def test_path_that_disk_image_create_would_split_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=name):
        (tmp_path / name).mkdir()
        made(tmp_path, element_path=(tmp_path / name,))


@pytest.mark.parametrize(("kind", "given"), [("slim", "source"), ("package", "package")])
def test_install_type_is_one_that_other_elements_have(tmp_path: Path, kind: str, given: str):
    argv = made(tmp_path, install_type=kind, elements=("simple-init",)).argv("out")
    assert argv[argv.index("--install-type") + 1] == given


def test_mirrors_are_part_of_the_name_of_the_cache(tmp_path: Path):
    here, there = made(tmp_path), made(tmp_path, mirrors=Mirrors("http://other.example/debian"))
    assert here.environment["DIB_IMAGE_CACHE"] != there.environment["DIB_IMAGE_CACHE"]


def test_printed_line_means_the_same_to_a_shell(tmp_path: Path):
    """Pasted into a shell, the line runs the same words with the same environment."""
    asked = made(tmp_path, packages=("htop", "jq"), size=4)
    script = tmp_path / "disk-image-create"
    script.write_text("#!/bin/sh\nenv -0\nprintf '\\1'\nprintf '%s\\0' \"$@\"\n")
    script.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", asked.shell("some name")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        check=True,
        text=True,
    )
    environment, _, words = done.stdout.partition("\1")
    seen = dict(entry.split("=", 1) for entry in environment.split("\0") if entry)
    assert words.split("\0")[:-1] == asked.argv("some name")[1:]
    assert {key: seen[key] for key in asked.environment} == dict(asked.environment)


def test_hook_for_updates_survives_the_second_shell(tmp_path: Path):
    """diskimage-builder inserts the value into another line for ``sh -c``."""
    value = made(tmp_path).environment["DIB_MMDEBSTRAP_EXTRA_ARGS"]
    hook = shlex.split(value)[-1]
    assert hook.startswith("--setup-hook=")
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    subprocess.run(["sh", "-c", hook.partition("=")[2], "hook", tmp_path], check=True)
    assert (tmp_path / "etc/apt/sources.list.d/updates.list").read_text().splitlines() == [
        "deb http://m.example/debian bookworm-updates main",
        "deb http://s.example/sec bookworm-security main",
    ]


def test_environment_has_only_selected_variables(tmp_path: Path, monkeypatch):
    given = {
        "http_proxy": "http://p.example",
        "DIB_FOO": "1",
        "PIP_INDEX_URL": "x",
        "HOME": "/home/me",
        "LD_LIBRARY_PATH": "/opt/lib",
        "PYTHONPATH": "/opt/py",
        "SECRET_TOKEN": "s",
        "PATH": "/home/me/bin",
        "DIB_HEAT_PUPPET_PACKAGE": "puppet",
        "DIB_BLOCK_DEVICE_CONFIG": "a/" * 9000,
    }
    (tmp_path / "puppet").mkdir()
    monkeypatch.chdir(tmp_path)
    child = plan.child_environment(given)
    assert child["http_proxy"] == "http://p.example"
    assert child["DIB_FOO"] == "1"
    assert child["DIB_HEAT_PUPPET_PACKAGE"] == "puppet"
    assert not {"LD_LIBRARY_PATH", "PYTHONPATH", "SECRET_TOKEN"} & set(child)
    assert "/home/me/bin" not in child["PATH"]


@pytest.mark.parametrize(
    ("output", "image", "log"),
    [
        ("out.qcow2", "out.qcow2", "out.log"),
        ("out", "out.qcow2", "out.log"),
        ("deb-12.5", "deb-12.5.qcow2", "deb-12.5.log"),
    ],
)
def test_files_beside_the_image_share_its_name(tmp_path: Path, output: str, image: str, log: str):
    request = BuildRequest(tmp_path / output, tmp_path)
    assert request.image == tmp_path / image
    assert request.beside(".log") == tmp_path / log


def test_build_has_the_hosts_apt_configuration(tmp_path: Path) -> None:
    configured = Mirrors("http://m.example/debian", options=('Acquire::Check-Valid-Until "false"',))
    extra = made(tmp_path, mirrors=configured).environment["DIB_MMDEBSTRAP_EXTRA_ARGS"]
    assert """--aptopt='Acquire::Check-Valid-Until "false"'""" in extra
    assert "--aptopt" not in made(tmp_path).environment["DIB_MMDEBSTRAP_EXTRA_ARGS"]


@pytest.mark.parametrize("page", ["README.rst", "docs/building.rst"])
def test_documented_dib_lines_work_with_dib_alone(page: str):
    """dib's partitioning needs kpartx; ours is a plug-in that dib finds by ``PYTHONPATH`` only."""
    text = (Path(__file__).parents[2] / page).read_text().replace("\\\n", " ")
    commands = [
        line for line in text.splitlines() if re.search("disk-image-create -o|export ", line)
    ]
    environment = ""
    checked = 0
    for command in commands:
        if "export " in command:
            environment = command
            continue
        checked += 1
        if "vm" in command.split():
            assert "block-device-offset-mbr" in command and "PYTHONPATH=" in environment
    assert checked


@pytest.mark.parametrize("firmware", Starts)
def test_epoch_limits_file_times_and_seeds_uuids(tmp_path: Path, firmware: Starts):
    dated = made(tmp_path, epoch=1795305600, firmware=firmware)
    assert "reproducible" in dated.elements
    assert dated.environment["SOURCE_DATE_EPOCH"] == "1795305600"
    config = json.loads(dated.environment["DIB_BLOCK_DEVICE_CONFIG"])
    (layout,) = [node["offset_partitioning"] for node in config if "offset_partitioning" in node]
    parts = layout["partitions"]
    (root,) = [each["mkfs"] for each in parts if each["mkfs"]["type"] == "ext4"]
    assert dated == made(tmp_path, epoch=1795305600, firmware=firmware)
    other = made(tmp_path, epoch=1, firmware=firmware).environment["DIB_BLOCK_DEVICE_CONFIG"]
    assert root["uuid"] not in other
    plain = made(tmp_path, firmware=firmware)
    assert "reproducible" not in plain.elements
    assert not {"SOURCE_DATE_EPOCH", "DIB_BLOCK_DEVICE_CONFIG"} & set(plain.environment)
