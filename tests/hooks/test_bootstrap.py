"""heat-config-bootstrap as it runs at boot, on a directory in place of /, with Heat's user data."""

import base64
import gzip
import json
import os
import shutil
import socket
import stat
import threading
import uuid
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import completed, program
from stub_server import Reply, StubServer

from hotplate.cloud.database.store import Store
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.metadata import Metadata
from hotplate.cloud.nova.servers import Servers
from hotplate.events.log import EventLog

PROGRAM = Path(__file__).resolve().parents[2] / "hooks" / "heat-config-bootstrap"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB0vq2 me@example"
BOOT = {
    "deployments": [],
    "os-collect-config": {
        "collectors": ["ec2", "cfn", "local"],
        "cfn": {"metadata_url": "http://192.0.2.1:8000/v1/", "secret_access_key": "SECRET-1"},
    },
}

UNIT = (
    Path(__file__).resolve().parents[2]
    / "elements/heat-config-bootstrap/heat-config-bootstrap-files/heat-config-bootstrap.service"
)


def heat_user_data(metadata=BOOT, userdata="", form="SOFTWARE_CONFIG"):
    """Return user data as the real Heat makes it."""
    # Imported late: it takes longer than the start of pytest, and each worker collects this file.
    from heat.engine.clients.os.nova import NovaClientPlugin

    made = NovaClientPlugin.build_userdata(None, metadata, userdata, user_data_format=form)
    return made.encode() if isinstance(made, str) else made


def multipart(parts, *, encoded=False):
    """Return user data of parts of this text, by their file names, plain or as in RFC 2231."""
    made = MIMEMultipart()
    for name, text in parts.items():
        part = MIMEText(text, "x-cfninitdata") if isinstance(text, str) else text
        file = ("utf-8", "", name) if encoded else name
        part.add_header("Content-Disposition", "attachment", filename=file)
        made.attach(part)
    return made


class NoMachines:
    """Starts no machines: this file plays the guest."""

    def boot(self, spec, services):
        pass


class Cloud(StubServer):
    """A metadata service of the harness's own making, with faults."""

    def __init__(self, directory):
        super().__init__()
        store = Store(directory / "store.db")
        self.servers = Servers(store, NoMachines(), EventLog(), services=None, request_limit=0)
        self.metadata = Metadata(self.servers, project="p")
        self.files = {}
        self.failures = []
        self.closing = threading.Event()

    def answer(self, asked):
        failure = self.failures.pop(0) if self.failures else None
        if callable(failure):
            return Reply(act=lambda handler: failure(handler, self))
        body = self.files.get(asked.path.lstrip("/"))
        return Reply(failure or (404 if body is None else 200), body or b"")

    def served(self, instance, directory):
        """Yield the path and the content of each file below a directory of the service."""
        _, names = self.metadata.answer(instance, directory)
        for name in names.decode().split("\n"):
            # Keys are listed as INDEX=NAME, and are directories.
            index, is_key, _ = name.partition("=")
            if is_key or name.endswith("/"):
                yield from self.served(instance, f"{directory}{index.rstrip('/')}/")
            else:
                yield directory + name, self.metadata.answer(instance, directory + name)[1]

    def boot(self, user_data=None, *, name="web-1", keys=(KEY,), vendor=""):
        """Serve a new instance; return its id."""
        spec = ServerSpec(
            id=str(uuid.uuid4()),
            name=name,
            user_data=heat_user_data() if user_data is None else user_data,
            public_keys={f"key{number}": key for number, key in enumerate(keys)},
        )
        self.servers.boot(spec)
        if vendor:
            self.metadata.set_vendor_data(spec.id, vendor)
        self.files = dict(self.served(spec.id, "openstack/latest/"))
        self.files |= self.served(spec.id, "latest/")
        return spec.id

    def close(self):
        self.closing.set()
        super().close()


class Guest:
    """A tree that looks like the image, and the boot of it."""

    def __init__(self, root, cloud):
        self.root = root
        self.cloud = cloud
        self.heat = root / "var/lib/heat-cfntools"
        self.metadata = self.heat / "cfn-init-data"
        for folder in ("etc", "run", "root", "bin", "sys/class/dmi/id"):
            (root / folder).mkdir(parents=True)
        self.program("blkid", "exit 2")

    def program(self, name, body):
        """Put a shell program of this name first on the path."""
        program(self.root / "bin" / name, body)

    def boot(self, *, seconds="5", vendor_data="1", machine=""):
        (self.root / "sys/class/dmi/id/product_uuid").write_text(f"{machine}\n")
        return completed(
            [PROGRAM],
            env={
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "HEAT_AGENT_ROOT": str(self.root),
                "HEAT_METADATA_ADDRESS": self.cloud.host,
                "HEAT_BOOTSTRAP_SECONDS": seconds,
                "HEAT_BOOTSTRAP_VENDOR_DATA": vendor_data,
                "LC_ALL": "C",
            },
        )

    def install(self, **settings):
        """Boot once; check that Heat's metadata was installed."""
        assert self.boot(**settings).returncode == 0
        assert json.loads(self.metadata.read_text()) == BOOT

    def heat_files(self):
        return sorted(path.name for path in self.heat.iterdir())

    def tree(self):
        """Return every file with its content and its time."""
        return {
            str(path.relative_to(self.root)): (path.read_bytes(), path.stat().st_mtime_ns)
            for folder in ("etc", "root", "var")
            for path in (self.root / folder).rglob("*")
            if path.is_file()
        }


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    # A guest also meets user data that Nova would refuse.
    monkeypatch.setattr("hotplate.cloud.nova.servers.MAX_USER_DATA", 1 << 30)
    (tmp_path / "cloud").mkdir()
    service = Cloud(tmp_path / "cloud")
    yield service
    service.close()


@pytest.fixture
def guest(tmp_path, cloud):
    return Guest(tmp_path / "guest", cloud)


def test_heats_own_user_data_is_installed(guest, cloud):
    instance = cloud.boot(heat_user_data())
    done = guest.boot()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads(guest.metadata.read_text()) == BOOT
    assert (mode(guest.metadata), mode(guest.heat)) == (0o600, 0o700)
    assert guest.heat_files() == ["cfn-init-data"]
    assert (guest.root / "var/lib/cloud/data/instance-id").read_text() == f"{instance}\n"
    assert (guest.root / "etc/hostname").read_text() == "web-1\n"
    keys = guest.root / "root/.ssh/authorized_keys"
    assert keys.read_text() == f"{KEY}\n"
    assert (mode(keys), mode(keys.parent)) == (0o600, 0o700)


def test_base64_part_is_decoded(guest, cloud):
    metadata = {**BOOT, "note": "grüße \u2603"}
    part = MIMEText(json.dumps(metadata, ensure_ascii=False), "x-cfninitdata", "utf-8")
    assert part["Content-Transfer-Encoding"] == "base64"
    cloud.boot(multipart({"cfn-init-data": part}).as_bytes())
    assert guest.boot().returncode == 0
    assert json.loads(guest.metadata.read_text("utf-8")) == metadata


def test_gzip_user_data_is_unpacked(guest, cloud):
    cloud.boot(gzip.compress(heat_user_data()))
    guest.install()


def test_users_own_multipart_is_not_taken_for_heats(guest, cloud):
    names = ("cfn-init-data", "../../../etc/passwd")
    own = multipart(dict.fromkeys(names, '{"deployments": ["mine"]}'))
    cloud.boot(heat_user_data(userdata=own.as_string()))
    guest.install()
    assert guest.heat_files() == ["cfn-init-data"]


IGNITION = {"ignition": {"version": "3.3.0"}}
FILE = {"path": "/etc/motd", "contents": {"source": "data:,x"}}


@pytest.mark.parametrize(
    ("made", "ignored"),
    [
        (lambda: b"#!/bin/sh\necho hello\n", True),
        (lambda: multipart({"cfn-userdata": "#!/bin/sh\n"}).as_bytes(), True),
        (lambda: heat_user_data(userdata="#cloud-config\npackages: [nginx]\n"), True),
        (lambda: json.dumps({**IGNITION, "passwd": {"users": [{"name": "core"}]}}).encode(), True),
        (
            lambda: heat_user_data(userdata=json.dumps({**IGNITION, "storage": {"links": [{}]}})),
            True,
        ),
        (
            lambda: heat_user_data(userdata=json.dumps({**IGNITION, "storage": {"files": [FILE]}})),
            True,
        ),
        (lambda: heat_user_data(userdata=json.dumps({**IGNITION, "systemd": {}})), False),
        (lambda: multipart({"cfn-userdata": ""}).as_bytes(), False),
        (lambda: heat_user_data(), False),
        (lambda: b" \n", False),
    ],
)
def test_users_own_user_data_is_said_to_be_ignored(guest, cloud, made, ignored):
    cloud.boot(made())
    assert ("user data was ignored" in guest.boot().stderr) == ignored


def test_ignition_user_data_is_installed(guest, cloud):
    cloud.boot(heat_user_data(userdata=json.dumps(IGNITION)))
    guest.install()
    assert mode(guest.metadata) == 0o600


def test_ignition_in_base64_installs_only_heats_files(guest, cloud):
    encoded = base64.b64encode(json.dumps(BOOT).encode()).decode()
    config = {
        **IGNITION,
        "storage": {
            "files": [
                {"path": "/etc/shadow", "contents": {"source": "data:,x"}},
                {"path": "/var/lib/heat-cfntools/../x", "contents": {"source": "data:,x"}},
                {
                    "path": "/var/lib/heat-cfntools/cfn-init-data",
                    "contents": {"source": f"data:;base64,{encoded}"},
                },
            ]
        },
    }
    cloud.boot(json.dumps(config).encode())
    guest.install()
    assert not (guest.root / "etc/shadow").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("../../../etc/passwd", "/etc/passwd", "cfn-init-data/x", "..", "", "a\nb", "cfn-other"),
        "\u2603" * 300,
    ],
)
def test_hostile_file_name_is_not_written(guest, cloud, name):
    cloud.boot(multipart({name: "{}"}, encoded=True).as_bytes())
    before = guest.tree()
    done = guest.boot()
    assert done.returncode == 0
    assert "no metadata of Heat" in done.stderr
    assert guest.heat_files() == []
    made = set(guest.tree()) - set(before)
    assert made == {
        *("etc/hostname", "root/.ssh/authorized_keys"),
        *("var/lib/cloud/data/instance-id", "var/lib/heat-config-bootstrap/state.json"),
    }


@pytest.mark.parametrize(
    "user_data", [b"", b"#cloud-config\nusers: []\n", b"\x00\xff" * 100, b"[" * 5000]
)
def test_missing_user_data_of_heat_is_no_failure(guest, cloud, user_data):
    """A server that Heat did not boot needs root's key all the same."""
    cloud.boot(user_data)
    done = guest.boot()
    assert done.returncode == 0
    assert "no metadata of Heat" in done.stderr
    assert (guest.root / "root/.ssh/authorized_keys").exists()


@pytest.mark.parametrize(
    ("user_data", "sentence"),
    [
        (b"MIME-Version: 1.0\n" + b"x" * (1 << 20), "larger than 1048576 bytes"),
        (gzip.compress(b"\0" * (64 << 20)), "larger than 1048576 bytes"),
        (b"\x1f\x8bnothing", "damaged gzip data"),
        (b'{"ignition": ', "cannot be read (JSONDecodeError)"),
        (b'{"storage": {"files": 3}}', "cannot be read (TypeError)"),
        (b'{"a":' * 100_000, "cannot be read (RecursionError)"),
    ],
)
def test_useless_user_data_is_reported_once_and_the_rest_is_done(guest, cloud, user_data, sentence):
    cloud.boot(user_data)
    done = guest.boot()
    assert done.returncode == 3
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (guest.root / "root/.ssh/authorized_keys").exists()
    assert not guest.metadata.exists()
    # The user data of an instance never changes: the next boot does not read it again.
    cloud.requests.clear()
    instance = (guest.root / "var/lib/cloud/data/instance-id").read_text().strip()
    assert guest.boot(machine=instance).returncode == 0
    assert cloud.requests == []


@pytest.mark.parametrize("metadata", ["[]", "no JSON", "\udce9", '{"a": "SECRET-2"', "[" * 100_000])
def test_metadata_that_is_no_object_is_neither_written_nor_shown(guest, cloud, metadata):
    part = MIMEText("", "x-cfninitdata")
    part.set_payload(metadata.encode("utf-8", "surrogateescape"))
    cloud.boot(multipart({"cfn-init-data": part}).as_bytes())
    done = guest.boot()
    assert done.returncode == 3
    assert not guest.metadata.exists()
    assert "SECRET" not in done.stderr


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(noise=st.binary(max_size=300), at=st.integers(0, 4000), cut=st.integers(0, 9000))
def test_damaged_user_data_never_ends_in_a_traceback(guest, cloud, noise, at, cut):
    whole = heat_user_data()
    cloud.boot(whole[:at] + noise + whole[at + cut :])
    done = guest.boot()
    assert done.returncode in (0, 3)
    assert "Traceback" not in done.stderr
    if guest.metadata.exists():
        json.loads(guest.metadata.read_text())


@pytest.mark.parametrize("has_id", [True, False])
def test_second_boot_writes_nothing(guest, cloud, has_id):
    """Without an id of the machine, the metadata says whether the instance is new."""
    instance = cloud.boot()
    machine = instance.upper() if has_id else ""
    guest.install(machine=machine)
    before = guest.tree()
    cloud.requests.clear()
    guest.install(machine=machine)
    assert bool(cloud.requests) is not has_id
    assert guest.tree() == before


def test_captured_disk_becomes_the_other_instances(guest, cloud):
    other = "ssh-rsa AAAAB3Nza other"
    assert cloud.boot() and guest.boot().returncode == 0
    keys = guest.root / "root/.ssh/authorized_keys"
    keys.write_text(keys.read_text() + "ssh-rsa AAAAB3 the-images-own\n")
    instance = cloud.boot(heat_user_data({**BOOT, "other": 1}), name="web-2", keys=[other])
    assert guest.boot(machine=instance).returncode == 0
    assert json.loads(guest.metadata.read_text())["other"] == 1
    assert keys.read_text() == f"ssh-rsa AAAAB3 the-images-own\n{other}\n"
    assert (guest.root / "etc/hostname").read_text() == "web-2\n"
    instance = cloud.boot(b"")
    assert guest.boot(machine=instance).returncode == 0
    assert not guest.metadata.exists()


def test_files_removed_by_a_capture_are_fetched_again(guest, cloud):
    instance = cloud.boot()
    assert guest.boot(machine=instance).returncode == 0
    shutil.rmtree(guest.heat)
    guest.install(machine=instance)


def truncate(handler, _cloud):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{}")


def break_off_in_the_head(handler, _cloud):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text")


def speak_no_http(handler, _cloud):
    handler.wfile.write(b"220 mail.example ESMTP\r\n")


def say_nothing(handler, _cloud):
    handler.close_connection = True


@pytest.mark.parametrize(
    "failure", [500, 503, 404, 302, truncate, break_off_in_the_head, speak_no_http, say_nothing]
)
def test_bootstrap_retries_until_metadata_is_usable(guest, cloud, failure):
    cloud.boot()
    cloud.failures = [failure]
    guest.install(seconds="20")


def keep_open(handler, cloud):
    body = cloud.files[handler.path.lstrip("/")]
    handler.send_response(200)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    cloud.closing.wait()


def test_service_that_leaves_connections_open_is_not_waited_for(guest, cloud):
    cloud.boot()
    cloud.failures = [keep_open] * 3
    guest.install()


def test_full_disk_is_reported_once_and_tried_again(guest, cloud):
    cloud.boot()
    guest.heat.parent.mkdir(parents=True)
    guest.heat.write_text("in the way, as a full disk would be")
    done = guest.boot()
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    guest.heat.unlink()
    guest.install()


def test_bootstrap_gives_up_in_time_with_a_reason(guest, monkeypatch):
    with socket.socket() as bound:  # refuses, and reserves the port
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setattr(guest.cloud, "host", f"127.0.0.1:{bound.getsockname()[1]}")
        done = guest.boot(seconds="1")
    assert done.returncode == 1
    assert "no metadata in 1 s" in done.stderr
    assert "127.0.0.1 cannot be reached" in done.stderr
    assert guest.tree() == {}


def test_server_that_knows_no_such_instance_is_asked_again(guest, cloud):
    cloud.files = {"openstack/latest/meta_data.json": b"{}"}
    done = guest.boot(seconds="1")
    assert done.returncode == 1
    assert "knows nothing of this instance" in done.stderr


@pytest.mark.parametrize("uuid_", ["../../x", "a\nb", "", " "])
def test_malformed_instance_id_is_refused(guest, cloud, uuid_):
    cloud.files = {"openstack/latest/meta_data.json": json.dumps({"uuid": uuid_}).encode()}
    done = guest.boot()
    assert done.returncode == 3
    assert "an invalid instance id" in done.stderr
    assert guest.tree() == {}


def test_ec2_form_is_read(guest, cloud):
    cloud.boot(name="web-3")
    cloud.files = {
        path: body for path, body in cloud.files.items() if not path.startswith("openstack")
    }
    # The tree has leaves alone; a service lists its folders.
    cloud.files["latest/meta-data/public-keys/"] = b"0=key0"
    guest.install()
    assert (guest.root / "root/.ssh/authorized_keys").read_text() == f"{KEY}\n"
    assert (guest.root / "etc/hostname").read_text() == "web-3\n"


def drive(guest, tree, kind="iso9660", label="config-2"):
    """A config drive behind stubs of blkid and mount; tests/booted mounts one."""
    content = guest.root / "drive"
    for name, data in tree.items():
        (content / name).parent.mkdir(parents=True, exist_ok=True)
        (content / name).write_bytes(data)
    guest.program(
        "blkid",
        'printf "DEVNAME=/dev/vda\\nTYPE=ext4\\nLABEL=root\\n\\n"\n'
        f'printf "DEVNAME=/dev/vdb\\nLABEL={label}\\nTYPE={kind}\\n"',
    )
    guest.program("mount", f'echo "$@" >> {guest.root}/calls; cp -r {content}/. "$6"')
    guest.program("umount", f'echo umount "$@" >> {guest.root}/calls; rm -r "$1"/*')
    return guest.root / "calls"


@pytest.mark.parametrize(("kind", "label"), [("iso9660", "config-2"), ("vfat", "CONFIG-2")])
def test_config_drive_is_read(guest, cloud, kind, label):
    instance = cloud.boot()
    calls = drive(guest, cloud.metadata.config_drive(instance), kind, label)
    guest.install()
    assert cloud.requests == []
    place = guest.root / "run/heat-config-bootstrap"
    assert calls.read_text().splitlines() == [
        f"-t {kind} -o ro,nosuid,nodev,noexec /dev/vdb {place}",
        f"umount {place}",
    ]


def test_service_is_asked_when_the_drive_is_unusable(guest, cloud):
    instance = cloud.boot()
    drive(guest, cloud.metadata.config_drive(instance))
    guest.program("mount", "exit 32")
    guest.install()


BOOTHOOK = "#cloud-boothook\n#!/bin/sh\necho $INSTANCE_ID >> $HEAT_AGENT_ROOT/hooked\n"


def test_vendor_datas_boothook_runs_at_every_boot(guest, cloud):
    instance = cloud.boot(vendor=BOOTHOOK)
    for _ in range(2):
        assert guest.boot(machine=instance).returncode == 0
    assert (guest.root / "hooked").read_text().split() == [instance, instance]
    assert mode(guest.root / "var/lib/heat-config-bootstrap/boothook") == 0o700


def test_directories_made_by_a_boothook_are_for_everybody(guest, cloud):
    """Its umask is systemd's, as with cloud-init: cfn-create-aws-symlinks makes /opt/aws/bin."""
    cloud.boot(vendor="#cloud-boothook\n#!/bin/sh\nmkdir -p $HEAT_AGENT_ROOT/opt/aws/bin\n")
    assert guest.boot().returncode == 0
    assert mode(guest.root / "opt/aws") == mode(guest.root / "opt/aws/bin") == 0o755
    unit = UNIT.read_text()
    assert "UMask" not in unit
    for private in (
        "var/lib/heat-cfntools/cfn-init-data",
        "var/lib/heat-config-bootstrap/state.json",
    ):
        assert mode(guest.root / private) == 0o600


def test_vendor_data_can_be_switched_off(guest, cloud):
    instance = cloud.boot(vendor=BOOTHOOK)
    assert guest.boot(machine=instance, vendor_data="0").returncode == 0
    assert not (guest.root / "hooked").exists()


@pytest.mark.parametrize(
    "vendor",
    [
        *("#cloud-config\nruncmd: [x]\n", "#cloud-boothook", "x" * 100),
        *(b"no JSON", b"[]", b'{"cloud-init": 3}', b"[" * 100_000),
    ],
)
def test_other_vendor_data_stops_nothing(guest, cloud, vendor):
    cloud.boot(vendor=vendor if isinstance(vendor, str) else "")
    if isinstance(vendor, bytes):
        cloud.files["openstack/latest/vendor_data.json"] = vendor
    guest.install()


def test_failing_boothook_is_reported_and_stops_nothing(guest, cloud):
    cloud.boot(vendor="#cloud-boothook\n#!/bin/sh\nexit 7\n")
    done = guest.boot()
    assert done.returncode == 0
    assert "boothook failed" in done.stderr
    assert json.loads(guest.metadata.read_text()) == BOOT


@pytest.mark.parametrize(
    "key", ["", "no key", "ssh-rsa AAAA\nssh-rsa BBBB evil", 'command="x" ssh-rsa AAAA', "ssh-rsa"]
)
def test_malformed_key_is_omitted(guest, cloud, key):
    cloud.boot(keys=[key, KEY])
    assert guest.boot().returncode == 0
    assert (guest.root / "root/.ssh/authorized_keys").read_text() == f"{KEY}\n"


def test_malformed_host_name_is_omitted(guest, cloud):
    cloud.boot()
    meta = json.loads(cloud.files["openstack/latest/meta_data.json"])
    for name in ("-x", "a/b", "a\nb", "", None, 3 * "x" * 64):
        meta |= {"hostname": name, "uuid": str(uuid.uuid4())}
        cloud.files["openstack/latest/meta_data.json"] = json.dumps(meta).encode()
        assert guest.boot().returncode == 0
        assert not (guest.root / "etc/hostname").exists()


def test_sshd_gets_a_host_key_of_each_instances_own(guest, cloud):
    ssh = guest.root / "etc/ssh"
    ssh.mkdir()
    (ssh / "sshd_config").touch()
    (ssh / "ssh_host_rsa_key").write_text("the image's")
    seen = set()
    for _ in range(2):
        instance = cloud.boot()
        for _ in range(2):
            assert guest.boot(machine=instance).returncode == 0
            seen.add((ssh / "ssh_host_ed25519_key.pub").read_text())
    assert len(seen) == 2
    assert not (ssh / "ssh_host_rsa_key").exists()


def test_next_boot_completes_an_interrupted_one(guest, cloud):
    """The state is written last: if anything is missing, everything is done again."""
    instance = cloud.boot()
    assert guest.boot(machine=instance).returncode == 0
    whole = {name: content for name, (content, _) in guest.tree().items()}
    state = "var/lib/heat-config-bootstrap/state.json"
    for name in whole:
        (guest.root / name).unlink()
        (guest.root / state).unlink(missing_ok=True)
        (guest.root / name).with_name(f".{Path(name).name}.new").write_text("half")
        assert guest.boot(machine=instance).returncode == 0
        assert {name: content for name, (content, _) in guest.tree().items()} == whole
