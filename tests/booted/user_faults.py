"""Faults as users make them, and what a person who mends them has to be told.

Planned before the rules of the verdict for them were written, by what goes wrong with images in
use: what is said of each is the cause that a person would mend, not where it shows.
"""

from __future__ import annotations

from dataclasses import dataclass

AGENT = "os-collect-config"
REFRESH = "/usr/libexec/os-refresh-config"
HOOKS = "/usr/libexec/heat-config/hooks"
UNITS = "/etc/systemd/system"


@dataclass(frozen=True)
class UserFault:
    """One fault.

    :param plant: commands of a shell.  ``In a guest``: as root in one that runs.  ``In an image``:
        in the root directory of its mounted file system, on the host.
    :param says: regular expressions that the last line has, whatever their case.
    :param append: words for the kernel's command line.
    :param memory: MiB that the guest has.
    """

    name: str
    plant: str
    says: tuple[str, ...]
    release: str = "trixie"
    append: str = ""
    memory: int = 0

    def __str__(self) -> str:
        return self.name


def drop_in(text: str) -> str:
    """Commands that add to the agent's unit in a guest, and start it anew."""
    folder = f"{UNITS}/{AGENT}.service.d"
    return (
        f"mkdir -p {folder}; printf '[Service]\\n{text}\\n' > {folder}/site.conf; "
        f"systemctl daemon-reload; systemctl restart --no-block {AGENT}"
    )


def offline_unit(name: str, lines: str, wanted_by: str = "multi-user.target") -> str:
    """Commands that add a unit of the site to an image."""
    return (
        f"printf '{lines}' > .{UNITS}/{name}; mkdir -p .{UNITS}/{wanted_by}.wants; "
        f"ln -s ../{name} .{UNITS}/{wanted_by}.wants/{name}"
    )


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
        ("55-heat-config", "not there|gone|missing"),
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
        drop_in("MemoryMax=20M\\nMemorySwapMax=0"),
        ("memory", "MemoryMax|limit|OOM|killed"),
    ),
    UserFault(
        "venv-interpreter-gone",
        "ln -sfn /usr/bin/python3.9 /opt/heat-agent/bin/python3; "
        f"systemctl restart --no-block {AGENT}",
        (r"/opt/heat-agent/bin/python", r"/usr/bin/python3\.9"),
    ),
    UserFault(
        "python-upgraded",
        f"cd /opt/heat-agent/lib; mv python3.1? python3.7; systemctl restart --no-block {AGENT}",
        ("/opt/heat-agent", r"python ?3\.7"),
    ),
    UserFault(
        "bash-gone",
        f"mv /usr/bin/bash /usr/bin/bash.old; rm -rf /run/{AGENT}.*; "
        f"systemctl restart --no-block {AGENT}",
        ("/bin/bash",),
    ),
    UserFault(
        "start-script-gone",
        f"rm /usr/libexec/os-collect-config/start; systemctl restart --no-block {AGENT}",
        ("/usr/libexec/os-collect-config/start",),
    ),
    UserFault(
        "library-gone",
        "rm /opt/heat-agent/lib/python3*/site-packages/requests/__init__.py; "
        f"systemctl restart --no-block {AGENT}",
        ("requests|cannot import|No module",),
    ),
    UserFault(
        "two-agents",
        f"sed 's/^Description=.*/Description=legacy agent/' {UNITS}/{AGENT}.service "
        f"> {UNITS}/heat-agent-legacy.service; systemctl daemon-reload; "
        "systemctl start heat-agent-legacy; sleep 20",
        ("two|twice|second", "heat-agent-legacy"),
    ),
    UserFault(
        "old-configuration",
        "sed -i 's|^metadata_url.*|metadata_url = http://192.0.2.7:8000/v1|; "
        "s|169.254.169.254|192.0.2.7|g' /etc/os-collect-config.conf "
        f"/var/lib/heat-cfntools/cfn-init-data; systemctl restart --no-block {AGENT}",
        (r"192\.0\.2\.7", r"os-collect-config\.conf|cfn-init-data"),
    ),
    UserFault(
        "clock-in-1990",
        f"date -s 1990-01-01; systemctl restart --no-block {AGENT}",
        ("clock", "1990"),
    ),
    UserFault(
        "clock-in-2040",
        f"date -s 2040-01-01; systemctl restart --no-block {AGENT}",
        ("clock", "2040"),
    ),
)
"""Planted in a guest that runs, before something is deployed to it."""

IN_AN_IMAGE = (
    UserFault(
        "agent-masked",
        f"rm .{UNITS}/{AGENT}.service; ln -s /dev/null .{UNITS}/{AGENT}.service",
        (r"os-collect-config\.service", "masked"),
    ),
    UserFault(
        "agent-disabled-by-a-preset",
        f"rm .{UNITS}/multi-user.target.wants/{AGENT}.service; "
        "mkdir -p etc/systemd/system-preset; "
        f"echo 'disable {AGENT}.service' > etc/systemd/system-preset/10-site.preset",
        (r"os-collect-config", "not enabled|disabled"),
        release="bookworm",
    ),
    UserFault(
        "networkd-masked",
        f"ln -sf /dev/null .{UNITS}/systemd-networkd.service",
        (r"systemd-networkd\.service", "masked"),
    ),
    UserFault(
        "cloud-init-masked",
        f"ln -sf /dev/null .{UNITS}/cloud-init-local.service; "
        f"ln -sf /dev/null .{UNITS}/cloud-init.service",
        (r"cloud-init(-local)?\.service", "masked"),
        release="bookworm",
    ),
    UserFault(
        "cloud-init-disabled-by-a-file",
        "touch etc/cloud/cloud-init.disabled",
        (r"/etc/cloud/cloud-init\.disabled",),
    ),
    UserFault(
        "cloud-init-disabled-by-a-word",
        "true",
        ("cloud-init=disabled",),
        append="cloud-init=disabled",
    ),
    UserFault(
        "other-datasource",
        "echo 'datasource_list: [ NoCloud ]' > etc/cloud/cloud.cfg.d/99-site.cfg",
        ("datasource_list", r"99-site\.cfg"),
        release="bookworm",
    ),
    UserFault(
        "cloud-config-broken",
        "printf 'users:\\n- name: ops\\n   shell: [\\n' > etc/cloud/cloud.cfg.d/99-site.cfg; "
        "printf 'datasource_list: [ OpenStack\\n' >> etc/cloud/cloud.cfg.d/99-site.cfg",
        (r"99-site\.cfg",),
    ),
    UserFault(
        "python-gone",
        "rm usr/bin/python3",
        ("/usr/bin/python3",),
        release="bookworm",
    ),
    UserFault(
        "half-upgraded",
        "rm usr/lib/x86_64-linux-gnu/libexpat.so.1*; "
        "sed -i '/^Package: libexpat1$/,/^$/s/^Status: .*/Status: install ok half-installed/' "
        "var/lib/dpkg/status",
        (r"libexpat",),
    ),
    UserFault(
        "link-switched-off-after-the-boot",
        offline_unit(
            "site-lockdown.service",
            "[Unit]\\nAfter=network-online.target cloud-init-local.service cloud-init.service "
            "cloud-init-network.service\\n[Service]\\nType=oneshot\\n"
            'ExecStart=/bin/sh -c "sleep 2; for d in /sys/class/net/e*; do ip link set "'
            '"\\$$(basename \\$$d) down; done"\\n',
        ),
        ("down|switched off",),
    ),
    UserFault(
        "root-read-only-by-fstab",
        "sed -i 's/ext4 *defaults/ext4 ro/' etc/fstab",
        ('"/"', "read-only"),
    ),
    UserFault(
        "inodes-gone-in-the-image",
        "mkdir -p var/spool/app; cd var/spool/app; "
        "seq -f 'session.%06.0f' 1 200000 | xargs touch 2>/dev/null; true",
        ("inode",),
    ),
    UserFault(
        "missing-disk-in-fstab",
        "echo '/dev/vdb /data ext4 defaults 0 2' >> etc/fstab",
        ("/etc/fstab", "/dev/vdb|/data"),
        release="bookworm",
    ),
    UserFault(
        "rescue-by-default",
        f"ln -sf /usr/lib/systemd/system/rescue.target .{UNITS}/default.target",
        (r"rescue\.target", "default"),
        release="bookworm",
    ),
    UserFault(
        "unit-that-hangs-in-the-boot",
        offline_unit(
            "site-setup.service",
            "[Unit]\\nBefore=cloud-init-network.service cloud-init.service\\n"
            "DefaultDependencies=no\\n[Service]\\nType=oneshot\\nTimeoutStartSec=infinity\\n"
            "ExecStart=/bin/sleep infinity\\n",
            "sysinit.target",
        ),
        (r"site-setup\.service",),
    ),
    UserFault(
        "other-interface",
        "printf '[Match]\\nName=ens192\\n[Network]\\nDHCP=yes\\n' "
        "> etc/systemd/network/90-heat-config.network",
        ("ens192|matches no|no .network file",),
    ),
    UserFault(
        "old-state-baked-in",
        "printf '[DEFAULT]\\ncommand = os-refresh-config\\ncollectors = cfn\\n\\n[cfn]\\n"
        "metadata_url = http://192.0.2.7:8000/v1/\\nstack_name = old\\npath = s.Metadata\\n"
        "access_key_id = old\\nsecret_access_key = old\\n' > etc/os-collect-config.conf; "
        "mkdir -p var/lib/heat-cfntools; echo '{}' > var/lib/heat-cfntools/cfn-init-data",
        (r"192\.0\.2\.7", r"os-collect-config\.conf"),
        release="bookworm",
    ),
    UserFault(
        "little-memory",
        "true",
        ("memory",),
        memory=96,
    ),
)
"""Planted in the image, which is then booted and tested."""
