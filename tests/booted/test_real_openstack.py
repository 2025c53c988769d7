"""``--os-cloud`` against a real OpenStack, which ``tools/openstack`` starts: Debian 12's Zed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
    pytest.mark.xdist_group("real_openstack"),
]

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "openstack"
#: From nothing: the packages, the databases and a start; on a busy host.
MAKING_SECONDS = 3600
SECONDS = 2700
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


def _tool(*words: object, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [TOOL, *map(str, words)],
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
    """A user of the cloud, in a folder."""

    folder: Path

    def command(self, *words: object) -> list[str]:
        """Return a command of this checkout, in the cloud's network."""
        module = [sys.executable, "-P", "-m", *map(str, words)]
        return [str(TOOL), "run", "--", *module]

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
        done = _tool("run", "--", sys.executable, "-c", program, seconds=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def traces() -> dict[str, Any]:
    """Return what a cloud could leave on this host outside of its directory."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True)
    names = sorted(line.split(":")[1].strip() for line in links.stdout.splitlines())
    groups = sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir())
    return {
        "mounts": [
            line for line in Path("/proc/mounts").read_text().splitlines() if "openstack" in line
        ],
        "links": [
            name for name in names if name.startswith(("br-ext", "brq", "tap", "q", "vxlan"))
        ],
        "namespaces": sorted(path.name for path in Path("/run/netns").glob("q*")),
        "cgroups": [path for path in groups if "openstack" in path or "machine" in path],
        "processes": sorted(
            process.name
            for process in Path("/proc").glob("[0-9]*")
            if _command_line(process).startswith((b"nova-", b"neutron-", b"heat-", b"mariadbd"))
            or b"openstack.d/inside.py" in _command_line(process)
        ),
    }


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="session")
def real_openstack() -> Iterator[None]:
    """A real OpenStack that is up; one that was up already stays so."""
    if os.geteuid() != 0:
        pytest.skip("a real OpenStack needs root")
    if _tool("status").returncode == 0:
        yield
        return
    before = traces()
    done = _tool("start", seconds=MAKING_SECONDS)
    if done.returncode == 3 and "GiB" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        assert _tool("stop").returncode == 0
    assert traces() == before
    assert _tool("status").returncode == 1


@pytest.fixture
def cloud(real_openstack: None, tmp_path: Path) -> Iterator[RealCloud]:
    """The cloud; fails when a test leaves a resource in it."""
    cloud = RealCloud(tmp_path)
    before = cloud.what_there_is()
    yield cloud
    assert cloud.what_there_is() == before


@pytest.fixture(scope="module")
def image(images: Any) -> Path:
    return images.get("bookworm", "disk", "script", "--package", "openssh-server")


def test_image_passes_without_a_template(cloud, image):
    status, text = cloud.test(image, *LIMITS)
    assert status == 0, text
    verdict = cloud.verdict()
    assert (verdict["outcome"], verdict["facts"]["cloud"]) == ("passed", "real")
    stages = {each["stage"]: each for each in verdict["stages"]}
    assert stages["signal accepted"]["reached"], stages


def test_two_servers_are_looked_into_at_their_floating_addresses(cloud, image):
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
    status, text = cloud.test(image, "-t", path, *LIMITS)
    assert status == 0, text
    assert cloud.verdict()["outputs"] == {"web": "from web", "db": "from db"}


def test_failed_deployment_is_reported_and_nothing_left(cloud, image):
    status, text = cloud.test(image, "-t", cloud.write(servers("web", code=7)), *LIMITS)
    assert status == 1, text
    assert "hook finished" in text
    assert "ended with status 7" in text
    assert "about to end with 7" in text


def test_killed_run_is_cleaned_up_by_the_next_command(cloud, image):
    before = cloud.what_there_is()
    with cloud.start(image, "-t", cloud.write(servers("web")), *LIMITS) as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if " booted" in line:
                break
        else:
            raise AssertionError("".join(seen))
        process.send_signal(signal.SIGKILL)
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
        server.reboot()
        server.wait_for_unit("os-collect-config.service")


def test_what_a_cloud_cannot_do(booted_server):
    booted_server.crash()
"""


def test_plug_in_runs_tests_there(cloud, image):
    (cloud.folder / "test_it.py").write_text(PLUG_IN)
    done = subprocess.run(
        cloud.command(
            *("pytest", "-rs", "-p", "no:cacheprovider", "--image", image, "--os-cloud", "real"),
            *("--os-flavor", "m1.small", "--os-network", "private", "test_it.py"),
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
