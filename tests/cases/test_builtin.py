"""``hotplate test IMAGE`` without a template: the built-in case of each group of the image."""

from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import tiny_disk
from played_cases import cases_of
from played_guest import Guest, PlayedMachine

from hotplate import cli
from hotplate.errors import UsageError
from hotplate.stacks import builtin

HOOKS = "usr/libexec/heat-config/hooks"
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("mke2fs", path=PATH) is None:
        pytest.skip("needs mke2fs on this host")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def image(folder: Path, name: str, *groups: str, agent: bool = True) -> Path:
    """Make an image with an agent and hooks, that cannot boot."""
    root = folder / f"{name}-root"
    for each in ("etc", HOOKS, "usr/bin"):
        (root / each).mkdir(parents=True)
    for each in groups:
        (root / HOOKS / each).write_text("#!/bin/sh\n")
    if agent:
        (root / "usr/bin/os-collect-config").write_text("#!/bin/sh\n")
        (root / "usr/bin/os-collect-config").chmod(0o755)
    path = folder / f"{name}.raw"
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-d", root, path, "4M"]
    subprocess.run(command, check=True, env={"PATH": PATH})
    return path


def test_image_is_tested_by_its_own_groups(folder):
    image(folder, "web", "script", "puppet", "of-your-own")
    image(folder, "db", "salt")
    tiny_disk.make(folder / "other.raw")
    web, db, other = cases_of("web.raw", "db.raw", "other.raw")
    assert web.template.groups == ("script", "puppet")
    assert web.subject.template == "the built-in cases of script, puppet"
    assert web.template.note == "no built-in case tries: of-your-own (-t TEMPLATE does)"
    assert db.template.groups == ("salt",)
    assert set(db.template.load().template["resources"]) == {"server", "salt", "salt_config"}
    assert other.template.groups == ()
    assert "a script is all that is tried" in other.template.note
    assert other.subject.template == "the built-in template"


def test_group_option_selects_groups(folder):
    image(folder, "web", "script", "puppet", "salt", "cfn-init")
    (case,) = cases_of("web.raw", "--group", "salt", "--group", "cfn-init,script")
    assert case.template.groups == ("script", "salt", "cfn-init")
    (case,) = cases_of("web.raw", "--group", "cfn-init")
    assert set(case.template.load().template["resources"]) == {
        *("server", "cfn_init", "cfn_init_config", "files", "files_config"),
    }


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (("--group", "chef"), '"web.raw" has no hook for the group "chef"', "of-mine, script"),
        (("--group", "of-mine"), 'no built-in case for the group "of-mine"', "-t TEMPLATE"),
        (("--group", "docker-cmd", "-t", "a.yaml"), "there is a template", ""),
    ],
)
def test_untestable_group_is_refused(folder, words, problem, hint):
    image(folder, "web", "script", "of-mine")
    (folder / "a.yaml").write_text("heat_template_version: 2018-08-31\n")
    with pytest.raises(UsageError) as raised:
        cases_of("web.raw", *words)
    assert problem in raised.value.message
    assert hint in raised.value.hint


def test_case_that_needs_another_group_is_refused(folder):
    image(folder, "web", "docker-cmd")
    with pytest.raises(UsageError, match='"docker-cmd" needs the group "script"'):
        cases_of("web.raw", "--group", "docker-cmd")
    (case,) = cases_of("web.raw")
    assert case.template.groups == ()
    assert "docker-cmd" in case.template.note


def test_image_without_agent_gets_a_plain_boot(folder):
    """docs/testing.rst: a server without an address for its agent has to be served metadata."""
    image(folder, "web", "script", agent=False)
    (case,) = cases_of("web.raw")
    assert case.subject.template == "the built-in test of an OpenStack image"
    assert "cloud-init" in case.template.note
    loaded = case.template.load()
    assert loaded.source == case.subject.template
    (server,) = loaded.template["resources"].values()
    assert (server["type"], server["properties"]["user_data_format"]) == ("OS::Nova::Server", "RAW")
    with pytest.raises(UsageError, match='has no agent, so no hook of the group "script"'):
        cases_of("web.raw", "--group", "script")


def test_image_on_xfs_is_taken_for_one_of_others(folder):
    """Only the kernel reads xfs, and it mounts an image for a run in a container only."""
    path = folder / "rocky.raw"
    with path.open("wb") as file:
        file.truncate(320 << 20)
    subprocess.run(["mkfs.xfs", "-q", path], check=True, env={"PATH": PATH})
    (case,) = cases_of("rocky.raw")
    assert case.template.is_plain
    assert "it cannot be looked into" in case.template.note
    (case,) = cases_of("rocky.raw", "--group", "script")
    assert case.template.groups == ("script",)


def test_image_with_a_unit_but_no_program_has_an_agent(folder):
    """It was meant to have an agent: its deployment fails, and the verdict has the reason."""
    unit = folder / "web-root/usr/lib/systemd/system/os-collect-config.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    image(folder, "web", "script", agent=False)
    (case,) = cases_of("web.raw")
    assert case.template.groups == ("script",)


@pytest.fixture
def played(folder, play, monkeypatch, capsys):
    """Run ``hotplate test`` on an image with a played guest; return status, output and verdict."""

    def run(path: Path, guest: Guest, *words: str) -> tuple[int, str, dict[str, Any]]:
        for suffix in ("vmlinuz", "initrd"):
            path.with_suffix(f".{suffix}").write_bytes(b"played")
        monkeypatch.setattr(PlayedMachine, "role", staticmethod(lambda name: guest))
        machine = ["--accelerator", "tcg", "--wiring", "namespace", "--memory", "128"]
        status = cli.main(["test", path.name, *machine, "--json", "v.json", "-j", "1", *words])
        verdict = json.loads((folder / "v.json").read_text())
        return status, capsys.readouterr().out, verdict

    return run


def test_plain_case_passes_when_the_guest_asks_for_its_metadata(folder, played):
    status, out, verdict = played(image(folder, "web", agent=False), Guest(agent=False))
    assert status == 0, out
    asked = [
        *("user data ran", "cloud-init done", "host name set", "root file system grown"),
        "ssh by Nova's key",
    ]
    boot = ["booted", "network up", "metadata served"]
    assert [each["stage"] for each in verdict["stages"]] == boot + asked
    # The image has nothing to ask for them with; the guest asked for its metadata all the same.
    absent = {each["stage"]: each["absent"] for each in verdict["stages"] if each["absent"]}
    assert [*absent] == asked
    assert absent["ssh by Nova's key"] == "the image has no ssh server"
    assert "no-agent" not in out
    for word in ("Heat", "stack", "flavor"):
        assert word not in out
    deployed = (Path(verdict["artifacts"]) / "template.yaml").read_text()
    assert "user_data_format: RAW" in deployed


def test_faults_seen_before_the_boot_are_reasons_when_it_fails(folder, played):
    path = image(folder, "web", agent=False)
    words = ("--patience", "1", "-t", "web.yaml")
    (folder / "web.yaml").write_text(builtin.PLAIN.read_text())
    status, out, verdict = played(path, Guest(agent=False, metadata=False), *words)
    assert status == 1, out
    assert verdict["reasons"][0].startswith("seen before the boot: ")
    assert any("no-metadata: nothing finds the server's" in each for each in verdict["reasons"])
    # The template has no deployment, so that none of its stages needs an agent.
    assert not any("no-agent" in each for each in verdict["reasons"])
    # The stage decides, not the fault seen in the image.
    assert "metadata served" in verdict["reasons"][-1]


def test_command_passes_with_the_cases_of_each_image(folder, play, monkeypatch, capsys):
    image(folder, "web", "json-file", "hiera", "of-mine")
    image(folder, "db", "hiera")
    for name in ("web", "db"):
        for suffix in ("vmlinuz", "initrd"):
            (folder / f"{name}.{suffix}").write_bytes(b"played")
    monkeypatch.setattr(PlayedMachine, "role", staticmethod(lambda name: Guest()))
    machine = ["--accelerator", "tcg", "--wiring", "namespace", "--memory", "128"]
    files = ["--json", "v.json", "--junit", "j.xml", "-j", "1"]
    status = cli.main(["test", "web.raw", "db.raw", *machine, *files])
    out = capsys.readouterr().out
    assert status == 0, out
    verdicts = json.loads((folder / "v.json").read_text())
    templates = ["the built-in cases of hiera, json-file", "the built-in cases of hiera"]
    assert [each["template"] for each in verdicts] == templates
    assert "no built-in case tries: of-mine" in out
    deployed = json.loads((Path(verdicts[0]["artifacts"]) / "template.yaml").read_text())
    assert {"hiera", "json_file"} < set(deployed["resources"])
    suites = ET.parse(folder / "j.xml").getroot().findall("testsuite")
    names = [each.find("properties/property[@name='template']") for each in suites]
    assert [each.get("value") for each in names if each is not None] == templates
