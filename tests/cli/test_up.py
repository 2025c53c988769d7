"""``hotplate up`` and ``down``: a session by its real command line, without a machine."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_disk
import yaml
from hotplate_command import hotplate
from openstack_command import OpenStack, in_directory

from hotplate.heat_releases import installed_version
from hotplate.session.directory import SessionDirectory
from hotplate.timing.deadline import Deadline, retry

pytestmark = [pytest.mark.slow, pytest.mark.tool("qemu-img")]

END_SECONDS = 300
TEMPLATE = {
    "heat_template_version": "2018-08-31",
    "parameters": {"word": {"type": "string", "default": "first"}},
    "resources": {
        "value": {"type": "OS::Heat::Value", "properties": {"value": {"get_param": "word"}}}
    },
    "outputs": {"word": {"value": {"get_attr": ["value", "value"]}}},
}


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "hotplate", *map(str, words)]


class Session:
    """A running ``hotplate up``."""

    def __init__(self, image: Path, directory: Path, *words: object) -> None:
        self.directory = directory
        # Tests that are cut short, by a time limit for one, end no fixture.
        end = ["setpriv", "--pdeathsig", "KILL"]
        self.process = subprocess.Popen(
            end + command("up", image, "--directory", directory, *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def wait_until_up(self) -> Session:
        return self.wait_for("hotplate down")

    def wait_for(self, beginning: str) -> Session:
        """Wait for an output line with that beginning."""
        if f"\n{beginning}" in f"\n{self.output}":
            return self
        for line in self.process.stdout:
            self.output += line
            if line.startswith(beginning):
                return self
        raise AssertionError(self.output)

    def end(self) -> tuple[int, str]:
        rest, _ = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, self.output + rest


@contextlib.contextmanager
def up(image: Path, directory: Path, *words: object) -> Iterator[Session]:
    session = Session(image, directory, *words)
    try:
        yield session.wait_until_up()
    finally:
        session.process.kill()
        session.process.wait()


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> Path:
    return tiny_disk.make(tmp_path_factory.mktemp("disk") / "tiny.raw")


@pytest.fixture(scope="module")
def session(disk, tmp_path_factory):
    with up(disk, tmp_path_factory.mktemp("session") / "up") as running:
        yield running


@pytest.fixture
def template(tmp_path) -> Path:
    path = tmp_path / "template.yaml"
    path.write_text(yaml.safe_dump(TEMPLATE))
    return path


@pytest.fixture(scope="module")
def openstack(session, tmp_path_factory):
    clouds = session.directory / "clouds.yaml"
    with in_directory(tmp_path_factory.mktemp("openstack"), clouds) as command:
        yield command


def test_session_ends_with_killed_tests(disk, tmp_path):
    program = (
        "import os, pathlib, sys, test_up\n"
        "session = test_up.Session(*map(pathlib.Path, sys.argv[1:])).wait_until_up()\n"
        "print([*test_up.family(os.getpid())], flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, disk, tmp_path / "up"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
    )
    those = ast.literal_eval(done.stdout.decode())
    try:
        retry(lambda _: not any(map(alive, those)), Deadline(20, "the session to end"), every=0.05)
    finally:
        for pid, _ in filter(alive, those):
            os.kill(pid, signal.SIGKILL)


def test_up_prints_its_heat_and_how_to_reach_it(session):
    assert f"up, with Heat {installed_version()}; Ctrl-C ends it" in session.output
    config = session.directory / "clouds.yaml"
    assert f"export OS_CLIENT_CONFIG_FILE={config} OS_CLOUD=hotplate\n" in session.output
    assert f"hotplate down --directory {session.directory}\n" in session.output


def test_environment_file_sets_up_a_shell(session):
    """The openstack command, and by a proxy the addresses that Heat gives to guests."""
    environment = session.directory / "environment"
    assert f". {environment}  " in session.output
    ask = "curl -s http://169.254.169.254:8004/ | grep -o versions; curl -s http://169.254.169.254/"
    done = subprocess.run(
        ["sh", "-c", f". {environment}; {ask}"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("versions\nThe metadata service answers guests alone"), done


def test_session_files_are_private(session):
    assert stat.S_IMODE(session.directory.stat().st_mode) == 0o700
    for name in ("clouds.yaml", "environment", "ssh-key", "ssh-config", "control", "session.json"):
        assert stat.S_IMODE((session.directory / name).stat().st_mode) == 0o600, name


def test_openstack_command_manages_a_stack(openstack, template):
    made = openstack("stack", "create", "-t", str(template), "--wait", "mine", "-f", "json")
    assert made["stack_status"] == "CREATE_COMPLETE"
    assert openstack("stack", "show", "mine", "-f", "json")["stack_name"] == "mine"
    shown = openstack("stack", "output", "show", "mine", "word", "-f", "json")
    assert shown["output_value"] == "first"
    openstack("stack", "update", "-t", str(template), "--parameter", "word=next", "--wait", "mine")
    shown = openstack("stack", "output", "show", "mine", "word", "-f", "json")
    assert shown["output_value"] == "next"
    events = openstack("stack", "event", "list", "mine", "-f", "json")
    assert {each["resource_status"] for each in events} >= {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
    openstack("stack", "delete", "--yes", "--wait", "mine")
    assert "not found" in openstack("stack", "show", "mine", status=1)


def test_stack_waits_at_a_hook(openstack, template, tmp_path):
    environment = tmp_path / "env.yaml"
    environment.write_text("resource_registry: {resources: {value: {hooks: pre-create}}}\n")
    openstack("stack", "create", "-t", str(template), "-e", str(environment), "hooked")
    polled = openstack("stack", "hook", "poll", "hooked", "-f", "json")
    assert ["value" in each.values() for each in polled] == [True]
    openstack("stack", "hook", "clear", "--pre-create", "hooked", "value")
    openstack("stack", "delete", "--yes", "--wait", "hooked")


def test_openstack_command_makes_a_deployment(openstack, tmp_path):
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\necho hello\n")
    made = openstack(
        *("software", "config", "create", "hello", "--group", "script"),
        *("--config-file", str(script), "-f", "json"),
    )
    deployed = openstack(
        *("software", "deployment", "create", "first", "--config", made["id"]),
        # The command's default, TEMP_URL_SIGNAL, fails in heatclient 5.3 itself: under the
        # openstack command its Swift client has nothing to log in with.
        *("--server", str(uuid.uuid4()), "--signal-transport", "NO_SIGNAL", "-f", "json"),
    )
    assert deployed["status"] == "IN_PROGRESS"
    listed = openstack("software", "deployment", "list", "-f", "json")
    assert deployed["id"] in {each["id"] for each in listed}


def test_second_session_in_a_directory_is_refused(session, disk):
    done = hotplate("up", disk, "--directory", session.directory)
    assert done.returncode == 2
    assert f'a session already runs in "{session.directory}"' in done.stderr
    assert f"hotplate down --directory {session.directory}" in done.stderr


@pytest.mark.parametrize("verb", ["ssh", "shell", "monitor"])
def test_unknown_server_is_a_usage_error(session, verb):
    done = hotplate(verb, "--directory", session.directory, "web")
    if verb != "ssh":
        done = hotplate(verb, "--directory", session.directory, "web", "true")
    assert done.returncode == 2
    assert 'there is no server "web"' in done.stderr
    assert "the servers are: none" in done.stderr


@pytest.mark.tool("qemu-system-x86_64")
def test_qemu_monitor_answers_for_a_server(session, openstack, tmp_path):
    server = {"type": "OS::Nova::Server", "properties": {"image": "any", "flavor": "m1.small"}}
    template = tmp_path / "server.yaml"
    resources = {"web": server | {"properties": {"name": "web", **server["properties"]}}}
    template.write_text(
        yaml.safe_dump({"heat_template_version": "2018-08-31", "resources": resources})
    )
    openstack("stack", "create", "-t", str(template), "--wait", "machine")
    where = ("--directory", session.directory)
    done = hotplate("monitor", *where, "web", "info", "status")
    assert (done.returncode, done.stdout) == (0, "VM status: running\n"), done.stderr
    lines = "stop\ninfo status\nno such command\n"
    typed = subprocess.run(
        command("monitor", *where, ""), input=lines, capture_output=True, text=True, timeout=120
    )
    assert typed.returncode == 0, typed.stderr
    assert "VM status: paused" in typed.stdout
    assert "unknown command: 'no'" in typed.stdout
    openstack("stack", "delete", "--yes", "--wait", "machine")
    assert hotplate("monitor", *where, "web", "info status").returncode == 2


def wait_for_boots(openstack: OpenStack, number: int) -> None:
    """Wait until the firmware of the server "by-hand" has gone to its disk so many times."""

    def booted(_last_try: bool) -> bool:
        console = openstack("console", "log", "show", "by-hand")
        return console.count("Booting from Hard Disk") == number

    retry(booted, Deadline(END_SECONDS, f"boot {number} of the server"))


@pytest.mark.tool("qemu-system-x86_64")
def test_openstack_command_manages_a_server(session, openstack, tmp_path):
    """As users do: no Heat, a network of its own, a machine that is really started."""
    (image,) = openstack("image", "list", "-f", "json")
    openstack("network", "create", "private", "-f", "json")
    subnet = ("--network", "private", "--subnet-range", "10.20.0.0/24", "private-subnet")
    openstack("subnet", "create", *subnet, "-f", "json")
    (tmp_path / "user-data").write_text("#!/bin/sh\necho hello\n")
    made = openstack(
        *("server", "create", "--image", image["Name"], "--flavor", "m1.small"),
        *("--network", "private", "--user-data", str(tmp_path / "user-data")),
        *("--wait", "by-hand", "-f", "json"),
    )
    assert (made["status"], made["addresses"]) == ("ACTIVE", {"private": ["10.20.0.2"]})
    # By its address too, which "openstack server ssh" passes to ssh.
    done = hotplate("monitor", "--directory", session.directory, "10.20.0.2", "info status")
    assert (done.returncode, done.stdout) == (0, "VM status: running\n"), done.stderr
    # A server is ACTIVE before its firmware writes anything, as in Nova.
    wait_for_boots(openstack, 1)
    openstack("server", "reboot", "--hard", "--wait", "by-hand")
    wait_for_boots(openstack, 2)
    openstack("server", "delete", "--wait", "by-hand")
    assert openstack("server", "list", "-f", "json") == []
    # By its id its actions are listed, even after its deletion.
    version = ("--os-compute-api-version", "2.21")
    events = openstack(*version, "server", "event", "list", made["id"], "-f", "json")
    assert [each["Action"] for each in events] == ["delete", "reboot", "create"]


@pytest.mark.tool("qemu-system-x86_64")
def test_stack_with_a_server_is_abandoned_and_adopted(openstack, tmp_path):
    template = tmp_path / "server.yaml"
    properties = {"name": "kept", "image": "any", "flavor": "m1.small"}
    resources = {"web": {"type": "OS::Nova::Server", "properties": properties}}
    template.write_text(
        yaml.safe_dump({"heat_template_version": "2018-08-31", "resources": resources})
    )
    openstack("stack", "create", "-t", str(template), "--wait", "first")
    openstack("stack", "suspend", "--wait", "first")
    (server,) = openstack("server", "list", "-f", "json")
    assert server["Status"] == "SUSPENDED"
    openstack("stack", "resume", "--wait", "first")
    openstack("stack", "check", "--wait", "first")
    abandoned = tmp_path / "abandoned.json"
    openstack("stack", "abandon", "first", "--output-file", str(abandoned))
    (kept,) = openstack("server", "list", "-f", "json")
    assert (kept["ID"], kept["Status"]) == (server["ID"], "ACTIVE")
    openstack("stack", "adopt", "--adopt-file", str(abandoned), "--wait", "second")
    openstack("stack", "delete", "--yes", "--wait", "second")
    assert openstack("server", "list", "-f", "json") == []


def test_unknown_request_is_answered_with_an_error(session):
    directory = SessionDirectory(session.directory)
    for ask in ("nonsense", ""):
        with pytest.raises(Exception, match="does not know"), directory.asked(ask):
            pass


def test_stack_in_progress_is_named_when_it_is_kept(disk, tmp_path):
    handle = {"type": "OS::Heat::WaitConditionHandle"}
    condition = {"handle": {"get_resource": "handle"}, "timeout": 600}
    resources = {
        "handle": handle,
        "waits": {"type": "OS::Heat::WaitCondition", "properties": condition},
    }
    path = tmp_path / "waits.yaml"
    path.write_text(yaml.safe_dump({**TEMPLATE, "outputs": {}, "resources": resources}))
    with up(disk, tmp_path / "up", "-t", path, "--keep") as session:
        session.wait_for("hotplate/handle: CREATE_COMPLETE")
        session.process.send_signal(signal.SIGTERM)
        status, output = session.end()
    assert status == 0, output
    assert (
        'the stack "hotplate" is in CREATE_IN_PROGRESS, which Heat does not go on with: '
        "in the next session it is CREATE_FAILED\n"
    ) in output
    with (
        up(disk, tmp_path / "up"),
        in_directory(tmp_path, tmp_path / "up" / "clouds.yaml") as openstack,
    ):
        shown = openstack("stack", "show", "hotplate", "-f", "json")
        assert shown["stack_status"] == "CREATE_FAILED"
        assert "the engine went down" in shown["stack_status_reason"]


def test_kept_session_is_resumed(disk, tmp_path, template):
    directory = tmp_path / "a directory with a long name, longer than a socket's address" / "up"
    with up(disk, directory, "-t", template, "-P", "word=kept", "--keep") as session:
        session.process.send_signal(signal.SIGTERM)
        status, output = session.end()
    assert status == 0, output
    assert "going down, and keeping what is there" in output
    with up(disk, directory, "-t", template) as session:
        with in_directory(tmp_path, directory / "clouds.yaml") as openstack:
            shown = openstack("stack", "output", "show", "hotplate", "word", "-f", "json")
        assert shown["output_value"] == "kept"
        assert 'the stack "hotplate" is there already' in session.output
        done = hotplate("down", "--directory", directory, "--keep")
        assert done.stdout == f'ended; its state is in "{directory}"\n'
    done = hotplate("up", disk, "--directory", directory, "--image", f"db={disk}")
    assert done.returncode == 2
    assert "was started with no --image, and those as they were then" in done.stderr
    done = hotplate("up", disk, "--directory", directory, "--restored")
    assert done.returncode == 2
    assert "is a session that was kept, with servers of its own" in done.stderr
    other = tiny_disk.make(tmp_path / "other.raw")
    other.write_bytes(other.read_bytes()[:-1] + b"x")
    done = hotplate("up", other, "--directory", directory)
    assert done.returncode == 2
    assert "is of another image" in done.stderr


def test_restored_server_excludes_keep_and_template(disk, tmp_path, template):
    where = ("--directory", tmp_path / "up", "--restored")
    for words, sentence in (
        (("--keep",), "a restored server cannot be kept"),
        (("-t", template), "--restored begins with a server of its own"),
    ):
        done = hotplate("up", disk, *where, *words)
        assert done.returncode == 2
        assert sentence in done.stderr
    assert not (tmp_path / "up").exists()


def family(pid: int) -> dict[tuple[int, str], str]:
    """Return the processes below one: (pid, time of start) -> the program's name (proc(5))."""
    parents, those = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(") ")
            fields = rest.split()
            parents[int(entry.name)] = int(fields[1])
            those[int(entry.name)] = (fields[19], name)
    below, those_to_see = {}, [pid]
    for each in those_to_see:
        those_to_see += [child for child, parent in parents.items() if parent == each]
        below[each, those[each][0]] = those[each][1]
    del below[pid, those[pid][0]]
    return below


def alive(process: tuple[int, str]) -> bool:
    try:
        text = Path(f"/proc/{process[0]}/stat").read_text()
    except OSError:
        return False
    state, *fields = text.rpartition(") ")[2].split()
    return state != "Z" and fields[18] == process[1]


@pytest.mark.tool("qemu-system-x86_64")
@pytest.mark.tool("dnsmasq")
def test_killed_session_leaves_no_process_of_networked_machines(disk, tmp_path):
    """QEMU, the network's helper and dnsmasq end, and with them their namespaces."""
    template = tmp_path / "two.yaml"
    machine = {
        "type": "OS::Nova::Server",
        "properties": {"image": "any", "flavor": "any", "networks": [{"network": "private"}]},
    }
    resources = {"web": machine, "db": machine}
    template.write_text(
        yaml.safe_dump({"heat_template_version": "2018-08-31", "resources": resources})
    )
    with up(disk, tmp_path / "up", "-t", template) as session:
        session.wait_for("network private ")
        those = family(session.process.pid)
        session.process.kill()
        session.end()
    names = sorted(those.values())
    assert [each for each in names if "qemu" in each] == ["qemu-system-x86"] * 2, names
    assert "dnsmasq" in names

    def all_ended(last: bool) -> bool:
        left = [name for process, name in those.items() if alive(process)]
        assert not (last and left), left
        return not left

    retry(all_ended, Deadline(60, "the processes to end"), every=0.05)
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("keep", [(), ("--keep",)], ids=["without", "with"])
def test_killed_session_is_resumed_only_with_keep(disk, tmp_path, template, keep):
    """Its stack would silently prevent another template; down ends the next one as any other."""
    directory = tmp_path / "up"
    words = ("-t", template, "-P", "word=old")
    with up(disk, directory, *words, *keep) as session:
        session.process.kill()
        session.end()
    assert (directory / "control").exists()
    assert hotplate("down", "--directory", directory).returncode == 2
    with up(disk, directory, *words) as session:
        assert ('the stack "hotplate" is there already' in session.output) is bool(keep)
        assert ("was killed; it had no --keep" in session.output) is not bool(keep)
        done = hotplate("down", "--directory", directory)
        assert (done.returncode, done.stdout) == (0, "ended; nothing was kept\n")
        assert session.end()[0] == 0
    assert not directory.exists()
    done = hotplate("down", "--directory", directory)
    assert done.returncode == 2
    assert f'no session runs in "{directory}"' in done.stderr


def test_mistake_does_not_lose_a_kept_session(disk, tmp_path, template):
    with up(disk, tmp_path / "up", "--keep"):
        assert hotplate("down", "--directory", tmp_path / "up").returncode == 0
    template.write_text("heat_template_version: 2018-08-31\nresources: {x: {type: No::Such}}\n")
    done = subprocess.run(
        command("up", disk, "--directory", tmp_path / "up", "-t", template),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "No::Such" in done.stderr
    assert (tmp_path / "up" / "cloud" / "heat.db").exists()


def test_directory_with_other_files_is_left_alone(disk, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = hotplate("up", disk, "--directory", tmp_path)
    assert done.returncode == 2
    assert 'it holds "notes.txt"' in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
