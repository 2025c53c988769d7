"""The content of a really built image: no defects, and no needless files."""

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from built_images import Images
from programs import completed

from tests.booted.disks import root_offset

pytestmark = [
    pytest.mark.root,
    pytest.mark.builds,
    pytest.mark.network,
    pytest.mark.tool("debootstrap"),
    pytest.mark.tool("qemu-img"),
]


@dataclass(frozen=True)
class Kind:
    release: str
    layout: str
    install_type: str

    @property
    def network(self) -> str:
        """Return the unit that configures the network; cloud-init of bullseye brings ifupdown."""
        return "networking" if self.release == "bullseye" else "systemd-networkd"

    def __str__(self) -> str:
        return f"{self.release}-{self.install_type}"


def of(release: str, layout: str, install_type: str, *marks: pytest.MarkDecorator) -> object:
    """One kind of image, whose tests share a build that takes a minute."""
    kind = Kind(release, layout, install_type)
    return pytest.param(kind, marks=[pytest.mark.xdist_group(f"image of {kind}"), *marks])


KINDS = [
    of("bullseye", "disk", "slim", pytest.mark.long),
    of("bookworm", "disk", "slim", pytest.mark.long),
    of("trixie", "partition", "slim", pytest.mark.long),
    of("unstable", "disk", "slim", pytest.mark.long),
    of("trixie", "partition", "package"),
]


class Tree:
    """The root file system of an image, mounted read-only."""

    def __init__(self, root: Path, kind: Kind) -> None:
        self.root = root
        self.kind = kind

    def __truediv__(self, path: str) -> Path:
        return self.root / path

    def run(self, *command: str) -> str:
        """Run a program of the image, where it may log; return its output."""
        scratch = f"for d in run var/log; do mount -t tmpfs none {self.root}/$d; done"
        result = completed(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-euc", f'{scratch}; exec chroot "$@"', "sh", self.root, *command),
            ],
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin", "LC_ALL": "C"},
            timeout=120,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture(scope="module", params=KINDS, ids=str)
def tree(
    request: pytest.FixtureRequest, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tree]:
    kind: Kind = request.param
    words: tuple[str, ...] = ()
    if kind.install_type != "slim":
        words = ("--install-type", kind.install_type)
    if kind.release == "bullseye":
        # The cloud kernel of its security suite comes and goes.
        words += ("--kernel", "generic")
    built = images.get(kind.release, kind.layout, "script", *words)
    directory = tmp_path_factory.mktemp(str(kind))
    image, root = directory / "image.raw", directory / "root"
    root.mkdir()
    subprocess.run(["qemu-img", "convert", "-O", "raw", built, image], check=True)
    offset = root_offset(image) if kind.layout == "disk" else 0
    subprocess.run(["mount", "-o", f"loop,ro,noload,offset={offset}", image, root], check=True)
    try:
        yield Tree(root, kind)
    finally:
        subprocess.run(["umount", root], check=True)
        shutil.rmtree(directory)


def test_agent_programs_run(tree: Tree) -> None:
    assert "os-collect-config" in tree.run("os-collect-config", "--help")
    assert tree.run("os-apply-config", "--print-templates").strip() == (
        "/usr/libexec/os-apply-config/templates"
    )
    assert tree.run("os-refresh-config", "--print-phases").split()[:2] == [
        "pre-configure",
        "configure",
    ]
    assert tree.run("os-refresh-config", "--print-base").strip() == "/usr/libexec/os-refresh-config"


def test_start_program_has_the_agent_even_on_a_read_only_disk(tree: Tree) -> None:
    printed = tree.run("/usr/libexec/os-collect-config/start", "--print-cachedir")
    assert printed.strip() == "/var/lib/os-collect-config"


def test_phases_have_their_scripts(tree: Tree) -> None:
    base = "/usr/libexec/os-refresh-config"
    assert tree.run("dib-run-parts", "--list", f"{base}/configure.d").split() == [
        f"{base}/configure.d/20-os-apply-config",
        f"{base}/configure.d/55-heat-config",
    ]
    assert tree.run("dib-run-parts", "--list", f"{base}/pre-configure.d").split() == [
        f"{base}/pre-configure.d/10-wait-for-cloud-init"
    ]


def test_configuration_is_private_from_the_first_boot(tree: Tree) -> None:
    conf = tree / "etc/os-collect-config.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600
    assert "command = os-refresh-config\n" in conf.read_text()
    for path in ("var/lib/os-collect-config", "var/lib/heat-config"):
        assert stat.S_IMODE((tree / path).stat().st_mode) == 0o700


def test_resolver_leaves_the_processor_to_cloud_init(tree: Tree) -> None:
    if tree.kind.network != "systemd-networkd":
        assert not (tree / "etc/systemd/system/systemd-resolved.service.d").exists()
        return
    (drop_in,) = (tree / "etc/systemd/system/systemd-resolved.service.d").iterdir()
    assert drop_in.read_text() == "[Unit]\nAfter=cloud-init-local.service\n"


def test_clock_is_synchronised(tree: Tree) -> None:
    wants = tree / "etc/systemd/system/sysinit.target.wants"
    assert (wants / "systemd-timesyncd.service").is_symlink()


def test_first_boot_does_not_apply_the_presets_again(tree: Tree) -> None:
    """machine-id(5): an empty file gets an id at boot, which is not a "first boot"."""
    assert (tree / "etc/machine-id").read_bytes() == b""


def test_units_are_enabled_and_valid(tree: Tree) -> None:
    wants = tree / "etc/systemd/system/multi-user.target.wants"
    for unit in ("os-collect-config.service", f"{tree.kind.network}.service"):
        assert (wants / unit).is_symlink()
    result = completed(
        ["chroot", tree.root, "systemd-analyze", "verify", "os-collect-config.service"], timeout=120
    )
    assert [line for line in result.stderr.splitlines() if "os-collect-config" in line] == []


def test_image_has_a_network_and_a_data_source(tree: Tree) -> None:
    for program in ("ip", "resize2fs"):
        assert any((tree / folder / program).exists() for folder in ("sbin", "usr/sbin"))
    text = (tree / "etc/cloud/cloud.cfg.d/90_heat-config.cfg").read_text()
    assert text == "datasource_list: [ OpenStack, ConfigDrive, NoCloud, Ec2, None ]\n"
    if tree.kind.network == "networking":
        assert (tree / "sbin/dhclient").exists()
        return
    resolv = tree / "etc/resolv.conf"
    assert str(resolv.readlink()).endswith("run/systemd/resolve/stub-resolv.conf")


def test_build_tools_and_traces_of_the_build_are_absent(tree: Tree) -> None:
    traces = [
        str(path.relative_to(tree.root))
        for folder in ("usr/bin", "usr/local/bin")
        for path in sorted((tree / folder).glob("*"))
        if path.name.startswith(("pip", "gcc", "g++", "cc", "make", "git", "pkg-map", "package-"))
    ]
    assert traces == []
    assert list((tree / "etc").glob("resolv.conf.*")) == []


def test_manifest_names_the_installed_programs(tree: Tree) -> None:
    manifest = json.loads((tree / "usr/share/heat-config/manifest.json").read_text())
    assert {"heat-config-script", "os-collect-config"} <= set(manifest["elements"])
    assert "script" in {program["group"] for program in manifest["programs"]}
    ours = tree / "usr/libexec/heat-config/lib/heat_agent"
    assert ours.exists() == (tree.kind.install_type == "slim")


def test_agent_is_small(tree: Tree) -> None:
    """The agent and the script hook, with their bytecode, add at most 1.15 MB, unpacked."""
    if tree.kind.install_type != "slim":
        return
    folders = ("usr/libexec/heat-config", "usr/libexec/heat-agent", "usr/libexec/os-collect-config")
    paths = [path for folder in folders for path in (tree / folder).rglob("*")]
    # 1.13 MB with unstable's Python 3.14, whose bytecode is larger than that of 3.13.
    assert sum(path.stat().st_size for path in paths if path.is_file()) <= 1_150_000


def test_all_modules_of_the_agent_are_compiled(tree: Tree) -> None:
    if tree.kind.install_type == "slim":
        library = tree / "usr/libexec/heat-config/lib"
        sources = set(library.rglob("*.py"))
        compiled = {path.parent.parent / path.name.split(".")[0] for path in library.rglob("*.pyc")}
        assert {path.with_suffix("") for path in sources} == compiled
