"""The programs before each start of the agent, and heat-agent-forget, in a directory as /."""

import json
import os
import runpy
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import completed, program

ELEMENT = Path(__file__).resolve().parents[2] / "elements/os-collect-config"
FILES = ELEMENT / "os-collect-config-files"
HOOKS = ELEMENT.parents[1] / "hooks"
LIBRARY = (
    "    from heat_agent import resident\n",
    "    from heat_agent import resident\n    from heat_agent.collect import boot\n"
    "    boot.prepare.__defaults__ = (os.environ['PREPARE'],)\n",
)
TEMPLATE = runpy.run_path(str(ELEMENT / "os-apply-config/etc/os-collect-config.conf"))
CERTIFICATES = TEMPLATE["CERTIFICATES"]
Completed = subprocess.CompletedProcess[str]
BOOT = {
    "deployments": [],
    "os-collect-config": {
        "collectors": ["ec2", "cfn", "local"],
        "cfn": {"metadata_url": "http://192.0.2.1:8000/v1/", "secret_access_key": "SECRET"},
    },
}


class Guest:
    """A tree that looks like the image."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.conf = root / "etc/os-collect-config.conf"
        self.cache = root / "var/lib/os-collect-config"
        self.boot_metadata = root / "var/lib/heat-cfntools/cfn-init-data"
        templates = root / "usr/libexec/os-apply-config/templates/etc"
        programs = root / "usr/local/sbin"
        for folder in (
            *(templates, programs, self.cache, self.boot_metadata.parent, root / "etc"),
            *(root / "run", root / "bin", root / "var/lib/cloud/data", root / "var/log"),
        ):
            folder.mkdir(parents=True)
        (templates / "os-collect-config.conf").symlink_to(
            ELEMENT / "os-apply-config/etc/os-collect-config.conf"
        )
        (programs / "heat-agent-forget").symlink_to(FILES / "heat-agent-forget")
        self.program("systemctl", 'echo "$@" >> $HEAT_AGENT_ROOT/systemctl')
        self.program("sync", ":")  # sync would be of the whole test machine

    def program(self, name: str, body: str) -> None:
        """Put a shell program of this name first on the path."""
        program(self.root / "bin" / name, body)

    def run(
        self, name: str, *arguments: str, first: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of the element, with the programs in a folder before all others."""
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return completed(
            [FILES / name, *arguments],
            env={
                "PATH": f"{first}:{path}" if first else path,
                "HEAT_AGENT_ROOT": str(self.root),
                "LC_ALL": "C",
            },
            start_new_session=True,
        )

    def start(self) -> str:
        result = self.run("prepare")
        assert result.returncode == 0, result.stderr
        return result.stderr

    def boot(self, instance: str, metadata: object = BOOT) -> None:
        """Write cloud-init's files of before the agent's start, on a fresh /run."""
        subprocess.run(["rm", "-rf", self.root / "run"], check=True)
        (self.root / "run").mkdir()
        (self.root / "var/lib/cloud/data/instance-id").write_text(instance + "\n")
        self.boot_metadata.write_text(json.dumps(metadata))


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


@pytest.mark.defect("A2")
def test_first_boot_polls_heat_at_once(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    assert "collectors = cfn\n" in guest.conf.read_text()
    assert stat.S_IMODE(guest.conf.stat().st_mode) == 0o600


def test_agent_starts_without_boot_metadata(guest: Guest) -> None:
    guest.start()
    assert "command = os-refresh-config\n" in guest.conf.read_text()


@pytest.mark.parametrize(
    "metadata", ["not an object", {"os-collect-config": {"command": "a\nb"}}], ids=["text", "evil"]
)
def test_unusable_boot_metadata_leave_the_minimal_configuration(
    guest: Guest, metadata: object
) -> None:
    guest.boot("i-1", metadata)
    guest.start()
    assert "collectors" not in guest.conf.read_text()
    assert "command = os-refresh-config\n" in guest.conf.read_text()
    assert [path.name for path in guest.conf.parent.iterdir()] == ["os-collect-config.conf"]


@pytest.mark.defect("A1")
@pytest.mark.parametrize("left", [b"", b"[DEFAULT]\n", b"\0\0\0\0"], ids=repr)
def test_configuration_broken_by_a_power_cut_is_fixed(guest: Guest, left: bytes) -> None:
    guest.boot("i-1")
    guest.conf.write_bytes(left)
    guest.start()
    assert "command = os-refresh-config\ncollectors = ec2\n" in guest.conf.read_text()


def test_configuration_that_was_rendered_later_is_kept(guest: Guest) -> None:
    guest.boot("i-1")
    guest.start()
    later = guest.conf.read_text().replace("cfn", "heat")
    guest.conf.write_text(later)
    guest.boot("i-1")
    guest.start()
    assert guest.conf.read_text() == later


@pytest.mark.defect("A1")
def test_each_boot_runs_the_command_once_and_a_restart_does_not(guest: Guest) -> None:
    last = guest.cache / "cfn.json.last"
    guest.boot("i-1")
    guest.start()
    last.write_text("{}")
    guest.start()
    assert last.exists(), "a mere restart of the agent must not run everything again"
    guest.boot("i-1")
    guest.start()
    assert not last.exists(), "after a reboot the agent must see its sources as changed"


@pytest.mark.parametrize("instance", ["iid-datasource-none", "i-00000001"])
def test_boot_with_no_or_another_source_forgets_nothing(guest: Guest, instance: str) -> None:
    """Forgetting would run every deployment a second time."""
    uuid = "c3a1b1ce-0000-4000-8000-00000000beef"
    dmi = guest.root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_uuid").write_text(uuid.upper() + "\n")
    deployed = guest.root / "var/lib/heat-config/deployed/1.json"
    deployed.parent.mkdir(parents=True)
    for name in (uuid, instance, uuid):
        guest.boot(name)
        assert "forgetting" not in guest.start()
        deployed.touch()
    guest.boot("c3a1b1ce-0000-4000-8000-00000000cafe")
    (dmi / "product_uuid").write_text("c3a1b1ce-0000-4000-8000-00000000cafe\n")
    assert "captured from another instance" in guest.start()
    assert not deployed.exists()


#: The files of one server that the agent, the hooks and Heat's part handler write.
LEFT = [
    "etc/os-collect-config.conf.Ab12Cd",
    "etc/tmpa1b2c3_d",
    "etc/puppet/hieradata/heat_config_web.json",
    "opt/puppetlabs/puppet/cache/client_data/catalog/web.json",
    "var/cache/heat-cfntools/last_metadata",
    "var/cache/heat-cfntools/d1.metadata",
    "var/cache/puppet/reports/web/202601020304.yaml",
    "var/cache/puppet/state/last_run_report.yaml",
    "var/lib/heat-cfntools/nova_meta.json",
    "var/lib/heat-config/.hidden/x",
    "var/lib/heat-config/deployed/.lock",
    "var/lib/heat-config/deployed/d1.json",
    "var/lib/heat-config/deployed/d1.notify.json",
    "var/lib/heat-config/heat-config-ansible/d1_variables.json",
    "var/lib/heat-config/heat-config-chef/d1/attributes.json",
    "var/lib/heat-config/heat-config-docker-cmd/d1-web.env",
    "var/lib/heat-config/heat-config-docker-compose/app/docker-compose.yml",
    "var/lib/heat-config/heat-config-puppet/d1.pp",
    "var/lib/heat-config/heat-config-salt/.run/d1/inputs.conf",
    "var/lib/heat-config/heat-config-script/d1",
    "var/lib/heat-config/heat-config-script/outputs/d1.password",
    "var/lib/os-apply-config-deployments/deployed/d1",
    "var/lib/os-collect-config/cfn.json",
    "var/lib/os-collect-config/cfn.json.last",
    "var/lib/os-collect-config/cfn.json.orig",
    "var/lib/os-collect-config/os_config_files.json",
    "var/lib/os-collect-config/zaqar.json",
    "var/log/apps/heat/d1.log",
    "var/log/apps/heat/d1.stdout",
    "var/log/cfn-init.log",
    "var/log/cfn-init.log.1",
    "var/log/cloud-init-output.log.1",
    "var/log/heat-config/d1.log",
    "var/log/heat-config/d1.stderr",
    "var/log/heat-config/d1.stdout",
    "var/log/heat-provision.log",
    "var/log/os-apply-config.log",
    "var/log/part-handler.log",
    "var/log/puppet/heat-debug.log",
]

LEFT_BY_CLOUD_INIT = [
    "var/lib/cloud/data/cfn-init-data",
    "var/lib/cloud/data/cfn-userdata",
    "var/lib/cloud/handlers/part-handler-001.py",
    "var/lib/cloud/instances/i-1/user-data.txt",
    "var/lib/cloud/seed/nocloud/user-data",
    "var/lib/cloud/sem/config_scripts_per_once.once",
    "var/lib/heat-cfntools/cfn-userdata",
    "var/lib/heat-config-bootstrap/boothook",
]

KEPT = [
    "var/lib/heat-config/hooks/mine",
    "var/lib/os-collect-config/local-data/mine",
    "var/log/apps/other.log",
    "etc/puppet/hieradata/common.json",
    "etc/tmpfiles.d",
]

EARLIER_BOOT = "Cloud-init v. 22 running 'init-local' at Monday\nSECRET of the other\n"
THIS_BOOT = "Cloud-init v. 22 running 'init-local' at Tuesday\nof this boot\n"


def plant(guest: Guest, *, instance: str = "i-1") -> None:
    """Make a server of this instance that has deployed something of every group."""
    guest.boot(instance)
    guest.start()
    for name in [*LEFT, *LEFT_BY_CLOUD_INIT, *KEPT]:
        path = guest.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SECRET" if name not in KEPT else "kept")
    (guest.root / "etc/tmpa1b2c3_d").write_text("# Written by os-apply-config ...\nSECRET")
    (guest.root / "etc/heat-config.conf").write_text("logs = /var/log/apps/heat \n")
    (guest.root / "var/lib/cloud/instance").symlink_to("instances/i-1")
    for name in ("cloud-init.log", "cloud-init-output.log"):
        (guest.root / "var/log" / name).write_text(EARLIER_BOOT)
    guest.start()
    assert "SECRET" in guest.conf.read_text()


def other_boot(guest: Guest, metadata: object | None) -> None:
    """Write cloud-init's files when the disk starts as instance i-2, of a stack or of none."""
    boot = guest.boot_metadata.read_text() if guest.boot_metadata.exists() else None
    guest.boot_metadata.parent.mkdir(exist_ok=True)
    (guest.root / "var/lib/cloud/data").mkdir(parents=True, exist_ok=True)
    guest.boot("i-2", metadata)
    copy = guest.root / "var/lib/cloud/data/cfn-init-data"
    if metadata is not None:
        copy.write_text(json.dumps(metadata))
    elif boot is not None:
        guest.boot_metadata.write_text(boot)
    else:
        guest.boot_metadata.unlink()
    link = guest.root / "var/lib/cloud/instance"
    link.unlink(missing_ok=True)
    here = link.parent / "instances/i-2"
    here.mkdir(parents=True, exist_ok=True)
    (here / "user-data.txt").write_text("of this one")
    link.symlink_to("instances/i-2")
    for name in ("cloud-init.log", "cloud-init-output.log"):
        path = guest.root / "var/log" / name
        if THIS_BOOT not in (path.read_text() if path.exists() else ""):
            with path.open("a") as stream:
                stream.write(THIS_BOOT)


OTHER = json.loads(json.dumps(BOOT).replace("SECRET", "OTHER"))


def secrets(guest: Guest) -> list[str]:
    """Return the files of the tree that hold the planted secret, by content or by name."""
    grep = completed(["grep", "-rl", "SECRET", guest.root])
    return sorted(os.path.relpath(line, guest.root) for line in grep.stdout.splitlines())


def test_capture_leaves_no_trace_of_the_server(guest: Guest) -> None:
    plant(guest)
    assert len(secrets(guest)) >= len(LEFT) + len(LEFT_BY_CLOUD_INIT)
    result = guest.run("heat-agent-forget", "--capture")
    assert (result.returncode, result.stderr) == (0, "")
    assert secrets(guest) == []
    assert [name for name in KEPT if not (guest.root / name).exists()] == []
    left = {path for path in guest.root.rglob("*") if path.name in ("i-1", "instance-id", "d1")}
    assert left == set()
    assert guest.conf.read_text().endswith("[DEFAULT]\ncommand = os-refresh-config\n")


def test_capture_leaves_neither_network_nor_random_seed_of_the_server(guest: Guest) -> None:
    plant(guest)
    left = [
        "etc/netplan/50-cloud-init.yaml",
        "etc/network/interfaces.d/50-cloud-init",
        "etc/systemd/network/10-cloud-init-ens4.network",
        "etc/NetworkManager/system-connections/cloud-init-ens4.nmconnection",
        "var/lib/dhcpcd/duid",
        "var/lib/dhcpcd/ens4.lease",
        "var/lib/systemd/random-seed",
    ]
    kept = ["etc/systemd/network/90-heat-config.network", "etc/netplan/01-site.yaml"]
    for name in [*left, *kept]:
        path = guest.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("match: fa:16:3e:0a:0b:0c")
    assert guest.run("heat-agent-forget", "--capture").returncode == 0
    assert [name for name in [*left, *kept] if (guest.root / name).exists()] == kept


@pytest.mark.parametrize("metadata", [OTHER, None], ids=["of a stack", "of none"])
def test_other_instance_finds_no_trace_of_the_server(guest: Guest, metadata: object | None) -> None:
    plant(guest)
    other_boot(guest, metadata)
    (guest.root / "var/lib/cloud/data/cfn-userdata").write_text("of this one")
    assert "captured from another instance" in guest.start()
    # A seed is where cloud-init has just read the running instance from.
    needed = [
        "var/lib/cloud/handlers/part-handler-001.py",
        "var/lib/cloud/seed/nocloud/user-data",
        "var/lib/cloud/sem/config_scripts_per_once.once",
        "var/lib/heat-config-bootstrap/boothook",
    ]
    if metadata is not None:
        needed.append("var/lib/heat-cfntools/cfn-userdata")
    assert secrets(guest) == sorted(needed)
    assert ("OTHER" in guest.conf.read_text()) == (metadata is not None)
    assert ("collectors" in guest.conf.read_text()) == (metadata is not None)
    assert [name for name in KEPT if not (guest.root / name).exists()] == []
    assert (guest.root / "var/log/cloud-init-output.log").read_text() == THIS_BOOT
    assert (guest.root / "var/lib/cloud/instance/user-data.txt").read_text() == "of this one"
    assert "captured" not in guest.start()


COMMANDS = (
    *("cat", "grep", "mkdir", "mktemp", "mv", "readlink", "rm", "sed", "sha256sum", "sync"),
    *("tail", "tr"),
)


class Cuts:
    """Record the trees that power cuts can leave: before each program that a script starts.

    `rm` may have done half then.  Copies cost less than running the script anew up to each cut.
    """

    def __init__(self, guest: Guest, place: Path) -> None:
        self.guest = guest
        self.trees, self.programs = place / "trees", place / "programs"
        for folder in (self.trees, self.programs):
            folder.mkdir(parents=True)
        for name in COMMANDS:
            real = "/bin/true" if name == "sync" else shutil.which(name)
            program(
                self.programs / name,
                # The programs of a pipe start at once.
                f"exec 9> {place}/lock; flock 9\n"
                f'[ "${{1:-}}" != -rf ] || {real} -rf -- "$3"\n'
                f'set -- {real} "$@"; n=$(ls {self.trees} | wc -l)\n'
                f"cp -a {guest.root} {self.trees}/$((1000 + n))\n"
                'exec 9>&-\nexec "$@"',
            )

    def of(self, name: str, *arguments: str) -> list[Path]:
        """Run a program to its end; return the trees, in order."""
        result = self.guest.run(name, *arguments, first=self.programs)
        assert result.returncode == 0, result.stderr
        return sorted(self.trees.iterdir())


def content(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return all of a tree that a program can see, but for the times."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        mode, held = path.lstat().st_mode, ""
        if stat.S_ISLNK(mode):
            held = str(path.readlink())
        found[str(path.relative_to(folder))] = (
            mode,
            path.read_bytes() if stat.S_ISREG(mode) else held,
        )
    return found


def restore(guest: Guest, place: Path) -> None:
    subprocess.run(["rm", "-rf", guest.root], check=True)
    subprocess.run(["cp", "-a", place, guest.root], check=True)


@pytest.mark.parametrize("metadata", [OTHER, None], ids=["of a stack", "of none"])
def test_interrupted_forgetting_of_another_instance_is_completed(
    tmp_path: Path, metadata: object | None
) -> None:
    """Otherwise the new server polls the old stack, with the old credentials, for ever."""
    guest = Guest(tmp_path / "guest")
    plant(guest)
    other_boot(guest, metadata)
    trees = Cuts(guest, tmp_path / "cuts").of("prepare")
    assert len(trees) > 20
    begun = []
    for tree in trees:
        restore(guest, tree)
        other_boot(guest, metadata)
        # Many programs only read.
        if (now := content(guest.root)) in begun:
            continue
        begun.append(now)
        guest.start()
        conf = guest.conf.read_text()
        assert "SECRET" not in conf, tree
        assert ("OTHER" in conf) == (metadata is not None), tree
        left = [name for name in secrets(guest) if name in LEFT or name.endswith("cfn-init-data")]
        assert left == [], tree
        assert (guest.cache / "instance-id").read_text() == "i-2\n"
        assert list(guest.cache.glob("*.new")) == []
    assert len(begun) > 10


def test_interrupted_capture_serves_no_other_server(tmp_path: Path) -> None:
    guest = Guest(tmp_path / "guest")
    plant(guest)
    trees = Cuts(guest, tmp_path / "cuts").of("heat-agent-forget", "--capture")
    begun = []
    for tree in trees:
        restore(guest, tree)
        if (now := content(guest.root)) in begun:
            continue
        begun.append(now)
        other_boot(guest, OTHER)
        guest.start()
        assert "SECRET" not in guest.conf.read_text(), tree
        assert [name for name in secrets(guest) if name in LEFT] == [], tree
        # Run once more, it does all of its work.
        restore(guest, tree)
        result = guest.run("heat-agent-forget", "--capture")
        assert (result.returncode, secrets(guest)) == (0, []), tree
    assert len(begun) > 5


def test_agent_does_not_start_when_forgetting_fails(guest: Guest) -> None:
    plant(guest)
    guest.program("rm", 'case "$*" in *var/lib/heat-config/*) exit 1;; esac; exec /bin/rm "$@"')
    other_boot(guest, OTHER)
    for _ in range(2):
        result = guest.run("prepare")
        assert result.returncode == 78
        assert "not everything could be removed" in result.stderr
        assert "the agent is not started" in result.stderr
        assert "SECRET" not in guest.conf.read_text()
    guest.program("rm", 'exec /bin/rm "$@"')
    guest.start()
    assert "OTHER" in guest.conf.read_text()


def test_capture_beside_a_running_agent_is_refused(guest: Guest) -> None:
    plant(guest)
    guest.program("systemctl", "echo active")
    result = guest.run("heat-agent-forget", "--capture")
    assert result.returncode == 1
    assert "systemctl stop os-collect-config" in result.stderr
    assert "SECRET" in guest.conf.read_text()
    assert guest.run("heat-agent-forget", "--captured").returncode == 2


def test_splay_waits_before_the_agent(guest: Guest) -> None:
    guest.boot("i-1", {"os-collect-config": {**BOOT["os-collect-config"], "splay": 7}})
    guest.program("sleep", 'echo "$1" > $HEAT_AGENT_ROOT/slept')
    guest.start()
    assert 0 <= int((guest.root / "slept").read_text()) < 7


@pytest.mark.parametrize(
    "unit", ["cloud-init.service", "cloud-init-network.service", "heat-config-bootstrap.service"]
)
def test_start_waits_for_the_queued_unit_only(guest: Guest, unit: str) -> None:
    guest.boot("i-1")
    guest.program(
        "systemctl",
        'echo "$@" >> $HEAT_AGENT_ROOT/systemctl\n'
        f'case "$*" in "list-jobs "*" {unit}") echo "7 $3 start running";; esac',
    )
    guest.start()
    calls = (guest.root / "systemctl").read_text().splitlines()
    assert [call for call in calls if call.startswith("start")] == [f"start {unit}"]


@pytest.fixture(params=["start", "start-upstream"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Completed]:
    """Run a start program with a `prepare` of its own, and the real os-collect-config."""

    def run(prepare: str, *arguments: str, **environment: str) -> Completed:
        for name, text in {
            "start": (FILES / request.param).read_text().replace(*LIBRARY),
            "prepare": prepare,
        }.items():
            program(tmp_path / name, text)
        return completed(
            [tmp_path / "start", *arguments],
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "LC_ALL": "C",
                "HEAT_CONFIG_LIB": str(HOOKS),
                "PREPARE": str(tmp_path / "prepare"),
                **environment,
            },
        )

    return run


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """Return a configuration whose command leaves a file, as `prepare` writes it."""
    local = tmp_path / "local"
    local.mkdir(mode=0o700)
    (local / "data.json").write_text("{}")
    (local / "data.json").chmod(0o600)
    return (
        f"[DEFAULT]\ncommand = touch {tmp_path}/ran\ncollectors = local\n"
        f"cachedir = {tmp_path}/cache\nbackup_cachedir = {tmp_path}/backup\n"
        f"[local]\npath = {local}\n"
    )


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 0), (78, 78)])
def test_start_runs_prepare_and_then_the_agent(
    start: Callable[..., Completed], conf: str, tmp_path: Path, status: int, expected: int
) -> None:
    """The agent reads the configuration that `prepare` has written; only status 78 stops it."""
    (tmp_path / "conf").touch()
    prepare = f"#!/bin/sh\ncat > {tmp_path}/conf <<'END'\n{conf}END\nexit {status}\n"
    result = start(prepare, "--config-file", str(tmp_path / "conf"), "--one-time")
    assert result.returncode == expected, result.stderr
    assert (tmp_path / "ran").exists() == (expected == 0)


@pytest.mark.parametrize("start", ["start"], indirect=True)
def test_prepare_is_not_run_again_after_sighup(
    start: Callable[..., Completed], conf: str, tmp_path: Path
) -> None:
    """SIGHUP has our agent re-execute itself, and SIGTERM ends it; upstream ignores the first."""
    program(
        tmp_path / "command",
        f"read agent < {tmp_path}/prepared\n"
        f"if mkdir {tmp_path}/first; then kill -HUP $agent; exit 1; fi\n"
        f"env > {tmp_path}/environment; kill $agent",
    )
    text = conf.replace(f"touch {tmp_path}/ran", f"{tmp_path}/command")
    (tmp_path / "conf").write_text(text.replace("[local]", "polling_interval = 1\n[local]"))
    prepare = f"#!/bin/sh\necho $PPID >> {tmp_path}/prepared\n"
    done = start(prepare, "--config-file", str(tmp_path / "conf"))
    assert "SIGHUP: restarting" in done.stderr
    assert len((tmp_path / "prepared").read_text().splitlines()) == 1
    assert "OS_COLLECT_CONFIG_AGAIN" not in (tmp_path / "environment").read_text()


@pytest.mark.parametrize(
    ("named", "there", "expected"),
    [
        (None, ["a", "b"], "a"),
        (None, ["b"], "b"),
        (None, [], ""),
        ("mine", ["a", "mine"], "mine"),
        ("gone", ["b"], "b"),
        ("gone", [], ""),
    ],
)
def test_certificates_are_where_the_distribution_has_them(
    tmp_path: Path, named: str | None, there: list[str], expected: str
) -> None:
    """Upstream's agent takes those of Python's requests, and ends if a named file is missing."""
    for name in there:
        (tmp_path / name).touch()
    text = (FILES / "start-upstream").read_text()
    for place, name in zip(CERTIFICATES, "ab", strict=False):
        assert place in text
        text = text.replace(place, str(tmp_path / name))
    for place in CERTIFICATES[2:]:
        text = text.replace(place, "/nowhere/ca")
    scripts = {
        "start": text,
        "prepare": "#!/bin/sh\n",
        "os-collect-config": '#!/bin/sh\necho "$REQUESTS_CA_BUNDLE"\n',
    }
    for name, content in scripts.items():
        program(tmp_path / name, content)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if named:
        environment["REQUESTS_CA_BUNDLE"] = str(tmp_path / named)
    result = completed([tmp_path / "start"], env=environment, check=True)
    assert result.stdout == f"{expected and tmp_path / expected}\n", result.stderr
    assert ("which does not exist" in result.stderr) == (named == "gone")


def test_unit_leaves_the_certificates_to_the_agent() -> None:
    assert "CA_BUNDLE" not in (FILES / "os-collect-config.service").read_text()
    start = (FILES / "start-upstream").read_text()
    assert [place for place in CERTIFICATES if place not in start] == []


def test_upstreams_agent_has_a_timer_for_signals() -> None:
    """The timer's unit does nothing while no signal waits; heat_config.state has the note."""
    unit = (FILES / "heat-config-resend.service").read_text()
    assert "ConditionPathExists=/var/lib/heat-config/deployed/.waiting\n" in unit
    assert "ExecStart=/usr/local/bin/heat-config resend --due\n" in unit
