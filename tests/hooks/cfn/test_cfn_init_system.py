"""cfn-init with real apt, dpkg, useradd and service(8), in a throw-away Debian; and real pip.

systemd's manager cannot run there; services under it are for the tests that boot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip
import pytest
from programs import completed

from hotplate.image import mirrors

from ..conftest import run_or_skip

INIT = "AWS::CloudFormation::Init"
RELEASE = "bookworm"


@pytest.fixture(scope="session")
def debian(kept, tmp_path_factory: pytest.TempPathFactory, hooks_dir: Path) -> Path:
    """A minimal Debian in a directory, with the hooks of this checkout."""
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    mirror = mirrors.of_this_host(RELEASE).main
    if not mirror:
        pytest.skip("the host's apt sources name no Debian mirror")
    # Half of the time that debootstrap takes; nobody misses this Debian after a power cut.
    command = ["mmdebstrap", "--variant=minbase", "--include=python3"]
    command += ["--dpkgopt=force-unsafe-io", "--dpkgopt=path-exclude=/usr/share/doc/*"]

    def install(folder: Path) -> None:
        archive = str(folder / "debian.tar")
        run_or_skip("mmdebstrap failed", *command, RELEASE, archive, mirror)

    base = kept(f"debian-{RELEASE}", f"{command} {mirror}", install) / "debian.tar"
    root = tmp_path_factory.mktemp("debian")
    subprocess.run(["tar", "--numeric-owner", "-xpf", base, "-C", root], check=True)
    shutil.copytree(hooks_dir, root / "hooks")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    return root


@pytest.fixture
def inside(debian: Path):
    """Run a command in that Debian."""

    def run(*command, check=True, **environment):
        return completed(
            ["chroot", str(debian), *command],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HEAT_CONFIG_LIB": "/hooks",
                **{name: value for name, value in os.environ.items() if name.endswith("_proxy")},
                **environment,
            },
            check=check,
            timeout=300,
        )

    return run


@pytest.fixture
def init(debian: Path, inside):
    """Run cfn-init there on one configuration."""

    def run(config, *, check=0):
        (debian / "metadata").write_text(json.dumps({INIT: {"config": config}}))
        done = inside("/hooks/cfn-init", check=False, HEAT_CFN_INIT_METADATA="/metadata")
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == check, done.stdout + done.stderr
        return done

    return run


def installed(inside, name):
    form = "${db:Status-Abbrev}${Version}"
    return inside("dpkg-query", "-W", "-f", form, name, check=False).stdout


@pytest.mark.root
@pytest.mark.network
def test_apt_installs_and_verifies_packages(init, inside, debian):
    # No package lists at first, as in an image that was cleaned.
    for path in (debian / "var/lib/apt/lists").glob("*_*"):
        path.unlink()
    init({"packages": {"apt": {"hello": [], "netcat-openbsd": ""}}})
    assert installed(inside, "hello").startswith("ii ")
    version = installed(inside, "hello").split()[1]
    init({"packages": {"apt": {"hello": [version]}}})
    init({"packages": {"apt": {"hello": ["0.0-no-such", version]}}})
    inside("apt-get", "-y", "remove", "hello")
    init({"packages": {"apt": {"hello": ["0.0-no-such", version], "sed": []}}})
    assert installed(inside, "hello") == f"ii {version}"
    # A virtual package counts when a package that provides it is installed.
    init({"packages": {"apt": {"python3-profiler": []}}})


@pytest.mark.defect("K14")
@pytest.mark.root
@pytest.mark.network
@pytest.mark.parametrize(
    ("packages", "part"),
    [
        ({"hotplate-no-such-package": []}, "hotplate-no-such-package"),
        ({"sed": ["0.0-no-such", "0.1-no-such"]}, "0.1-no-such"),
    ],
)
def test_package_that_apt_cannot_install_fails(init, debian, packages, part):
    """heat-cfntools ignores versions and reports success."""
    after = {"commands": {"a": {"command": "touch /after"}}}
    done = init({"packages": {"apt": packages}, **after}, check=1)
    assert "packages: apt" in done.stderr and part in done.stderr
    assert not (debian / "after").exists()


@pytest.mark.root
@pytest.mark.network
def test_dpkg_installs_a_file(init, inside, debian):
    inside("apt-get", "update")
    inside("sh", "-c", "cd /root && apt-get download figlet")
    (package,) = (debian / "root").glob("figlet_*.deb")
    init({"packages": {"dpkg": {"figlet": f"file:///root/{package.name}"}}})
    assert installed(inside, "figlet").startswith("ii ")
    (debian / "root/broken.deb").write_bytes(b"no package")
    done = init({"packages": {"dpkg": {"x": "/root/broken.deb"}}}, check=1)
    assert "packages: dpkg x" in done.stderr


@pytest.mark.defect("K14")
@pytest.mark.root
@pytest.mark.network
def test_groups_users_and_owners_are_set(init, inside, debian):
    config = {
        "groups": {"g-one": {"gid": "4001"}, "g-two": {}, "g-none": None},
        "users": {
            "u-one": {"uid": 4001, "groups": ["g-one", "g-two"], "homeDir": "/srv/u-one"},
            "u-two": {},
        },
        "files": {"/srv/f": {"content": "", "owner": "u-one", "group": "g-one", "mode": "000640"}},
    }
    for _ in range(2):
        init(config)
    assert inside("id", "-u", "u-one").stdout == "4001\n"
    assert inside("id", "-Gn", "u-one").stdout.split()[1:] == ["g-one", "g-two"]
    assert ":/srv/u-one:/sbin/nologin" in (debian / "etc/passwd").read_text()
    assert (debian / "srv/f").stat().st_uid == (debian / "srv/f").stat().st_gid == 4001
    # An update of the template changes existing accounts.
    config["groups"]["g-one"]["gid"] = "4900"
    config["users"]["u-two"] = {"groups": "g-one"}
    init(config)
    assert inside("id", "-Gn", "u-two").stdout.split()[1:] == ["g-one"]
    assert "g-one:x:4900:" in (debian / "etc/group").read_text()
    done = init({"users": {"u-three": {"groups": ["no-such-group"]}}}, check=1)
    assert 'users: "u-three"' in done.stderr and "no-such-group" in done.stderr
    done = init({"groups": {"g-three": {"gid": "4900"}}}, check=1)
    assert 'groups: "g-three"' in done.stderr


SCRIPT = """#!/bin/sh
### BEGIN INIT INFO
# Provides:          demo
# Required-Start:    $local_fs
# Required-Stop:     $local_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
### END INIT INFO
case "$1" in
    start | restart) echo "$1" >>/demo.log; touch /demo.runs ;;
    stop) rm /demo.runs ;;
    status) test -e /demo.runs ;;
esac
"""


@pytest.mark.root
@pytest.mark.network
def test_sysv_services_with_the_systems_own_programs(init, debian):
    def apply(content, **entry):
        (debian / "demo.log").unlink(missing_ok=True)
        init(
            {
                "files": {
                    "/etc/init.d/demo": {"content": SCRIPT, "mode": "000755"},
                    "/etc/demo.conf": {"content": content},
                },
                "services": {"sysvinit": {"demo": {**entry, "files": ["/etc/demo.conf"]}}},
            }
        )
        log = debian / "demo.log"
        return log.read_text().split() if log.exists() else []

    assert apply("1", enabled=True, ensureRunning=True) == ["start"]
    assert list((debian / "etc/rc2.d").glob("S*demo"))
    assert apply("1", enabled=True, ensureRunning=True) == []
    assert apply("2", enabled=True, ensureRunning=True) == ["restart"]
    apply("2", enabled=False, ensureRunning=False)
    assert not (debian / "demo.runs").exists()
    assert not list((debian / "etc/rc2.d").glob("S*demo"))


@pytest.mark.root
@pytest.mark.network
def test_absent_sysv_service_is_off(init):
    """As in heat-cfntools, which ignores the status of update-rc.d."""
    off = {"enabled": "false", "ensureRunning": "false"}
    init({"services": {"sysvinit": {"sendmail": off}}})
    for on in ({"enabled": True}, {"ensureRunning": True}):
        done = init({"services": {"sysvinit": {"sendmail": on}}}, check=1)
        assert 'services: "sendmail"' in done.stderr


@pytest.fixture
def virtual(tmp_path: Path) -> dict[str, str]:
    """A virtual environment whose pip finds one package, in two versions, and uses no index."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    # The pip of this Python, alone: a venv takes seconds to install its own.
    (tmp_path / "library").mkdir()
    (tmp_path / "library/pip").symlink_to(Path(pip.__file__).parent)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        info = f"hotplate_demo-{version}.dist-info"
        path = wheels / f"hotplate_demo-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr("hotplate_demo.py", f"VERSION = '{version}'\n")
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: hotplate-demo\nVersion: {version}\n",
            )
            wheel.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            wheel.writestr(f"{info}/RECORD", "")
    return {
        "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "library"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }


def test_python_packages_are_installed_with_real_pip(cfn, virtual):
    def apply(versions, check=0):
        packages = {"python": {"hotplate-demo": versions}}
        return cfn(
            "cfn-init",
            metadata={INIT: {"config": {"packages": packages}}},
            env=virtual,
            check=check,
        )

    def version():
        command = ["python3", "-c", "import hotplate_demo; print(hotplate_demo.VERSION)"]
        return completed(command, env=virtual, check=True).stdout.strip()

    apply("1.0")
    assert version() == "1.0"
    apply(["9.9", "2.0"])
    assert version() == "2.0"
    apply([])
    done = apply("3.0", check=1)
    assert "packages: python hotplate-demo" in done.stderr
    assert version() == "2.0"
