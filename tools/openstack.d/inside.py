"""The first process of the cloud's namespaces: mounts its chroot and starts its services.

usage: inside.py make|run SWITCH FOLDER LAYERS CHANNEL

``tools/openstack`` starts it by unshare(1).  SWITCH is "linuxbridge" or "openvswitch".  LAYERS are
directories, the uppermost first; changes go to FOLDER/upper.  CHANNEL is a pipe's descriptor for
lines: this process's PID in the host, the steps, and "ready" or "failed: REASON".  When this
process ends, the kernel ends all others with it.
Standard library only: it runs with the host's Python.
"""

from __future__ import annotations

import os
import socket
import string
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
IP = "172.24.4.1"
PASSWORD = "secret"  # noqa: S105 - the namespace leads nowhere
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
AUTHTOKEN = f"""www_authenticate_uri = http://{IP}:5000
auth_url = http://{IP}:5000
memcached_servers = 127.0.0.1:11211
auth_type = password
project_domain_id = default
user_domain_id = default
project_name = service
username = $user
password = {PASSWORD}
region_name = RegionOne"""
DATABASES = ("keystone", "glance", "placement", "nova", "nova_api", "nova_cell0", "neutron", "heat")
#: Without kvm: where it does not work, each question of libvirt's about it takes a minute.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "net/tun")
NEUTRON = ("--config-file", "/etc/neutron/neutron.conf", "--config-file")
ML2 = (*NEUTRON, "/etc/neutron/plugins/ml2/ml2_conf.ini")
#: Processes and no threads: a lock of eventlet's, which Keystone loads, cannot be handed from one
#: thread to another ("cannot switch to a different thread"), and the process answers no more.
UWSGI = (
    *("uwsgi", "--plugin", "python3", "--master", "--die-on-term", "--need-app", "--lazy-apps"),
    *("--enable-threads", "--processes", "2", "--buffer-size", "65535"),
    *("--add-header", "Connection: close"),
)


class Failed(Exception):
    """A step failed; the text is one sentence."""


class Inside:
    """The chroot and its processes."""

    def __init__(self, switch: str, folder: Path, layers: str, channel: int) -> None:
        self.switch = switch
        self.folder, self.layers = folder, layers
        self.root, self.logs = folder / "root", folder.parent / "log"
        self.channel = os.fdopen(channel, "w", buffering=1)
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.listens: dict[str, int | Path] = {}

    def say(self, words: str) -> None:
        """Tell the caller; when it has gone, its SIGPIPE ends this cloud."""
        print(words, file=self.channel)

    # -- the ground ------------------------------------------------------------------------------

    def mount(self) -> None:
        """Mount the layers, and the kernel's file systems as these namespaces see them."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir()
        options = f"lowerdir={self.layers},upperdir={self.folder}/upper,workdir={self.folder}/work"
        for kind, place, more in (
            ("overlay", "", options),
            ("proc", "proc", "nosuid"),
            ("sysfs", "sys", "nosuid"),
            ("tmpfs", "run", "mode=755"),
            ("tmpfs", "dev", "mode=755"),
        ):
            _command("mount", "-t", kind, "-o", more, kind, str(self.root / place))
        for name in ("pts", "shm", "net"):
            (self.root / "dev" / name).mkdir()
        for name in DEVICES:
            (self.root / "dev" / name).touch()
            _command("mount", "--bind", f"/dev/{name}", str(self.root / "dev" / name))
        _command("mount", "-t", "devpts", "-o", "newinstance,ptmxmode=666,mode=620", "devpts",
                 str(self.root / "dev/pts"))  # fmt: skip
        _command("mount", "-t", "tmpfs", "tmpfs", str(self.root / "dev/shm"))
        for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd")):
            (self.root / "dev" / name).symlink_to(target)
        for name in ("lock/nova", "lock/neutron", "mysqld", "netns", "openvswitch"):
            (self.root / "run" / name).mkdir(parents=True)
        self.call("chown", "mysql:mysql", "/run/mysqld")

    def network(self) -> None:
        """Make the bridge that is the outside of the cloud, whose address has all services."""
        _command("hostname", "cloud")
        _command("ip", "link", "set", "lo", "up")
        if self.switch == "linuxbridge":
            _command("ip", "link", "add", "br-ext", "type", "bridge")
            (self.root / "proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")
        else:
            self.open_vswitch()
        _command("ip", "address", "add", f"{IP}/24", "dev", "br-ext")
        _command("ip", "link", "set", "br-ext", "up")
        (self.root / "proc/sys/net/ipv4/ip_forward").write_text("1")

    def open_vswitch(self) -> None:
        """Start Open vSwitch, without the kernel's part of it."""
        place = "/run/openvswitch"
        schema = "/usr/share/openvswitch/vswitch.ovsschema"
        self.call("ovsdb-tool", "create", f"{place}/conf.db", schema)
        remotes = (f"--remote=punix:{place}/db.sock", "--remote=ptcp:6640:127.0.0.1")
        self.daemon("ovsdb-server", "ovsdb-server", f"{place}/conf.db", *remotes, listens=6640)
        self.wait("ovsdb-server")
        self.call("ovs-vsctl", "--no-wait", "init")
        # Guests and namespaces leave checksums to the receiver; only so are they filled in.
        self.call("ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".",
                  "other_config:userspace-tso-enable=true")  # fmt: skip
        self.daemon("ovs-vswitchd", "ovs-vswitchd", "--disable-system", f"unix:{place}/db.sock")
        self.call("ovs-vsctl", "add-br", "br-ext", "--", "set", "bridge", "br-ext",
                  "datapath_type=netdev")  # fmt: skip

    def configure(self) -> None:
        """Write the files below /etc."""
        etc = self.root / "etc"
        (etc / "hosts").write_text("127.0.0.1 localhost cloud\n")
        (etc / "hostname").write_text("cloud\n")
        # Nobody is to wait for a name server: there is none.
        (etc / "resolv.conf").write_text("")
        for part in (HERE / "etc").read_text().split("\n==> ")[1:]:
            name, _, text = part.partition("\n")
            user = name.partition("/")[0]
            auth = string.Template(AUTHTOKEN).substitute(user=user)
            filled = string.Template(text).substitute(
                ip=IP, password=PASSWORD, switch=self.switch, authtoken=auth
            )
            (etc / name).write_text(filled)
        (self.root / "root/inhabitants.py").write_bytes((HERE / "inhabitants.py").read_bytes())

    # -- processes -------------------------------------------------------------------------------

    def command(self, *words: str) -> list[str]:
        return ["chroot", str(self.root), *words]

    def call(self, *words: str) -> None:
        """Run a command to its end."""
        with (self.logs / "commands.log").open("ab") as log:
            log.write(f"$ {' '.join(words)}\n".encode())
            log.flush()
            done = subprocess.run(
                self.command(*words), env=ENVIRONMENT, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        if done.returncode:
            raise Failed(f'"{" ".join(words)[:80]}" ended with {done.returncode}: {log.name}')

    def daemon(self, name: str, *words: str, listens: int | str = 0, **environment: str) -> None:
        """Start a service.

        :param listens: its port, or the path of its socket; :meth:`wait` waits for that.
        """
        with (self.logs / f"{name}.log").open("wb") as log:
            self.daemons[name] = subprocess.Popen(
                self.command(*(words or (name,))), env=ENVIRONMENT | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        if listens:
            self.listens[name] = listens if isinstance(listens, int) else self.root / listens

    def wait(self, *names: str, seconds: float = 120) -> None:
        """Wait until services accept connections."""
        end = time.monotonic() + seconds
        for name in names:
            while not _accepts(self.listens[name]):
                self.check()
                if time.monotonic() > end:
                    raise Failed(f'"{name}" does not listen after {seconds:.0f} s: {self.logs}')
                time.sleep(0.1)

    def check(self) -> None:
        """Raise when a service has ended."""
        for name, process in self.daemons.items():
            if process.poll() is not None:
                raise Failed(f'"{name}" ended with {process.returncode}: {self.logs}/{name}.log')

    def end(self, *names: str) -> None:
        """End services in order, so that their files are whole."""
        for name in names:
            process = self.daemons.pop(name)
            process.terminate()
            process.wait(60)


# -- the course of a start -------------------------------------------------------------------------


def make(cloud: Inside) -> None:
    """Make the databases and everything in them."""
    patch_heat(cloud.root)
    start_data_services(cloud)
    cloud.say("making the databases")
    statements = [f"CREATE DATABASE {name} CHARACTER SET utf8" for name in DATABASES]
    statements += [f"CREATE USER os@'%' IDENTIFIED BY '{PASSWORD}'", "GRANT ALL ON *.* TO os@'%'"]
    cloud.call("mariadb", "-e", "; ".join(statements))
    keystone_users = ("--keystone-user", "root", "--keystone-group", "root")
    cloud.call("keystone-manage", "db_sync")
    cloud.call("keystone-manage", "fernet_setup", *keystone_users)
    cloud.call("keystone-manage", "credential_setup", *keystone_users)
    urls = [
        f"--bootstrap-{kind}-url=http://{IP}:5000/v3/" for kind in ("admin", "internal", "public")
    ]
    cloud.call("keystone-manage", "bootstrap", f"--bootstrap-password={PASSWORD}",
               "--bootstrap-region-id=RegionOne", *urls)  # fmt: skip
    for name in ("glance", "heat"):
        cloud.call(f"{name}-manage", "db_sync")
    cloud.call("placement-manage", "db", "sync")
    cloud.call("neutron-db-manage", *ML2, "upgrade", "heads")
    cell = f"mysql+pymysql://os:{PASSWORD}@127.0.0.1/nova_cell0"
    cloud.call("nova-manage", "api_db", "sync")
    cloud.call("nova-manage", "cell_v2", "map_cell0", "--database_connection", cell)
    cloud.call("nova-manage", "cell_v2", "create_cell", "--name=cell1")
    cloud.call("nova-manage", "db", "sync")
    cloud.say("making the users and the services")
    start_keystone(cloud)
    inhabitants(cloud, "identities")
    start_services(cloud)
    cloud.say("making the networks")
    inhabitants(cloud, "networks")
    inhabitants(cloud, "wait")
    cloud.call("nova-manage", "cell_v2", "discover_hosts")
    cloud.end("nova-compute", "neutron-server", "heat-engine", "mariadb")


def run(cloud: Inside) -> None:
    """Start all services on the databases that are there."""
    start_data_services(cloud)
    start_keystone(cloud)
    start_services(cloud)
    cloud.say("waiting for the agents")
    inhabitants(cloud, "wait")


def inhabitants(cloud: Inside, part: str) -> None:
    cloud.call("python3", "/root/inhabitants.py", IP, PASSWORD, part)


def start_data_services(cloud: Inside) -> None:
    cloud.say("starting the database and the message queue")
    # A power cut costs nothing: no start begins with the files of another.
    cloud.daemon("mariadb", "mariadbd", "--user=mysql", "--max-connections=500",
                 "--innodb-flush-log-at-trx-commit=0", listens=3306)  # fmt: skip
    cloud.daemon("memcached", "memcached", "-u", "memcache", "-l", "127.0.0.1", listens=11211)
    cloud.daemon(
        "rabbitmq", "/usr/lib/rabbitmq/bin/rabbitmq-server", listens=5672,
        RABBITMQ_NODENAME="rabbit@localhost", RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
        RABBITMQ_MNESIA_BASE="/run/rabbitmq", RABBITMQ_LOGS="-", ERL_EPMD_ADDRESS="127.0.0.1",
        # Erlang's schedulers would spin while they wait.
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+sbwt none +sbwtdcpu none +sbwtdio none",
    )  # fmt: skip
    cloud.wait("mariadb", "memcached", "rabbitmq")


def start_keystone(cloud: Inside) -> None:
    wsgi(cloud, "keystone", "/usr/bin/keystone-wsgi-public", 5000)
    cloud.wait("keystone")


def wsgi(cloud: Inside, name: str, file: str, port: int) -> None:
    cloud.daemon(name, *UWSGI, "--http-socket", f"0.0.0.0:{port}", "--wsgi-file", file,
                 listens=port)  # fmt: skip


def start_services(cloud: Inside) -> None:
    cloud.say("starting the services")
    wsgi(cloud, "placement", "/usr/bin/placement-api", 8778)
    cloud.daemon("neutron-server", "neutron-server", *ML2, listens=9696)
    cloud.daemon("glance-api", listens=9292)
    cloud.daemon("nova-conductor")
    cloud.daemon("nova-scheduler")
    cloud.daemon("nova-api", listens=8774)
    cloud.daemon("virtlogd", listens="run/libvirt/virtlogd-sock")
    cloud.daemon("libvirtd", listens="run/libvirt/libvirt-sock")
    cloud.daemon("heat-engine")
    cloud.daemon("heat-api", listens=8004)
    cloud.daemon("heat-api-cfn", listens=8000)
    cloud.wait("libvirtd")
    cloud.daemon("nova-compute")
    # An agent that asks a server too early waits for a minute.
    cloud.wait("neutron-server")
    for agent, file in (
        (cloud.switch, f"plugins/ml2/{cloud.switch}_agent.ini"),
        ("dhcp", "dhcp_agent.ini"),
        ("l3", "l3_agent.ini"),
        ("metadata", "metadata_agent.ini"),
    ):
        name = f"neutron-{agent}-agent"
        cloud.daemon(name, name, *NEUTRON, f"/etc/neutron/{file}")
    cloud.wait("placement", "glance-api", "nova-api", "heat-api", "heat-api-cfn")


def patch_heat(root: Path) -> None:
    """Have Heat 19 and 24 send a token with the signatures that it asks Keystone about.

    Keystone's security updates want one (22.0.2-0+deb12u6, 27.0.0-3+deb13u6); later Heats send that
    of their own user.  Without it each guest that polls heat-api-cfn is refused.
    """
    file = root / "usr/lib/python3/dist-packages/heat/api/aws/ec2token.py"
    text = file.read_text()
    if "requests.post(keystone_ec2_uri" not in text:
        return
    text = text.replace(
        "requests.post(keystone_ec2_uri", "_own_session().post(keystone_ec2_uri, raise_exc=False"
    )
    file.write_text(f"""{text}

def _own_session():
    from keystoneauth1 import loading, session
    return session.Session(loading.load_auth_from_conf_options(cfg.CONF, "keystone_authtoken"))
""")


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f'"{" ".join(words)}" failed: {done.stderr.strip()}')


def _accepts(place: int | Path) -> bool:
    if isinstance(place, Path):
        return place.is_socket()
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", place)) == 0


def main() -> None:
    """Start, say so, and stay as the parent of the orphans."""
    verb, switch, folder, layers, channel = sys.argv[1:]
    os.umask(0o022)
    cloud = Inside(switch, Path(folder), layers, int(channel))
    # /proc is the host's here.
    cloud.say(str(Path("/proc/self").readlink()))
    try:
        cloud.mount()
        cloud.network()
        cloud.configure()
        {"make": make, "run": run}[verb](cloud)
        cloud.check()
    except Failed as error:
        cloud.say(f"failed: {error}")
        raise SystemExit(1) from None
    cloud.say("ready")
    cloud.channel.close()
    while verb == "run":
        pid, status = os.wait()
        for name, process in cloud.daemons.items():
            if process.pid == pid:
                print(f"{name} ended with {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
