"""Faults of an image, each found for its own reason and none in a good image."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from hotplate.inspection.inspection import inspected
from hotplate.inspection.standard import BY_ID, STANDARD

WANTS = "etc/systemd/system/multi-user.target.wants"
UNIT = "etc/systemd/system/os-collect-config.service"
#: Grows the root file system without cloud-init.
GROWFS = f"{WANTS}/heat-config-growfs.service"


def kinds(path: Path) -> list[str]:
    with inspected(path) as inspection:
        return [each.kind for each in inspection.findings]


def test_good_image_has_no_findings(good, make_disk):
    assert kinds(make_disk(good)) == []


def test_mounts_for_which_no_boot_waits_are_no_findings(good, write, make_disk):
    lines = (
        "LABEL=root / ext4",
        "LABEL=root /again ext4 ro",
        "LABEL=data /data ext4 defaults,nofail 0 2",
        "LABEL=more /more ext4 noauto",
        "# LABEL=old /old ext4",
        "LABEL=swap none swap sw",
        "/dev/vdb /scratch ext4 nofail",
        "10.0.0.7:/export /mnt nfs _netdev",
    )
    write(good, "etc/fstab", "\n".join(lines) + "\n")
    assert kinds(make_disk(good)) == []


def test_good_qcow2_image_has_no_findings(good, make_disk):
    assert kinds(make_disk(good, "web.qcow2")) == []


def test_bootstrap_replaces_cloud_init(good, write, make_disk):
    (good / "usr/bin/cloud-init").unlink()
    (good / "usr/sbin/dhcpcd").unlink()
    write(good, "usr/libexec/heat-config/bootstrap", "#!/bin/sh\n", mode=0o755)
    write(good, "usr/lib/systemd/system/heat-config-bootstrap.service", "[Install]\n")
    (good / WANTS / "heat-config-bootstrap.service").symlink_to("/lib/systemd/system/x")
    write(good, GROWFS)
    assert kinds(make_disk(good)) == []


GRUB = "boot/grub/grub.cfg"
FIRST_BOOTS = {
    # name: (files, whether the presets are written to /etc)
    "by the kernel's word": (
        {GRUB: "menuentry x {\n\tlinux /boot/vmlinuz-1 root=LABEL=root rw\n"},
        1,
    ),
    "not without it": ({GRUB: "\tlinux /boot/vmlinuz-1 root=LABEL=root\n"}, 0),
    "as Debian's GRUB has it": ({GRUB: "\tlinux /boot/vmlinuz-1 root=LABEL=root ro quiet\n"}, 0),
    "by the last word": ({GRUB: "\tlinux /boot/vmlinuz-1 ro quiet rw\n"}, 1),
    "by the first entry": ({GRUB: "\tlinux /vmlinuz ro\n\tlinux /vmlinuz rw single\n"}, 0),
    "by the boot loader specification": (
        {GRUB: "blscfg\n", "boot/loader/entries/a.conf": "linux /vmlinuz\noptions root=x rw\n"},
        1,
    ),
    "by extlinux": ({GRUB: "", "boot/extlinux/extlinux.conf": "  APPEND root=x rw\n"}, 1),
    "in a unified kernel image": ({GRUB: "", "etc/kernel/cmdline": "root=x rw\n"}, 1),
    "where nothing is known": ({GRUB: ""}, 0),
    "in an initialized machine": (
        {GRUB: "\tlinux /v rw systemd.condition-first-boot=yes\n", "etc/machine-id": ""},
        1,
    ),
    "told that it is none": ({GRUB: "\tlinux /v rw systemd.condition_first_boot=0\n"}, 0),
    "that the presets disable": (
        {GRUB: "\tlinux /v rw\n", "usr/lib/systemd/system-preset/9.preset": "# x\ndisable *\n"},
        0,
    ),
}


@pytest.mark.parametrize("case", FIRST_BOOTS)
def test_first_boot_enables_a_unit_where_etc_can_be_written(good, write, make_disk, case):
    """machine-id(5): "uninitialized" is a first boot, at which systemd.preset(5) is applied.

    Debian's guest then reports: Failed to populate /etc with preset unit settings, ignoring:
    Read-only file system.
    """
    files, enabled = FIRST_BOOTS[case]
    for name, content in {"etc/machine-id": "uninitialized\n", **files}.items():
        write(good, name, content)
    for unit in ("os-collect-config.service", "systemd-networkd.service"):
        (good / WANTS / unit).unlink()
    expected = [] if enabled else ["agent-not-started", "renderer-not-started"]
    found = kinds(make_disk(good))
    # The command lines of these cases are about "rw" only.
    assert [kind for kind in found if kind != "no-serial-console"] == expected


def test_preset_too_late_for_the_first_boot_is_reported(good, write, make_disk):
    write(good, "etc/machine-id", "uninitialized\n")
    (good / WANTS / "systemd-networkd.service").unlink()
    with inspected(make_disk(good)) as inspection:
        (finding,) = inspection.findings
    assert '"systemd-networkd.service" is not enabled, and its preset comes too late' in (
        finding.sentence
    )


OTHER_INITS = {
    "OpenRC": ("bin/busybox", "sbin/openrc"),
    "busybox": ("bin/busybox",),
    "sysvinit": ("sbin/init",),
    "runit": ("sbin/runit",),
}


@pytest.mark.parametrize("name", OTHER_INITS)
def test_missing_units_are_ignored_with_another_init(good, write, make_disk, name):
    (good / "usr/sbin/init").unlink()
    (good / "usr/lib/systemd/systemd").unlink()
    for program in OTHER_INITS[name]:
        write(good, program, "", mode=0o755)
    if name == "sysvinit":
        write(good, "etc/inittab", "id:2:initdefault:\n")
    else:
        (good / "usr/sbin/init").symlink_to(f"/{OTHER_INITS[name][0]}")
    for unit in ("os-collect-config.service", "systemd-networkd.service"):
        (good / WANTS / unit).unlink()
    with inspected(make_disk(good)) as inspection:
        assert inspection.contents is not None
        assert inspection.contents.init == name
        assert inspection.findings == ()


def mode(name: str, bits: int):
    return lambda root: (root / name).chmod(bits)


def unlink(*names: str):
    def spoil(root: Path) -> None:
        for name in names:
            (root / name).unlink()

    return spoil


def text(name: str, content: str | bytes, *, mode: int = 0o644):
    def spoil(root: Path) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    return spoil


def without_hooks(root: Path) -> None:
    shutil.rmtree(root / "usr/libexec/heat-config/hooks")


def masked(root: Path) -> None:
    (root / UNIT).unlink()
    (root / UNIT).symlink_to("/dev/null")


def without_agent(root: Path) -> None:
    (root / "usr/local/bin/os-collect-config").unlink()
    (root / WANTS / "os-collect-config.service").unlink()


def without_metadata(root: Path) -> None:
    (root / "usr/bin/cloud-init").unlink()
    text(GROWFS, "")(root)


def ifupdown_without_client(root: Path) -> None:
    text(GROWFS, "")(root)
    text("usr/sbin/ifup", "", mode=0o755)(root)
    text("lib/systemd/system/networking.service", "[Install]\n")(root)
    (root / WANTS / "networking.service").symlink_to("/lib/systemd/system/networking.service")
    (root / "usr/bin/cloud-init").unlink()
    (root / "usr/sbin/dhcpcd").unlink()
    text("usr/libexec/heat-config/bootstrap", "", mode=0o755)(root)
    text("lib/systemd/system/heat-config-bootstrap.service", "[Install]\n")(root)
    (root / WANTS / "heat-config-bootstrap.service").symlink_to("/x")


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb\n"
PROXY = 'Acquire::http::Proxy "http://me:secret@proxy.example:3128";\n'
HASH = "root:*:1::::::\nme:$y$j9T$abc$def:20780:0:99999:7:::\n"
ID = "0123456789abcdef0123456789abcdef\n"

MAC = "52:54:00:12:34:56"
GRUB_TEXT = "linux /boot/vmlinuz-6.1.0-56-cloud-amd64 root=LABEL=root ro {}\n"


def without_anything_that_grows(root: Path) -> None:
    for name in ("usr/bin/cloud-init", "usr/bin/growpart", "usr/sbin/dhcpcd"):
        (root / name).unlink()
    text("usr/libexec/heat-config/bootstrap", "", mode=0o755)(root)
    text("lib/systemd/system/heat-config-bootstrap.service", "[Install]\n")(root)
    (root / WANTS / "heat-config-bootstrap.service").symlink_to("/x")


def with_repart_alone(root: Path) -> None:
    """As Debian 12: a unit that a boot skips (ConditionDirectoryNotEmpty=|/etc/repart.d ...)."""
    (root / "usr/bin/growpart").unlink()
    text("lib/systemd/system/systemd-repart.service", "[Service]\n")(root)
    wants = root / "lib/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    (wants / "systemd-repart.service").symlink_to("../systemd-repart.service")


#: Faults of any image, with or without an agent.
STANDARD_FAULTS = [
    ("random-seed", text("var/lib/systemd/random-seed", b"\1" * 512)),
    ("random-seed", text("boot/efi/loader/random-seed", b"\1" * 32)),
    ("random-seed", text("var/lib/systemd/credential.secret", b"\1" * 32)),
    ("empty-password", text("etc/shadow", "root::1::::::\n")),
    ("shell-history", text("root/.bash_history", "ls\n")),
    ("shell-history", text("home/me/.zsh_history", "ls\n")),
    ("resolv-conf", text("etc/resolv.conf", "# made by the build\nnameserver 192.0.2.53\n")),
    ("proxies", text("etc/apt/apt.conf.d/80", 'Acquire::http::Proxy "http://192.0.2.1:3128";\n')),
    ("proxies", text("etc/environment", 'PATH="/bin"\nhttps_proxy=http://192.0.2.1:3128\n')),
    ("proxies", text("etc/dnf/dnf.conf", "[main]\nproxy=http://192.0.2.1:3128\n")),
    ("proxies", text("etc/profile.d/site.sh", "export http_proxy='http://192.0.2.1:3128'\n")),
    ("dhcp-leases", text("var/lib/dhcp/dhclient.eth0.leases", "lease {\n}\n")),
    ("no-serial-console", text("boot/grub/grub.cfg", GRUB_TEXT.format("quiet console=tty0"))),
    ("root-does-not-grow", unlink("usr/bin/growpart")),
    ("root-does-not-grow", without_anything_that_grows),
    ("root-does-not-grow", with_repart_alone),
    ("swap-on-root-disk", text("etc/fstab", "LABEL=root / ext4 x 0 1\n/swap none swap sw 0 0\n")),
    ("swap-on-root-disk", text("swapfile", bytes(4096))),
    (
        "network-by-mac",
        text(
            "etc/udev/rules.d/70-persistent-net.rules", f'ATTR{{address}}=="{MAC}", NAME="eth0"\n'
        ),
    ),
    ("network-by-mac", text("etc/systemd/network/10.link", f"[Match]\nMACAddress={MAC}\n")),
    ("network-by-mac", text("etc/sysconfig/network-scripts/ifcfg-eth0", f"HWADDR={MAC}\n")),
    ("network-by-mac", text("etc/netplan/50.yaml", f'  match: {{macaddress: "{MAC}"}}\n')),
    (
        "network-by-mac",
        text("etc/NetworkManager/system-connections/a", f"[ethernet]\nmac-address={MAC}\n"),
    ),
    ("datasource-list", text("etc/cloud/cloud.cfg.d/91.cfg", "datasource_list: [OpenStack]\n")),
    ("datasource-list", text("etc/cloud/cloud.cfg.d/91.cfg", "datasource_list: [Ec2, None]\n")),
    ("no-time-sync", unlink(f"{WANTS}/systemd-timesyncd.service")),
    ("no-time-sync", unlink("usr/lib/systemd/system/systemd-timesyncd.service")),
]

SPOILED = [
    ("closed-directory", mode("usr/lib", 0o700)),
    ("closed-directory", mode("etc", 0o750)),
    ("no-init", unlink("usr/sbin/init", "usr/lib/systemd/systemd")),
    ("fstab", text("etc/fstab", "LABEL=other / ext4 defaults 0 1\n")),
    ("fstab", text("etc/fstab", "UUID=0f0f0f0f-0000-0000-0000-000000000000 / ext4 x 0 1\n")),
    ("fstab", text("etc/fstab", "PARTLABEL=rootfs / ext4 defaults 0 1\n")),
    ("fstab", text("etc/fstab", "/dev/disk/by-label/other / ext4 defaults 0 1\n")),
    ("fstab", text("etc/fstab", "LABEL=root / ext4\nLABEL=data /data ext4 defaults 0 2\n")),
    ("fstab", text("etc/fstab", "/dev/disk/by-uuid/0f0f0f0f-1 /srv xfs\n")),
    ("no-agent", without_agent),
    ("agent-incomplete", unlink("usr/local/bin/os-apply-config")),
    ("agent-not-started", unlink(f"{WANTS}/os-collect-config.service")),
    ("agent-not-started", unlink(UNIT)),
    ("agent-not-started", masked),
    ("agent-not-started", unlink("usr/libexec/os-collect-config/start")),
    ("no-runner", unlink("usr/libexec/os-refresh-config/configure.d/55-heat-config")),
    ("no-hook", without_hooks),
    ("hook-not-executable", text("usr/libexec/heat-config/hooks/script", "#!/bin/sh\n")),
    ("hook-without-tool", unlink("usr/bin/puppet")),
    ("no-metadata", without_metadata),
    ("cloud-init-disabled", text("etc/cloud/cloud-init.disabled", "")),
    (
        "cloud-init-disabled",
        text("boot/grub/grub.cfg", "linux /v cloud-init=disabled console=ttyS0\n"),
    ),
    ("no-datasource", text("etc/cloud/cloud.cfg.d/91.cfg", "datasource_list: [NoCloud]\n")),
    ("no-renderer", unlink("usr/lib/systemd/systemd-networkd")),
    ("renderer-not-started", unlink(f"{WANTS}/systemd-networkd.service")),
    ("no-ip-program", unlink("usr/bin/ip")),
    ("no-dhcp-client", unlink("usr/sbin/dhcpcd")),
    ("no-dhcp-client", ifupdown_without_client),
    ("no-kernel", unlink("boot/vmlinuz-6.1.0-56-cloud-amd64")),
    ("machine-id", text("etc/machine-id", ID)),
    ("machine-id", text("var/lib/dbus/machine-id", ID)),
    ("ssh-host-keys", text("etc/ssh/ssh_host_ed25519_key", KEY)),
    ("cloud-init-state", text("var/lib/cloud/instances/i-1/user-data.txt", "#cloud-config\n")),
    ("cloud-init-state", text("var/lib/cloud/data/instance-id", "i-1\n")),
    ("agent-state", text("var/lib/heat-cfntools/cfn-init-data", "{}")),
    ("agent-state", text("var/lib/os-collect-config/heat.json", "{}")),
    ("agent-state", text("var/lib/heat-config/deployed/1.json", "{}")),
    ("agent-state", text("etc/os-collect-config.conf", "[cfn]\nsecret_key = abc\n")),
    ("credentials", text("root/.ssh/id_ed25519", KEY)),
    ("credentials", text("home/me/.aws/credentials", "[default]\n")),
    ("credentials", text("root/.docker/config.json", '{"auths": {"x": {"auth": "eA=="}}}')),
    ("credentials", text("etc/apt/apt.conf.d/80proxy", PROXY)),
    ("credentials", text("etc/apt/auth.conf.d/a.conf", "machine a login b password c\n")),
    ("credentials", text("etc/dib-manifests/dib_environment", 'DIB_DEV_USER_PASSWORD="x"\n')),
    ("logins", text("root/.ssh/authorized_keys", "ssh-ed25519 AAAA me\n")),
    ("logins", text("etc/shadow", HASH)),
    ("logs", text("var/log/cloud-init.log", "of another server\n")),
    ("logs", text("var/log/journal/0123/system.journal", "LPKSHHRH")),
    ("caches", text("var/cache/apt/archives/vim_1_amd64.deb", "!<arch>\n")),
    ("caches", text("var/lib/apt/lists/deb_dists_x_main_binary-amd64_Packages", "Package: a\n")),
    ("caches", text("root/.cache/pip/http/a", "x")),
    ("caches", text("var/cache/zypp/packages/repo/a.rpm", "x")),
    *STANDARD_FAULTS,
]


@pytest.mark.parametrize(
    ("kind", "spoil"), SPOILED, ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(SPOILED)]
)
def test_each_fault_is_named_and_no_other(good, make_disk, kind: str, spoil):
    spoil(good)
    with inspected(make_disk(good)) as inspection:
        (finding,) = inspection.findings
    assert finding.kind == kind
    assert finding.sentence
    assert finding.mend
    assert finding.level is BY_ID[kind].level


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("etc/profile", "\n" * (256 << 10)),
        ("etc/apt/apt.conf", "\n" * (256 << 10)),
        ("etc/netplan/50.yaml", "hwaddr" * 40_000),
        ("boot/loader/entries/a.conf", f"options a{' ' * 250_000}b\n"),
    ],
)
def test_text_that_is_mostly_blank_or_repeats_is_read(good, make_disk, name: str, content: str):
    """Patterns that try again from each place would take hours."""
    text(name, content)(good)
    assert kinds(make_disk(good)) == []


def test_each_row_of_an_image_is_tried():
    by_other_tests = {"no-boot-loader", "no-kernel-beside", "unclean", "nocloud-seed"}
    rows = {each.id for each in STANDARD if each.level is not None}
    assert rows == {kind for kind, _ in SPOILED} | by_other_tests


def test_rows_have_an_id_a_reason_and_a_source_each():
    assert len(BY_ID) == len(STANDARD)
    for row in STANDARD:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", row.id)
        assert row.reason
        assert not row.reason.endswith(".")
        assert row.source.startswith("https://") or re.search(r"\(\d\)", row.source)


#: Settings that look like a fault, and are none: file -> content.
ALIKE = {
    "a name server of this host": {"etc/resolv.conf": "nameserver 127.0.0.53\n"},
    "no proxy": {
        "etc/environment": "no_proxy=localhost\n# http_proxy=http://192.0.2.1\n",
        "etc/apt/apt.conf.d/80": 'Acquire::http::Proxy "DIRECT";\n',
        "etc/yum.conf": "proxy=_none_\n",
    },
    "an empty history": {"root/.bash_history": ""},
    "another serial port": {"boot/grub/grub.cfg": GRUB_TEXT.format("console=hvc0")},
    "a command line in a variable": {"boot/grub/grub.cfg": GRUB_TEXT.format("$kernelopts")},
    "swap of a flavor's disk": {
        "etc/fstab": "LABEL=root / ext4 x 0 1\n/dev/vdb none swap sw 0 0\n"
    },
    # As libmount and systemd take it.
    "a name in quotes": {"etc/fstab": 'LABEL="root" / ext4 defaults 0 1\n'},
    "a name by its link": {"etc/fstab": "/dev/disk/by-label/root / ext4 defaults 0 1\n"},
    "a rule without an address": {
        "etc/udev/rules.d/70-persistent-net.rules": f"# {MAC}\n",
        "etc/systemd/network/10.network": "[Match]\nType=ether\n",
    },
    "locked passwords": {"etc/shadow": "root:!:1::::::\nme:!!:1::::::\n"},
    "chrony": {
        "usr/lib/systemd/system/systemd-timesyncd.service": "",
        "usr/lib/systemd/system/chrony.service": "[Install]\n",
        f"{WANTS}/chrony.service": "",
    },
}


@pytest.mark.parametrize("case", ALIKE)
def test_similar_setting_is_no_finding(good, write, make_disk, case: str):
    for name, content in ALIKE[case].items():
        write(good, name, content)
    assert kinds(make_disk(good)) == []


def test_resolv_conf_in_run_is_hidden_by_a_boot(good, write, make_disk):
    write(good, "run/systemd/resolve/stub-resolv.conf", "nameserver 192.0.2.53\n")
    (good / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    assert kinds(make_disk(good)) == []


def test_proxy_with_a_password_is_a_credential_only(good, write, make_disk):
    write(good, "etc/apt/apt.conf.d/80proxy", PROXY)
    assert kinds(make_disk(good)) == ["credentials"]


GROWING = {
    "growroot": "usr/share/initramfs-tools/scripts/local-bottom/growroot",
    "dracut": "usr/lib/dracut/modules.d/50growroot/module-setup.sh",
    "systemd-repart": "usr/lib/repart.d/50-root.conf",
    "a unit": GROWFS,
}


@pytest.mark.parametrize("case", GROWING)
def test_root_grows_by(good, write, make_disk, case: str):
    (good / "usr/bin/growpart").unlink()
    write(good, GROWING[case], "x")
    assert kinds(make_disk(good)) == []


def test_file_system_without_a_partition_needs_no_growpart(good, tmp_path, make_file_system):
    (good / "usr/bin/growpart").unlink()
    path = make_file_system(good, tmp_path / "part.raw")
    assert kinds(path) == ["no-kernel-beside"]


def test_swap_partition_is_a_finding(good, make_disk):
    """An MBR's second entry, of type 82, with the signature of mkswap(8)."""
    path = make_disk(good)
    data = bytearray(path.read_bytes())
    start = len(data) // 512
    entry = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0x82, bytes(3), start, 2048)
    data[446 + 16 : 446 + 32] = entry
    area = bytearray(1 << 20)
    area[4086:4096] = b"SWAPSPACE2"
    path.write_bytes(data + area)
    assert kinds(path) == ["swap-on-root-disk"]


def test_seed_that_hides_the_metadata_of_the_cloud_is_reported(good, write, make_disk):
    sources = "datasource_list: [NoCloud, OpenStack, ConfigDrive]\n"
    write(good, "etc/cloud/cloud.cfg.d/90_heat.cfg", sources)
    write(good, "var/lib/cloud/seed/nocloud/meta-data")
    assert kinds(make_disk(good)) == ["nocloud-seed"]


def test_seed_is_ignored_without_the_nocloud_source(good, write, make_disk):
    write(good, "var/lib/cloud/seed/nocloud/meta-data")
    assert kinds(make_disk(good)) == []


def test_tool_set_in_the_unit_is_not_checked(good, write, make_disk):
    (good / "usr/bin/puppet").unlink()
    write(good, f"{UNIT}.d/puppet.conf", "[Service]\nEnvironment=HEAT_PUPPET_CMD=/srv/puppet\n")
    assert kinds(make_disk(good)) == []


def test_long_fstab_is_reported_once(good, write, make_disk):
    write(good, "etc/fstab", "LABEL=x / ext4\n" * 1000)
    assert kinds(make_disk(good)) == ["fstab"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("rsa",), '"/etc/ssh/ssh_host_rsa_key" lets whoever has'),
        (
            ("dsa", "rsa"),
            '"/etc/ssh/ssh_host_dsa_key", "/etc/ssh/ssh_host_rsa_key" let whoever has',
        ),
    ],
)
def test_leftover_files_are_told_by_one_sentence(good, write, make_disk, names, sentence):
    for name in names:
        write(good, f"etc/ssh/ssh_host_{name}_key", KEY)
    with inspected(make_disk(good)) as inspection:
        (finding,) = inspection.findings
    assert finding.sentence.startswith(sentence)


def test_mend_of_fstab_is_a_name_that_mount_finds(good, write, tmp_path, make_file_system):
    write(good, "etc/fstab", "PARTLABEL=root / ext4\n")
    made = "1b1f0c7e-6d4d-4b0e-8b38-0a4bd1f1a3c5"
    path = make_file_system(good, tmp_path / "part.raw", "-U", made, "-L", "")
    with inspected(path) as inspection:
        (mend,) = (each.mend for each in inspection.findings if each.kind == "fstab")
    assert mend == f"write UUID={made}"


def test_partition_image_needs_its_kernel_beside_it(good, tmp_path, make_file_system):
    path = make_file_system(good, tmp_path / "part.raw")
    assert kinds(path) == ["no-kernel-beside"]
    path.with_suffix(".vmlinuz").touch()
    path.with_suffix(".initrd").touch()
    assert kinds(path) == []


def test_disk_without_boot_code_is_reported(good, make_disk):
    path = make_disk(good)
    with path.open("r+b") as stream:
        stream.write(bytes(440))
    assert kinds(path) == ["no-boot-loader"]


def test_disk_of_a_running_server_is_reported(good, make_disk):
    """s_feature_incompat, 0x4: the journal has to be recovered."""
    path = make_disk(good)
    at = (1 << 20) + 1024 + 0x60
    data = bytearray(path.read_bytes())
    (flags,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, flags | 4)
    path.write_bytes(data)
    assert kinds(path) == ["unclean"]


def test_many_files_are_reported_by_their_number(good, write, make_disk):
    for number in range(5):
        write(good, f"var/log/{number}.log", "x")
    with inspected(make_disk(good)) as inspection:
        (finding,) = inspection.findings
    assert len(finding.paths) == 5
    assert finding.sentence.startswith(
        '"/var/log/0.log", "/var/log/1.log", "/var/log/2.log" and 2 more '
    )


def test_secrets_are_not_shown(good, write, make_disk):
    write(good, "etc/apt/apt.conf.d/80proxy", PROXY)
    path = make_disk(good)
    for options in ([], ["--json"]):
        command = ["hotplate", "inspect", *options, str(path)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "80proxy" in printed
        assert "secret@" not in printed
