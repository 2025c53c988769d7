"""Contents of a good image, and of images made in other ways."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hotplate.inspection.contents import TOOLS, Agent
from hotplate.inspection.inspection import inspected

HOOKS = Path(__file__).resolve().parents[2] / "hooks"
#: Files with the names of a group's tools, if not the file of its own name.
FILES = {
    "docker-cmd": ("heat_containers/containers.py",),
    "docker-compose": ("heat_containers/compose.py",),
}


@pytest.fixture
def contents(good, make_disk):
    """Return a function that makes an image, and opens its contents."""
    entered = []

    def read():
        context = inspected(make_disk(good))
        entered.append(context)
        inspection = context.__enter__()
        assert inspection.contents is not None, inspection.unread
        return inspection.contents

    yield read
    for context in entered:
        context.__exit__(None, None, None)


def test_contents_of_a_good_image_are_read(contents):
    image = contents()
    assert image.distribution == "Debian GNU/Linux 12 (bookworm)"
    assert image.release["VERSION_CODENAME"] == "bookworm"
    assert image.arch == "amd64"
    assert image.kernels == ["6.1.0-56-cloud-amd64"]
    assert image.boot_loaders == ["GRUB"]
    assert image.agent is not None
    assert (image.agent.install_type, image.agent.version) == ("slim", "")
    assert {hook.group: hook.tool_version for hook in image.hooks} == {
        "puppet": "puppet-agent 8.10.0-5",
        "script": "",
    }
    assert image.cloud_init is not None
    assert image.cloud_init.sources == ("OpenStack", "ConfigDrive", "None")
    assert image.renderers == ["systemd-networkd"]
    assert image.dhcp_client == "/usr/sbin/dhcpcd"
    assert sorted(image.packages.debian) == ["dpkg", "puppet-agent"]


def test_agent_in_a_virtual_environment_is_detected(good, write, contents):
    venv = "opt/heat-agent"
    site = f"{venv}/lib/python3.13/site-packages"
    write(good, f"{venv}/pyvenv.cfg", "home = /usr/bin\n")
    write(good, f"{venv}/bin/os-collect-config", "#!/bin/sh\n", mode=0o755)
    info = f"{site}/os_collect_config-14.1.0.dist-info"
    write(good, f"{info}/RECORD", "../../../bin/os-collect-config,sha256=x,1\n")
    link = good / "usr/local/bin/os-collect-config"
    link.unlink()
    link.symlink_to("/opt/heat-agent/bin/os-collect-config")
    image = contents()
    assert isinstance(image.agent, Agent)
    assert (image.agent.install_type, image.agent.version) == ("venv", "14.1.0")
    assert [(each.name, each.version) for each in image.packages.python] == [
        ("os-collect-config", "14.1.0")
    ]


def test_agent_of_the_distribution_is_detected(good, write, contents):
    (good / "usr/local/bin/os-collect-config").unlink()
    write(good, "usr/bin/os-collect-config", "#!/bin/sh\n", mode=0o755)
    write(good, "var/lib/dpkg/info/os-collect-config.list", "/usr/bin/os-collect-config\n")
    status = good / "var/lib/dpkg/status"
    added = "\nPackage: os-collect-config\nStatus: install ok installed\nVersion: 13.1.0-5\n"
    status.write_text(status.read_text() + added)
    image = contents()
    assert image.agent is not None
    assert (image.agent.install_type, image.agent.version) == ("package", "13.1.0-5")


def test_last_file_of_cloud_init_with_data_sources_counts(good, write, contents):
    write(good, "etc/cloud/cloud.cfg.d/91_more.cfg", "datasource_list: [Ec2, 7, [a]]\n")
    write(good, "etc/cloud/cloud.cfg.d/92_broken.cfg", "a: [b\n")
    write(good, "etc/cloud/cloud.cfg.d/93_other.cfg", "- a\n")
    init = contents().cloud_init
    assert init is not None
    assert init.sources == ("Ec2",)


def test_reader_of_the_metadata_and_its_user_are_found(good, write, contents):
    write(good, "etc/cloud/cloud.cfg", "system_info:\n  default_user: {name: debian}\n")
    write(good, "usr/sbin/sshd", "", mode=0o755)
    image = contents()
    assert (image.metadata_reader, image.default_user) == ("cloud-init", "debian")
    assert image.has_ssh_server
    write(good, "etc/cloud/cloud.cfg.d/95_user.cfg", "system_info: {default_user: {name: site}}\n")
    write(good, "etc/cloud/cloud-init.disabled", "")
    image = contents()
    assert (image.metadata_reader, image.default_user) == ("", "site")
    write(good, "usr/bin/afterburn", "", mode=0o755)
    assert contents().metadata_reader == "Afterburn"
    write(good, "usr/libexec/ignition", "", mode=0o755)
    assert contents().metadata_reader == "Ignition"


def test_large_os_release_is_cut(good, write, contents):
    """shlex takes minutes for a field of 4 MB, as its time is quadratic."""
    name = "a" * 400_000
    write(good, "usr/lib/os-release", f"ID=debian\nNAME={name}\nVERSION_ID=12\n")
    image = contents()
    assert image.release["ID"] == "debian"
    assert 8000 < len(image.distribution) < 8192


@pytest.mark.parametrize("group", TOOLS)
def test_tools_are_those_that_the_hook_looks_for(group: str):
    files = FILES.get(group, (f"{group.replace('-', '_')}.py",))
    text = "".join((HOOKS / name).read_text() for name in files)
    programs, places = TOOLS[group]
    own = [each for each in places if not each.endswith("cli-plugins")]
    assert [each for each in (*programs, *own) if f'"{each}"' not in text] == []


def test_tools_include_every_hook_with_a_tool():
    with_tool = {
        path.stem.replace("_", "-")
        for path in HOOKS.glob("*.py")
        if re.search(r"tools\.find\(|import .*(compose|containers)", path.read_text())
    }
    assert with_tool == set(TOOLS)
