"""Standard checks of an OpenStack image: their table, and those that need no agent of ours.

The table has each check once, whether :mod:`hotplate.inspection.findings`, this module or, in a
booted guest, :mod:`hotplate.verdict.guest_standard` makes it; an id that both an image and a guest
can fail names the same fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotplate.inspection.boot_entries import kernel_words
from hotplate.inspection.contents import Contents
from hotplate.inspection.findings import (
    HEAT_SOURCES,
    URL_PASSWORD,
    ImageFault,
    Level,
    left,
    named,
    places_of_urls,
)
from hotplate.inspection.partitions import Partition

GUIDE = "https://docs.openstack.org/image-guide/openstack-images.html"
LISA = "https://github.com/microsoft/lisa (azure_image_standard.py, {})"
SYSTEMD = "https://systemd.io/BUILDING_IMAGES/"
SYSPREP = "virt-sysprep(1), operation {}"
CLOUD_INIT = "https://docs.cloud-init.io/en/latest/reference/datasources/{}.html"
DEPLOYMENTS = "https://docs.openstack.org/heat/latest/template_guide/software_deployment.html"
NOVA_METADATA = "https://docs.openstack.org/nova/latest/user/metadata.html"

#: The units of programs that synchronise the clock, of all distributions.
TIME_UNITS = (
    "systemd-timesyncd",
    "chrony",
    "chronyd",
    "ntp",
    "ntpd",
    "ntpsec",
    "openntpd",
    "phc2sys",
)
SERIAL_CONSOLE = re.compile(r"console=(?:ttyS|ttyAMA|hvc)\d")


@dataclass(frozen=True)
class StandardCheck:
    """A row of :data:`STANDARD`.

    :param id: a stable word, for ``--skip``, scripts and the ``kind`` in JSON.
    :param level: of its finding in an image; None for a check of a booted guest only.
    :param reason: the consequence, without a full stop.
    :param source: of the demand: a page, a manual or another test suite.
    :param guest: a booted guest is checked for it.
    """

    id: str
    level: Level | None
    reason: str
    source: str
    guest: bool = False


_FAILS, _LEFT, _DIFFERS = Level.FAILS, Level.LEFT, Level.DIFFERS

STANDARD: tuple[StandardCheck, ...] = (
    StandardCheck(
        "no-boot-loader",
        _FAILS,
        "neither boot code for a BIOS nor an EFI system partition starts the disk",
        "https://docs.openstack.org/nova/latest/admin/uefi.html",
    ),
    StandardCheck(
        "no-kernel-beside",
        _FAILS,
        "a file system without a boot loader needs its kernel and initrd beside it",
        "https://docs.openstack.org/glance/latest/admin/useful-image-properties.html (kernel_id)",
    ),
    StandardCheck(
        "no-kernel",
        _FAILS,
        "a BIOS starts a boot loader, which finds no kernel in ``/boot``",
        "boot(7)",
    ),
    StandardCheck("no-init", _FAILS, "the kernel has nothing to start", "boot(7)"),
    StandardCheck(
        "closed-directory",
        _FAILS,
        "services of unprivileged users do not start, or do not find their files",
        "file-hierarchy(7)",
    ),
    StandardCheck(
        "fstab",
        _FAILS,
        "the boot waits for a file system that is not there, and ends in the emergency shell",
        "fstab(5)",
    ),
    StandardCheck(
        "unclean",
        _FAILS,
        "the disk was copied from a running server, so the last writes may be missing",
        "https://docs.openstack.org/nova/latest/user/launch-instances.html (snapshots)",
    ),
    StandardCheck("no-agent", _FAILS, "no deployment runs without the agent", DEPLOYMENTS),
    StandardCheck(
        "agent-incomplete", _FAILS, "the agent runs no deployment without its programs", DEPLOYMENTS
    ),
    StandardCheck("agent-not-started", _FAILS, "no boot starts the agent", DEPLOYMENTS),
    StandardCheck("no-runner", _FAILS, "no deployment reaches a hook", DEPLOYMENTS),
    StandardCheck(
        "no-hook", _FAILS, "each deployment stays in progress until its stack gives up", DEPLOYMENTS
    ),
    StandardCheck("hook-not-executable", _FAILS, "a hook cannot be run", DEPLOYMENTS),
    StandardCheck(
        "hook-without-tool", _FAILS, "a hook lacks the program that it calls", DEPLOYMENTS
    ),
    StandardCheck(
        "no-metadata",
        _FAILS,
        "no program finds the server's keys, name and user data",
        f"{GUIDE} (Process user data and other metadata)",
    ),
    StandardCheck(
        "cloud-init-disabled",
        _FAILS,
        "a file, or the kernel's command line, turns cloud-init off",
        "https://docs.cloud-init.io/en/latest/howto/disable_cloud_init.html",
    ),
    StandardCheck(
        "no-datasource",
        _FAILS,
        "cloud-init looks for none of the data sources by which Nova serves user data",
        CLOUD_INIT.format("openstack"),
    ),
    StandardCheck(
        "nocloud-seed",
        _FAILS,
        "cloud-init takes a seed in the image before the cloud's metadata",
        CLOUD_INIT.format("nocloud"),
    ),
    StandardCheck("no-renderer", _FAILS, "nothing brings up the network", NOVA_METADATA),
    StandardCheck(
        "renderer-not-started", _FAILS, "no boot brings up the network", "systemd.unit(5)"
    ),
    StandardCheck(
        "no-ip-program",
        _FAILS,
        "cloud-init configures no network without ``ip``",
        "https://docs.cloud-init.io/en/latest/reference/network-config.html",
    ),
    StandardCheck(
        "no-dhcp-client",
        _FAILS,
        "cloud-init, or ifupdown, cannot ask for an address",
        CLOUD_INIT.format("openstack"),
    ),
    StandardCheck(
        "machine-id",
        _LEFT,
        "all servers of the image would share an id, and so their DHCP leases",
        f"{SYSTEMD}; machine-id(5)",
    ),
    StandardCheck(
        "random-seed",
        _LEFT,
        "all servers of the image would share random numbers, and systemd's secret",
        SYSTEMD,
    ),
    StandardCheck(
        "ssh-host-keys",
        _LEFT,
        "each owner of the image can pretend to be any of its servers",
        SYSPREP.format("ssh-hostkeys"),
    ),
    StandardCheck(
        "cloud-init-state",
        _LEFT,
        "it is the user data of another server, and cloud-init may skip its work as done",
        "https://docs.cloud-init.io/en/latest/reference/cli.html (clean)",
    ),
    StandardCheck(
        "agent-state",
        _LEFT,
        "it is the deployments of another server, with the credentials of its stack",
        DEPLOYMENTS,
    ),
    StandardCheck(
        "credentials",
        _LEFT,
        "private keys and passwords reach each owner of the image; their text is never shown",
        SYSPREP.format("user-account, ssh-userdir"),
    ),
    StandardCheck(
        "logins",
        _LEFT,
        "authorized keys and passwords let their owners log into every server",
        LISA.format("verify_no_pre_exist_users"),
    ),
    StandardCheck(
        "empty-password",
        _LEFT,
        "anybody logs in at the console of every server",
        "shadow(5); pam_unix(8), nullok",
    ),
    StandardCheck(
        "shell-history",
        _LEFT,
        "typed commands may have secrets",
        LISA.format("verify_bash_history_is_empty"),
    ),
    StandardCheck(
        "logs",
        _LEFT,
        "they are of another server or of the build",
        SYSPREP.format("logfiles"),
    ),
    StandardCheck(
        "resolv-conf",
        _LEFT,
        "servers would ask the name server of the build's network",
        "https://docs.openstack.org/diskimage-builder/latest/developer/developing_elements.html "
        "(resolv.conf)",
    ),
    StandardCheck(
        "proxies",
        _LEFT,
        "servers would fetch by a proxy of the build's network, and fail or wait",
        "https://docs.openstack.org/diskimage-builder/latest/user_guide/building_an_image.html "
        "(http_proxy)",
    ),
    StandardCheck(
        "dhcp-leases",
        _LEFT,
        "servers would ask for the address of another one",
        SYSPREP.format("dhcp-client-state"),
    ),
    StandardCheck(
        "caches",
        _LEFT,
        "they take space and become outdated",
        SYSPREP.format("package-manager-cache"),
    ),
    StandardCheck(
        "no-serial-console",
        _DIFFERS,
        "the kernel writes to no serial port, so ``openstack console log show`` has nothing",
        f"{GUIDE} (Ensure image writes boot log to console); "
        f"{LISA.format('verify_serial_console_is_enabled')}",
        guest=True,
    ),
    StandardCheck(
        "root-does-not-grow",
        _DIFFERS,
        "a larger flavor gives a server no more space",
        f"{GUIDE} (Disk partitions and resize root partition on boot)",
        guest=True,
    ),
    StandardCheck(
        "swap-on-root-disk",
        _DIFFERS,
        "it uses up the root disk's operations, and may keep the root from growing; a flavor's "
        "swap disk is another one",
        LISA.format("verify_no_swap_on_osdisk"),
        guest=True,
    ),
    StandardCheck(
        "network-by-mac",
        _DIFFERS,
        "each server has other MAC addresses, so a configured one brings up no interface",
        f"{GUIDE} (No hard-coded MAC address information)",
    ),
    StandardCheck(
        "datasource-list",
        _DIFFERS,
        "a cloud without a metadata service has the config drive only, and another one no drive",
        f"{CLOUD_INIT.format('openstack')}; {CLOUD_INIT.format('configdrive')}",
    ),
    StandardCheck(
        "no-time-sync",
        _DIFFERS,
        "the clock runs away after a migration or a pause, and TLS and signed requests fail",
        "https://github.com/microsoft/lisa (timesync.py)",
        guest=True,
    ),
    StandardCheck(
        "machine-id-not-set",
        None,
        "the server has no id of its own after its first boot",
        "machine-id(5)",
        guest=True,
    ),
    StandardCheck(
        "kernel-error",
        None,
        "the kernel reported an error that is not known as harmless",
        LISA.format("verify_boot_error_fail_warnings"),
        guest=True,
    ),
    StandardCheck(
        "failed-unit",
        None,
        "a unit of the image does not work",
        "systemctl(1), is-system-running",
        guest=True,
    ),
)

#: The rows by id.
BY_ID = {each.id: each for each in STANDARD}


def deviations(
    contents: Contents, partitions: Iterable[Partition], efi_paths: Iterable[str] = ()
) -> list[ImageFault]:
    """Return the findings in an image that concern any OpenStack image, with or without an agent.

    :param partitions: of its disk; one with the number 0 is a file system without a table.
    :param efi_paths: the files of its EFI system partition.
    """
    listed = tuple(partitions)
    found = [
        *random_seed(contents, efi_paths),
        *empty_password(contents),
        *shell_history(contents),
        *resolv_conf(contents),
        *proxies(contents),
        *dhcp_leases(contents),
        *serial_console(contents),
        *root_does_not_grow(contents, partitioned=any(each.number for each in listed)),
        *swap(contents, listed),
        *network_by_mac(contents),
        *datasource_list(contents),
        *no_time_sync(contents),
    ]
    return sorted(found, key=lambda each: each.level is Level.DIFFERS)


def _differs(
    kind: str, sentence: str, mend: str, paths: Iterable[str] = ()
) -> Iterator[ImageFault]:
    yield ImageFault(kind, Level.DIFFERS, sentence, mend, tuple(paths))


SEEDS = (
    "/var/lib/systemd/random-seed",
    "/var/lib/urandom/random-seed",
    "/var/lib/misc/random-seed",
    "/boot/loader/random-seed",
    "/boot/efi/loader/random-seed",
    "/efi/loader/random-seed",
    # With it systemd-creds(1) encrypts the credentials of a machine.
    "/var/lib/systemd/credential.secret",
)


def random_seed(contents: Contents, efi_paths: Iterable[str] = ()) -> Iterator[ImageFault]:
    """Report a seed of the random number generator."""
    inside = [path for path in SEEDS if contents.tree.size(path)]
    boot = [f"(EFI){path}" for path in efi_paths if path.lower() == "/loader/random-seed"]
    yield from left(
        "random-seed",
        [*inside, *boot],
        "is random data of one machine, which all servers of the image would share",
        "remove it; each server makes its own",
    )


def empty_password(contents: Contents) -> Iterator[ImageFault]:
    """Report users that need no password."""
    lines = [line.split(":") for line in contents.tree.text("/etc/shadow").splitlines()]
    if users := tuple(line[0] for line in lines if len(line) > 1 and not line[1]):
        yield ImageFault(
            "empty-password",
            Level.LEFT,
            f"{named(users)} may log in without a password",
            "passwd --lock USER, in the image's chroot",
            ("/etc/shadow",),
        )


HISTORY = re.compile(r"\.(?:\w*sh_history|history|python_history|mysql_history|lesshst)")


def shell_history(contents: Contents) -> Iterator[ImageFault]:
    """Report typed commands."""
    tree = contents.tree
    paths = [f"{home}/{name}" for home in contents.homes() for name in tree.names(home)]
    yield from left(
        "shell-history",
        [path for path in paths if HISTORY.fullmatch(path.rpartition("/")[2]) and tree.size(path)],
        "has commands that somebody typed",
        "remove it; unset HISTFILE in the shell that makes the image",
    )


def resolv_conf(contents: Contents) -> Iterator[ImageFault]:
    """Report a name server of the build's network."""
    path = contents.tree.end_of_links("/etc/resolv.conf")
    # A boot hides the image's /run by an empty file system.
    if path.startswith(("/run/", "/var/run/")):
        return
    if re.search(r"^nameserver\s+(?!127\.|::1\b)\S", contents.tree.text(path), re.M):
        yield from left(
            "resolv-conf",
            [path],
            "has a name server of the network in which the image was made",
            "truncate -s 0 /etc/resolv.conf at the end of the build",
        )


# Blanks but no line feeds: of many empty lines, each would be the start of all others.
_APT_PROXY = re.compile(
    r'^[ \t]*Acquire::\w+::Proxy(?:::\S+)?\s+"(?!DIRECT|false)[^"]+"', re.M | re.I
)
_PROXY = re.compile(
    r"^[ \t]*(?:export[ \t]+|DefaultEnvironment=.*?)?[\"']?(?:(?:https?|ftp|all)_)?proxy"
    r"[ \t]*=[ \t]*[\"']?(?!_none_)[^\s\"']",
    re.M | re.I,
)
#: Files beside those of :func:`~hotplate.inspection.findings.places_of_urls` with a proxy.
PROXY_FILES = (
    "/etc/dnf/dnf.conf",
    "/etc/yum.conf",
    "/etc/zypp/zypp.conf",
    "/etc/wgetrc",
    "/etc/profile",
    "/etc/systemd/system.conf",
)
PROXY_FOLDERS = ("/etc/profile.d", "/etc/systemd/system.conf.d", "/etc/environment.d")


def proxies(contents: Contents) -> Iterator[ImageFault]:
    """Report a proxy; one with a password is reported as a credential only."""
    tree = contents.tree
    folders = [path for folder in PROXY_FOLDERS for path in tree.paths(folder)]
    paths = []
    for path in (*places_of_urls(contents), *PROXY_FILES, *folders):
        text = tree.text(path)
        pattern = _APT_PROXY if path.startswith("/etc/apt/") else _PROXY
        if pattern.search(text) and not URL_PASSWORD.search(text.encode()):
            paths.append(path)
    yield from left(
        "proxies",
        paths,
        "has a proxy of the network in which the image was made",
        "remove it; give the build its proxy by http_proxy",
    )


LEASES = ("/var/lib/dhcp", "/var/lib/dhclient", "/var/lib/dhcpcd", "/var/lib/NetworkManager")


def dhcp_leases(contents: Contents) -> Iterator[ImageFault]:
    """Report leases of addresses."""
    tree = contents.tree
    paths = [path for folder in LEASES for path in tree.paths(folder)]
    yield from left(
        "dhcp-leases",
        [path for path in paths if re.search(r"\.leases?\d?$", path) and tree.size(path)],
        "has the address of another server",
        "remove it",
    )


def serial_console(contents: Contents) -> Iterator[ImageFault]:
    """Report that the kernel writes to no serial port.

    An image without a boot loader has no command line; one with a variable of GRUB is not known.
    On arm64 the firmware names the console (ACPI's SPCR, or the device tree).
    """
    words = kernel_words(contents.tree)
    unknown = any(word.startswith("$") for word in words)
    if not words or unknown or contents.arch == "arm64":
        return
    if not any(SERIAL_CONSOLE.match(word) for word in words):
        yield from _differs(
            "no-serial-console",
            "the kernel's command line has no serial console: openstack console log show has "
            "nothing of a boot",
            "add console=tty0 console=ttyS0,115200 to GRUB_CMDLINE_LINUX, and run update-grub",
        )


# Debian 12 starts systemd-repart.service in every boot; without a file in repart.d it does nothing.
_GROWING_UNIT = re.compile(
    r"(?!systemd-repart\.).*(?:grow|resize|repart|expand|extend-filesystems).*\.service"
)
#: Scripts of the initrd that grow the partition: of Debian, Ubuntu, and dracut.
GROWROOT = (
    "/usr/share/initramfs-tools/scripts/local-bottom/growroot",
    "/usr/lib/dracut/modules.d/50growroot",
)


def root_does_not_grow(contents: Contents, *, partitioned: bool) -> Iterator[ImageFault]:
    """Report that nothing grows the root file system, or its partition, to the flavor's disk."""
    tree = contents.tree
    services = [
        *contents.units.enabled(),
        *[f"{name}.service" for name in _openrc_services(contents)],
    ]
    by_unit = any(_GROWING_UNIT.fullmatch(name) for name in services)
    fstab = re.search(r"^[^#\n]*x-systemd\.growfs", tree.text("/etc/fstab"), re.M)
    repart = any(
        tree.paths(f"{top}/repart.d", ".conf") for top in ("/etc", "/usr/lib", "/usr/local/lib")
    )
    # Where it is turned off, that is a finding of its own.
    init = contents.cloud_init is not None
    if not (init or by_unit or repart or fstab):
        what = "nothing grows the root file system"
    elif partitioned and not (
        by_unit
        or repart
        or contents.program(("growpart", "gpart"))
        or any(map(tree.exists, GROWROOT))
    ):
        what = "nothing grows the partition of the root file system"
    else:
        return
    yield from _differs(
        "root-does-not-grow",
        f"{what} to the disk of a larger flavor",
        "put cloud-init in with the program growpart: the package cloud-guest-utils, of Red Hat's "
        "distributions cloud-utils-growpart",
    )


def _openrc_services(contents: Contents) -> list[str]:
    folders = ("/etc/runlevels/boot", "/etc/runlevels/default")
    return [name for folder in folders for name in contents.tree.names(folder)]


def swap(contents: Contents, partitions: Iterable[Partition]) -> Iterator[ImageFault]:
    """Report swap in a partition of the image or in a file."""
    tree = contents.tree
    lines = [line.split() for line in tree.text("/etc/fstab").splitlines()]
    files = [words[0] for words in lines if len(words) > 2 and words[2] == "swap"]
    files = [path for path in files if path.startswith("/") and not path.startswith("/dev/")]
    files += [path for path in ("/swapfile", "/swap.img") if tree.size(path) and path not in files]
    numbers = [f"partition {each.number}" for each in partitions if each.file_system == "swap"]
    if places := (*files, *numbers):
        yield from _differs(
            "swap-on-root-disk",
            f"there is swap on the root disk: {named(places)}",
            "remove it; a flavor with swap gives its servers a disk for that, which cloud-init "
            "mounts",
            files,
        )


# An atomic group: of many such words in a line, only the first one is tried.
_MAC = re.compile(
    r"^(?>[^#\n]*?(?:\{address\}|mac-?addr(?:ess)?|hwaddr(?:ess)?))[^#\n]*?"
    r"(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}",
    re.M | re.I,
)
NETWORK_FOLDERS = (
    "/etc/udev/rules.d",
    "/etc/systemd/network",
    "/etc/sysconfig/network-scripts",
    "/etc/sysconfig/network",
    "/etc/NetworkManager/system-connections",
    "/etc/netplan",
    "/etc/network/interfaces.d",
)


def network_by_mac(contents: Contents) -> Iterator[ImageFault]:
    """Report names and settings of the network that hold for one MAC address."""
    tree = contents.tree
    paths = [
        "/etc/network/interfaces",
        *(each for top in NETWORK_FOLDERS for each in tree.paths(top)),
    ]
    if bound := [path for path in paths if _MAC.search(tree.text(path))]:
        yield from _differs(
            "network-by-mac",
            f"{named(tuple(bound))} has a MAC address, which no server of the image has",
            "remove it; cloud-init names and configures the interfaces of each server",
            bound,
        )


def datasource_list(contents: Contents) -> Iterator[ImageFault]:
    """Report that cloud-init does not look for both of OpenStack's own data sources."""
    init = contents.cloud_init
    if init is None:
        return
    missing = [name for name in ("OpenStack", "ConfigDrive") if name not in init.sources]
    # Without any of them there is the finding "no-datasource".
    if missing and set(HEAT_SOURCES) & set(init.sources):
        yield from _differs(
            "datasource-list",
            f"cloud-init looks for {', '.join(init.sources)}, and not for "
            f"{' and '.join(missing)}: some clouds serve metadata by that only",
            "datasource_list: [OpenStack, ConfigDrive, None] in a file of /etc/cloud/cloud.cfg.d",
        )


def no_time_sync(contents: Contents) -> Iterator[ImageFault]:
    """Report that no boot starts a program that synchronises the clock."""
    if contents.init == "systemd":
        starts = any(contents.units.starts(f"{name}.service") for name in TIME_UNITS)
    elif contents.init == "OpenRC":
        # Without runlevels the services are started some other way.
        services = _openrc_services(contents)
        starts = not services or bool(set(TIME_UNITS) & set(services))
    else:
        return
    if not starts:
        yield from _differs(
            "no-time-sync",
            "no boot starts a program that synchronises the clock",
            "put the package chrony or systemd-timesyncd in, and enable its unit",
        )
