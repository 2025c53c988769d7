"""The health of a guest: one script that collects its state, and its answer as a record.

A person at the guest's keyboard looks at the same few things for any fault: units, mounts,
routes, the clock, dependencies of programs.  The script prints them in sections, reads only,
starts few processes (an emulated guest needs its time for each), and uses only ``sh`` and the
tools of systemd and iproute2, since Python or bash may be missing.  It prints no inputs, outputs
or secrets: only the host of an address, and only the script that a process runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hotplate.inspection.findings import OPEN_DIRECTORIES

#: The address at which every guest reaches its cloud, the same as in :mod:`hotplate.cloud.http`.
CLOUD = "169.254.169.254"

AGENT = "os-collect-config.service"
REFRESH = "/usr/libexec/os-refresh-config"
PHASE_SCRIPT = f"{REFRESH}/configure.d/55-heat-config"
TEMPLATE = "/usr/libexec/os-apply-config/templates/var/run/heat-config/heat-config"
HOOKS = "/usr/libexec/heat-config/hooks"
#: With that of the guest's own administrator.
HOOK_FOLDERS = (HOOKS, "/var/lib/heat-config/hooks")
STATE = ("/var/lib/heat-config", "/var/lib/os-collect-config")

#: Units other than systemd-networkd that may bring up an image's network.
OTHER_RENDERERS = ("networking.service", "NetworkManager.service", "dhcpcd.service")

#: The most characters of a line, which becomes part of a sentence.
LINE = 400

UNITS = (
    AGENT,
    "systemd-networkd.service",
    *OTHER_RENDERERS,
    "cloud-init-local.service",
    "cloud-init.service",
    "cloud-init-network.service",
    "cloud-config.service",
    "cloud-final.service",
)
_PROPERTIES = (
    "Id,LoadState,UnitFileState,ActiveState,SubState,Result,NRestarts,ExecMainStatus,FragmentPath,"
    "DropInPaths,ProtectSystem,PrivateNetwork,IPAddressDeny,RestrictAddressFamilies,MemoryMax,User"
)
_CONFINES = (
    "ProtectSystem|PrivateNetwork|IPAddressDeny|RestrictAddressFamilies|User|Environment|ExecStart"
    "|Limit[A-Z]+|TasksMax|Memory[A-Za-z]+|Requires|Requisite|BindsTo|(Condition|Assert)[A-Za-z]+"
)

SCRIPT = rf"""
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
section() {{ echo "=== $1"; }}
limited() {{ timeout 30 "$@" 2>&1; }}
cr=$(printf '\r')
# Where a program or a script cannot run: it, or what its first line names, is not there.
program() {{
    if [ ! -e "$1" ]; then
        echo "gone $1 $(readlink -f "$1")"
        return
    fi
    [ -d "$1" ] && return
    [ -x "$1" ] || echo "not-executable $1"
    line=
    IFS= read -r line < "$1" 2> /dev/null
    case $line in
    '#!'*"$cr")
        echo "carriage-return $1"
        return
        ;;
    '#!'*) ;;
    *) return ;;
    esac
    set -f
    set -- "$1" ${{line#??}}
    set +f
    case $2 in
    */env)
        case ${{3:--}} in
        -* | *=*) ;;
        *) command -v "$3" > /dev/null || echo "no-interpreter $1 $3" ;;
        esac
        ;;
    *) [ -x "$2" ] || echo "no-interpreter $1 $2 $(readlink -f "$2")" ;;
    esac
}}
proxies() {{
    grep ^Environment= | tr ' ' '\n' |
        sed -nE 's|^(Environment=)?"?([a-z]*_proxy)=([a-z0-9]*://)?([^/@]*@)?([^/]*).*|\2 \5|Ip'
}}
section clock
date +%s
units=$(limited systemctl show --property={_PROPERTIES},Environment {" ".join(UNITS)})
section units
echo "$units" | grep -v ^Environment=
section missing-requirements
required=$(limited systemctl show --property=Requires,Requisite,BindsTo --value {AGENT})
[ -z "$required" ] || limited systemctl show --property=Id,LoadState $required |
    sed -n '/^Id=/{{ s///; h; }}; /^LoadState=\(not-found\|masked\)/{{ x; p; }}'
section jobs
limited systemctl list-jobs --no-legend --no-pager
section environment
# Of the first unit, which is the agent's.
echo "$units" | sed '/^$/q' | proxies
section manager-environment
limited systemctl show --property=Environment | proxies
section default-environment
grep -sliE '^ *DefaultEnvironment=.*_proxy' \
    /etc/systemd/system.conf /etc/systemd/system.conf.d/*.conf
section drop-ins
grep -sHE '^ *({_CONFINES})=' \
    /etc/systemd/system/{AGENT}.d/*.conf /run/systemd/system/{AGENT}.d/*.conf \
    /usr/lib/systemd/system/{AGENT}.d/*.conf |
    sed -e 's/\(Environment[A-Za-z]*\)=.*/\1/' -e 's/\(ExecStart=[^ ]*\).*/\1/'
section addresses
ip -brief address
section networks
for path in /etc/systemd/network/*.network /run/systemd/network/*.network; do
    [ -e $path ] && echo "$path" $(sed -n '/^\[Match\]/,/^\[[^M]/{{ /^\[/!p }}' $path)
done
section renderer-log
limited journalctl --boot --quiet --no-pager --output=cat --priority=warning \
    {" ".join(f"--unit={name}" for name in ("systemd-networkd.service", *OTHER_RENDERERS))} |
    grep -vE 'Failed with result|Failed to start|Main process exited|repeated too quickly' |
    tail -n 3
section routes
for port in 80 5000 8000 8004 8080 8888; do
    route=$(ip route get {CLOUD} ipproto tcp dport $port 2>&1)
    echo "$port ${{route%%
*}}"
done
section rules
ip rule
section firewall
command -v nft > /dev/null && limited nft list ruleset | grep -E 'drop|reject' | head -n 20
command -v iptables-save > /dev/null && limited iptables-save | grep -E 'DROP|REJECT' | head -n 20
section space
stat -f -c '%n %c %d %f %a %b' / /etc /run /tmp /var /var/lib {" ".join(STATE)} 2> /dev/null
section mounts
cat /proc/mounts
section fstab
while read -r device point rest; do
    case $device in
    '' | '#'*) ;;
    *) echo "$device $point" ;;
    esac
done 2> /dev/null < /etc/fstab
section closed
limited stat -L -c '%a %n' {" ".join(OPEN_DIRECTORIES)} | grep -vE '^[0-7]*[1357] '
section unwritable
for directory in / /etc /run /var /var/lib {" ".join(STATE)} /var/lib/heat-config/*; do
    [ -d "$directory" ] && [ ! -w "$directory" ] && echo "$directory"
done
section programs
sed -n 's/^ExecStart=[-@:+!]*\(\/[^ ]*\).*/\1/p' /etc/systemd/system/{AGENT} \
    /usr/lib/systemd/system/{AGENT} /lib/systemd/system/{AGENT} \
    /etc/systemd/system/{AGENT}.d/*.conf 2> /dev/null |
    while read -r path; do program "$path"; done
for path in {REFRESH}/*.d/* {"/* ".join(HOOK_FOLDERS)}/* /usr/libexec/os-collect-config/prepare \
    /usr/local/bin/os-*-config /usr/local/bin/heat-config-notify; do
    if [ -e "$path" ] || [ -L "$path" ]; then program "$path"; fi
done
if [ -d {REFRESH}/configure.d ] && [ ! -e {PHASE_SCRIPT} ]; then echo "gone {PHASE_SCRIPT}"; fi
if [ -d /usr/libexec/os-apply-config ] && [ ! -e {TEMPLATE} ]; then echo "gone {TEMPLATE}"; fi
section hooks
ls {" ".join(HOOK_FOLDERS)} 2> /dev/null
section agents
grep -lzsaE '/(bin/os-collect-config|os-collect-config/start)$' /proc/[0-9]*/cmdline |
    while read -r file; do sed -n '$s/.*://p' "${{file%cmdline}}cgroup" 2> /dev/null; done | sort -u
section running
grep -hzsaE '^({REFRESH}/[a-z-]*\.d|{"|".join(HOOK_FOLDERS)})/[A-Za-z0-9._-]+$' \
    /proc/[0-9]*/cmdline | tr '\0' '\n'
section collect-conf
sed -n 's|^\([a-z_]*url\) *= *[a-z]*://\([^/@]*@\)\?\([^/]*\).*|\1 \3|p' /etc/os-collect-config.conf
section boot-metadata
grep -so '"metadata_url": *"[a-z]*://[^/"]*' /var/lib/heat-cfntools/cfn-init-data |
    sed -E 's|.*://([^@]*@)?||'
section packages
sed -n '/^Package: /h; /^Status: .* ok \(installed\|config-files\|not-installed\)$/d
    /^Status: /{{ H; x; s/\nStatus: / /; s/^Package: //; p }}' /var/lib/dpkg/status 2> /dev/null |
    head -n 20
section cloud-init
ls /etc/cloud/cloud-init.disabled /run/cloud-init/disabled 2> /dev/null
grep -o 'cloud-init=[a-z]*' /proc/cmdline
section datasource-list
# The list in effect: later files override earlier ones.
grep -sH '^datasource_list:' /etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d/*.cfg | tail -n 1 |
    sed 's/:datasource_list: */ /'
section default-target
readlink /etc/systemd/system/default.target | sed 's|.*/||'
section kernel
dmesg 2> /dev/null | grep -E 'apparmor="DENIED"|avc: +denied|oom-kill:' | tail -n 5
section end
"""


@dataclass(frozen=True)
class Health:
    """The answer.

    :param sections: the lines of each section; empty when nobody asked or nobody answered.
    """

    sections: Mapping[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Health:
        """Parse the output of the script."""
        sections: dict[str, list[str]] = {}
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("=== "):
                lines = sections.setdefault(line[4:].strip(), [])
            elif line.strip():
                lines.append(line.rstrip()[:LINE])
        return cls(sections)

    def lines(self, section: str) -> list[str]:
        """Return the lines of a section, none when it was not answered."""
        return self.sections.get(section, [])

    def rows(self, section: str, columns: int) -> list[list[str]]:
        """Return a section's lines as so many words each, the last with the rest of the line."""
        rows = [line.split(None, columns - 1) for line in self.lines(section)]
        return [row + [""] * (columns - len(row)) for row in rows]

    @cached_property
    def units(self) -> dict[str, dict[str, str]]:
        """The properties of each unit."""
        units: dict[str, dict[str, str]] = {}
        unit: dict[str, str] = {}
        for line in self.lines("units"):
            key, _, value = line.partition("=")
            # The order of properties is systemd's own, but those of a unit are together.
            if key in unit:
                unit = {}
            unit[key] = value
            if key == "Id":
                units[value] = unit
        return units

    def unit(self, name: str, key: str) -> str:
        """Return a property of a unit, "" when it was not answered."""
        return self.units.get(name, {}).get(key, "")

    @property
    def space(self) -> list[tuple[str, list[int]]]:
        """For each directory: inodes, free inodes, free blocks, blocks free for users, blocks."""
        rows = [re.fullmatch(r"(/\S*)((?: \d{1,18}){5})", line) for line in self.lines("space")]
        return [(each[1], [int(word) for word in each[2].split()]) for each in rows if each]

    def seconds(self, section: str) -> int | None:
        """Return a time since the epoch, None when it is missing or out of a clock's range."""
        match = re.fullmatch(r"-?\d{1,10}", "".join(self.lines(section)))
        return int(match[0]) if match else None

    def drop_in(self, directive: str) -> str:
        """Return the drop-in that gives the agent's unit a directive, "" when none does."""
        return next((path for path, _ in self.drop_ins(directive)), "")

    def drop_ins(self, directive: str) -> list[tuple[str, str]]:
        """Return the drop-ins that give the agent's unit a directive, each with its line.

        :param directive: a regular expression.
        """
        rows = [line.partition(":") for line in self.lines("drop-ins")]
        return [
            (path, text.strip())
            for path, _, text in rows
            if re.match(rf"\s*(?:{directive})\b", text)
        ]

    def mount(self, path: str) -> tuple[str, set[str]]:
        """Return the mount point that a directory is on, with its options."""
        best, options = "", set[str]()
        for row in self.rows("mounts", 6):
            point = row[1]
            on_it = path == point or path.startswith(point.rstrip("/") + "/")
            if on_it and len(point) >= len(best):
                best, options = point, set(row[3].split(","))
        return best, options
