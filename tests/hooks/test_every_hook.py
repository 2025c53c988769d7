"""Rules for every hook of this collection, whatever its tool."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOKS = sorted((ROOT / "hooks").glob("*.py"))
PLACES = re.compile(r'"(HEAT_\w+_(?:WORKING|OUTPUTS|LOGDIR|DATADIR|DIR|CONFIG))"')
PROGRAMS = re.compile(r'"(HEAT_\w+_CMD)"')
#: A valid config for hooks that need more than text.
CONFIGS = {"chef.py": [], "hiera.py": {}, "json_file.py": {}, "cfn_init.py": {"config": {}}}


@pytest.mark.defect("K9", "K13")
@pytest.mark.parametrize("file", HOOKS, ids=lambda path: path.stem)
def test_null_inputs_outputs_and_options_are_tolerated(
    file, run_hook, make_deployment, tmp_path: Path
):
    text = file.read_text() + (ROOT / "hooks/heat_config/tools.py").read_text()
    env = {name: str(tmp_path / name) for name in PLACES.findall(text)}
    env |= dict.fromkeys(PROGRAMS.findall(text), "/bin/true")
    deployment = make_deployment(CONFIGS.get(file.name, "notice"), group=file.stem)
    answer = run_hook(
        file.name, {**deployment, "inputs": None, "outputs": None, "options": None}, env=env
    )
    assert "failed unexpectedly" not in answer.stderr


@pytest.mark.defect("K11")
@pytest.mark.parametrize(
    ("file", "setting", "words"),
    [
        ("ansible.py", "ANSIBLE", "Ansible is not installed"),
        ("apply_config.py", "APPLY_CONFIG", "os-apply-config is not installed"),
        ("cfn_init.py", "CFN_INIT", "element heat-cfntools"),
        ("chef.py", "CHEF", "Chef is not installed"),
        ("puppet.py", "PUPPET", "element heat-config-puppet"),
        ("salt.py", "SALT", "Salt is not installed"),
    ],
)
def test_missing_tool_is_status_127_with_a_sentence(
    file, setting, words, run_hook, make_deployment
):
    deployment = make_deployment(CONFIGS.get(file, "text"))
    answer = run_hook(file, deployment, env={f"HEAT_{setting}_CMD": "/no/such/program"})
    assert answer.status == 127
    assert words in answer.stderr
    assert 'no program "/no/such/program" was found' in answer.stderr


@pytest.mark.defect("H16")
def test_state_and_outputs_survive_a_reboot(monkeypatch):
    """A reboot may fall between a hook's output and its signal; /var/run is empty then."""
    monkeypatch.syspath_prepend(str(ROOT / "hooks"))
    from heat_config.settings import Settings

    places = [Settings({}).state]
    for file in HOOKS:
        places += re.findall(r'^(?:OUTPUTS|WORKING) = "(.+)"$', file.read_text(), re.MULTILINE)
    assert len(places) > 8
    assert [place for place in places if not place.startswith("/var/lib/")] == []


@pytest.mark.defect("K12")
@pytest.mark.parametrize("group", ["kubelet", "atomic", "docker"])
def test_dropped_group_is_in_the_documentation_only(group):
    assert not list(ROOT.glob(f"elements/*-{group}")) + list(ROOT.glob(f"hooks/{group}.*"))
    dropped = (ROOT / "docs/hooks.rst").read_text().partition("\nDropped\n")[2]
    assert re.search(rf"^``{group}``\n(    .*\n)+", dropped, re.MULTILINE)[0].count("Use ``")
