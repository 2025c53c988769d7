"""A cause inside an inspected guest is named before its symptom from outside."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.verdict import health
from hotplate.verdict.causes import CAUSES
from hotplate.verdict.facts import Facts
from hotplate.verdict.health import Health
from hotplate.verdict.stages import Stage

UNIT = {
    "Result": "success",
    "NRestarts": "0",
    "MemoryMax": "infinity",
    "IPAddressDeny": "",
    "User": "",
    "PrivateNetwork": "no",
    "ProtectSystem": "no",
    "RestrictAddressFamilies": "~",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "FragmentPath": "/etc/systemd/system/os-collect-config.service",
    "UnitFileState": "enabled",
}
AGENT = health.AGENT
SITE = "/etc/systemd/system/os-collect-config.service.d/site.conf"
SCRIPT_55 = "/usr/libexec/os-refresh-config/configure.d/55-heat-config"


def unit(name: str = AGENT, **changed: str) -> str:
    """A unit as ``systemctl show`` prints it, where Id is not the first."""
    lines = [f"{key}={value}" for key, value in (UNIT | changed).items()]
    return "\n".join([*lines[:8], f"Id={name}", *lines[8:]])


GOOD = {
    "asked": "1795345255",
    "clock": "1795345254",
    "units": "\n\n".join(unit(name) for name in health.UNITS),
    "jobs": "",
    "addresses": "lo UNKNOWN 127.0.0.1/8 ::1/128\nens4 UP 169.254.169.15/24 metric 1024",
    "routes": "\n".join(
        f"{port} 169.254.169.254 dev ens4 src 169.254.169.15 uid 0" for port in (80, 8000, 8080)
    ),
    "rules": "0:\tfrom all lookup local\n32766:\tfrom all lookup main",
    "space": "/ 196128 177275 54767 42000 167000\n/run 123862 123452 24667 24667 24772",
    "mounts": "sysfs /sys sysfs rw,noexec 0 0\ntmpfs /run tmpfs rw,nosuid,noexec 0 0\n"
    "/dev/vda / ext4 rw,relatime 0 0\n"
    "tmpfs /run/credentials/systemd-networkd.service tmpfs ro,noexec 0 0",
    "programs": "",
    "hooks": "/usr/libexec/heat-config/hooks:\nscript",
    "agents": "/system.slice/os-collect-config.service",
    "collect-conf": "metadata_url 169.254.169.254:8000",
    "boot-metadata": "169.254.169.254:8000",
    "cloud-init": "",
}


def answer(**changed: str) -> str:
    """The answer of a healthy guest, with some sections changed (``_`` for ``-``)."""
    sections = GOOD | {name.replace("_", "-"): text for name, text in changed.items()}
    return "".join(f"=== {name}\n{text}\n" for name, text in sections.items()) + "=== end\n"


# As Linux 6.12 prints it.
AGENT_KILLED = (
    "[   98.1] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/system.slice/os-collect-config.service,"
    "task_memcg=/system.slice/os-collect-config.service,task=python3,pid=601,uid=0"
)


def silent(story):
    """The agent never polls."""
    story.up()
    story.deployment("IN_PROGRESS")


def without_metadata(story):
    """The guest has a network, and asks for no metadata."""
    story.boot()
    story.console("ci-info: |  ens4  | True | 10.0.0.2 | 255.255.255.0 | global |", "debian login:")


def polled(story):
    """The agent polls, and gets nothing."""
    silent(story)
    story.poll(times=4)


def unheard(story):
    """The guest boots, and requests nothing at all."""
    story.boot()
    story.console("[    2.1] virtio_net virtio0 ens4: renamed from eth0", "debian login: ")


def received(story):
    story.delivered()


def done(story):
    story.finished()


NO_FILES = (
    "os-collect-config.service: Failed to connect stdout to the journal socket, ignoring: "
    "Too many open files"
)
OSLO = (
    'Traceback (most recent call last):\n  File "cfg.py", line 1987, in _parse_file\n'
    "oslo_config.cfg.ConfigFileParseError: Failed to parse /etc/os-collect-config.conf: at "
    "/etc/os-collect-config.conf:3, No ':' or '=' found in assignment: 'password of mine'"
)
# From the standard-library agent and bash, and from that agent's os-apply-config.
SYNTAX = (
    "dib-run-parts Fri Nov 27 22:33:48 UTC 2026 Running /usr/libexec/os-refresh-config/configure.d/"
    "40-site\n/usr/libexec/os-refresh-config/configure.d/40-site: line 4: syntax error near "
    "unexpected token `)'\n/usr/libexec/os-refresh-config/configure.d/40-site: line 4: `)'\n"
    "dib-run-parts: configure.d/40-site status 2 after 0.015 s"
)
TEMPLATE = (
    "[2026/11/27 10:33:48 PM] [ERROR] could not render moustache template /usr/libexec/"
    "os-apply-config/templates/etc/site.conf: a section is closed that is not open"
)

IN_A_GUEST = [
    (silent, {"units": unit(LoadState="masked", UnitFileState="masked", ActiveState="inactive")},
     "agent-disabled", 'the unit "os-collect-config.service" is masked'),
    (silent, {"units": unit(UnitFileState="disabled", ActiveState="inactive")},
     "agent-disabled", "is installed but not enabled"),
    (silent, {"units": unit(ActiveState="inactive"),
              "drop-ins": f"{SITE}:Requires=vault.service",
              "missing-requirements": "vault.service"},
     "agent-skipped", f'"{SITE}" requires the unit "vault.service", which is not there'),
    (silent, {"missing-requirements": "vault.service"}, None, ""),
    (silent, {"units": unit(ActiveState="inactive"),
              "drop-ins": f"{SITE}:ConditionPathExists=/etc/provisioned",
              "agent_log": "os-collect-config.service - Collect configuration skipped, unmet "
              "condition check ConditionPathExists=/etc/provisioned"},
     "agent-skipped", f'"{SITE}" has "ConditionPathExists=/etc/provisioned", which is not so'),
    (silent, {"units": unit(ActiveState="inactive"),
              "agent_log": "os-collect-config.service was skipped because of an unmet condition "
              "check (ConditionPathExists=/etc/provisioned)."},
     "agent-skipped", '"os-collect-config.service" has "ConditionPathExists='),
    (silent, {"programs": "no-interpreter /usr/libexec/os-collect-config/start "
              "/opt/heat-agent/bin/python /usr/bin/python3.9"},
     "program-missing", '"/opt/heat-agent/bin/python", which runs '
     '"/usr/libexec/os-collect-config/start", does not exist (it leads to "/usr/bin/python3.9")'),
    (silent, {"programs": "gone /usr/libexec/os-collect-config/start"},
     "program-missing", '"/usr/libexec/os-collect-config/start" does not exist'),
    (silent, {"space": "/run 9 9 24 24 30\n/ 196128 177272 3921 0 167133"},
     "disk-full", '"/" is full'),
    (received, {"space": "/ 196128 0 54767 42000 167000"}, "disk-full", '"/" has no inodes left'),
    (received, {"space": "/ 9 9 4200 0 167000\n/boot/efi 0 0 9 9 9"}, None, ""),
    (silent, {"mounts": "/dev/vda / ext4 ro,relatime 0 0"}, "read-only", '"/" is mounted'),
    (received, {"mounts": "/dev/vda / ext4 rw 0 0\n/dev/vda /var/lib ext4 ro 0 0"},
     "read-only", '"/var/lib" is mounted read-only'),
    (received, {"unwritable": "/var/lib/heat-config"},
     "not-writable", '"/var/lib/heat-config" cannot be written to by root'),
    (silent, {"closed": "700 /", "addresses": "lo UNKNOWN 127.0.0.1/8\nens4 DOWN "},
     "closed-directory", '"/" has mode 0700'),
    (received, {"closed": "700 /etc"}, None, ""),
    (silent, {"closed": "stat: cannot statx '/usr/lib': No such file or directory"}, None, ""),
    (silent, {"addresses": "lo UNKNOWN 127.0.0.1/8\nens4 DOWN "}, "link-down", '"ens4" is down'),
    (polled, {"addresses": "lo UNKNOWN 127.0.0.1/8\nens4 UP 10.0.0.3/24\ndocker0 DOWN "},
     None, ""),
    (silent, {"units": unit("systemd-networkd.service", LoadState="masked"),
              "addresses": "lo UNKNOWN 127.0.0.1/8\nens4 DOWN "},
     "unit-masked", "systemd-networkd.service"),
    (silent, {"units": unit("systemd-networkd.service", ActiveState="failed", Result="exit-code",
                            ExecMainStatus="203"),
              "addresses": "lo UNKNOWN 127.0.0.1/8\nens4@if2 DOWN ",
              "networks": "/etc/systemd/network/10-cloud-init-ens4.network Name=ens4",
              "renderer-log": "Unable to locate executable: Permission denied"},
     "renderer-failed", 'failed (exit-code, status 203): "Unable to locate executable'),
    # The other end of a container's device is not in its name.
    (silent, {"addresses": "lo UNKNOWN 127.0.0.1/8\nens4@if2 UP fe80::5054/64",
              "networks": "/etc/systemd/network/10-cloud-init-ens4.network Name=ens4"}, None, ""),
    (silent, {"units": unit("networking.service", ActiveState="failed", Result="exit-code")},
     None, ""),
    (silent, {"units": unit("systemd-networkd.service", LoadState="masked")}, None, ""),
    (silent, {"addresses": "lo UNKNOWN 127.0.0.1/8\nens4 UP fe80::5054/64",
              "networks": "/etc/systemd/network/90-heat-config.network Name=ens192"},
     "other-interface", 'is for "ens192", and the machine\'s device is "ens4"'),
    (silent, {"routes": "80 RTNETLINK answers: Network is unreachable\n"
              "8000 RTNETLINK answers: Network is unreachable"},
     "no-route", 'no route to 169.254.169.254: "Network is unreachable"'),
    (done, {"routes": "80 169.254.169.254 dev ens4\n8080 RTNETLINK answers: Permission denied",
            "rules": "0:\tfrom all lookup local\n9:\tfrom all dport 8080 prohibit"},
     "no-route", 'port 8080 of 169.254.169.254 is shut in the guest by the rule "9:'),
    (silent, {"environment": "http_proxy 192.0.2.1:3128", "drop-ins": f"{SITE}:Environment"},
     "proxy", f'"{SITE}" sends what the agent asks for to the proxy 192.0.2.1:3128 (http_proxy)'),
    (silent, {"manager-environment": "http_proxy 192.0.2.1:3128",
              "default-environment": "/etc/systemd/system.conf.d/proxy.conf"},
     "proxy", '"/etc/systemd/system.conf.d/proxy.conf" sends what all services ask for'),
    (without_metadata, {"manager-environment": "http_proxy 192.0.2.1:3128"},
     "proxy", "systemd's own environment sends what all services"),
    (without_metadata, {"environment": "http_proxy 192.0.2.1:3128"}, None, ""),
    (without_metadata, {"manager-environment": "http_proxy 192.0.2.1:3128\nno_proxy *"},
     None, ""),
    (silent, {"environment": "http_proxy 192.0.2.1:3128\nno_proxy localhost,169.254.169.254"},
     None, ""),
    (silent, {"firewall": "tcp dport 25 drop"}, None, ""),
    (silent, {"routes": '80 Error: argument "ipproto" is wrong: unknown'}, None, ""),
    (received, {"space": "/ 0 0 0 0 900", "mounts": "/dev/vda / squashfs ro 0 0\n"
                "tmpfs /var tmpfs rw 0 0\ntmpfs /etc tmpfs rw 0 0"}, None, ""),
    (silent, {"cloud-init": "/etc/cloud/cloud-init.disabled"}, None, ""),
    (silent, {"units": unit(PrivateNetwork="yes"), "drop-ins": f"{SITE}:PrivateNetwork=yes"},
     "agent-cut-off", f'"{SITE}" runs the agent with PrivateNetwork=yes'),
    (silent, {"units": unit(IPAddressDeny="0.0.0.0/0 ::/0")}, "agent-cut-off", "IPAddressDeny="),
    (silent, {"units": unit(RestrictAddressFamilies="AF_UNIX AF_INET6")},
     "agent-cut-off", "RestrictAddressFamilies="),
    (received, {"units": unit(ProtectSystem="strict"), "drop-ins": f"{SITE}:ProtectSystem=strict"},
     "agent-read-only", f'"{SITE}" runs the agent with ProtectSystem=strict'),
    (received, {"units": unit(User="heat")}, "agent-user", "User=heat"),
    (silent, {"units": unit(Result="oom-kill", MemoryMax="20971520"),
              "drop-ins": f"{SITE}:MemoryMax=20M"}, "memory-limit", "MemoryMax=20M"),
    # Between two starts the result is "success" again.
    (silent, {"units": unit(Result="success", NRestarts="3", MemoryMax="6291456"),
              "kernel": AGENT_KILLED, "drop-ins": f"{SITE}:MemoryMax=6M"},
     "memory-limit", f'"{SITE}" gives it no more than MemoryMax=6M'),
    (silent, {"units": unit(Result="success", NRestarts="0"), "kernel": AGENT_KILLED}, None, ""),
    (polled, {"programs": f"gone {SCRIPT_55}"}, "program-missing", f'"{SCRIPT_55}" does not exist'),
    (polled, {"programs": f"not-executable {SCRIPT_55}"}, "not-executable", SCRIPT_55),
    (polled, {"running": f"{SCRIPT_55}\n/usr/libexec/os-refresh-config/configure.d/40-mysql"},
     "script-hangs", "40-mysql"),
    (silent, {"units": unit(Result="exit-code", ExecMainStatus="203", NRestarts="4"),
              "drop-ins": f"{SITE}:ExecStart=\n{SITE}:ExecStart=/opt/agent/bin/run"},
     "agent-command", f'"{SITE}" has the agent\'s unit start "/opt/agent/bin/run", which does n'),
    (silent, {"units": unit(ActiveState="activating", SubState="auto-restart", NRestarts="9"),
              "drop-ins": f"{SITE}:ExecStart=/bin/false"},
     "agent-command", 'start "/bin/false", which does not stay'),
    (silent, {"drop-ins": f"{SITE}:ExecStart=/opt/agent/bin/run"}, None, ""),
    (silent, {"units": unit(SubState="auto-restart", NRestarts="9"),
              "drop-ins": f"{SITE}:ExecStart=/usr/bin/env", "agent_log": OSLO.replace("parse", "")},
     None, ""),
    (silent, {"units": unit(Result="exit-code", NRestarts="3"),
              "drop-ins": f"{SITE}:LimitNOFILE=6", "agent_log": NO_FILES},
     "agent-limit", f'"{SITE}" gives the agent LimitNOFILE=6: "os-collect-config.service: Fail'),
    (received, {"drop-ins": f"{SITE}:TasksMax=2",
                "agent_log": "BlockingIOError: [Errno 11] Resource temporarily unavailable"},
     "agent-limit", f'"{SITE}" gives the agent TasksMax=2'),
    (polled, {"drop-ins": f"{SITE}:LimitNOFILE=65536"}, None, ""),
    (silent, {"units": unit(Result="exit-code", NRestarts="5"), "agent_log":
              'os-collect-config: "/etc/os-collect-config.conf" cannot be read: line 3 has neither '
              '"=" nor ":".'},
     "agent-config-broken",
     '"/etc/os-collect-config.conf" cannot be read: line 3 has neither "=" nor ":"'),
    (silent, {"units": unit(Result="exit-code", NRestarts="5"), "agent_log": OSLO},
     "agent-config-broken", '"/etc/os-collect-config.conf" cannot be read: line 3, No '),
    (polled, {"programs": "carriage-return /usr/libexec/os-refresh-config/configure.d/40-site"},
     "line-ends", 'the lines of "/usr/libexec/os-refresh-config/configure.d/40-site" end as in'),
    (polled, {"programs": "carriage-return /usr/libexec/heat-config/hooks/other"}, None, ""),
    (polled, {"agent_log": SYNTAX}, "script-broken",
     'script has a syntax error: "/usr/libexec/os-refresh-config/configure.d/40-site: line 4: s'),
    (polled, {"agent_log": TEMPLATE}, "template-broken",
     'os-apply-config could not render the template "/usr/libexec/os-apply-config/templates/etc/'
     'site.conf": a section is closed that is not open'),
    (received, {"agents": "/system.slice/heat-agent-legacy.service\n"
                "/system.slice/os-collect-config.service"}, "two-agents", "heat-agent-legacy"),
    (silent, {"collect-conf": "metadata_url 192.0.2.7:8000"},
     "old-address", '"/etc/os-collect-config.conf" has the agent ask 192.0.2.7:8000'),
    (silent, {"boot-metadata": "192.0.2.7:8000"}, "old-address", "cfn-init-data"),
    (polled, {"clock": "631152000"}, "wrong-clock", "1990-01-01 00:00"),
    (silent, {"jobs": "12 site-setup.service start running\n14 multi-user.target start waiting"},
     "boot-waits", 'the unit "site-setup.service", which has not ended'),
]  # fmt: skip


@pytest.mark.parametrize(("happened", "sections", "fault", "words"), IN_A_GUEST)
def test_cause_in_guests_answer_is_named(story, happened, sections, fault, words):
    happened(story)
    if "agent_log" in sections:
        story.agent(sections["agent_log"])
    story.probe("health", answer(**sections))
    diagnosis = story.diagnosis()
    if fault is None:
        assert diagnosis.fault not in {rule.fault for rule in CAUSES}
    else:
        assert (diagnosis.fault, words in diagnosis.seen) == (fault, True), diagnosis


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (
            "Traceback (most recent call last):\n  from .decoder import JSONDecoder\n"
            "ModuleNotFoundError: No module named 'json.decoder'\n",
            "cloud-init-crashed",
        ),
        ("status: done\nTraceback (most recent call last):\n  x\nValueError: y\n", "link-down"),
    ],
)
def test_cloud_init_that_does_not_run_is_named_before_its_network(story, said, fault):
    unheard(story)
    story.probe("cloud-init", said)
    story.probe("health", answer(addresses="lo UNKNOWN 127.0.0.1/8\nens4@if2 DOWN "))
    diagnosis = story.diagnosis()
    assert diagnosis.fault == fault
    assert ("json.decoder" in diagnosis.seen) == (fault == "cloud-init-crashed")


def test_interface_that_the_machine_lacks_is_not_why_metadata_are_missing(story):
    """diskimage-builder's element debootstrap configures eth0 and eth1 by default for ifupdown."""
    story.boot()
    story.console(
        "[FAILED] Failed to start networking.service - Raise network interfaces.",
        "ci-info: |  ens4  | True |  10.0.0.2  | 255.255.255.0 | global | fa:16:3e:00:00:01 |",
        "cloud-init[411]: Used fallback datasource",
    )
    story.probe("health", answer())
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("no-datasource", Stage.METADATA_SERVED)


def test_firewall_is_named_when_agent_reaches_nothing(story):
    silent(story)
    story.agent(log="cfn: HTTPConnectionPool(host='169.254.169.254'): Read timed out.")
    story.probe("health", answer(firewall="tcp dport 8000 drop"))
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.seen) == (
        "firewall",
        'the guest has a firewall: "tcp dport 8000 drop"',
    )


def test_missing_routes_are_no_cause_when_link_is_cut_outside(story):
    done(story)
    story.emit("machine", "link", up=False)
    unreachable = "RTNETLINK answers: Network is unreachable"
    story.probe("health", answer(routes=f"80 {unreachable}\n8000 {unreachable}"))
    assert story.diagnosis().fault == "signal-lost"


@pytest.mark.parametrize("happened", [unheard, silent, polled, received, done])
def test_healthy_guest_has_no_cause(story, happened):
    happened(story)
    story.probe("health", answer())
    assert story.diagnosis().fault not in {rule.fault for rule in CAUSES}


ON_A_DISK = [
    ({"units": unit("systemd-networkd.service", LoadState="masked", UnitFileState="masked")},
     "unit-masked", 'the unit "systemd-networkd.service" is masked'),
    ({"units": unit("cloud-init-local.service", UnitFileState="disabled", ActiveState="")},
     "unit-disabled", '"cloud-init-local.service" is installed but not enabled'),
    ({"units": unit("systemd-networkd.service", UnitFileState="disabled", ActiveState="") + "\n"
      + unit("networking.service")}, None, ""),
    ({"cloud-init": "/etc/cloud/cloud-init.disabled"},
     "cloud-init-off", '"/etc/cloud/cloud-init.disabled" keeps'),
    ({"programs": "no-interpreter /usr/bin/cloud-init /usr/bin/python3 /usr/bin/python3"},
     "program-missing", '"/usr/bin/python3", which runs "/usr/bin/cloud-init", does not exist'),
    ({"packages": "libexpat1 install ok half-installed"},
     "package-broken", 'the package "libexpat1" is half-installed'),
    ({"datasource-list": "/etc/cloud/cloud.cfg.d/99-site.cfg [ NoCloud ]"},
     "other-datasource", '"/etc/cloud/cloud.cfg.d/99-site.cfg" has datasource_list [ NoCloud ]'),
    ({"broken-yaml": "/etc/cloud/cloud.cfg.d/99-site.cfg line 3: mapping values are not allowed"},
     "cloud-config-broken", "99-site.cfg"),
    ({"networks": "/etc/systemd/network/90-heat-config.network Name=ens192"},
     "other-interface", 'is for "ens192", and the machine\'s device is "ens4"'),
    ({"networks": "/etc/systemd/network/90-heat-config.network Name=e*"}, None, ""),
    ({"networks": "/etc/systemd/network/1.network Name=ens192\n"
      "/etc/systemd/network/90-heat-config.network Type=ether"}, None, ""),
    ({"fixed-addresses": "/etc/systemd/network/10-lan.network 192.0.2.7"},
     "fixed-address", '"/etc/systemd/network/10-lan.network" fixes the address 192.0.2.7, and'),
    ({"default-target": "rescue.target"}, "other-target", '"rescue.target"'),
    ({"space": "/ 251520 0 120 100 167000"}, "disk-full", "no inodes left"),
    ({"datasource-list": "/etc/cloud/cloud.cfg.d/90_heat-config.cfg [ OpenStack, None ]"},
     None, ""),
]  # fmt: skip


@pytest.mark.parametrize(("shown", "fault", "words"), ON_A_DISK)
def test_cause_on_disk_is_named_when_guest_cannot_be_asked(story, shown, fault, words):
    unheard(story)
    sections = {"units": unit(), "mounts": "LABEL=img-rootfs / ext4 defaults 0 1"} | shown
    story.probe("disk", "".join(f"=== {name}\n{text}\n" for name, text in sections.items()))
    diagnosis = story.diagnosis()
    if fault is None:
        assert diagnosis.fault not in {rule.fault for rule in CAUSES}
    else:
        assert (diagnosis.fault, words in diagnosis.seen) == (fault, True), diagnosis


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        ({"units": unit("cloud-init.service", LoadState="masked")}, "unit-masked"),
        ({"datasource-list": "/etc/cloud/cloud.cfg.d/99-site.cfg [ NoCloud ]"}, "other-datasource"),
    ],
)
@pytest.mark.parametrize("user_data", [False, True])
def test_cloud_init_fault_is_named_when_agent_gets_metadata(story, shown, fault, user_data):
    """Its requests are not for the user data; recorded from a booted bookworm guest."""
    story.boot()
    story.console("Cloud-init v. 22.4.2 finished at ... Datasource DataSourceNone", "debian login:")
    story.request("metadata", "GET", "/latest/meta-data/instance-id", 200)
    if user_data:
        story.request("metadata", "GET", "/latest/user-data", 200)
    sections = {"units": unit(), "mounts": "LABEL=img-rootfs / ext4 defaults 0 1"} | shown
    story.probe("disk", "".join(f"=== {name}\n{text}\n" for name, text in sections.items()))
    assert (story.diagnosis().fault == fault) is not user_data


@pytest.mark.parametrize("agent", [False, True])
def test_missing_fstab_device_is_named(story, agent):
    """The agent of a booted bookworm guest began its work beside the emergency shell."""
    if agent:
        story.delivered()
        story.marker("started")
    else:
        story.power()
    story.console(
        "[ TIME ] Timed out waiting for device dev-vdb.device - /dev/vdb.",
        "[DEPEND] Dependency failed for data.mount - /data.",
        'You are in emergency mode. After logging in, type "journalctl -xb" to view',
    )
    story.probe("disk", "=== fstab\nLABEL=img-rootfs /\n/dev/vdb /data\n")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "missing-device"
    assert 'names "/dev/vdb" for "/data"' in diagnosis.seen


UUID = "0f6e1c2a-7b1d-4c55-9d0e-2f2b8a6c1d11"


@pytest.mark.parametrize(
    "line",
    [
        # systemd 252 and 257 cut the middle of a line on a console of 80 columns.
        f"[ TIME ] Timed out waiting for device dev-di\u2026{UUID[4:]}.",
        f"[   91.2] systemd[1]: Timed out waiting for device dev-disk-by\\x2duuid-0f6e.device - "
        f"/dev/disk/by-uuid/{UUID}.",
    ],
)
def test_missing_fstab_uuid_is_named_as_boot_fault(story, line):
    """Its deployment was done before systemd stopped the agent; Heat had not finished yet."""
    story.finished()
    story.signal()
    story.taken()
    story.console(line, 'You are in emergency mode. After logging in, type "journalctl -xb"')
    story.probe("disk", f"=== fstab\nLABEL=img-rootfs /\nUUID={UUID} /srv\nUUID=0000-1 /x\n")
    diagnosis = story.diagnosis("CREATE_IN_PROGRESS")
    assert (diagnosis.fault, diagnosis.stage) == ("missing-device", Stage.BOOTED)
    assert f'/etc/fstab names "UUID={UUID}" for "/srv"' in diagnosis.seen
    assert story.diagnosis("CREATE_COMPLETE") is None


@pytest.mark.parametrize(
    ("line", "fstab", "seen"),
    [
        ("srv-data.mount - /srv/data.", "/dev/vdb /srv/data", 'of "/dev/vdb" on "/srv/data"'),
        ("srv\u2026v/data.", "/dev/vdb /srv/data", 'of "/dev/vdb" on "/srv/data"'),
        ("srv-data.mount - /srv/data.", "/dev/vdc /srv", 'the mount on "/srv/data"'),
    ],
)
def test_failed_fstab_mount_is_named(story, line, fstab, seen):
    story.power()
    story.console(f"[FAILED] Failed to mount {line}", "You are in emergency mode. After logging in")
    story.probe("disk", f"=== fstab\n{fstab}\n")
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, diagnosis.stage) == ("mount-failed", Stage.BOOTED)
    assert seen in diagnosis.seen


def test_console_device_is_not_taken_for_fstab_device(story):
    story.power()
    story.console(
        "[ TIME ] Timed out waiting for device dev-ttyS0.device - /dev/ttyS0.",
        "[ TIME ] Timed out waiting for device dev-vdb.device - /dev/vdb.",
        'You are in emergency mode. After logging in, type "journalctl -xb" to view',
    )
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "missing-device"
    assert 'names "/dev/vdb"' in diagnosis.seen


def test_waiting_unit_is_named_in_full_when_console_cuts_it(story):
    story.boot()
    story.console("         Starting cloud-config.serv\u2026tings specified in cloud-config...")
    assert story.diagnosis().seen.startswith('the unit "cloud-config.service" was started')


FULL = (
    "[   61.2] cloud-init[311]: OSError: [Errno 28] No space left on device: '/var/lib/cloud/x'",
    "         Starting cloud-config.serv\u2026tings specified in cloud-config...",
)


def test_full_file_system_is_named_before_waiting_unit(story):
    """On an overloaded host the disk was read, whose free blocks are those of the last boot."""
    story.boot()
    story.console(*FULL)
    story.probe("disk", "=== space\n/ 196128 177275 54767 42000 167000\n=== end\n")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "disk-full"
    assert "No space left on device" in diagnosis.seen


def test_file_system_with_free_space_is_not_full(story):
    silent(story)
    story.console(FULL[0])
    story.probe("health", answer())
    assert story.diagnosis().fault != "disk-full"


# From a trixie guest: the first transaction is logged on the console, as there is no journal yet.
CYCLE = (
    "[   80.7] systemd[1]: cloud-init-network.service: Found ordering cycle on "
    "cloud-init-local.service/start",
    "[   80.7] systemd[1]: cloud-init-network.service: Found dependency on "
    "site-setup.service/start",
    "[   80.7] systemd[1]: cloud-init-network.service: Found dependency on "
    "cloud-init-network.service/start",
    "[   80.7] systemd[1]: cloud-init-network.service: Job cloud-init-local.service/start deleted "
    "to break ordering cycle starting with cloud-init-network.service/start",
    "[   80.8] systemd[1]: cloud-init-network.service: Found ordering cycle on "
    "systemd-networkd-wait-online.service/start",
    "[   80.8] systemd[1]: cloud-init-network.service: Job systemd-networkd-wait-online.service/"
    "start deleted to break ordering cycle starting with cloud-init-network.service/start",
)
SKIPPED = "[ SKIP ] Ordering cycle found, skipping cloud-init-local.service"


@pytest.mark.parametrize("where", ["console", "journal"])
def test_unit_deleted_for_ordering_cycle_is_named_with_cycle(story, where):
    story.boot()
    story.console(SKIPPED, "Cloud-init v. 22.4.2 finished at ... Datasource DataSourceNone")
    if where == "console":
        story.console(*CYCLE)
    else:
        story.probe("ordering", "\n".join(line.partition("]: ")[2] for line in CYCLE))
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "ordering-cycle"
    assert diagnosis.seen == (
        'systemd deleted "cloud-init-local.service" to break an ordering cycle of '
        "cloud-init-local.service, site-setup.service, cloud-init-network.service"
    )


def test_unit_deleted_for_unknown_cycle_is_named(story):
    story.boot()
    story.console(SKIPPED)
    assert story.diagnosis().seen.endswith('"cloud-init-local.service" to break an ordering cycle')


def test_deleted_unit_is_not_blamed_when_no_stage_needs_it(story):
    story.boot()
    story.console(SKIPPED.replace("cloud-init-local", "site"))
    assert story.diagnosis().fault != "ordering-cycle"


WAITS = "[   ***] Job site-setup.service/start running (2min 3s / no limit)"
BOOTING = (
    "         Starting site-setup.service...",
    "         Starting systemd-networkd.service - Network Configuration...",
    "[  OK  ] Started systemd-networkd.service - Network Configuration.",
    "         Starting systemd-networkd-wait-onl\u2026ait for Network to be Configured...",
    "[  OK  ] Finished systemd-networkd-wait-onl\u2026 Wait for Network to be Configured.",
)
DEVICE = (
    BOOTING[0],
    "[*     ] (1 of 7) Job dev-ttyS0.device/start running (16s / 1min 30s)",
    "[   ***] (2 of 7) Job systemd-udev-trigger.s\u2026ice/start running (17s / no limit)",
    "[  OK  ] Finished systemd-udev-trigger.service - Coldplug All udev Devices.",
)
WAITING = {
    "job": (
        WAITS,
        "[  *** ] A start job is running for site-setup.service (2min 4s / no limit)",
    ),
    # While other units start, systemd shows their lines, and that of the job only at times.
    "other lines follow": (
        "[   ***] (3 of 7) Job site-setup.service/start running (50s / no limit)",
        "[ ***  ] (4 of 7) Job dev-ttyS0.device/start running (51s / 1min 30s)",
        *BOOTING[2:3],
        *BOOTING[4:],
    ),
    # Recorded from a trixie guest, on whose console systemd never showed a waiting job.
    "no job": BOOTING,
    # Recorded from a trixie guest on a busy host: that console had no other job last.
    "device found": (*DEVICE, "[  OK  ] Found device dev-ttyS0.device - /dev/ttyS0.", *BOOTING[1:]),
    "device late": (
        *DEVICE,
        "[ TIME ] Timed out waiting for device dev-ttyS0.device - /dev/ttyS0.",
        *BOOTING[1:],
    ),
    "device failed": (
        *DEVICE,
        "[DEPEND] Dependency failed for dev-ttyS0.device - /dev/ttyS0.",
        *BOOTING[1:],
    ),
}


@pytest.mark.parametrize("where", WAITING)
def test_waiting_unit_on_console_is_named(story, where):
    story.boot()
    story.console(*WAITING[where])
    diagnosis = story.diagnosis()
    assert (diagnosis.fault, "site-setup.service" in diagnosis.seen) == ("boot-waits", True)


@pytest.mark.parametrize(
    "lines",
    [
        (WAITS, "[  OK  ] Finished site-setup.service - Set up the site."),
        (WAITS, "[  OK  ] Reached target multi-user.target - Multi-User System."),
        (WAITS, "debian login: "),
        (*BOOTING, "[FAILED] Failed to start site-setup.service."),
        (*BOOTING, "debian login: "),
        ("[ ***  ] (1 of 7) Job dev-ttyS0.device/start running (51s / 1min 30s)",),
        # A long name is cut short in its middle.
        BOOTING[3:4],
    ],
)
def test_ended_unit_or_boot_is_not_blamed(story, lines):
    story.boot()
    story.console(*lines)
    assert story.diagnosis().fault != "boot-waits"


@pytest.mark.parametrize(
    ("job", "ended"),
    [
        ("srv-data.mount", "[  OK  ] Mounted srv-data.mount - /srv/data."),
        ("srv-data.mount", "[FAILED] Failed to mount srv-data.mount - /srv/data."),
        ("dev-vdb.swap", "[  OK  ] Activated swap dev-vdb.swap - /dev/vdb."),
        ("ssh.socket", "[  OK  ] Listening on ssh.socket - OpenBSD Secure Shell server socket."),
        ("site.target", "[  OK  ] Reached target site.target - The site's."),
    ],
)
def test_job_of_each_unit_kind_ends_with_its_line(story, job, ended):
    story.boot()
    shown = f"[*     ] (1 of 2) Job {job}/start running (16s / 1min 30s)"
    story.console(shown)
    assert job in story.diagnosis().seen
    story.console(ended)
    assert story.diagnosis().fault != "boot-waits"


@pytest.mark.parametrize(
    ("job", "other"),
    [
        (r"dev-disk-by\x2duuid-2b1e.device", r"dev-disk-by\x2duuid-7c40.device - QEMU_HARDDISK 1"),
        ("systemd-tmpfiles-setup.service", "systemd-tmpfiles-setup-dev.service - Device Nodes"),
    ],
)
def test_job_with_same_beginning_is_distinguished(story, job, other):
    """The disk of the root file system comes; that of another file system does not."""
    story.boot()
    story.console(f"[*     ] Job {job}/start running (1min 2s / 1min 30s)")
    story.console(f"[  OK  ] Found device {other}.", f"[  OK  ] Finished {other}.")
    assert job in story.diagnosis().seen


def test_cause_is_not_named_for_stage_it_cannot_block(story):
    """The hook failed; the odd state of the agent's unit is not the reason."""
    story.failed(1)
    story.probe("health", answer(units=unit(UnitFileState="disabled"), clock="631152000"))
    assert story.diagnosis("CREATE_FAILED", "it failed").fault == "hook-failed"


HOOK = "/usr/libexec/heat-config/hooks/script"
NOEXEC = {"mounts": "/dev/vda / ext4 rw 0 0\n/dev/vdb /var ext4 rw,noexec 0 0"}
FAILED = [
    (126, "/var/lib/heat-config/heat-config-script/5c9f: Permission denied", NOEXEC,
     "no-exec", '"/var" is mounted noexec'),
    (126, "E: no such package", NOEXEC, "hook-failed", ""),
    (1, "cp: error writing 'x': No space left on device",
     {"space": "/ 196128 177272 3921 0 167133"}, "disk-full", '"/" is full'),
    (126, "", {"programs": f"carriage-return {HOOK}"},
     "line-ends", f'the lines of "{HOOK}" end as in Windows'),
    (126, "", {"programs": f"no-interpreter {HOOK} /usr/bin/python3.8"},
     "program-missing", f'"/usr/bin/python3.8", which runs "{HOOK}", does not exist'),
]  # fmt: skip


@pytest.mark.parametrize(("status", "stderr", "shown", "fault", "words"), FAILED)
def test_cause_of_failed_hook_is_named(story, status, stderr, shown, fault, words):
    story.failed(status)
    story.stderr = stderr
    story.probe("health", answer(**shown))
    diagnosis = story.diagnosis("CREATE_FAILED", "it failed")
    assert (diagnosis.fault, diagnosis.stage) == (fault, Stage.HOOK_FINISHED)
    assert words in diagnosis.seen


def test_fixed_address_is_named_beside_neutrons(story):
    story.deployed = False
    ports = [{"network": "lan", "cidr": "192.0.2.0/24", "addresses": ["192.0.2.44"]}]
    story.emit("nova", "boot", name="server", user_data_bytes=0, ports=ports)
    story.boot()
    story.emit("nova", "interfaces", ports=ports)
    story.console("debian login: ")
    shown = (
        "=== fixed-addresses\n/etc/network/interfaces 192.0.2.44\n/etc/netplan/1.yaml 10.0.0.9\n"
    )
    story.probe("disk", shown)
    assert story.diagnosis().seen == (
        '"/etc/netplan/1.yaml" fixes the address 10.0.0.9, and Neutron gave the server 192.0.2.44'
    )


def test_lines_of_oslo_configuration_are_not_quoted(story):
    """They may contain a password."""
    silent(story)
    story.agent(OSLO, Result="exit-code")
    assert "of mine" not in str(story.diagnosis())


SECTIONS = [*GOOD, "drop-ins", "environment", "firewall", "unwritable", "running", "packages",
            "datasource-list", "broken-yaml", "networks", "fstab", "default-target"]  # fmt: skip
WORDS = st.text(alphabet="/ =:.09az-_\"'\\\n\u00e9\u202e%{}[]()*+?", max_size=60)


@settings(max_examples=300, deadline=None)
@given(sections=st.dictionaries(st.sampled_from(SECTIONS), WORDS))
def test_causes_survive_any_answer(sections):
    text = "".join(f"=== {name}\n{words}\n" for name, words in sections.items())
    lines = ["A start job is running for x (1s / no limit)", "Timed out waiting for device /dev/x"]
    for stage in (*Stage, None):
        facts = Facts(stage, None, [], "CREATE_FAILED", "", 0.0, lines=lines)
        facts.probes["health"] = text
        for rule in CAUSES:
            # Others are not asked then.
            if rule.is_asked(stage):
                assert isinstance(rule.sees(facts), str)


def test_answer_is_parsed():
    state = Health.read(answer(units=f"{unit(NRestarts='4')}\n\n{unit('other.service')}"))
    assert state.unit(AGENT, "NRestarts") == "4"
    assert state.unit("other.service", "NRestarts") == "0"
    assert state.mount("/var/lib/heat-config") == ("/", {"rw", "relatime"})
    assert state.mount("/run/lock")[0] == "/run"
    assert Health().unit(AGENT, "NRestarts") == ""


def test_script_prints_proxy_without_secrets(tmp_path):
    proxy = "http://me:secret@proxy.example.com:3128/"
    answered = tmp_path / "units"
    answered.write_text(
        f"Result=success\nEnvironment=LC_ALL=C TOKEN=secret http_proxy={proxy} "
        f"NO_PROXY=localhost\nId={AGENT}\n\nEnvironment=https_proxy=http://other\nId=b.service\n"
    )
    stand_in = (
        f'systemctl() {{ [ "$1" != show ] || cat {answered}; }}\ntimeout() {{ shift; "$@"; }}\n'
    )
    done = subprocess.run(
        ["sh", "-c", stand_in + health.SCRIPT], capture_output=True, text=True, timeout=300
    )
    assert "secret" not in done.stdout
    state = Health.read(done.stdout)
    assert state.rows("environment", 2) == [
        ["http_proxy", "proxy.example.com:3128"],
        ["NO_PROXY", "localhost"],
    ]
    assert state.unit(AGENT, "Result") == "success"


def test_script_lists_carriage_returns_and_drop_in_programs(tmp_path):
    phase = tmp_path / "os-refresh-config" / "configure.d"
    phase.mkdir(parents=True)
    for name, text in {"40-crlf": "#!/bin/sh\r\n", "50-good": "#!/bin/sh\n"}.items():
        (phase / name).write_text(text, newline="")
        (phase / name).chmod(0o755)
    drop_in = tmp_path / "system" / f"{AGENT}.d" / "site.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(
        "[Service]\nExecStart=\nExecStart=/opt/run --password secret\nLimitNOFILE=6\n"
    )
    script = health.SCRIPT.replace("/etc/systemd/system", str(drop_in.parent.parent))
    script = script.replace("/usr/libexec/os-refresh-config", str(phase.parent))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=300)
    state = Health.read(done.stdout)
    assert f"carriage-return {phase}/40-crlf" in state.lines("programs")
    assert not any("50-good" in line for line in state.lines("programs"))
    assert "gone /opt/run /opt/run" in state.lines("programs")
    assert state.drop_ins("ExecStart|Limit[A-Z]+") == [
        (str(drop_in), "ExecStart="),
        (str(drop_in), "ExecStart=/opt/run"),
        (str(drop_in), "LimitNOFILE=6"),
    ]
    assert "secret" not in done.stdout


def test_script_is_posix_shell_and_answers_in_sections():
    """Without systemd, as in a container, the other sections are answered."""
    done = subprocess.run(
        ["sh", "-c", health.SCRIPT], capture_output=True, text=True, timeout=300, check=True
    )
    state = Health.read(done.stdout)
    assert next(iter(state.sections)) == "clock"
    assert list(state.sections)[-1] == "end"
    assert state.lines("clock")[0].isdigit()
    assert state.mount("/")[0] == "/"
    rows = [line.split()[:2] for line in Path("/etc/fstab").read_text().splitlines()]
    assert state.rows("fstab", 2) == [row for row in rows if row and row[0][0] != "#"]
