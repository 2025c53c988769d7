"""The packages that the elements install, per distribution, against the table of those."""

import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from diskimage_builder.element_dependencies import get_elements
from programs import completed, program

from hotplate.image.plan import dib_elements_dir

ROOT = Path(__file__).resolve().parents[2]
ELEMENTS = ROOT / "elements"
DATA = yaml.safe_load((ROOT / "docs" / "distributions.yaml").read_text())
NAMES = [row["name"] for row in DATA["releases"]]
#: diskimage-builder's elements of operating systems whose policy is SELinux's.
RPM_SYSTEMS = (
    *("almalinux-container", "centos", "centos-minimal", "fedora", "fedora-container"),
    *("fedora-minimal", "rhel", "rocky-container"),
)


def load(name: str) -> ModuleType:
    path = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


distributions = load("distributions")


def release_of(name: str):
    return next(each for each in distributions.releases() if each.name == name)


@cache
def tools() -> set[str]:
    """Return the elements that end the build early when a package of theirs is nowhere."""
    scripts = ELEMENTS.glob("*/pre-install.d/*")
    return {each.parents[1].name for each in scripts if "check-tool" in each.read_text()}


#: The releases whose Python the agent takes; the others are refused before anything is installed.
USABLE = [name for name in NAMES if release_of(name).python >= distributions.OLDEST_PYTHON]


@pytest.mark.parametrize("name", USABLE)
def test_packages_are_those_of_the_table(name):
    (first, *others) = release_of(name).names
    kinds = {kind: distributions.listed(kind, name) for kind in distributions.KINDS}
    resolved = set()
    for element, choice in distributions.installing():
        packages = distributions.resolve(element, *first, choice)
        for other in others:
            assert distributions.resolve(element, *other, choice) == packages
        resolved |= set(packages or ())
        # Such a package is looked for before the others are installed.
        assert element in tools() or not kinds["absent"] & set(packages or ())
    assert resolved == set().union(*kinds.values())
    assert sum(map(len, kinds.values())) == len(resolved), "a package is in two parts of the table"


def test_documented_packages_have_a_source():
    rows = [row for kind in ("documented", "absent") for row in DATA[kind]]
    assert all(row["source"].strip() and row["releases"] and row["packages"] for row in rows)
    assert {name for row in rows for name in row["releases"]} <= set(NAMES)


@pytest.mark.parametrize("name", ["trixie", "noble", "EL 9", "Fedora 43", "Tumbleweed"])
def test_package_installs_asks_for_the_same_packages(name, tmp_path):
    """The step in the chroot: package-installs-v2, which calls pkg-map by its name."""
    distro, release = release_of(name).names[0]
    wanted = [each for each, choice in distributions.installing() if not choice]
    resolved = {each: distributions.resolve(each, distro, release, {}) for each in wanted}
    wanted = [each for each in wanted if resolved[each] is not None]
    defaults = "".join(
        f"source {path}\n"
        for each in wanted
        for path in sorted((ELEMENTS / each).glob("environment.d/*"))
    )
    dib = dib_elements_dir()
    # It looks for the maps in /usr/share/pkg-map, and is called by its name, with "--element NAME".
    (tmp_path / "pkg-map").write_text(
        "#!/bin/bash\n"
        f'exec python3 {dib}/pkg-map/bin/pkg-map --pkg-map "{ELEMENTS}/$5/pkg-map" '
        '"${@:1:3}" "${@:6}"\n'
    )
    (tmp_path / "pkg-map").chmod(0o755)
    installs = dib / "package-installs" / "bin"
    words = f"--elements '{' '.join(wanted)}' --path {ELEMENTS} all.json"
    script = f"""set -eu
{defaults}
python3 {installs}/package-installs-squash {words}
for phase in pre-install.d install.d post-install.d; do
    python3 {installs}/package-installs-v2 --phase $phase --noop all.json
done
"""
    done = completed(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DISTRO_NAME": distro,
            "DIB_RELEASE": release,
            "ARCH": "amd64",
        },
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("install-packages")]
    asked = {word for line in lines for word in line.split()[1:]}
    assert asked == {package for each in wanted for package in resolved[each] or ()}


@pytest.mark.parametrize("element", ["apt-archive-cache", "heat-config-lean"])
def test_element_for_apt_refuses_other_distributions(element):
    (path,) = (ELEMENTS / element).glob("environment.d/*")
    for distro, status in (("debian", 0), ("ubuntu", 0), ("rocky", 1), ("opensuse", 1)):
        done = completed(["bash", "-c", f"set -eu; source {path}"], env={"DISTRO_NAME": distro})
        assert done.returncode == status
        assert done.stderr.count("\n") == status
        assert status == 0 or f"of {distro}" in done.stderr


def test_no_other_element_calls_apt():
    """install-packages and pkg-map are for all distributions."""
    named = {
        path.relative_to(ELEMENTS).parts[0]
        for path in ELEMENTS.glob("*/*.d/*")
        if path.is_file() and "apt-get" in path.read_text()
    }
    assert named <= {"apt-archive-cache", "heat-config-lean"}


@pytest.mark.parametrize("system", RPM_SYSTEMS)
def test_files_of_the_elements_get_labels_of_selinux(system):
    """At the end of the build, in cleanup.d, diskimage-builder labels the whole file system."""
    path = f"{ELEMENTS}:{dib_elements_dir()}"
    elements = dict(get_elements([system, "heat-config-script"], path))
    assert "selinux-fixfiles-restore" in elements
    (relabel,) = (dib_elements_dir() / "selinux-fixfiles-restore" / "cleanup.d").iterdir()
    later = [
        script.name
        for element in elements.values()
        if Path(element).is_relative_to(ELEMENTS)
        for script in Path(element).glob("cleanup.d/*")
        if script.name > relabel.name
    ]
    assert later == []


@pytest.fixture
def image(tmp_path):
    """Return an empty image: ``image(script, *programs)`` runs a step of an element in it.

    The step sees the given programs, and the real systemctl, which changes the image's files.
    """
    root = tmp_path / "root"
    programs = tmp_path / "bin"
    for directory in (root / "etc", root / "lib/systemd/system", programs):
        directory.mkdir(parents=True)
    (root / "usr").mkdir()
    (root / "usr/lib").symlink_to("../lib")
    systemctl = f'#!/bin/sh\nexec {shutil.which("systemctl")} --root {root} "$@"\n'

    def run(script: Path, *names: str) -> "subprocess.CompletedProcess[str]":
        for name in ("bash", "cat", "dirname", "grep", "install", "ln", "rm"):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(shutil.which(name))
        for name, text in (("systemctl", systemctl), *((name, "#!/bin/sh\n") for name in names)):
            program(programs / name, text)
        text = re.sub(r"(?<![\w.])/(etc|lib|usr)/", rf"{root}/\1/", script.read_text())
        return completed(
            ["bash", "-c", text, script],
            env={"PATH": str(programs), "DIB_HEAT_DATASOURCES": "OpenStack"},
        )

    run.root = root
    return run


def unit(image, name: str, *, enabled: bool = False) -> None:
    path = image.root / "lib/systemd/system" / name
    path.write_text("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n")
    if enabled:
        wants = image.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True)
        (wants / name).symlink_to(f"/lib/systemd/system/{name}")


@pytest.mark.tool("systemctl")
@pytest.mark.parametrize(
    ("service", "socket", "enables"),
    [(False, None, True), (False, True, False), (True, None, True), (None, None, False)],
    ids=["off by presets", "by its socket", "Debian", "podman"],
)
def test_docker_starts_at_boot_where_its_package_leaves_it_off(image, service, socket, enables):
    for name, state in (("docker.service", service), ("docker.socket", socket)):
        if state is not None:
            unit(image, name, enabled=state)
    step = ELEMENTS / "heat-config-docker-engine/post-install.d/50-heat-config-docker-engine"
    done = image(step)
    assert done.returncode == 0, done.stderr
    wants = image.root / "etc/systemd/system/multi-user.target.wants/docker.service"
    assert wants.is_symlink() == enables


@pytest.mark.tool("systemctl")
def test_network_is_left_to_network_manager_or_networkd_is_enabled_or_missed(image):
    step = ELEMENTS / "heat-config-cloud-init/post-install.d/60-heat-config-cloud-init"
    missed = image(step)
    assert missed.returncode == 0
    assert "warning: no program of the image brings up the network" in missed.stderr
    assert not (image.root / "etc/systemd/network").exists()
    # openSUSE, by the package systemd-networkd.
    (image.root / "lib/systemd/systemd-networkd").touch()
    unit(image, "systemd-networkd.service")
    enabled = image(step, "cloud-init")
    assert (enabled.returncode, "warning" in enabled.stderr) == (0, False)
    wants = image.root / "etc/systemd/system/multi-user.target.wants"
    assert (wants / "systemd-networkd.service").is_symlink()
    preset = image.root / "etc/systemd/system-preset/50-heat-config.preset"
    assert not preset.exists()
    # RHEL and Fedora.
    assert "the network is left to 'nmcli'" in image(step, "nmcli").stdout
    assert preset.read_text() == "disable systemd-networkd*\n"
    preset.unlink()
    # Ubuntu, whose netplan uses networkd.
    assert "the network is left to 'netplan'" in image(step, "netplan").stdout
    assert not preset.exists()


def test_image_in_which_nothing_finds_the_user_data_is_warned_of(image):
    step = ELEMENTS / "heat-config-cloud-init/post-install.d/60-heat-config-cloud-init"
    warning = "warning: nothing in the image finds Heat's user data"
    assert warning in image(step).stderr
    assert warning not in image(step, "cloud-init").stderr
    bootstrap = image.root / "etc/systemd/system/heat-config-bootstrap.service"
    bootstrap.parent.mkdir(parents=True, exist_ok=True)
    bootstrap.touch()
    assert warning not in image(step).stderr


@pytest.mark.tool("systemctl")
@pytest.mark.parametrize("where", [None, "etc", "usr/lib"])
def test_network_manager_that_starts_no_device_gets_a_profile(image, where):
    unit(image, "heat-config-bootstrap.service")
    if where:
        conf = image.root / where / "NetworkManager/conf.d/00-server.conf"
        conf.parent.mkdir(parents=True)
        conf.write_text("[main]\nno-auto-default=*\nignore-carrier=*\n")
    step = ELEMENTS / "heat-config-bootstrap/post-install.d/70-heat-config-bootstrap"
    done = image(step, "NetworkManager")
    assert done.returncode == 0, done.stderr
    profiles = list(image.root.glob("etc/NetworkManager/system-connections/*"))
    assert [path.stat().st_mode & 0o777 for path in profiles] == [0o600] * bool(where)
    for path in profiles:
        profile = configparser.ConfigParser()
        profile.read(path)
        assert (profile["connection"]["type"], profile["ipv4"]["method"]) == ("ethernet", "auto")
