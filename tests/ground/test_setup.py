"""tools/setup, with stubs for the programs that it runs.

It installs the versions of the lock and does not change the host's policies.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    *("tools/setup", "tools/constraints.txt", "tools/packages.py"),
    *("pyproject.toml", "bindep.txt", "hotplate/__init__.py"),
)
APT = """#!/bin/sh
[ "$1" = update ] && exit 0
# The policy as it is while packages are installed.
if [ -e "{policy}" ]; then sh "{policy}" ssh start; else true; fi
echo "$? $*" >> "{log}"
exit {status}
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A checkout, and a folder ``bin`` of stub programs."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    setup = tmp_path / "tools" / "setup"
    setup.write_text(setup.read_text().replace("/usr/sbin/policy-rc.d", str(policy(tmp_path))))
    for name in ("bin/systemctl", ".venv/bin/python", ".venv/bin/uv"):
        program(tmp_path / name, "true")
    program(tmp_path / "bin" / "sudo", 'exec "$@"')
    program(tmp_path / "bin" / "python3", f'exec {sys.executable} "$@"')
    program(tmp_path / ".venv" / "bin" / "bindep", "echo crun; echo openssh-server; echo git")
    return tmp_path


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def policy(host: Path) -> Path:
    return host / "policy-rc.d"


def set_up(host: Path, *, status: int = 0) -> list[str]:
    """Run tools/setup; return apt-get's installs, each with the policy's answer at that time."""
    log = host / "log"
    log.unlink(missing_ok=True)
    apt = host / "bin" / "apt-get"
    apt.write_text(APT.format(policy=policy(host), log=log, status=status))
    apt.chmod(0o755)
    done = subprocess.run(
        [host / "tools" / "setup", "test"],
        env={"PATH": f"{host}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(host)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == (3 if status else 0), done.stdout + done.stderr
    return log.read_text().splitlines()


def test_ssh_server_is_installed_and_not_started(host):
    one, others = set_up(host)
    assert one.startswith("101 install ") and one.endswith(" openssh-server")
    assert others.startswith("0 install ") and others.endswith(" crun git")
    assert not policy(host).exists()


def test_existing_policy_stays(host):
    policy(host).write_text("#!/bin/sh\nexit 42\n")
    assert set_up(host)[0].startswith("42 install ")
    assert policy(host).read_text() == "#!/bin/sh\nexit 42\n"


def test_failed_install_leaves_no_policy(host):
    assert len(set_up(host, status=100)) == 1
    assert not policy(host).exists()


def test_policy_of_a_killed_run_is_removed(host):
    mark = next(
        line.partition('"')[2].rstrip('"')
        for line in (host / "tools" / "setup").read_text().splitlines()
        if line.startswith("policy_mark=")
    )
    policy(host).write_text(f"#!/bin/sh\n{mark}\nexit 101\n")
    assert set_up(host)[0].startswith("101 install ")
    assert not policy(host).exists()


PYTHON = """#!/bin/sh
case "$*" in *" -r "*) for last in "$@"; do :; done; cat "$last" >> "{log}" ;; esac
echo "$*" >> "{log}"
case "$*" in *tools/packages.py*) exit {uv} ;; esac
"""


def installs(host: Path, *, uv: int) -> list[str]:
    """Return the calls of pip and uv, each with the requirements that it reads before it.

    :param uv: the exit status of uv.
    """
    log = host / "pythons"
    (host / ".venv/bin/python").write_text(PYTHON.format(uv=uv, log=log))
    set_up(host)
    return re.findall(r"^(?:\w+==.*\n(?: .*\n)+)?.* install .*\n", log.read_text(), re.MULTILINE)


def lines_of(package: str, host: Path) -> str:
    """Return the lines of the lock about a package."""
    lock = (host / "tools/constraints.txt").read_text()
    (lines,) = re.findall(rf"^{package}==.*\n(?: .*\n)+", lock, re.MULTILINE)
    return str(lines)


def test_uv_is_a_locked_one_and_installs_locked_versions(host):
    of_uv, of_project = installs(host, uv=0)
    assert of_uv.startswith(lines_of("uv", host)) and "--require-hashes" in of_uv
    assert "--constraints tools/constraints.txt" in of_project
    assert "--build-constraints tools/constraints.txt" in of_project


def test_pip_installs_the_locked_versions_where_uv_fails(host):
    """Before pip 26.1, constraints with hashes are for pinned requirements only."""
    *_, of_pip, project, dependencies = installs(host, uv=1)
    assert of_pip.startswith(lines_of("pip", host)) and "--require-hashes" in of_pip
    assert "--no-deps" in project and " --constraint " not in project
    assert " --constraint tools/constraints.txt " in dependencies
    assert dependencies.endswith(" hotplate[test,lint,docs]\n")
