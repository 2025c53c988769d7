"""``--os-cloud`` against a real OpenStack of ``tools/openstack``: that of Debian 12, and of 13."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotplate.settings import cache_dir
from hotplate.timing.deadline import Deadline, retry
from tests import tiny_disk

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.long,
]

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "openstack"
#: From nothing: the packages, the databases and a start; on a busy host.
MAKING_SECONDS = 3600
SECONDS = 2700


def on(release: str) -> pytest.MarkDecorator:
    """Return the mark of a test in the cloud of a release; each cloud belongs to one worker."""
    cloud = pytest.param(release, marks=pytest.mark.xdist_group(f"OpenStack {release}"))
    return pytest.mark.parametrize("real_openstack", [cloud], indirect=True)


#: With Heat 19, and with Heat 24.
on_zed = on("zed")
on_epoxy = on("epoxy")
LIMITS = ("--patience", "1500", "--limit", "2400")
CONFIG = """#!/bin/sh
echo "about to end with $code"
printf '%s' "$word" > "$heat_outputs_path.back"
exit "$code"
"""


def servers(*names: str, code: int = 0, reachable: bool = False) -> dict[str, Any]:
    """Return a template of servers on a network of its own, each with one deployment.

    :param reachable: by ssh, at a floating IP.
    """
    config = {
        "group": "script",
        "inputs": [{"name": "code"}, {"name": "word"}],
        "outputs": [{"name": "back"}],
        "config": CONFIG,
    }
    resources: dict[str, Any] = {
        "config": {"type": "OS::Heat::SoftwareConfig", "properties": config},
        "net": {"type": "OS::Neutron::Net"},
        "subnet": {
            "type": "OS::Neutron::Subnet",
            "properties": {"network": {"get_resource": "net"}, "cidr": "10.20.0.0/24"},
        },
        "router": {
            "type": "OS::Neutron::Router",
            "properties": {"external_gateway_info": {"network": "public"}},
        },
        "leg": {
            "type": "OS::Neutron::RouterInterface",
            "properties": {
                "router": {"get_resource": "router"},
                "subnet": {"get_resource": "subnet"},
            },
        },
        "group": {
            "type": "OS::Neutron::SecurityGroup",
            "properties": {
                "rules": [{"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}]
            },
        },
    }
    for name in names:
        resources[f"{name}_port"] = {
            "type": "OS::Neutron::Port",
            "depends_on": "subnet",
            "properties": {
                "network": {"get_resource": "net"},
                "security_groups": [{"get_resource": "group"}],
            },
        }
        resources[name] = {
            "type": "OS::Nova::Server",
            # Without the router there is no way to the metadata.
            "depends_on": "leg",
            "properties": {
                "image": "of-the-run",
                "flavor": "m1.small",
                "networks": [{"port": {"get_resource": f"{name}_port"}}],
                "user_data_format": "SOFTWARE_CONFIG",
            },
        }
        resources[f"{name}_deployment"] = {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "config": {"get_resource": "config"},
                "server": {"get_resource": name},
                "input_values": {"code": str(code), "word": f"from {name}"},
            },
        }
        if reachable:
            resources[f"{name}_address"] = {
                "type": "OS::Neutron::FloatingIP",
                "depends_on": "leg",
                "properties": {
                    "floating_network": "public",
                    "port_id": {"get_resource": f"{name}_port"},
                },
            }
    outputs = {name: {"value": {"get_attr": [f"{name}_deployment", "back"]}} for name in names}
    return {
        "heat_template_version": "2018-08-31",
        "resources": resources,
        "outputs": outputs,
    }


def _tool(
    release: str, verb: str, *words: object, seconds: float = SECONDS
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [TOOL, verb, "--release", release, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
    )
    print(done.stdout, done.stderr)
    return done


@dataclass(frozen=True)
class RealCloud:
    """A user of the cloud of a release, in a folder."""

    release: str
    folder: Path

    def command(self, *words: object) -> list[str]:
        """Return a command of this checkout, in the cloud's network."""
        module = [sys.executable, "-P", "-m", *map(str, words)]
        return [str(TOOL), "run", "--release", self.release, "--", *module]

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start ``hotplate test --os-cloud``."""
        return subprocess.Popen(
            self.command("hotplate", "test", "--os-cloud", "real", *words),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def test(self, *words: object) -> tuple[int, str]:
        """Run it to its end; return the exit status and the output."""
        with self.start(*words) as process:
            text, _ = process.communicate(timeout=SECONDS)
        print(text)
        return process.returncode, text

    def write(self, document: dict[str, Any]) -> Path:
        path = self.folder / "template.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    def verdict(self) -> dict[str, Any]:
        return json.loads((self.folder / "artifacts" / "last" / "verdict.json").read_text())

    def what_there_is(self) -> dict[str, list[str]]:
        """Return everything of the user's project that a run makes, by kind."""
        program = (
            "import json, openstack; c = openstack.connect('real')\n"
            "def ids(kind, listed): return kind, sorted(each.id for each in listed)\n"
            "print(json.dumps(dict([\n"
            "    ids('stacks', c.orchestration.stacks()), ids('servers', c.compute.servers()),\n"
            "    ids('keys', c.compute.keypairs()), ids('images', c.image.images()),\n"
            "    ids('networks', c.network.networks()), ids('routers', c.network.routers()),\n"
            "    ids('floating', c.network.ips()), ids('groups', c.network.security_groups()),\n"
            "    ids('ports', (each for each in c.network.ports()\n"
            "                  if each.device_owner != 'network:dhcp')),\n"
            "])))"
        )
        done = _tool(self.release, "run", "--", sys.executable, "-c", program, seconds=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def processes(pid: int) -> set[tuple[str, str]]:
    """Return the PIDs and start times of the processes in a process's PID namespace."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process ends while it is looked at.
        with contextlib.suppress(OSError):
            if (process / "ns/pid").readlink() == namespace:
                found.add((process.name, _started(process)))
    return found


def _started(process: Path) -> str:
    # proc_pid_stat(5): the 22nd field; the second, in parentheses, may have blanks.
    return (process / "stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture(scope="module")
def real_openstack(request: pytest.FixtureRequest) -> Iterator[str]:
    """The release of a real OpenStack that is up; one that was up already stays so."""
    release = str(request.param)
    if os.geteuid() != 0:
        pytest.skip("a real OpenStack needs root")
    if _tool(release, "status").returncode == 0:
        yield release
        return
    done = _tool(release, "start", seconds=MAKING_SECONDS)
    if done.returncode == 3 and "GiB" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    folder = cache_dir() / "openstack" / release
    pid = int((folder / "pid").read_text())
    cgroup = Path(f"/proc/{pid}/cgroup").read_text()
    began = processes(pid)
    try:
        yield release
    finally:
        began |= processes(pid)
        assert _tool(release, "stop").returncode == 0
    assert len(began) > 20
    assert cgroup == Path("/proc/self/cgroup").read_text()
    for name, started in began:
        process = Path("/proc", name)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert _started(process) != started, (process / "cmdline").read_bytes()
    names = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert names <= {"system", "state", "log", "install.log"}
    assert str(folder) not in Path("/proc/mounts").read_text()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    assert "br-ext" not in links.stdout
    assert _tool(release, "status").returncode == 1


@pytest.fixture
def cloud(real_openstack: str, tmp_path: Path) -> Iterator[RealCloud]:
    """The cloud; fails when a test leaves a resource in it."""
    cloud = RealCloud(real_openstack, tmp_path)
    before = cloud.what_there_is()
    yield cloud
    assert cloud.what_there_is() == before


@pytest.fixture(scope="module")
def image(images: Any) -> Path:
    return images.get("bookworm", "disk", "script", "--package", "openssh-server")


@pytest.fixture(scope="module")
def without_cloud_init(images: Any) -> Path:
    """An image that boots in less time."""
    words = ("--package", "openssh-server", "--no-cloud-init")
    return images.get("bookworm", "disk", "script", *words)


@on_epoxy
def test_image_passes_without_a_template(cloud, image):
    status, text = cloud.test(image, *LIMITS)
    assert status == 0, text
    verdict = cloud.verdict()
    assert (verdict["outcome"], verdict["facts"]["cloud"]) == ("passed", "real")
    stages = {each["stage"]: each for each in verdict["stages"]}
    assert stages["signal accepted"]["seconds"], stages


@on_zed
def test_two_servers_are_looked_into_at_their_floating_addresses(cloud, without_cloud_init):
    case = {
        "template": str(cloud.write(servers("web", "db", reachable=True))),
        "expect": {
            "outputs": {"web": "from web", "db": "from db"},
            "files": {"/etc/shadow": {"owner": "root"}},
            "services": {"os-collect-config": {"running": True}},
            "commands": {"id -u": {"stdout": "0"}},
        },
    }
    path = cloud.folder / "case.yaml"
    path.write_text(yaml.safe_dump(case))
    status, text = cloud.test(without_cloud_init, "-t", path, *LIMITS)
    assert status == 0, text
    assert cloud.verdict()["outputs"] == {"web": "from web", "db": "from db"}


@on_zed
def test_failed_deployment_is_reported_and_nothing_left(cloud, image):
    template = cloud.write(servers("web", code=7, reachable=True))
    status, text = cloud.test(image, "-t", template, *LIMITS)
    assert status == 1, text
    assert "hook finished" in text
    assert "ended with status 7" in text
    assert "about to end with 7" in text
    # By ssh, at the floating address.
    logs = (cloud.folder / "artifacts" / "last" / "guest").glob("*/*")
    assert any("status=7" in log.read_text(errors="replace") for log in logs)


@on_zed
def test_killed_run_is_cleaned_up_by_the_next_command(cloud):
    before = cloud.what_there_is()
    halts = tiny_disk.make(cloud.folder / "halts.raw")

    def has_a_server(_: bool) -> bool:
        assert process.poll() is None, process.communicate()
        return cloud.what_there_is()["servers"] != before["servers"]

    with cloud.start(halts, "-t", cloud.write(servers("web")), *LIMITS) as process:
        retry(has_a_server, Deadline(SECONDS, "a server"))
        process.kill()
    left = cloud.what_there_is()
    for kind in ("stacks", "servers", "keys", "images"):
        assert len(left[kind]) == len(before[kind]) + 1, kind
    status, text = cloud.test("--clean")
    assert status == 0, text
    assert cloud.what_there_is() == before


PLUG_IN = """
SCRIPT = "#!/bin/sh\\nprintf %s \\"$word\\" > $heat_outputs_path.back\\n"


def test_deployments_and_a_reboot(booted_server):
    server = booted_server
    assert server.host.service("os-collect-config").is_running
    for word in ("a word", "another"):
        done = server.deploy(
            group="script", config=SCRIPT, inputs={"word": word}, outputs=["back"]
        ).wait()
        assert (done.status, done.outputs["back"]) == ("COMPLETE", word), server.diagnosis()
        if word == "a word":
            server.reboot()
            server.wait_for_unit("os-collect-config.service")


def test_what_a_cloud_cannot_do(booted_server):
    booted_server.crash()
"""


@on_zed
def test_plug_in_runs_tests_there(cloud, without_cloud_init):
    (cloud.folder / "test_it.py").write_text(PLUG_IN)
    done = subprocess.run(
        cloud.command(
            *("pytest", "-rs", "-p", "no:cacheprovider", "--image", without_cloud_init),
            *("--os-cloud", "real", "--os-flavor", "m1.small", "--os-network", "private"),
            "test_it.py",
        ),
        cwd=cloud.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
