"""The ansible hook with the real Ansible."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from programs import program

from .conftest import EVERY_TYPE

real = pytest.mark.tool("ansible-playbook")

HEADER = "- hosts: localhost\n  gather_facts: false\n  tasks:\n"


def tasks(*lines: str) -> str:
    """Return a playbook for this host of the given tasks, each a line of YAML."""
    return HEADER + "".join(f"    - {line}\n" for line in lines)


def copy(template: str, name: str = "result", more: str = "") -> str:
    """Return a task that writes the Jinja *template* to an output."""
    content = json.dumps(template)
    return f'{{copy: {{content: {content}, dest: "{{{{heat_outputs_path}}}}.{name}"}}{more}}}'


@pytest.fixture
def ansible(hook_of, tmp_path: Path):
    """Run the ansible hook on a playbook; keywords go to make_deployment."""
    return hook_of(
        "ansible",
        timeout=240,
        HEAT_ANSIBLE_WORKING=tmp_path / "work",
        HEAT_ANSIBLE_OUTPUTS=tmp_path / "out",
    )


@pytest.fixture
def fake(tmp_path: Path):
    """A program instead of ansible-playbook that prints its arguments and environment."""
    text = 'printf "%s\\n" "$@"\nenv | grep ^ANSIBLE | sort'
    return {"HEAT_ANSIBLE_CMD": str(program(tmp_path / "fake-ansible-playbook", text))}


@pytest.mark.defect("K3")
@real
def test_inputs_are_typed_variables_and_any_bytes_are_passed(ansible):
    """And two megabytes; the inputs are of every type that JSON has."""
    names = {f"v_{name}": value for name, value in EVERY_TYPE.items()}
    everything = "{{ {" + ", ".join(f"'{n}': {n}" for n in names) + "} | to_json }}"
    playbook = tasks(
        copy(everything),
        "{shell: 'printf \"\\377\\000y\" > {{heat_outputs_path}}.bytes'}",
        "{debug: {msg: \"{{ 'a' * 2000000 }}\"}}",
    )
    answer = ansible(playbook, inputs=names, outputs=["result", "bytes", "absent"])
    assert answer.status == 0, answer.stdout[-500:] + answer.stderr
    assert json.loads(answer.outputs.pop("result")) == names
    assert answer.outputs == {"bytes": "\ufffd\0y"}
    assert "a" * 2_000_000 in answer.stdout


@pytest.mark.defect("K4")
@real
def test_derived_inputs_are_variables_and_all_are_gone_afterwards(ansible, tmp_path: Path):
    seen = "{shell: 'stat -c %a {{playbook_dir}}/*_variables.json > {{heat_outputs_path}}.mode'}"
    answer = ansible(
        tasks(copy("{{ deploy_action }} {{ heat_config_id }}"), "{debug: {msg: hällo}}", seen),
        inputs={"secret": "planted"},
        id="the-id",
        outputs=["result", "mode"],
        action="RESUME",
    )
    assert answer.status == 0, answer.stdout + answer.stderr
    assert answer.outputs == {"result": "RESUME the-id", "mode": "600\n"}
    assert "hällo" in answer.stdout
    assert "\x1b[" not in answer.stdout
    assert b"planted" not in answer.raw
    assert "planted" not in answer.log
    work = tmp_path / "work"
    assert [path.name for path in work.glob("*.json")] == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in work.glob("*.yaml")} == {0o600}


@real
def test_broken_playbook_is_reported(ansible):
    broken = ansible("- hosts: [")
    assert broken.status not in (0, 127)
    assert broken.stderr


@real
def test_tags_skip_tags_and_inventory_are_passed(ansible, tmp_path: Path):
    playbook = (
        "- hosts: given\n  connection: local\n  gather_facts: false\n  tasks:\n"
        f"    - {copy('a', 'a', ', tags: a')}\n    - {copy('b', 'b', ', tags: [a, b]')}\n"
        f"    - {copy('c', 'c')}\n"
    )
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "hosts").write_text("given\n")
    answer = ansible(
        playbook,
        options={"tags": "a", "skip_tags": ["b", "x"], "inventory": "hosts"},
        outputs=["a", "b", "c"],
    )
    assert answer.status == 0, answer.stdout + answer.stderr
    assert answer.outputs == {"a": "a"}


@pytest.mark.defect("K4")
def test_modules_do_not_log_inputs_to_the_journal(ansible, fake):
    answer = ansible("- x", inputs={"secret": "planted"}, env=fake)
    assert "ANSIBLE_NO_TARGET_SYSLOG=True" in answer.stdout.split("\n")
    assert "planted" not in answer.stdout
    kept = ansible("- x", env={**fake, "ANSIBLE_NO_TARGET_SYSLOG": "False"})
    assert "ANSIBLE_NO_TARGET_SYSLOG=False" in kept.stdout.split("\n")


def test_options_become_arguments(ansible, fake, tmp_path: Path):
    options = {"modulepath": "/m", "tags": "t", "skip_tags": "s", "callback_plugins": "/c"}
    lines = ansible("- x", env=fake, options=options, id="i").stdout.split("\n")
    work = tmp_path / "work"
    assert lines[:11] == [
        "-i",
        "localhost,",
        "--module-path",
        "/m",
        "--skip-tags",
        "s",
        "--tags",
        "t",
        f"{work}/i_playbook.yaml",
        "--extra-vars",
        f"@{work}/i_variables.json",
    ]
    assert "ANSIBLE_CALLBACK_PLUGINS=/c" in lines
    assert ansible("- x", env=fake, options=None).status == 0
    given = ansible("- x", env={**fake, "HEAT_ANSIBLE_INVENTORY": "other,"}).stdout
    assert "other," in given
    assert "ANSIBLE_TRANSPORT" not in given


@pytest.mark.parametrize("config", ["", None, " \n"], ids=repr)
def test_empty_playbook_does_nothing_and_succeeds(ansible, config):
    answer = ansible(config)
    assert answer.status == 0
    assert "empty" in answer.stdout


@real
def test_hook_keeps_to_the_contract(check_hook):
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    checked = check_hook("ansible.py", PATH=path)
    assert checked.problems == {}
    assert checked.not_tried == {"binary-output"}
    assert checked.excepted == {"words-on-stdout"}
