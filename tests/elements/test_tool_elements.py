"""The elements that bring a configuration tool: their fetches, checks and messages."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import completed, program

from hotplate.image.plan import dib_elements_dir

ELEMENTS = Path(__file__).resolve().parents[2] / "elements"
TOOL = ELEMENTS / "heat-config-tool" / "heat-config-tool-files"
URL_SCHEME = "file://"


@pytest.fixture
def script(tmp_path: Path):
    """Run a script of an element, with some programs of the image replaced by shell scripts."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(path: Path, *arguments: str, replace=None, **environment: str):
        for name, body in (replace or {}).items():
            program(programs / name, f"#!/bin/bash\n{body}\n")
        return completed(
            [str(path), *arguments],
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "TMP_HOOKS_PATH": str(tmp_path / "hooks"),
                "TMP_MOUNT_PATH": str(tmp_path / "mnt"),
                "DIB_IMAGE_CACHE": str(tmp_path / "cache"),
                "ARCH": "amd64",
                **environment,
            },
        )

    return run


@pytest.fixture
def package(tmp_path: Path) -> tuple[Path, str]:
    """Return a file that could be a package, and its SHA-256."""
    path = tmp_path / "tool_1.deb"
    path.write_bytes(b"a package")
    return path, hashlib.sha256(b"a package").hexdigest()


def brought(tmp_path: Path) -> list[str]:
    """Return the files that fetch-tool put into the hooks of the build."""
    return sorted(path.name for path in (tmp_path / "hooks").rglob("*") if path.is_file())


def test_name_needs_no_fetching(script, tmp_path: Path):
    for wanted in ("", "none", "openvox-agent"):
        assert script(TOOL / "fetch-tool", "e", wanted, "").returncode == 0
    assert not (tmp_path / "hooks").exists()


def test_file_is_checked_when_a_hash_is_given(script, tmp_path: Path, package):
    path, digest = package
    assert script(TOOL / "fetch-tool", "e", str(path), digest).returncode == 0
    assert brought(tmp_path) == ["tool_1.deb"]
    assert script(TOOL / "fetch-tool", "e", str(path), "").returncode == 0
    wrong = script(TOOL / "fetch-tool", "e", str(path), "0" * 64)
    assert wrong.returncode == 1
    assert "SHA-256" in wrong.stderr


def test_url_needs_its_hash_and_is_kept(script, tmp_path: Path, package):
    path, digest = package
    url = f"{URL_SCHEME}{path}"
    assert "SHA-256" in script(TOOL / "fetch-tool", "e", url, "").stderr
    wrong = script(TOOL / "fetch-tool", "e", url, "0" * 64)
    assert wrong.returncode == 1
    assert brought(tmp_path) == []
    assert script(TOOL / "fetch-tool", "e", url, digest).returncode == 0
    path.unlink()
    assert script(TOOL / "fetch-tool", "e", url, digest).returncode == 0
    assert brought(tmp_path) == ["tool_1.deb"]


def test_missing_file_is_an_error_of_an_offline_build(script):
    url = "https://127.0.0.1:1/tool.deb"
    done = script(TOOL / "fetch-tool", "e", url, "0" * 64, DIB_OFFLINE="1")
    assert done.returncode == 1
    assert "DIB_OFFLINE" in done.stderr


@pytest.mark.parametrize("wanted", ["/no/such.deb", "./tool.zip", "nosuch.rpm"])
def test_file_that_is_no_package_is_refused(script, tmp_path: Path, wanted):
    (tmp_path / "tool.zip").write_text("")
    done = script(TOOL / "fetch-tool", "e", wanted.replace("./", f"{tmp_path}/"), "")
    assert done.returncode == 1
    assert wanted.rsplit("/", 1)[-1] in done.stderr


def test_missing_package_stops_the_build_with_the_choices(script):
    replace = {
        "pkg-map": '[ "$1 $2 $3" = "--missing-ok --element e" ] && echo "$4"',
        "apt-cache": '[ "${!#}" = there ]',
    }
    check = TOOL / "check-tool"
    assert script(check, "e", "there", "Choose.", replace=replace).returncode == 0
    done = script(check, "e", "absent", "Choose.", replace=replace, DIB_RELEASE="sarge")
    assert done.returncode == 1
    assert "(sarge) has no package 'absent'. Choose." in done.stderr


RPM_SPEC = """Name: there
Version: 1
Release: 1
Summary: A package
License: Apache-2.0
BuildArch: noarch
Provides: also-there
%description
A package.
%files
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of rpm packages that has one, "there"."""
    top = tmp_path_factory.mktemp("rpm")
    (top / "there.spec").write_text(RPM_SPEC)
    define = [f"--define=_topdir {top}", f"--define=_rpmdir {top}/packages"]
    for command in (
        ["rpmbuild", "--quiet", "-bb", *define, f"{top}/there.spec"],
        ["createrepo_c", "--quiet", f"{top}/packages"],
    ):
        subprocess.run(command, check=True, timeout=60, capture_output=True)
    return top / "packages"


@pytest.fixture(params=["dnf", "zypper"])
def rpm_tools(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> dict[str, str]:
    """Return the commands of an image whose package manager is the real dnf or zypper."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "dnf.conf").write_text(
        f"[main]\nreposdir=/nowhere\ncachedir=/var/cache/dnf\nplugins=0\n"
        f"[r]\nname=r\nbaseurl=file://{repository}\ngpgcheck=0\n"
    )
    real = shutil.which(request.param)
    options = {
        "dnf": f"--config {tmp_path}/dnf.conf --installroot {root} --releasever 9",
        "zypper": f"--root {root}",
    }[request.param]
    if request.param == "zypper":
        add = [real, "--root", root, "--non-interactive", "addrepo", "--no-gpgcheck"]
        subprocess.run([*add, f"dir:{repository}", "r"], check=True, capture_output=True)
    return {
        request.param: f'exec {real} {options} "$@"',
        "pkg-map": 'echo "${@:4}"',
    }


@pytest.mark.tool("rpmbuild")
@pytest.mark.tool("createrepo_c")
@pytest.mark.tool("dnf")
@pytest.mark.tool("zypper")
def test_dnf_and_zypper_are_asked_for_the_package(script, rpm_tools, tmp_path: Path, repository):
    # The host has all of them, the image has one.
    path = str(tmp_path / "without-apt")
    Path(path).mkdir()
    for each in Path("/usr/bin").iterdir():
        if each.name not in ("apt-cache", "dnf", "zypper"):
            Path(path, each.name).symlink_to(each)
    check = TOOL / "check-tool"

    def ask(package: str):
        return script(
            *(check, "e", package, "Choose."),
            replace=rpm_tools,
            PATH=f"{tmp_path}/bin:{path}",
            DISTRO_NAME="rocky",
            DIB_RELEASE="9",
        )

    for package in ("there", "also-there"):
        there = ask(package)
        assert (there.returncode, there.stderr) == (0, "")
    absent = ask("absent")
    assert absent.returncode == 1
    assert absent.stderr == "e: this release (rocky 9) has no package 'absent'. Choose.\n"
    # Without an answer the build goes on: the package manager reports the package itself.
    repository.rename(repository.with_name("gone"))
    try:
        shutil.rmtree(tmp_path / "root/var/cache")
        assert ask("absent").returncode == 0
    finally:
        repository.with_name("gone").rename(repository)


def test_tool_without_a_package_of_its_own_stops_the_build_with_the_choices(script):
    """The pkg-map of such an element has an empty name."""
    done = script(
        *(TOOL / "check-tool", "e", "chef", "Choose."),
        replace={"pkg-map": ""},
        DISTRO_NAME="fedora",
        DIB_RELEASE="43",
    )
    assert done.returncode == 1
    assert done.stderr == (
        "e: this release (fedora 43) has no package of its own for 'chef'. Choose.\n"
    )


@pytest.mark.parametrize(
    ("wanted", "installs", "status", "message"),
    [
        ("", "exit 1", 0, ""),
        ("none", "exit 1", 0, ""),
        ("name", "echo installed $*", 0, "installed name"),
        ("name", "exit 100", 1, "'name' cannot be installed. Choose."),
    ],
)
def test_tool_is_installed_by_name(script, wanted, installs, status, message):
    replace = {"install-packages": installs, "the-tool": "true"}
    done = script(TOOL / "install-tool", "e", wanted, "Choose.", "the-tool", replace=replace)
    assert done.returncode == status
    assert message in done.stdout + done.stderr


def test_missing_program_stops_the_build_with_the_choices(script):
    done = script(TOOL / "install-tool", "e", "", "Choose.", "no-such-tool", "nor-this")
    assert done.returncode == 1
    assert "none of these programs is in the image: no-such-tool nor-this. Choose." in done.stderr


def test_fetched_files_are_installed(script, tmp_path: Path):
    hooks = tmp_path / "in_target.d"
    text = (TOOL / "install-tool").read_text()
    install = program(hooks / "heat-config-tool-files" / "install-tool", text)
    packages = hooks / "heat-config-tool-packages" / "e"
    packages.mkdir(parents=True)
    (packages / "a.deb").write_text("")
    (packages / "b.sh").write_text(f'echo "script $*"; printf "#!/bin/sh" > {tmp_path}/bin/tool\n')
    replace = {"install-packages": "echo package ${*##*/}", "tool": ""}
    done = script(
        install, "e", "", "Choose.", "tool", replace=replace, DIB_HEAT_TOOL_ARGUMENTS="-v 18"
    )
    assert (done.returncode, done.stdout) == (0, "package a.deb\nscript -v 18\n")


@pytest.mark.parametrize(
    ("package", "programs", "status"),
    [("", {}, 1), ("none", {}, 0), ("/srv/cinc.rpm", {}, 0), ("", {"cinc-client": "true"}, 0)],
    ids=["nothing", "none", "a file", "there already"],
)
def test_chef_from_nowhere_stops_the_build_before_packages(
    script, tmp_path, package, programs, status
):
    """No distribution has it."""
    hooks = tmp_path / "in_target.d"
    for element in ("heat-config-chef", "heat-config-tool"):
        shutil.copytree(ELEMENTS / element, hooks, dirs_exist_ok=True)
    dib = dib_elements_dir() / "pkg-map/bin/pkg-map"
    chef = ELEMENTS / "heat-config-chef/pkg-map"
    done = script(
        hooks / "pre-install.d/95-heat-config-chef",
        replace={"pkg-map": f'python3 {dib} --pkg-map {chef} "$1" "$4"', **programs},
        DIB_HEAT_CHEF_PACKAGE=package,
        DISTRO_NAME="fedora",
        DIB_RELEASE="43",
    )
    assert done.returncode == status
    (sentence,) = [line for line in done.stderr.splitlines() if "heat-config-chef: " in line] or [
        ""
    ]
    assert status == 0 or "(fedora 43) has no package of its own for 'chef'. Set DIB_" in sentence


def test_licence_of_chef_is_one_of_three_words(script):
    path = ELEMENTS / "heat-config-chef" / "extra-data.d" / "50-heat-config-chef"
    done = script(path, DIB_HEAT_CHEF_LICENSE="yes")
    assert done.returncode == 1
    assert "accept-no-persist" in done.stderr


def test_python_without_a_lock_is_reported(script, tmp_path: Path):
    done = script(
        ELEMENTS / "heat-venv" / "heat-venv-files" / "fetch-wheels",
        "heat-salt",
        str(ELEMENTS / "heat-config-salt" / "heat-salt-lock"),
        replace={"sudo": "echo 2.7"},
        DIB_PYTHON_EXEC="python3",
    )
    assert done.returncode == 1
    assert "Python 2.7" in done.stderr
    assert "is for 3.11 3.12 3.13 3.14" in done.stderr


@pytest.mark.parametrize("name", ["puppet", "chef", "ansible", "salt"])
def test_choices_name_the_variables_that_the_readme_explains(name):
    element = ELEMENTS / f"heat-config-{name}"
    choices = (element / f"heat-config-{name}-choices").read_text()
    readme = (element / "README.rst").read_text()
    words = {word.strip(".,;:()") for word in choices.split() if word.startswith("DIB_")}
    assert f"DIB_HEAT_{name.upper()}_PACKAGE" in words
    assert all(f"\n{word}\n" in readme for word in words)
    assert choices.count("\n") == 1
