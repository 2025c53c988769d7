"""Faults as users make them, planted in running guests; each diagnosis names the fix.

The list was made before the verdict's rules, from faults of images in use. The diagnosis has to
name the cause that a user would fix, not the symptom.
"""

from __future__ import annotations

import pytest

from tests.booted.user_faults import AGENT, RESTART, START, STOP, UserFault, is_named

pytestmark = pytest.mark.boots

#: Faults of a disk, a kernel or a clock, which no container has of its own.
QEMU = (
    "root-full",
    "root-read-only",
    "state-immutable",
    "memory-limit",
    "clock-in-1990",
    "clock-in-2040",
)

REFRESH = "/usr/libexec/os-refresh-config"
HOOKS = "/usr/libexec/heat-config/hooks"
LIBRARY = "/usr/libexec/heat-config/lib"
UNITS = "/etc/systemd/system"


def drop_in(text: str) -> str:
    """Return commands that add a drop-in to the agent's unit and restart it."""
    folder = f"{UNITS}/{AGENT}.service.d"
    return (
        f"mkdir -p {folder}; printf '[Service]\\n{text}\\n' > {folder}/site.conf; "
        f"systemctl daemon-reload; {RESTART}"
    )


#: Faults planted in a running guest before a deployment.
IN_A_GUEST = (
    UserFault(
        "unit-masked",
        f"systemctl stop {AGENT}; rm {UNITS}/{AGENT}.service; "
        f"ln -s /dev/null {UNITS}/{AGENT}.service; systemctl daemon-reload",
        (r"os-collect-config\.service", "masked"),
    ),
    UserFault(
        "phase-script-deleted",
        f"rm {REFRESH}/configure.d/55-heat-config",
        ("55-heat-config", "not exist|gone|missing"),
    ),
    UserFault(
        "phase-script-not-executable",
        f"chmod a-x {REFRESH}/configure.d/55-heat-config",
        ("55-heat-config", "not executable"),
    ),
    UserFault("hooks-deleted", f"rm {HOOKS}/*", ("hook", "script", r"heat-config-script|group")),
    UserFault(
        "hook-interpreter-gone",
        f"sed -i '1s/.*/#!\\/usr\\/bin\\/python3.8 -IS/' {HOOKS}/script",
        ("hooks/script", r"/usr/bin/python3\.8"),
    ),
    UserFault(
        "phase-script-hangs",
        f"printf '#!/bin/sh\\nuntil test -e /run/mysqld.sock; do sleep 1; done\\n' "
        f"> {REFRESH}/configure.d/40-mysql; chmod 755 {REFRESH}/configure.d/40-mysql",
        ("40-mysql",),
    ),
    UserFault(
        "template-deleted",
        "rm /usr/libexec/os-apply-config/templates/var/run/heat-config/heat-config",
        ("os-apply-config/templates/var/run/heat-config/heat-config",),
    ),
    UserFault(
        "root-full",
        "dd if=/dev/zero of=/var/log/app.log bs=1M 2>/dev/null; "
        "dd if=/dev/zero of=/var/log/app2.log bs=1 count=4096 2>/dev/null; true",
        ("full|space", r'"/"'),
    ),
    UserFault(
        "inodes-gone",
        "mkdir /tmp/few; mount -t tmpfs -o nr_inodes=60 few /tmp/few; "
        "cp -a /var/lib/heat-config /tmp/few/ 2>/dev/null; mkdir -p /tmp/few/heat-config; "
        "mount --bind /tmp/few/heat-config /var/lib/heat-config; "
        "cd /var/lib/heat-config; i=0; while : > session.$i; do i=$((i+1)); done 2>/dev/null; true",
        ("inode", "/var/lib/heat-config"),
    ),
    UserFault(
        "root-read-only",
        "sync; echo u > /proc/sysrq-trigger; sleep 1",
        ('"/"', "read-only"),
    ),
    UserFault(
        "state-read-only",
        "mount --bind /var/lib /var/lib && mount -o remount,bind,ro /var/lib",
        ("/var/lib", "read-only"),
    ),
    UserFault(
        "state-immutable",
        "chattr -R +i /var/lib/heat-config",
        ("/var/lib/heat-config", "cannot be written|immutable|not permitted"),
    ),
    UserFault(
        "state-noexec",
        "mount --bind /var/lib/heat-config /var/lib/heat-config && "
        "mount -o remount,bind,noexec /var/lib/heat-config",
        ("/var/lib/heat-config", "noexec"),
    ),
    UserFault(
        "link-switched-off",
        "dev=$(ls /sys/class/net | grep -v lo | head -n 1); ip link set $dev down",
        ("is down|switched off",),
    ),
    UserFault(
        "routes-deleted",
        "ip route flush table main",
        ("no route", r"169\.254\.169\.254"),
    ),
    UserFault(
        "signal-port-shut",
        "ip rule add dport 8080 prohibit",
        ("8080", "rule|firewall|prohibit|unreachable"),
        transport="TEMP_URL_SIGNAL",
    ),
    UserFault(
        "proxy",
        drop_in("Environment=http_proxy=http://192.0.2.1:3128"),
        ("proxy", r"192\.0\.2\.1:3128"),
    ),
    UserFault(
        "hardened-read-only",
        drop_in("ProtectSystem=strict"),
        ("ProtectSystem|read-only", r"site\.conf|os-collect-config"),
    ),
    UserFault(
        "hardened-no-network",
        drop_in("PrivateNetwork=yes"),
        ("PrivateNetwork", "site.conf|os-collect-config"),
    ),
    UserFault(
        "memory-limit",
        drop_in("MemoryMax=6M\\nMemorySwapMax=0"),
        ("memory", "MemoryMax|limit|OOM|killed"),
    ),
    UserFault(
        "file-limit",
        drop_in("LimitNOFILE=6"),
        ("LimitNOFILE=6", r"site\.conf"),
    ),
    UserFault(
        "other-command",
        drop_in("ExecStart=\\nExecStart=/opt/agent/bin/run --password secret"),
        (r"site\.conf", '/opt/agent/bin/run", which does not exist'),
    ),
    UserFault(
        "configuration-unreadable",
        f"{STOP}; echo 'this is no option' >> /etc/os-collect-config.conf; {START}",
        (r"/etc/os-collect-config\.conf", r"line \d+ has neither"),
    ),
    UserFault(
        "phase-script-syntax",
        f"printf '#!/bin/sh\\nif true; then\\n)\\n' > {REFRESH}/pre-configure.d/40-site; "
        f"chmod 755 {REFRESH}/pre-configure.d/40-site",
        ("pre-configure.d/40-site: 3: Syntax error",),
    ),
    UserFault(
        "template-broken",
        "printf '{{#a}}x{{/b}}\\n' > /usr/libexec/os-apply-config/templates/etc/site.conf",
        ("templates/etc/site.conf", "section"),
    ),
    UserFault(
        "hook-with-carriage-returns",
        f"sed -i 's/$/\\r/' {HOOKS}/script",
        ("hooks/script", "carriage return"),
    ),
    UserFault("hook-misnamed", f"mv {HOOKS}/script {HOOKS}/script.py", (r"script\.py", "name")),
    UserFault(
        "interpreter-gone",
        f"ln -sfn python3.9 /usr/bin/python3; {RESTART}",
        (r"/usr/bin/python3", r"/usr/bin/python3\.9"),
    ),
    UserFault(
        "library-folder-gone",
        f"mv {LIBRARY} {LIBRARY}.old; {RESTART}",
        (r"No module named .*heat_agent",),
    ),
    UserFault(
        "bash-gone",
        f"mv /usr/bin/bash /usr/bin/bash.old; rm -rf /run/{AGENT}.*; {RESTART}",
        (),
        # The image's agent and its script hook do not need bash.
        harmless=True,
    ),
    UserFault(
        "start-script-gone",
        f"rm /usr/libexec/os-collect-config/start; {RESTART}",
        ("/usr/libexec/os-collect-config/start",),
    ),
    UserFault(
        "library-gone",
        f"rm {LIBRARY}/heat_agent/collect/agent.py; {RESTART}",
        (r"cannot import|No module named .*heat_agent\.collect\.agent",),
    ),
    UserFault(
        "two-agents",
        f"sed 's/^Description=.*/Description=legacy agent/' {UNITS}/{AGENT}.service "
        f"> {UNITS}/heat-agent-legacy.service; systemctl daemon-reload; "
        "systemctl start heat-agent-legacy; sleep 20",
        # The runner's lock lets only one of them run it, once.
        ("two|twice|second", "heat-agent-legacy"),
        harmless=True,
    ),
    UserFault(
        "old-configuration",
        # A run that is cut by the stop is taken up again, and writes the right address.
        "until [ -e /run/heat-config/heat-config ]; do sleep 0.1; done; "
        "flock -w 300 /run/os-refresh-config.lock true; "
        f"{STOP}; sed -i 's|^metadata_url.*|metadata_url = http://192.0.2.7:8000/v1|; "
        "s|169.254.169.254|192.0.2.7|g' /etc/os-collect-config.conf "
        f"/var/lib/heat-cfntools/cfn-init-data; {START}",
        (r"192\.0\.2\.7", r"os-collect-config\.conf|cfn-init-data"),
    ),
    UserFault(
        "clock-in-1990",
        f"date -s 1990-01-01; {RESTART}",
        (),
        # A poll has no time in its signature, a signal has that of Heat.
        harmless=True,
    ),
    UserFault(
        "clock-in-2040",
        f"date -s 2040-01-01; {RESTART}",
        (),
        # A poll has no time in its signature, a signal has that of Heat.
        harmless=True,
    ),
)


def _row(fault: UserFault) -> object:
    return pytest.param(fault, id=fault.name)


@pytest.mark.parametrize("fault", [_row(each) for each in IN_A_GUEST if each.name not in QEMU])
def test_fault_planted_in_a_guest_is_named(pool, fault):
    is_named(pool, fault)


@pytest.mark.qemu
@pytest.mark.long
@pytest.mark.parametrize("fault", [_row(each) for each in IN_A_GUEST if each.name in QEMU])
def test_fault_of_a_disk_or_a_kernel_is_named(pool, fault):
    is_named(pool, fault)
